# SPDX-License-Identifier: Apache-2.0
"""A compiled step whose arguments or results are nested, around one that takes and gives lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._util.callsite import call_site
from .._util.process_local import BoundToProcess
from ..graph.cost import Cost
from ..graph.node import Node
from ..profiling import Report
from ..trees import LEAF, Structure
from . import arguments
from .executable import CompiledStep, Executable


class StructuredStep(BoundToProcess):
    """A compiled step of whatever device; see Executable.

    The outermost part of the inputs' structure are the arguments of the call: a dict (or a
    dataclass) names them, and in a list those that are placeholders have the placeholders' names.
    The last `num_hidden` results of the step are not returned.
    """

    instead = CompiledStep.instead

    def __init__(
        self, step: Executable, given: Structure, results: Structure, num_hidden: int = 0
    ) -> None:
        self.step, self.graph = step, step.graph
        self.results, self.num_hidden = results, num_hidden
        self.names = names_of(given, [str(n.attrs["name"]) for n in self.graph.inputs])
        self.title = f"step compiled at {call_site()}"
        places = [f"{self.title}: input {name}" for name in self.names]
        parts = list(zip(given.parts, places, strict=True))
        self.parts = None if is_flat(given) else parts

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Run once."""
        given = self.flat(arrays, named)
        if out is None:
            values = self.step(*given)
        else:
            places = self.results.match(out, f"{self.title}: out")
            hidden = self.graph.outputs[len(places) :]
            places += [np.empty(node.shape, node.dtype) for node in hidden]
            values = self.step(*given, out=places)
        return self.results.rebuild(values[: len(values) - self.num_hidden])

    def flat(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """The arguments' arrays in the order of the placeholders."""
        if named or len(arrays) != len(self.names):
            arrays = arguments.in_order(self.title, self.names, arrays, named)
        if self.parts is None:
            return arrays
        leaves: list[Any] = []
        for (part, where), argument in zip(self.parts, arrays, strict=True):
            leaves += part.match(argument, where)
        return leaves

    def memory(self) -> dict[str, int]:
        """See Executable."""
        return self.step.memory()

    def report(self) -> Report:
        """See Executable."""
        return self.step.report()

    def cost(self) -> Cost:
        """See Executable."""
        return self.step.cost()

    def explain(self, node: Node) -> str:
        """See Executable."""
        return self.step.explain(node)

    def compare_ranks(self) -> str:
        """See Executable."""
        return self.step.compare_ranks()

    def __str__(self) -> str:
        return str(self.step)

    def __repr__(self) -> str:
        return repr(self.step)


def is_flat(structure: Structure) -> bool:
    """Whether this is a list of leaves, which steps take and give by themselves."""
    return structure.kind is list and all(part is LEAF for part in structure.parts)


def names_of(given: Structure, placeholders: Sequence[str]) -> list[str]:
    """What the arguments of a call are called; `placeholders` are the leaves' names."""
    if given.kind is not list:
        return [str(key) for key in given.keys]
    names, first = [], 0
    for number, part in enumerate(given.parts):
        names.append(placeholders[first] if part is LEAF else f"[{number}]")
        first += part.count
    return names
