# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions on nets and optimizers as functions of an artifact: which arrays they share, under
which names, what they update, in which mode; run by the reference.
"""

import functools
import json
import pathlib
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt import deploy, nn, optim
from gradopt.dialect import reference, trees
from gradopt.errors import ArtifactError, ModuleError, TraceError
from gradopt.runtime.export_functions import checked, exported_functions
from gradopt.runtime.export_hybrid import export_stateful, is_stateful
from gradopt.runtime.exported import Exported, held_by, roles_of
from gradopt.runtime.weights import named_arrays

from .test_nn import CASES, Case
from .training_programs import PROGRAMS, batch, stepping

hybridize = functools.partial(go.hybridize, target="reference")
X, Y = go.TensorSpec((None, 6)), go.TensorSpec((None, 3))


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def export(**functions: Any) -> dict[str, Exported]:
    """Functions for an artifact, each given with its arguments and, as the third, a mode."""
    given: Any = {name: (*about, None)[:3] for name, about in functions.items()}
    found = {e.name: e for e in export_stateful(given)}
    for e in found.values():
        e.check()
    return found


class Loaded:
    """What runs an artifact, by the reference."""

    def __init__(self, functions: dict[str, Exported]) -> None:
        self.functions = functions
        self.state: dict[str, Any] = dict(held_by(list(functions.values())))

    def call(self, name: str, *data: Any) -> dict[str, np.ndarray]:
        """The results by name."""
        e = self.functions[name]
        e.graph.finish()
        rest = iter(data)
        names = e.graph.input_names
        given = [self.state[n] if n in e.roles else np.asarray(next(rest)) for n in names]
        found = list(reference.run(e.graph.module, e.name, *given))
        pairs = list(enumerate(zip(e.result_names(), found, strict=True)))
        self.state |= {name: x for i, (name, x) in pairs if i in e.updates}
        return {name: x for i, (name, x) in pairs if i not in e.updates}


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Equal names and bits."""
    assert sorted(a) == sorted(b)
    for name, x in a.items():
        assert np.asarray(x).tobytes() == np.asarray(b[name]).tobytes(), name


# --- what is trained ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_are_those_of_hybridized_code(name: str) -> None:
    """Three steps of what was exported, and a prediction, equal the same code in Python bit for
    bit, with all that they leave behind.
    """

    def made() -> tuple[Any, Any, dict[str, Exported]]:
        step, predict = PROGRAMS[name]()
        return step, predict, export(step=(step, batch(0)), infer=(predict, (X,)))

    go.random.seed(5)
    model = Loaded(made()[2])
    go.random.seed(5)
    step, predict, _ = made()
    run = hybridize(step)
    for i in range(3):
        want = run(*batch(i))
        got = model.call("step", *batch(i))[""]
        assert got.tobytes() == want.numpy().tobytes(), i
    x = batch(9, rows=1)[0]
    with go.infer_mode():
        want = hybridize(predict)(x).numpy()
    assert model.call("infer", x)[""].tobytes() == want.tobytes()
    again = export(step=(step, batch(0)), infer=(predict, (X,)))
    same(model.state, Loaded(again).state)


def test_exporting_changes_nothing() -> None:
    go.random.seed(5)
    step, predict = PROGRAMS["dropout_and_batch_norm"]()
    before = Loaded(export(step=(step, batch(0)), infer=(predict, (X,)))).state
    same(before, Loaded(export(step=(step, batch(0)), infer=(predict, (X,)))).state)


def test_a_batch_that_is_open() -> None:
    """One step for all batch sizes; those of arguments have to agree."""
    go.random.seed(5)
    step, predict = PROGRAMS["dropout_and_batch_norm"]()
    model = Loaded(export(step=(step, (X, Y)), infer=(predict, (X,))))
    assert str(model.functions["step"].graph.input_specs[-2]) == "tensor<?x6xf32>"
    run = hybridize(step)
    for rows in (4, 9):
        got = model.call("step", *batch(rows, rows))[""]
        want = run(*batch(rows, rows)).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-6)


# --- names and roles ------------------------------------------------------------------------------


def test_an_array_has_one_name() -> None:
    """However functions reach it: by a global, a closure, `self`, or the optimizer."""

    class Trainer:
        def __init__(self) -> None:
            self.net = nn.Sequential(nn.Dense(6, 3), nn.BatchNorm(3))
            self.optimizer = optim.Adam(self.net, 0.1)
            self.seen = go.array(0)

        def step(self, x: Any, y: Any) -> Any:
            self.seen += 1
            return {"loss": stepping(self.net, self.optimizer)(x, y)}

    trainer = Trainer()
    layer, optimizer = trainer.net.layers[0], trainer.optimizer

    def slope(x: Any) -> Any:
        return optimizer.slots["layers.0.weight"]["m"].sum() + layer(x).sum() * trainer.seen

    found = export(
        step=(trainer.step, (X, Y)),
        infer=(trainer.net, (X,)),
        one=(layer, (X,)),
        slope=(slope, (X,)),
    )
    assert found["one"].graph.input_names == ["layers.0.weight", "layers.0.bias", "x"]
    assert found["slope"].graph.input_names == [
        "layers.0.weight", "layers.0.bias", "optimizer.slots.layers.0.weight.m", "seen", "x"
    ]  # fmt: skip
    roles = roles_of(list(found.values()))
    assert {n: r for n, r in roles.items() if not n.startswith("optimizer.slots")} == {
        "layers.0.weight": "parameter",
        "layers.0.bias": "parameter",
        "layers.1.gamma": "parameter",
        "layers.1.beta": "parameter",
        "layers.1.running_mean": "state",
        "layers.1.running_var": "state",
        "optimizer.count": "state",
        "optimizer.learning_rate": "state",
        "seen": "state",
    }
    slots = ["optimizer.slots.layers.0.weight.m", "optimizer.slots.layers.0.weight.v"]
    assert [n for n in roles if n.startswith("optimizer.slots")][:2] == slots
    assert found["step"].result_names()[0] == "loss"
    assert set(found["step"].updates.values()) == set(roles) - {"optimizer.learning_rate"}


def test_names_of_tied_frozen_and_other_arrays() -> None:
    step, predict = PROGRAMS["tied"]()
    found = export(step=(step, batch(0)), infer=(predict, (X,)))
    assert found["infer"].graph.input_names == ["inner.weight", "head.weight", "head.bias", "x"]
    step, predict = PROGRAMS["frozen"]()
    found = export(step=(step, batch(0)), infer=(predict, (X,)))
    roles = roles_of(list(found.values()))
    assert roles["layers.0.weight"] == "constant" and roles["layers.2.weight"] == "parameter"
    step, predict = PROGRAMS["average"]()
    found = export(step=(step, batch(0)), infer=(predict, (X,)))
    assert found["infer"].graph.input_names == [
        "mean.layers.0.weight", "mean.layers.0.bias", "mean.layers.1.weight", "mean.layers.1.bias",
        "x",
    ]  # fmt: skip
    assert roles_of(list(found.values()))["mean.layers.0.weight"] == "state"
    step, _ = PROGRAMS["loss_scale"]()
    held = export(step=(step, batch(0)))["step"].held
    assert {"loss_scale.value", "loss_scale.good", "loss_scale.skipped"} <= set(held)


def test_names_of_several_nets() -> None:
    """The variables' names stand in front."""
    step, _ = PROGRAMS["adversaries"]()
    held = export(step=(step, batch(0)))["step"].held
    assert {"made.weight", "judge.layers.0.bias", "ours.learning_rate"} <= set(held)
    assert "theirs.slots.layers.2.weight.v" in held


def test_names_that_would_be_one() -> None:
    """An argument keeps its name; gradients that a function reads are held, others are not."""
    x = go.array(f32(1, 2))
    x.attach_grad("add")

    def f(x: Any, y: Any = x) -> Any:
        with go.record():
            loss = (x * y * y).sum()
        loss.backward()
        return loss

    found = export(f=(f, (go.TensorSpec((2,)),)))["f"]
    assert found.graph.input_names == ["y", "y.grad", "x"]
    assert found.updates == {1: "y.grad"} and found.mode == "train"

    w = go.array(f32(1, 2))
    w.attach_grad()

    def g(w: Any) -> Any:
        return w * wide()

    def wide() -> Any:
        return w * 2

    assert export(g=(g, (go.TensorSpec((2,)),)))["g"].graph.input_names == ["w_1", "w"]


def test_constants_and_numbers() -> None:
    """NumPy arrays are constants of the graph, arrays that nobody writes to are held; Python
    numbers are as they are.
    """
    table, scale = np.arange(6, dtype=np.float32), go.array(np.float32(2))

    def f(x: Any, n: int) -> Any:
        return {"y": x * table * scale * n, "n": n}

    found = export(f=(f, (X, 3)))["f"]
    assert found.graph.input_names == ["scale", "x"] and found.roles == {"scale": "constant"}
    got = Loaded({"f": found}).call("f", batch(0)[0])
    np.testing.assert_array_equal(got["y"], batch(0)[0] * table * 6)
    assert got["n"] == 3


def test_inputs_are_all_there() -> None:
    """C151: arguments that nothing depends on, and integers, are inputs in their order."""
    w = go.array(np.float32(2))

    def f(x: Any, unused: Any, k: Any) -> Any:
        return x * w

    spec = go.TensorSpec((4,))
    found = export(f=(f, (spec, spec, go.TensorSpec((), "int32"))))["f"]
    assert found.graph.input_names == ["w", "x", "unused", "k"]
    assert [str(s) for s in found.graph.input_specs[2:]] == ["tensor<4xf32>", "tensor<i32>"]


# --- updates --------------------------------------------------------------------------------------


def test_writes_to_arguments_and_buffers() -> None:
    """C152: a module that doubles its input and returns it, and notes it in a buffer: one result,
    and the buffer's new value under its name.
    """

    class Doubling(nn.Module):
        def __init__(self) -> None:
            self.last = go.array(np.zeros(2, np.float32))
            self.calls = go.array(0)

        def __call__(self, x: Any) -> Any:
            x *= 2
            self.last[...] = x
            self.calls = self.calls + 1
            return x

    found = export(f=(Doubling(), (go.TensorSpec((2,)),)))
    f = found["f"]
    assert f.graph.input_names == ["calls", "x"]
    assert f.result_names() == ["", "last", "calls"] and f.updates == {1: "last", 2: "calls"}
    assert roles_of([f]) == {"calls": "state", "last": "state"} and f.mode == "infer"
    model = Loaded(found)
    for n in (1, 2):
        assert model.call("f", f32(1, n))[""].tolist() == [2, 2 * n]
        assert model.state["calls"] == n and model.state["last"].tolist() == [2, 2 * n]


def test_writes_to_arguments_that_are_not_returned() -> None:
    """They are results under the argument's name."""

    def f(x: Any, y: Any) -> Any:
        x += y
        return {"sum": x.sum()}

    found = export(f=(go.hybridize(f), (go.TensorSpec((2,)), go.TensorSpec((2,)))))
    got = Loaded(found).call("f", f32(1, 2), f32(3, 4))
    assert got["x"].tolist() == [4, 6] and got["sum"] == 10


def test_arrays_that_change_places() -> None:
    """Attributes that are bound to other arrays, also to each other's."""

    class Pair:
        def __init__(self) -> None:
            self.a, self.b = go.array(np.float32(1)), go.array(np.float32(2))

        def __call__(self) -> Any:
            self.a, self.b = self.b, self.a
            return self.a * 1

    model = Loaded(export(swap=(go.hybridize(Pair()), ())))
    assert [float(model.call("swap")[""]) for _ in range(3)] == [2, 1, 2]
    assert {n: float(x) for n, x in model.state.items()} == {"a": 2, "b": 1}


def test_an_array_that_parts_from_another() -> None:
    a = go.array(np.float32(1))
    pair = {"a": a, "b": a}

    def f() -> Any:
        pair["a"] = pair["a"] + 1
        return pair["b"] * 1

    with pytest.raises(ArtifactError, match=r"'f' puts another array in the place of 'pair\.a'"):
        export(f=(f, ()))


# --- modes ----------------------------------------------------------------------------------------


def ops_of(e: Exported) -> set[str]:
    """The ops of a function, by their names in the dialect."""
    words = str(e.graph).replace('"', " ").split()
    return {w.removeprefix("gradopt.") for w in words if w.startswith("gradopt.")}


def test_inference_is_exported_as_such() -> None:
    """C149: train a step, infer a batch of one: running statistics, no dropout; also of code that
    was hybridized in training, and after a step in Python.
    """
    go.random.seed(0)
    net = nn.Sequential(
        nn.Conv(1, 4, 3, padding=1), nn.BatchNorm(4), go.relu, nn.Dropout(0.5), nn.Flatten(),
        nn.Dense(64, 3),
    )  # fmt: skip
    step = stepping(net, optim.Adam(net, 0.05))
    x = np.random.default_rng(0).normal(size=(8, 4, 4, 1)).astype(np.float32)
    y = batch(1)[1]
    images = go.TensorSpec((None, 4, 4, 1))
    found = export(
        step=(go.hybridize(step), (images, Y)),
        infer=(go.hybridize(net), (images,)),
        noisy=(net, (images,), "train"),
    )
    assert {name: e.mode for name, e in found.items()} == {
        "step": "train", "infer": "infer", "noisy": "train"
    }  # fmt: skip
    assert {"batch_norm_train", "random_uniform"} & ops_of(found["step"]) != set()
    left = ops_of(found["infer"])
    assert "batch_norm_infer" in left and not left & {"batch_norm_train", "threefry", "select"}
    assert found["infer"].updates == {} and "batch_norm_train" in ops_of(found["noisy"])
    model = Loaded(found)
    model.call("step", x, y)
    hybridize(step)(x, y)
    got = model.call("infer", x[:1])[""]
    with go.infer_mode():
        np.testing.assert_array_equal(got, hybridize(net)(x[:1]).numpy())


def test_what_trains() -> None:
    """Without a mode: what updates parameters, gradients or an optimizer trains; keeping a state,
    or looking at gradients of data, does not.
    """
    net = nn.Sequential(nn.Dense(6, 3), nn.Dropout(0.5))
    cache, w = go.array(np.zeros((8, 3), np.float32)), go.array(np.ones((6, 3), np.float32))

    def gradients(x: Any) -> None:
        with go.record():
            loss = net(x).sum()
        loss.backward()

    def remember(x: Any) -> Any:
        cache[...] = net(x)
        return cache

    def salience(x: Any) -> Any:
        return go.grad(lambda x: net(x).sum())(x)

    def by_hand(x: Any) -> None:
        w[...] = w - go.grad(lambda w: (go.dropout(x, 0.5, go.random.key(0)) @ w).sum())(w)

    x = go.TensorSpec((8, 6))
    found = export(
        gradients=(gradients, (x,)), remember=(remember, (x,)), salience=(salience, (x,)),
        by_hand=(by_hand, (x,)), chosen=(go.hybridize(net, mode="train"), (x,)),
    )  # fmt: skip
    assert [e.mode for e in found.values()] == ["train", "infer", "infer", "train", "train"]
    assert found["gradients"].updates == {0: "random.count"}  # nobody reads the gradients
    assert "threefry" not in ops_of(found["remember"]) | ops_of(found["salience"])


def test_autocast_is_kept() -> None:
    net = nn.Dense(6, 3)
    with go.autocast("bfloat16"):
        found = export(infer=(net, (X,)))["infer"]
    assert 'precision = "bfloat16"' in str(found.graph) and found.mode == "infer"


# --- beginning on the device ----------------------------------------------------------------------


def make() -> tuple[Any, Any]:
    net = nn.Sequential(nn.Dense(6, 8), nn.BatchNorm(8), nn.Dropout(0.4), nn.Dense(8, 3))
    return net, optim.Adam(net, optim.schedules.exponential(0.05, 0.9, 10), clip_norm=1.0)


def init(seed: Any) -> tuple[Any, Any]:
    go.random.seed(seed)
    return make()


def test_a_net_is_made_from_a_seed() -> None:
    """The initialisers run in a function of the artifact: it gives what the same code gives in
    Python with that seed, and training goes on the same.
    """
    net, optimizer = make()
    step = stepping(net, optimizer)
    seed = go.TensorSpec((), "int64")
    model = Loaded(export(init=(init, (seed,)), step=(step, (X, Y)), infer=(net, (X,))))
    assert model.functions["init"].graph.input_names == ["seed"]
    assert set(model.functions["init"].updates.values()) == set(model.state)
    for number in (7, -3, 2**40):
        assert model.call("init", np.int64(number)) == {}
        other, fresh = init(number)
        again = stepping(other, fresh)
        model.call("step", *batch(0))
        hybridize(again)(*batch(0))
        same(model.state, Loaded(export(step=(again, (X, Y)), infer=(other, (X,)))).state)


def test_what_init_may_return() -> None:
    net, optimizer = make()
    step = (stepping(net, optimizer), (X, Y))

    def partly(seed: Any) -> Any:
        with go.random.key_scope(go.random.key(seed)):
            net.layers[0].weight[...] = nn.init.he_normal()((6, 8))

    def other(seed: Any) -> Any:
        return nn.LayerNorm(4)

    def wider(seed: Any) -> Any:
        return nn.Sequential(nn.Dense(6, 9))

    def text(seed: Any) -> Any:
        return "done"

    seed = (go.TensorSpec((), "int64"),)
    found = export(step=step, init=(partly, seed))
    assert found["init"].updates == {0: "layers.0.weight"}
    for fn, message in (
        (
            other,
            r"'init' returns a LayerNorm whose arrays \(.+\) no other function uses; they",
        ),
        (wider, r"'init' expected to return 'layers\.0\.weight' of type tensor<6x8xf32>, got ten"),
        (text, r"'init' expected to return arrays, numbers, nets or optimizers, got str 'done'"),
    ):
        with pytest.raises(ArtifactError, match=message):
            export(step=step, init=(fn, seed))


def test_initialisers_that_need_numbers() -> None:
    def init(seed: Any) -> Any:
        go.random.seed(seed)
        return nn.Dense(6, 3, weight_init=nn.init.orthogonal())

    with pytest.raises(TraceError, match=r"nn\.init\.orthogonal works on the host, and cannot be"):
        export(infer=(nn.Dense(6, 3), (X,)), init=(init, (go.TensorSpec((), "int64"),)))


# --- errors ---------------------------------------------------------------------------------------


def test_modes_are_checked() -> None:
    with pytest.raises(ArtifactError, match="the mode of 'f' expected 'train' or 'infer', got 'x'"):
        export(f=(nn.Dense(6, 3), (X,), "x"))


def test_values_cannot_be_asked_for() -> None:
    net = nn.Dense(6, 3)
    with pytest.raises(TraceError, match="asks for the value of an array of type"):
        export(f=(lambda x: net(x) if x.sum() > 0 else x, (X,)))


def test_what_is_exported_here() -> None:
    """Modules, hybridized functions, and functions that name arrays or are given nets."""
    net, w = nn.Dense(6, 3), go.array(np.float32(1))
    assert is_stateful(net, ()) and is_stateful(go.hybridize(abs), ())
    assert is_stateful(lambda x: x * w, ()) and is_stateful(lambda f, x: f(x), (net, 1))
    assert not is_stateful(lambda p, x: x * p["w"], ({"w": w}, 1))


# --- back in Python -------------------------------------------------------------------------------


def saved(folder: pathlib.Path, state: dict[str, Any], **notes: Any) -> pathlib.Path:
    """A checkpoint as an artifact's `save` writes it."""
    metadata = {"format": deploy.CHECKPOINT, "gradopt": deploy.VERSION, "artifact": "net"}
    metadata |= {"signature": "", "notes": json.dumps(notes)}
    path = folder / "net.ckpt"
    path.write_bytes(b"".join(deploy._checkpoint_pieces(state, metadata)))
    return path


def test_training_goes_on_in_python(tmp_path: pathlib.Path) -> None:
    """What an artifact trained comes back by names: net, optimizer and random numbers; then Python
    trains on, bit for bit as the artifact would.
    """
    go.random.seed(3)
    net, optimizer = make()
    step = stepping(net, optimizer)
    model = Loaded(export(step=(step, batch(0)), infer=(net, (X,))))
    for i in range(2):
        model.call("step", *batch(i))
    path = saved(tmp_path, model.state, epoch=2)
    go.random.seed(99)
    assert go.restore(path, net, optimizer, go.random) == {"epoch": 2}
    same(model.state, Loaded(export(step=(step, batch(0)), infer=(net, (X,)))).state)
    model.call("step", *batch(2))
    hybridize(step)(*batch(2))
    same(model.state, Loaded(export(step=(step, batch(0)), infer=(net, (X,)))).state)


def test_restoring_by_names(tmp_path: pathlib.Path) -> None:
    """Of several nets, dicts of arrays and single ones; what is not asked for stays."""
    state = {
        "a.weight": f32(1, 2).reshape(2, 1),
        "mean.w": f32(3),
        "seen": f32(4)[0],
        "more": f32(),
    }
    path = saved(tmp_path, state)
    a, mean, seen = nn.Dense(2, 1, bias=False), {"w": go.array(f32(0))}, go.array(np.float32(0))
    assert go.restore(path, a=a, mean=mean, seen=seen) == {}
    assert a.weight.tolist() == [[1], [2]] and mean["w"].tolist() == [3] and seen == 4


def test_restoring_what_does_not_fit(tmp_path: pathlib.Path) -> None:
    """Errors name all that is wrong, and nothing has changed; frozen parameters may be missing."""
    path = saved(tmp_path, {"weight": f32(1, 2).reshape(2, 1)})
    net = nn.Dense(2, 1)
    before = net.weight.numpy().copy()
    with pytest.raises(ModuleError, match=r"arrays for '.*net\.ckpt' do not fit: missing bias"):
        go.restore(path, net)
    with pytest.raises(
        ModuleError, match=r"'weight' expected float32 of shape \(3, 1\), got float"
    ):
        go.restore(path, nn.Dense(3, 1, bias=False))
    with pytest.raises(ModuleError, match="restore expected nets, optimizers, loss sc"):
        go.restore(path, [net])
    with pytest.raises(ModuleError, match=r"restore expected .x. to be a net, .* got list"):
        go.restore(path, x=[net])
    with pytest.raises(ModuleError, match="one array for each name, got two for 'weight'"):
        go.restore(path, net, nn.Dense(2, 1))
    np.testing.assert_array_equal(net.weight, before)
    net.freeze("bias")
    go.restore(path, net)
    assert net.weight.tolist() == [[1], [2]]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ArtifactError, match="is damaged: expected SHA-256"):
        go.restore(path, net)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_layers_of_open_batches(case: Case) -> None:
    """Every layer, for inference of any number of rows."""
    net = case.make()

    def f(*inputs: Any) -> Any:
        return case.call(net, *inputs)

    specs = tuple(go.TensorSpec((None, *x.shape[1:]), x.dtype) for x in case.inputs)
    model = Loaded(export(f=(f, specs)))
    with go.infer_mode():
        want = trees.leaves(f(*map(go.array, case.inputs)))
    got = list(model.call("f", *case.inputs).values())
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


# --- what go.export takes -------------------------------------------------------------------------


def exported(functions: Any, **held: Any) -> dict[str, Exported]:
    """The functions of an artifact as go.export finds them, which holds what is given by name as
    parameters.
    """
    arrays, roles = named_arrays(held, None)
    return {e.name: e for e in exported_functions(checked(functions, {}), held, arrays, roles)}


def test_functions_of_their_arguments() -> None:
    """Those that take what the artifact holds are traced as pure functions; without a mode those
    that update parameters train.
    """
    p = {"w": np.ones((6, 3), np.float32)}

    def step(p: Any, x: Any, y: Any) -> Any:
        kept = go.dropout(x, 0.5, go.random.key(0))
        loss, slope = go.value_and_grad(lambda p: ((kept @ p["w"] - y) ** 2).mean())(p)
        return {"loss": loss, "p": {"w": p["w"] - 0.1 * slope["w"]}}

    def infer(p: Any, x: Any) -> Any:
        return go.dropout(x, 0.5, go.random.key(0)) @ p["w"]

    def init(seed: Any) -> Any:
        return {"p": {"w": go.random.normal(go.random.key(seed), (6, 3))}}

    seed = go.TensorSpec((), "int64")
    table = go.array(np.float32(2))  # so that some function works on arrays of its own
    found = exported(
        {
            "step": (step, (p, *batch(0))),
            "infer": (infer, (p, X)),
            "noisy": (infer, (p, X), {"mode": "train"}),
            "init": (init, (seed,)),
            "twice": (lambda x: x * table, (X,)),
        },
        p=p,
    )
    modes = {name: e.mode for name, e in found.items()}
    assert modes == {
        "step": "train", "infer": "infer", "noisy": "train", "init": "infer", "twice": "infer"
    }  # fmt: skip
    assert found["step"].updates == {1: "p.w"} and found["init"].updates == {0: "p.w"}
    assert not ops_of(found["infer"]) & {"threefry", "dropout", "random_uniform"}
    assert ops_of(found["noisy"]) > ops_of(found["infer"])
    assert found["twice"].roles == {"table": "constant"}
    model = Loaded(found)
    model.call("init", np.int64(3))
    got = model.call("twice", f32(*range(6)).reshape(1, 6))[""]
    np.testing.assert_array_equal(got, 2 * f32(*range(6)).reshape(1, 6))
    assert model.state["p.w"].std() > 0.5


@pytest.mark.parametrize(
    ("functions", "modes", "message"),
    [
        ([1], {}, r"a dict of names and \(function, arguments\), got list"),
        ({"f": 1}, {}, r"a pair \(Python function, arguments\) as 'f', got 1"),
        ({"f": (abs, "x")}, {}, r"a pair \(Python function, arguments\) as 'f', got "),
        (
            {"f": (abs, (X,), "train")},
            {},
            r"expected \{'mode': \.\.\.\} as the third of 'f'",
        ),
        ({"f": (abs, (X,), {"mode": "x"})}, {}, r"the mode of 'f' expected 'train' or 'infer', go"),
        ({"f": (abs, (X,))}, {"f": "x"}, r"the mode of 'f' expected 'train' or 'infer', got 'x'"),
        ({"f": (abs, (X,))}, {"g": "train"}, r"modes expected names out of f, got 'g'"),
    ],
)
def test_what_is_no_function(functions: Any, modes: Any, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        checked(functions, modes)


def test_all_for_inference() -> None:
    """In go.infer_mode nothing trains but what is asked to."""
    net = nn.Sequential(nn.Dense(6, 3), nn.BatchNorm(3))
    step = stepping(net, optim.SGD(net, 0.1))
    with go.infer_mode():
        found = exported({"f": (step, batch(0)), "g": (step, batch(0), {"mode": "train"})})
    assert found["f"].mode == "infer" and "layers.1.running_mean" not in found["f"].updates.values()
    assert found["g"].mode == "train" and "layers.1.running_mean" in found["g"].updates.values()
