# SPDX-License-Identifier: Apache-2.0
"""Modules: functions of nodes that have variables, by dotted name, and other modules.

A module declares its variables when it is made, and makes them when they are first used: then it
is known where in a model the module stands, and its path is the variable's name. So a variable's
first value depends on a seed and on its name alone, and is the same on all ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np

from .. import Variable, all_reduce, bfloat16, errors, float32, variable
from .initializers import Initializer, constant, zeros

INSTEAD: Final = {
    "train": "nn.training, within which graphs are built for training",
    "eval": "nn.evaluation; outside of nn.training graphs are built for evaluation",
    "named_parameters": "parameters, which are by name",
    "to": "astype",
}
"""What PyTorch's modules have, and what is here."""


def is_floating(dtype: Any) -> bool:
    """Whether these are floats, those of two bytes too."""
    return dtype == bfloat16 or np.issubdtype(dtype, np.floating)


class Parameter:
    """The declaration of a variable that is trained: its shape, its first value, its dtype.

    An attribute of a module that is set to one gives, when it is read, the variable; where types
    are checked, the class says `weight: Any`. The same
    parameter may be an attribute of several modules, which share the variable then; its name comes
    from the first.
    """

    trained = True
    saved = True
    per_rank = False

    def __init__(
        self,
        shape: int | Sequence[int],
        initializer: Initializer = zeros,
        dtype: Any = float32,
    ) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.initializer, self.dtype = initializer, np.dtype(dtype)
        self._place: tuple[Module, str] | None = None
        self._variable: Variable | None = None

    @property
    def made(self) -> bool:
        """Whether the variable exists."""
        return self._variable is not None

    @property
    def name(self) -> str:
        """The path from the outermost module."""
        if self._place is None:
            raise RuntimeError("nn.Parameter: expected an attribute of a module; it is of none")
        module, key = self._place
        return f"{module.path}.{key}" if module.path else key

    @property
    def variable(self) -> Variable:
        """The variable, which is made the first time."""
        if self._variable is None:
            self._variable = variable(self.name, self.draw(0), per_rank=self.per_rank)
        return self._variable

    def draw(self, seed: int) -> Any:
        """A first value."""
        random = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        return np.asarray(self.initializer(random, self.shape)).astype(self.dtype)

    def assign(self, value: Any) -> None:
        """Give the variable a value, of whatever dtype."""
        if self._variable is None:
            empty = np.zeros(self.shape, self.dtype)
            self._variable = variable(self.name, empty, per_rank=self.per_rank)
        self._variable.assign(value)

    def place(self, module: Module, key: str) -> None:
        """Note where this stands; the first place counts."""
        if self._place is None:
            self._place = module, key

    def __getstate__(self) -> dict[str, Any]:
        """A copy has the value of now, and gets its name where it is put."""
        state = {**self.__dict__, "_place": None, "_variable": None}
        if self._variable is not None:
            state["initializer"] = constant(self._variable.numpy())
        return state


class Buffer(Parameter):
    """The declaration of a variable that is not trained: it changes by Training.updates alone.

    With `saved`, state dicts contain it. `per_rank` is passed to ngd.variable.
    """

    trained = False

    def __init__(
        self,
        shape: int | Sequence[int],
        initializer: Initializer = zeros,
        dtype: Any = float32,
        saved: bool = True,
        *,
        per_rank: bool = False,
    ) -> None:
        super().__init__(shape, initializer, dtype)
        self.saved, self.per_rank = saved, per_rank


class Keys(NamedTuple):
    """What a state dict and a model did not share."""

    missing: list[str]
    unexpected: list[str]


class Module:
    """The base of all modules: a subclass has `forward`, from nodes to nodes.

        class Block(nn.Module):
            def __init__(self, width):
                self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
                self.scale = nn.Parameter(width, nn.initializers.ones)

            def forward(self, x):
                return x + self.scale * self.outer(ops.gelu(self.inner(x)))

    Attributes that are modules or parameters are found by name, in the order in which they were
    set. `name` is what the names of a model's variables begin with: two models in one program need
    two. It is no part of the keys of state dicts.
    """

    name = ""

    _parameters: dict[str, Parameter]
    _modules: dict[str, Module]
    _parent: tuple[Module, str] | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make the registers, so that no subclass has to call the base's __init__."""
        made = super().__new__(cls)
        made.__dict__.update(_parameters={}, _modules={}, _parent=None)
        return made

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's value."""
        raise NotImplementedError(f"{type(self).__name__}.forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's value."""
        return self.forward(*args, **kwargs)

    def __setattr__(self, key: str, value: Any) -> None:
        if isinstance(value, Variable):
            raise TypeError(
                f"{type(self).__name__}.{key}: expected a declaration; got {value!r}: share it by "
                'other.parameter("name"), or declare one, nn.Parameter(shape, initializer)'
            )
        place: dict[str, Any] = self.__dict__
        if isinstance(value, Parameter):
            place = self._parameters
            value.place(self, key)
        elif isinstance(value, Module):
            place = self._modules
            value._parent = value._parent or (self, key)
        for other in (self.__dict__, self._parameters, self._modules):
            if other is not place:
                other.pop(key, None)
        place[key] = value

    def __getattr__(self, key: str) -> Any:
        if key in self.__dict__.get("_parameters", {}):
            return self._parameters[key].variable
        if key in self.__dict__.get("_modules", {}):
            return self._modules[key]
        instead = f"; see {INSTEAD[key]}" if key in INSTEAD else ""
        raise AttributeError(f"{type(self).__name__} has no attribute {key!r}{instead}")

    def __delattr__(self, key: str) -> None:
        for register in (self._parameters, self._modules, self.__dict__):
            if key in register:
                del register[key]
                return
        raise AttributeError(f"{type(self).__name__} has no attribute {key!r}")

    def __getstate__(self) -> dict[str, Any]:
        """A copy is a model of its own: it stands in none."""
        return {**self.__dict__, "_parent": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for key, parameter in self._parameters.items():
            parameter.place(self, key)
        for key, module in self._modules.items():
            module._parent = module._parent or (self, key)

    @property
    def path(self) -> str:
        """Where this stands in the outermost module, whose name comes first."""
        if self._parent is None:
            return self.name
        module, key = self._parent
        return f"{module.path}.{key}" if module.path else key

    def parameter(self, key: str) -> Parameter:
        """A declaration by its dotted name: `head.weight = embedding.parameter("weight")`."""
        found = dict(self.declared()).get(key)
        if found is None:
            raise KeyError(f"{type(self).__name__} has no parameter {key!r}")
        return found

    def declared(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """All declarations by dotted name, in PyTorch's order; a shared one has several names."""
        for trained in (True, False):
            for key, parameter in self._parameters.items():
                if parameter.trained is trained:
                    yield prefix + key, parameter
        for key, module in self._modules.items():
            yield from module.declared(f"{prefix}{key}.")

    def modules(self, prefix: str = "") -> dict[str, Module]:
        """All modules by dotted name: itself, "", and those inside of it."""
        found: dict[str, Module] = {prefix: self}
        for key, module in self._modules.items():
            found |= module.modules(f"{prefix}.{key}" if prefix else key)
        return found

    def variables(self) -> dict[str, Variable]:
        """All variables by dotted name, each once: what a checkpoint holds."""
        first: dict[int, tuple[str, Parameter]] = {}
        for key, parameter in self.declared():
            first.setdefault(id(parameter), (key, parameter))
        return {key: parameter.variable for key, parameter in first.values()}

    def parameters(self) -> dict[str, Variable]:
        """The variables that are trained by dotted name, each once: what an optimizer takes."""
        declared = dict(self.declared())
        return {key: v for key, v in self.variables().items() if declared[key].trained}

    def buffers(self) -> dict[str, Variable]:
        """The variables that are not trained by dotted name, each once."""
        declared = dict(self.declared())
        return {key: v for key, v in self.variables().items() if not declared[key].trained}

    @contextmanager
    def averaged_buffers(self, group: Any = None) -> Iterator[None]:
        """Within this block all floating buffers have their mean over the ranks of a group.

        Statistics that each rank has of its own part of the data are so the same on all, for an
        evaluation; afterwards each rank has its own again. Collective: every rank of the group, by
        default the world's, has to enter.
        """
        floating = [v for v in self.buffers().values() if is_floating(v.dtype)]
        own = [v.numpy() for v in floating]
        for v, value in zip(floating, own, strict=True):
            v.assign(all_reduce(value, op="mean", group=group))
        try:
            yield
        finally:
            for v, value in zip(floating, own, strict=True):
                v.assign(value)

    def astype(self, dtype: Any) -> Any:
        """Make all floating variables of this dtype; returns the module.

        RuntimeError where one of them exists already: graphs may hold it.
        """
        for key, parameter in self.declared():
            if parameter.made:
                raise RuntimeError(f"Module.astype: expected a fresh module; {key!r} is in use")
        for _, parameter in self.declared():
            if is_floating(parameter.dtype):
                parameter.dtype = np.dtype(dtype)
        return self

    def initialize(self, seed: int = 0) -> None:
        """Give all variables new first values; without this, they have those of seed 0."""
        for _, parameter in self.declared():
            parameter.assign(parameter.draw(seed))

    def state_dict(self) -> dict[str, Any]:
        """All values by dotted name, as NumPy arrays: PyTorch's names and layouts."""
        return {key: p.variable.numpy() for key, p in self.declared() if p.saved}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Keys:
        """Assign what a state dict holds: arrays of whatever dtype, or what NumPy makes some of.

        (Of PyTorch's tensors those that need no gradient and are not bfloat16; files with those
        are read by ngd.checkpoint.read_safetensors.)

        ValueError where keys are missing or too many (but not with strict=False), ShapeError where
        shapes differ; it names all of them, and nothing has changed. A shared variable is there if
        one of its names is. Returns the keys that are missing, and those that are too many.

        On several ranks, either all of them load the same state, or one rank loads it and
        ngd.broadcast_variables gives its values to the others.
        """
        declared = {key: p for key, p in self.declared() if p.saved}
        given = {id(p) for key, p in declared.items() if key in state}
        missing = [key for key, p in declared.items() if id(p) not in given]
        unexpected = [key for key in state if key not in declared]
        present = {key: p for key, p in declared.items() if key in state}
        shapes = [
            f"{key}: expected shape {p.shape}; got {tuple(np.shape(state[key]))}"
            for key, p in present.items()
            if tuple(np.shape(state[key])) != p.shape
        ]
        where = f"{type(self).__name__}.load_state_dict"
        if strict and (missing or unexpected):
            parts = {"missing": missing, "unexpected": unexpected}
            faults = [f"{len(k)} {what}: {', '.join(k)}" for what, k in parts.items() if k]
            raise ValueError(f"{where}: keys: {'; '.join(faults)}")
        if shapes:
            raise errors.ShapeError(f"{where}: {'; '.join(shapes)}")
        for key, parameter in present.items():
            parameter.assign(state[key])
        return Keys(missing, unexpected)

    def describe(self) -> str:
        """What stands between the parentheses of `repr`."""
        return ""

    def __repr__(self) -> str:
        inside = [f"({key}): {module!r}" for key, module in self._modules.items()]
        if not inside:
            return f"{type(self).__name__}({self.describe()})"
        lines = "\n".join(inside).replace("\n", "\n  ")
        return f"{type(self).__name__}({self.describe()}\n  {lines}\n)"
