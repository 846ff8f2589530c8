# SPDX-License-Identifier: Apache-2.0
"""A compiled step with nested arguments or results, which calls a step with flat lists of them."""

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
    """A compiled step with nested arguments or results; see Executable.

    The inputs are a list, a dict or a dataclass, and each of its elements is an argument of a call.
    An element of a dict or a dataclass has the name of its key or field. An element of a list has
    the name of its placeholder; if it is a nested structure, its name is its index, such as "[1]".

    The last `num_hidden` results of the wrapped step belong to calls of `ngd.print`. The compiler
    has added them to the user's results, so a call of this step does not return them.
    """

    instead = CompiledStep.instead

    def __init__(
        self,
        step: Executable,
        argument_structure: Structure,
        results: Structure,
        num_hidden: int = 0,
    ) -> None:
        self.step, self.graph = step, step.graph
        self.results, self.num_hidden = results, num_hidden
        self.names = names_of(argument_structure, [str(n.attrs["name"]) for n in self.graph.inputs])
        self.title = f"step compiled at {call_site()}"
        places = [f"{self.title}: input {name}" for name in self.names]
        parts = list(zip(argument_structure.parts, places, strict=True))
        self.parts = None if is_flat(argument_structure) else parts

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Run the step once."""
        argument_structure = self.flat(arrays, named)
        if out is None:
            values = self.step(*argument_structure)
        else:
            places = self.results.match(out, f"{self.title}: out")
            hidden = self.graph.outputs[len(places) :]
            places += [np.empty(node.shape, node.dtype) for node in hidden]
            values = self.step(*argument_structure, out=places)
        return self.results.rebuild(values[: len(values) - self.num_hidden])

    def flat(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """Return the arrays of the arguments in the order of the placeholders."""
        if named or len(arrays) != len(self.names):
            arrays = arguments.order_arguments(self.title, self.names, arrays, named)
        if self.parts is None:
            return arrays
        leaves: list[Any] = []
        for (part, where), argument in zip(self.parts, arrays, strict=True):
            leaves += part.match(argument, where)
        return leaves

    def memory(self) -> dict[str, int]:
        """Return the bytes of the step's memory."""
        return self.step.memory()

    def report(self) -> Report:
        """Return the report of the step."""
        return self.step.report()

    def cost(self) -> Cost:
        """Return the FLOP of one run and the bytes that it reads and writes."""
        return self.step.cost()

    def explain(self, node: Node) -> str:
        """Return a text that shows how a node is computed."""
        return self.step.explain(node)

    def compare_ranks(self) -> str:
        """Return a comparison of the collectives that the ranks will call."""
        return self.step.compare_ranks()

    def __str__(self) -> str:
        return str(self.step)

    def __repr__(self) -> str:
        return repr(self.step)


def is_flat(structure: Structure) -> bool:
    """Return whether a structure is a list without nested parts, which needs no StructuredStep."""
    return structure.kind is list and all(part is LEAF for part in structure.parts)


def names_of(argument_structure: Structure, placeholders: Sequence[str]) -> list[str]:
    """Return one name per argument of a call.

    It is the key of a dict or the field of a dataclass. In a list, it is the name of the argument's
    placeholder, or for a nested argument its index, such as "[1]". `placeholders` has the names of
    all placeholders in order, including those in nested arguments.
    """
    if argument_structure.kind is not list:
        return [str(key) for key in argument_structure.keys]
    names, first = [], 0
    for number, part in enumerate(argument_structure.parts):
        names.append(placeholders[first] if part is LEAF else f"[{number}]")
        first += part.count
    return names
