# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Module: what a net is made of."""

import fnmatch
from collections.abc import Callable, Iterator
from typing import Any

from ..dialect.types import as_dtype, is_float, is_narrow
from ..errors import ModuleError, TraceError
from ..runtime import generator
from ..runtime.array import Array, asarray, device_put, write
from . import files
from .variables import FROZEN, ask, is_trained, request_of, zero
from .walk import by_path, check_arrays, entries, is_array, rebuilt, walk


def parameter(x: Any, grad_req: str = "write") -> Array:
    """An array to be trained, with the elements of `x`: it has a gradient, and is among the
    `parameters()` of the module that it is an attribute of. ModuleError for what is no array of
    floats, and in a trace.
    """
    if is_array(x) and not isinstance(x, Array):
        raise ModuleError(
            f"a parameter expected numbers, got {x!r}; make modules outside traced functions"
        )
    found = asarray(x).detach()
    if not is_float(found.dtype):
        raise ModuleError(f"a parameter expected an array of floats, got {found.spec}")
    found.attach_grad(grad_req)
    return found


class Module:
    """A part of a net: arrays and other modules in its attributes, and what it does in `__call__`.

    Attributes may be lists, tuples and dicts of them, too. An array made by `nn.parameter` is
    trained; the others are states, such as running statistics, changed by `set_state`. NumPy arrays
    and numbers are constants: they are not among `arrays()`, nor in files. An array or module that
    stands in several places is one, under the path of the first. A subclass needs no call of
    `super().__init__()`.
    """

    # --- attributes -------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if callable(getattr(type(self), name, None)) and _holds(value):
            raise ModuleError(
                f"the attribute '{name}' of {type(self).__name__} would hide its method of that "
                "name; choose another name"
            )
        old = vars(self).get(name)
        if request_of(old) is not None and is_array(value) and request_of(value) is None:
            raise ModuleError(
                f"'{name}' of {type(self).__name__} is a parameter, and would be replaced by an "
                f"array that is not trained; write to it, module.{name}[...] = x, or make another "
                "by nn.parameter(x)"
            )
        object.__setattr__(self, name, value)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """What the module does; each class says."""
        raise ModuleError(f"{type(self).__name__} has no __call__; define what it does there")

    # --- arrays -----------------------------------------------------------------------------------

    def _walk(self) -> Iterator[tuple[str, Any, int]]:
        return walk(self, _inside)

    def arrays(self) -> dict[str, Any]:
        """All arrays by path, such as "layers.0.weight": parameters and states."""
        return by_path((path, x) for path, x, _ in self._walk() if is_array(x))

    def parameters(self) -> dict[str, Array]:
        """The arrays that are trained, by path; without those that are frozen."""
        return {path: x for path, x in self.arrays().items() if is_trained(x)}

    def modules(self) -> dict[str, "Module"]:
        """All modules by path, this one as "" first."""
        found = {path: x for path, x, _ in self._walk() if isinstance(x, Module)}
        return {"": self} | found

    def count(self) -> int:
        """The number of elements of all parameters."""
        return sum(x.size for x in self.parameters().values())

    def _matching(self, pattern: str, arrays: dict[str, Any]) -> dict[str, Any]:
        found = {p: x for p, x in arrays.items() if fnmatch.fnmatchcase(p, pattern)}
        if not found:
            raise ModuleError(
                f"'{pattern}' matches no array of {type(self).__name__}; it has "
                f"{', '.join(arrays) or 'none'}"
            )
        return found

    # --- gradients --------------------------------------------------------------------------------

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to zero."""
        for x in self.parameters().values():
            zero(x)

    def freeze(self, pattern: str = "*") -> None:
        """Train no parameter any more whose path matches, as in a shell ("encoder.*"). ModuleError
        where none does.
        """
        self.set_grad_req(FROZEN, pattern)

    def unfreeze(self, pattern: str = "*", grad_req: str = "write") -> None:
        """Train those again that were frozen. ModuleError where none that was matches."""
        frozen = {p: x for p, x in self.arrays().items() if request_of(x) == FROZEN}
        for x in self._matching(pattern, frozen).values():
            ask(x, grad_req)

    def set_grad_req(self, grad_req: str, pattern: str = "*") -> None:
        """Give the gradients of the parameters that match a request: "write", "add" or "null"."""
        for x in self._matching(pattern, self.parameters()).values():
            ask(x, grad_req)

    # --- other arrays -----------------------------------------------------------------------------

    def replaced(self, arrays: dict[str, Any]) -> Any:
        """A copy with other arrays, or tensors, at these paths; all else is shared. Its states
        change in the copy alone. ModuleError for a path that is not there, or an array of another
        shape.
        """
        own = self.arrays()
        check_arrays(type(self).__name__, arrays, own, dtypes=False, missing=False)
        new = {id(own[path]): x for path, x in arrays.items()}
        return self._copy(lambda x: new.get(id(x), x))

    def apply(self, arrays: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
        """The module called with other arrays at these paths: a function of `arrays`, which can be
        differentiated and compiled. Changed states are in the copy that `replaced` gives.
        """
        return self.replaced(arrays)(*arguments, **keywords)

    def _copy(self, change: Any) -> Any:
        copies: dict[int, Any] = {}

        def of(x: Any) -> Any:
            if not isinstance(x, Module):
                return change(x)
            if id(x) not in copies:
                copies[id(x)] = copy = object.__new__(type(x))
                copy.__dict__.update((name, rebuilt(v, of)) for name, v in vars(x).items())
            return copies[id(x)]

        return of(self)

    def _change(self, change: Any, pattern: str) -> None:
        """Put `change` of each array that matches in its place."""
        new: dict[int, Any] = {}
        for x in self._matching(pattern, self.arrays()).values():
            if (found := change(x)) is not x:
                if (request := request_of(x)) is not None:
                    found = parameter(found, request)
                new[id(x)] = found
        for module in self.modules().values():
            for name, value in list(vars(module).items()):
                module.__dict__[name] = rebuilt(value, lambda x: new.get(id(x), x))

    def astype(self, dtype: Any, pattern: str = "*") -> Any:
        """Convert the arrays of floats whose paths match, and return the module; to 16 bits only
        parameters, as states such as running statistics would lose their small changes. They are
        other arrays then: make the optimizer after that.
        """
        wanted = as_dtype(dtype)
        if not is_float(wanted):
            raise ModuleError(f"astype expected a floating-point type, got {wanted.name}")

        def converted(x: Array) -> Array:
            stays = is_narrow(wanted) and request_of(x) is None
            if stays or not is_float(x.dtype) or x.dtype == wanted:
                return x
            return x.detach().astype(wanted)

        self._change(converted, pattern)
        return self

    def to(self, target: str) -> Any:
        """Move all arrays to a target's device, and return the module. They are other arrays then:
        make the optimizer after that.
        """
        self._change(lambda x: device_put(x.detach(), target), "*")
        return self

    def set_state(self, name: str, value: Any) -> None:
        """Give the array that is the attribute `name` other elements, outside what is recorded: how
        a module's call changes its states. Nothing happens where the call runs a second time for
        its backward (`go.checkpoint`). TraceError in a trace, where an array is a constant.
        """
        if generator.is_running_again():
            return
        old = getattr(self, name)
        if isinstance(old, Array):
            if not isinstance(value, Array):
                raise TraceError(
                    f"the state '{name}' of {type(self).__name__} would change in a function that "
                    "is traced, which cannot write to an array; call "
                    "net.replaced(arrays) with its arrays as arguments of the function and return "
                    "the states of the copy, use go.hybridize, or go.infer_mode()"
                )
            write(old, value.detach(), f"the state '{name}'")
        else:
            object.__setattr__(self, name, value)

    # --- files ------------------------------------------------------------------------------------

    def update(self, arrays: dict[str, Any], strict: bool = True) -> None:
        """Give the arrays at these paths other elements. ModuleError, before any is changed, for
        paths that are not there, arrays of another type, and, if `strict`, paths that are missing.
        """
        own = self.arrays()
        check_arrays(type(self).__name__, arrays, own, dtypes=True, missing=strict)
        for path, x in arrays.items():
            write(own[path], asarray(x).detach(), f"an update of '{path}'")

    def save(self, path: Any) -> None:
        """Write all arrays to a safetensors file, whole or not at all."""
        files.save(path, self.arrays())

    def load(self, path: Any, strict: bool = True) -> None:
        """Read all arrays from a safetensors file; ModuleError as by `update`, ArtifactError for
        what is no such file.
        """
        self.update(files.load(path), strict)

    # --- copies -----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        own = [(path, x) for path, x, _ in walk(self, _own(self)) if is_array(x)]
        requests = {path: request for path, x in own if (request := request_of(x)) is not None}
        return {"attributes": dict(vars(self)), "requests": requests}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["attributes"])
        for path, x, _ in walk(self, _own(self)):
            if is_array(x) and (request := state["requests"].get(path)) != request_of(x):
                ask(x, request)

    # --- printing ---------------------------------------------------------------------------------

    def summary(self) -> str:
        """What the constructor was given, as `repr` shows it."""
        return ""

    def __repr__(self) -> str:
        lines = [_title(self)]
        for path, x, depth in self._walk():
            name = path.rpartition(".")[2]
            if isinstance(x, Module):
                lines.append(f"{'  ' * (depth + 1)}{name}: {_title(x)}")
            elif is_array(x):
                kind = "" if is_trained(x) else ", not trained"
                lines.append(f"{'  ' * (depth + 1)}{name}: {x.dtype.name} {x.shape}{kind}")
            elif entries(x) and _holds(x):
                lines.append(f"{'  ' * (depth + 1)}{name}:")
        return "\n".join(lines)


def _title(module: Module) -> str:
    n = module.count()
    count = f": {n:,} parameter{'' if n == 1 else 's'}" if n else ""
    return f"{type(module).__name__}({module.summary()}){count}"


def _inside(x: Any) -> list[tuple[str, Any]]:
    """The attributes of a module, the entries of a container."""
    if isinstance(x, Module):
        return list(vars(x).items())
    return entries(x)


def _own(module: Any) -> Callable[[Any], list[tuple[str, Any]]]:
    """The same, for a module without its modules."""
    return lambda x: [] if isinstance(x, Module) and x is not module else _inside(x)


def _holds(value: Any) -> bool:
    """Whether there is an array or a module in it."""
    if isinstance(value, Module) or is_array(value):
        return True
    return any(isinstance(x, Module) or is_array(x) for _, x, _ in walk(value, _own(None)))
