# SPDX-License-Identifier: Apache-2.0
"""The device and the ranks that the passes compile for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ..dtypes import Type
from ..graph.node import Node
from .partition import Partition


class Verdict(NamedTuple):
    """A device's answer to "can you compute this op?"."""

    accepted: bool
    implementation: str
    """Which kernel would run it; where refused, every refusal with its reason."""
    in_place: frozenset[tuple[int, int]]
    """(result, operand): the result may be computed over the operand.

    Any of the pairs hold together, but two results never share bytes. What lies under several
    operands needs the pair with each.
    """


class Sharing(NamedTuple):
    """The ranks of a step, and the variables that they share."""

    group: Any
    """The ranks that collectives without a group of their own communicate with."""
    partition: Partition
    """The ranks among which the variables are divided."""
    variables: frozenset[Node] = frozenset()
    """The shared variables that the step updates."""
    once: frozenset[Node] = frozenset()
    """The variables of which each host has one copy since an earlier step."""
    has_uniform_types: bool = False
    """True if the step is known to have the same types on all ranks."""


class Target(Protocol):
    """A device and a group, as far as compilation depends on them."""

    rank: int
    """The rank that runs the step, in its group."""
    size: int
    """The number of ranks in the group."""
    sharing: Sharing

    def query(
        self, op: str, inputs: Sequence[Type], outputs: Sequence[Type], attrs: Mapping[str, Any]
    ) -> Verdict:
        """Whether a native kernel computes this."""
        ...

    def first_fit(self, lives: list[tuple[int, int, int]]) -> list[int]:
        """Place blocks (first instruction, last instruction, bytes) in an arena, in turn.

        Each comes to lie at the lowest offset where its bytes are free throughout its life.
        """
        ...


def query_node(target: Target, node: Node) -> Verdict:
    """Ask for the kernel of a node as it stands; what runs graphs has none, and does so itself."""
    control_flow = node.op.kernel.control_flow
    if control_flow:
        return Verdict(True, control_flow, frozenset())
    name, attrs = node.op.lower(**node.attrs)
    outputs = [r.type for r in node.results] if node.several else [node.type]
    return target.query(name, [i.type for i in node.inputs], outputs, attrs)
