# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Targets: their names and flags, what they refuse, which of them this machine can run."""

import dataclasses
import logging
import platform
import types
from collections.abc import Iterator

import gradopt as go
import iree.runtime as iree
import numpy as np
import pytest
from gradopt.dialect.types import DTYPES
from gradopt.errors import CompileError, DeviceError, PassError
from gradopt.lowering import pipeline, target_cpu, target_cuda
from gradopt.lowering.target import (
    Refusal,
    Target,
    check_supported,
    families,
    host_features,
    target,
)
from gradopt.runtime import present
from gradopt.runtime.signature import of_text
from gradopt.tools import check, ptxas

EVERY = [family.make(variant) for family in families().values() for variant in family.variants]
X = np.ones((2, 3), np.float32)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What was found of this machine's devices is found again, and not kept."""
    present._found.cache_clear()
    present.best.cache_clear()
    yield
    present._found.cache_clear()
    present.best.cache_clear()


# --- names ----------------------------------------------------------------------------------------


def test_names_lead_to_their_targets() -> None:
    """Every name is that of one target, whose code is kept apart from that of others."""
    for one in EVERY:
        assert target(one.name) == one
        assert one.family in families()
    keys = [of_text("f", "module {}", t).key for t in EVERY]
    assert len(set(keys)) == len(keys) == len({t.name for t in EVERY})


def test_first_variant_is_the_default() -> None:
    assert target("cuda:sm_80") == target("cuda")
    assert target("rocm:gfx942") == target("rocm")
    assert target("cpu:host") == target("cpu")
    assert target("cpu").is_host and not target("cpu:x86-64-v3").is_host


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("abacus", "expected a target out of cpu, vulkan, cuda, .*, got 'abacus'"),
        ("cuda:h100", "expected 'cuda', or with a colon one of its variants sm_80, .* 'cuda:h100'"),
        ("cuda:sm_90", "one of its variants sm_80, .*, got 'cuda:sm_90'"),
        ("rocm:gfx1030", "one of its variants gfx942, .*, got 'rocm:gfx1030'"),
        ("cpu:pentium", "one of its variants host, x86-64-v2, .*, got 'cpu:pentium'"),
        ("cpu:", "one of its variants host, .*, got 'cpu:'"),
        ("metal:m1", "one of its variants .*, got 'metal:m1'"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    """IREE's compiler crashes on some names: it gets only those of the lists."""
    with pytest.raises(CompileError, match=message):
        target(name)
    with pytest.raises(CompileError, match=message):
        go.compile(lambda x: x, target=name)
    with pytest.raises(CompileError, match=message):
        go.device_put(X, name)


def test_cpus_say_what_their_code_may_use() -> None:
    levels = [set(target(f"cpu:x86-64-v{n}").cpu_features) for n in (2, 3, 4)]
    assert levels[0] < levels[1] < levels[2]
    assert {"avx2", "fma"} <= levels[1] and "avx512f" not in levels[1]
    for name, (architecture, features) in target_cpu.CPUS.items():
        one = target(f"cpu:{name}")
        assert one.architecture == architecture in ("x86_64", "aarch64")
        assert f"--iree-llvmcpu-target-triple={architecture}-unknown-linux-gnu" in one.flags
        assert set(one.cpu_features) == set(features) and len(set(features)) == len(features)
    used = set(target("cpu").cpu_features)
    assert used <= set(host_features()) and not used & {"hypervisor", "tsc", "smep", "pku"}
    of_code = {f for _, features in target_cpu.CPUS.values() for f in features}
    assert used >= of_code & set(host_features()) and not of_code & target_cpu.NOT_OF_CODE


def test_cuda_architectures() -> None:
    assert target_cuda.architecture(target("cuda")) == 80
    assert ptxas.architectures(target("cuda")) == ["sm_80", "sm_89", "sm_90"]
    assert ptxas.architectures(target("cuda:sm_89")) == ["sm_89", "sm_90"]
    assert ptxas.architectures(target("cuda:sm_120")) == ["sm_120"]


# --- what is refused ------------------------------------------------------------------------------


def test_refusals_name_op_type_target_and_reason() -> None:
    refusing = dataclasses.replace(
        target("cpu"),
        name="toy",
        refusals=(
            Refusal("it has no hyperbolas", ("tanh",)),
            Refusal("it rounds", ("exp",), (np.dtype("float16"),)),
        ),
    )
    for dtype, op, message in [
        ("float32", go.tanh, "'gradopt.tanh' op expected a target that can run it, got 'toy', which"
         " cannot because it has no hyperbolas; choose another target"),
        ("float16", go.exp, "'gradopt.exp' op expected a target that can run it in float16, got "
         "'toy', which cannot because it rounds; choose another target or element type"),
    ]:  # fmt: skip
        graph = go.trace(op, go.TensorSpec((3,), dtype))
        with graph.context, pytest.raises(PassError, match=message):
            check_supported(graph.module, refusing)
    graph = go.trace(go.exp, X)
    with graph.context:
        check_supported(graph.module, refusing)


@pytest.mark.parametrize("where", EVERY, ids=lambda t: t.name)
def test_element_types_that_a_target_lacks(where: Target) -> None:
    """Nothing is narrowed in silence."""
    for dtype in set(DTYPES) - set(where.dtypes):
        graph = go.trace(lambda x: x, go.TensorSpec((3,), dtype))
        with pytest.raises(PassError, match=f"'{where.name}' computes in .* got {dtype.name}"):
            pipeline.lower(graph.module, where)


def test_table_of_capabilities(capsys: pytest.CaptureFixture[str]) -> None:
    """gradopt-check --capabilities has a line for each family, and one for each refusal."""
    assert check.main(["--capabilities", "--json"]) == 0
    text = capsys.readouterr().out
    for family in families():
        assert f'"target": "{family}"' in text
    assert text.count('"target": ""') == sum(len(target(f).refusals) for f in families())


# --- this machine ---------------------------------------------------------------------------------


def fake(monkeypatch: pytest.MonkeyPatch, **names: list[str]) -> None:
    """A machine with devices of these names by driver."""

    def driver(name: str) -> types.SimpleNamespace:
        if name not in names:
            raise RuntimeError(f"Error creating driver: x.c:1: UNAVAILABLE; lib{name}.so not "
                               "available; please ensure installed")  # fmt: skip
        listed = [{"device_id": i, "path": str(i), "name": n} for i, n in enumerate(names[name])]
        return types.SimpleNamespace(query_available_devices=lambda: listed)

    known = ["cuda", "hip", "local-sync", "local-task", "metal", "vulkan"]
    monkeypatch.setattr(iree.HalDriver, "query", lambda: known)
    monkeypatch.setattr(iree, "get_driver", driver)


@pytest.mark.parametrize(
    ("machine", "best"),
    [
        ({"cuda": ["NVIDIA L4"], "vulkan": ["NVIDIA L4"]}, "cuda"),
        ({"hip": ["MI300X"], "vulkan": ["MI300X"]}, "rocm"),
        ({"metal": ["Apple M2"]}, "metal"),
        ({"vulkan": ["llvmpipe (LLVM 15.0.6, 256 bits)", "Intel(R) Arc(tm)"]}, "vulkan"),
        ({"vulkan": ["llvmpipe (LLVM 15.0.6, 256 bits)"]}, "cpu"),
        ({"vulkan": []}, "cpu"),
        ({}, "cpu"),
    ],
)
def test_auto(
    machine: dict[str, list[str]],
    best: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The best device that is there, said once; a GPU that is a program is none."""
    fake(monkeypatch, **{"local-task": ["default"], **machine})
    with caplog.at_level(logging.INFO, "gradopt.device"):
        assert present.find_target("auto") == target(best)
        fn = go.compile(lambda x: x + x, target="auto")
        assert go.hybridize(lambda x: x, target="auto").options == {"target": "auto"}
    assert fn.target == target(best)
    assert [r.message.split(" here")[0] for r in caplog.records] == [f"target 'auto' is '{best}'"]


def test_auto_has_the_key_of_what_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(x: go.Tensor) -> go.Tensor:
        return x + x

    fake(monkeypatch, **{"local-task": ["default"]})
    keys = [go.compile(double, target=t).signature(X).key for t in ("auto", "cpu")]
    assert keys[0] == keys[1]


def test_devices(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake(monkeypatch, **{"local-task": ["default"], "cuda": ["NVIDIA L4", "NVIDIA H100"]})
    found = go.devices()
    assert [d.name for d in found["cuda"]] == ["NVIDIA L4", "NVIDIA H100"]
    assert found["vulkan"] == () and not found["cuda"][0].is_software
    assert check.main(["--devices"]) == 0
    shown = capsys.readouterr().out
    assert "target 'auto' is 'cuda'" in shown and "NVIDIA H100" in shown
    assert "libvulkan.so not available; install a Vulkan driver" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda", "'cuda' cannot run on this machine: libcuda.so not available; install NVIDIA's"),
        ("rocm", "'rocm' cannot run on this machine: libhip.so not available; install ROCm"),
        ("vulkan", "'vulkan' cannot run on this machine: its driver finds no device; install a"),
    ],
)
def test_no_device(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, **{"local-task": ["default"], "vulkan": []})
    with pytest.raises(DeviceError, match=message):
        go.device_put(X, name)


def test_code_for_another_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "aarch64" if platform.machine() == "x86_64" else "x86-64-v3"
    machine = target(f"cpu:{other}").architecture
    with pytest.raises(DeviceError, match=f"its code is for {machine}, this machine is a"):
        go.device_put(X, f"cpu:{other}")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(present, "host_features", lambda: ["x86_64", "avx2", "fma"])
    lacks = "may use CPU features that this machine lacks: abm, avx, .*; choose a target for an"
    with pytest.raises(DeviceError, match=lacks):
        go.device_put(X, "cpu:x86-64-v3")


# --- ptxas ----------------------------------------------------------------------------------------


def test_no_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "ptxas", lambda: "")
    with pytest.raises(CompileError, match=r"found none in the package .* nor on PATH; install"):
        ptxas.assemble(b"", "sm_80")


def test_no_ptx() -> None:
    if not ptxas.ptxas():
        pytest.skip("no ptxas here")
    with pytest.raises(CompileError, match="expected PTX in the compiled module, found none"):
        ptxas.assemble(b"IREE" * 100, "sm_80")
