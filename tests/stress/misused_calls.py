# SPDX-License-Identifier: Apache-2.0
"""The calls of misuse.py: every public callable of ngd, with bad arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

import ngd
from ngd import checkpoint, data, metrics, nn, optim, train, trees
from ngd.graph.node import Op
from ngd.graph.registry import PUBLIC
from ngd.nn import initializers

MODULES: Final = {
    "ngd": ngd,
    "nn": nn,
    "initializers": initializers,
    "optim": optim,
    "data": data,
    "train": train,
    "checkpoint": checkpoint,
    "metrics": metrics,
    "trees": trees,
}

NOT_CALLED: Final = {
    # They end the group that all cases use, or the program.
    *("ngd.shutdown", "ngd.init"),
    # They listen on a port, or handle signals, until the process ends.
    *("metrics.begin", "train.StopSignals"),
}
"""Public callables that no case calls."""

NOT_MADE: Final = {
    *("CallStats", "CommStats", "Executable", "Function", "Graph", "Group", "Mesh", "Node"),
    *("Peaks", "Recording", "Report", "Row", "Variable", "Work", "Structure", "Training", "Keys"),
    *("Batch", "Part", "Tally", "tally", "count", "State", "is_vector"),
}
"""Classes that only ngd makes, and functions for ngd's own use."""

GROUP: Final = (
    *("all_gather", "all_gather_v", "all_reduce", "all_to_all", "all_to_all_v", "barrier"),
    *("broadcast", "gather", "reduce", "reduce_scatter", "scatter", "split"),
)
"""The methods of a group that one rank can call alone. `send` and `recv` would wait for a rank."""

WAITS: Final = {"ngd.send", "ngd.recv", "ops.send", "ops.recv", "ngd.newcomers", "ngd.join"}
"""Callables that wait for another rank."""


class Target(NamedTuple):
    """A public callable, with the name that users write."""

    name: str
    call: Callable[..., Any]


def targets() -> list[Target]:
    """Return every public callable that a case may call, in a fixed order."""
    all_targets = [Target(f"ops.{name}", call) for name, call in sorted(PUBLIC.items())]
    for module, home in MODULES.items():
        names = getattr(home, "__all__", None) or [n for n in dir(home) if n[0] != "_"]
        for name in sorted(names):
            value = getattr(home, name)
            own = getattr(value, "__module__", "").startswith("ngd")
            if callable(value) and own and name not in NOT_MADE:
                all_targets.append(Target(f"{module}.{name}", value))
    all_targets += [Target(f"Group.{name}", getattr(ngd.init(), name)) for name in GROUP]
    return [t for t in all_targets if t.name not in NOT_CALLED | WAITS]


def one_weight() -> Any:
    """Return a variable."""
    return ngd.variable("misused", np.ones((2, 3), np.float32))


def two_variables() -> list[Any]:
    """Return two variables of one name."""
    return [ngd.variable("misused", np.full(2, i, np.float32)) for i in range(2)]


def two_arrays(call: Callable[[list[Any]], Any]) -> None:
    """Call with two variables of one name. If the call succeeds, they must keep their values."""
    both = two_variables()
    call(both)
    assert [v.numpy().tolist() for v in both] == [[0.0, 0.0], [1.0, 1.0]]


def two_placeholders() -> None:
    """Compile the difference of two placeholders of one name."""
    x, y = ngd.placeholder("misused", (2,)), ngd.placeholder("misused", (2,))
    (result,) = ngd.compile([x, y], [x - y])(np.ones(2, np.float32), np.zeros(2, np.float32))
    assert result.tolist() == [1.0, 1.0]


TWINS: Final[dict[str, Callable[[], Any]]] = {
    "ngd.graph.variable": lambda: two_arrays(len),
    "ngd.placeholder": two_placeholders,
    "ngd.compile": lambda: two_arrays(lambda both: ngd.compile([], both)()),
    "ngd.broadcast_variables": lambda: two_arrays(ngd.broadcast_variables),
    "checkpoint.save": lambda: two_arrays(lambda both: checkpoint.save("folder", both)),
}
"""Calls with two objects of one name."""

WRONG: Final[dict[str, Callable[[], Any]]] = {
    "None": lambda: None,
    "text": lambda: "nonsense",
    "bytes": lambda: b"nonsense",
    "object": object,
    "a class": lambda: dict,
    "a function": lambda: lambda *x: x,
    "-1": lambda: -1,
    "0": lambda: 0,
    "True": lambda: True,
    "0.5": lambda: 0.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "10**12": lambda: 10**12,
    "10**30": lambda: 10**30,
    "[]": list,
    "{}": dict,
    "a set": lambda: {1, 2},
    "[-1, -2]": lambda: [-1, -2],
    "[10**9, 10**9]": lambda: [10**9, 10**9],
    "unlike lists": lambda: [[1], [1, 2]],
    "an empty array": lambda: np.empty((0,), np.float32),
    "an array [0, 3]": lambda: np.empty((0, 3), np.float32),
    "five axes": lambda: np.ones((1, 2, 1, 2, 1), np.float32),
    "NaNs": lambda: np.full((2, 3), np.nan, np.float32),
    "integers": lambda: np.arange(6).reshape(2, 3) - 3,
    "bools": lambda: np.ones((2, 3), bool),
    "complex": lambda: np.ones((2, 3), np.complex64),
    "texts": lambda: np.array(["a", "b"]),
    "objects": lambda: np.array([object()]),
    "float16": lambda: np.ones((2, 3), np.float16),
    "a placeholder": lambda: ngd.placeholder("p", (2, 3)),
    "a variable": one_weight,
}
"""Bad values, by their names in a report."""

VALID: Final[dict[str, Callable[[], Any]]] = {
    "axis": lambda: 0,
    "axes": lambda: (0, 1),
    "shape": lambda: (2, 3),
    "dtype": lambda: "float32",
    "indices": lambda: np.array([0, 1]),
    "labels": lambda: np.array([0, 1]),
    "op": lambda: "sum",
    "name": lambda: "misused",
    "function": lambda: lambda x: x,
    "lr": lambda: 0.1,
    "steps": lambda: 10,
    "folder": lambda: "folder",
    "path": lambda: "path",
    "batch_size": lambda: 2,
    "kernel_size": lambda: 2,
    "equation": lambda: "ij->ji",
    "parameters": one_weight,
}
"""Good arguments by the name of the parameter. Others get an array, or an integer in `nn`."""


class Case(NamedTuple):
    """One call: a target, and its bad argument."""

    target: str
    how: str
    parameter: str = ""

    def __str__(self) -> str:
        return f"{self.target}: {self.parameter + ' = ' if self.parameter else ''}{self.how}"


def parameters_of(target: Target) -> list[inspect.Parameter]:
    """Return the parameters that have a name, or none if there is no signature."""
    try:
        signature = inspect.signature(target.call)
    except ValueError:
        return []
    named = [p for p in signature.parameters.values() if p.kind != p.VAR_KEYWORD]
    return [p for p in named if p.name != "site"]  # the call site, which only bridges give


def cases() -> Iterator[Case]:
    """Yield every case of every target."""
    for target in targets():
        for how in ("fitting", "an unknown keyword", "too many", "none", "reversed"):
            yield Case(target.name, how)
        if target.name in TWINS:
            yield Case(target.name, "two of one name")
        for parameter in parameters_of(target):
            for how in WRONG:
                yield Case(target.name, how, parameter.name)


def good_arguments(target: Target) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments that are good, or likely to be: positional ones and keywords."""
    drawn = np.random.default_rng(0)
    samples = iter(()) if not isinstance(target.call, Op) else iter(target.call.samples())
    sample = next(samples, None)
    operands = [] if sample is None else [*sample.operands]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for p in parameters_of(target):
        if p.kind is p.VAR_POSITIONAL:
            continue
        value: Any
        if operands and p.default is p.empty:
            operand = operands.pop(0)
            value = drawn.uniform(max(operand.low, 0), operand.high, operand.shape)
            value = value.astype(operand.dtype or np.float32)
        elif sample is not None and p.name in sample.attrs:
            value = sample.attrs[p.name]
        elif p.default is not p.empty:
            continue
        elif p.name in VALID:
            value = VALID[p.name]()
        else:
            value = 2 if target.name.startswith("nn.") else np.ones((2, 3), np.float32)
        if p.kind is p.KEYWORD_ONLY:
            kwargs[p.name] = value
        else:
            args.append(value)
    return args, kwargs


def make_call(case: Case, target: Target) -> Any:
    """Make the call of a case, and return its result."""
    if case.how == "two of one name":
        return TWINS[target.name]()
    args, kwargs = good_arguments(target)
    if case.how == "none":
        args, kwargs = [], {}
    elif case.how == "an unknown keyword":
        kwargs["nonsense"] = 1
    elif case.how == "too many":
        args += [1] * 20
    elif case.how == "reversed":
        args.reverse()
    elif case.parameter:
        names = [p.name for p in parameters_of(target) if p.kind is not p.VAR_POSITIONAL]
        index = names.index(case.parameter) if case.parameter in names else len(args)
        spoiled = WRONG[case.how]()
        if index < len(args):
            args[index] = spoiled
        elif case.parameter in names:
            kwargs[case.parameter] = spoiled
        else:
            args.append(spoiled)
    return target.call(*args, **kwargs)
