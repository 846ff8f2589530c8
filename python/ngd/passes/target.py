# SPDX-License-Identifier: Apache-2.0
"""The device and the ranks that the passes compile for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ..dtypes import Type
from ..graph.node import Node
from .partition import Partition


class Verdict(NamedTuple):
    """The answer of a device to the question whether it has a kernel for an op."""

    accepted: bool
    implementation: str
    """The name of the kernel. If the op is not accepted: each kernel, with the reason why it does
    not fit."""
    in_place: frozenset[tuple[int, int]]
    """The pairs (result, operand) for which the result may be written to the memory of the operand.

    Several pairs may be used at the same time, but two results never share bytes. If several
    operands are in one memory, a result may be written to this memory only if the set has the pair
    of the result with each of these operands.
    """


class Sharing(NamedTuple):
    """The ranks of a step, and the variables that they share."""

    group: Any
    """The ranks that communicate in collectives without a group of their own."""
    partition: Partition
    """The ranks among which the variables are divided."""
    variables: frozenset[Node] = frozenset()
    """The variables that the step updates as shards: each rank computes and writes its shard."""
    once: frozenset[Node] = frozenset()
    """Variables that this step cannot divide over the hosts: each host or rank has a whole copy.
    An earlier compiled step shares them, or reads them to compute shared variables."""
    has_uniform_types: bool = False
    """True if all values of the step are known to have the same shapes and dtypes on all ranks."""


class Target(Protocol):
    """The interface through which passes ask about a device and a group."""

    rank: int
    """The number of this rank in the group of the step."""
    size: int
    """The number of ranks in the group of the step."""
    sharing: Sharing

    def query(
        self, op: str, inputs: Sequence[Type], outputs: Sequence[Type], attrs: Mapping[str, Any]
    ) -> Verdict:
        """Return whether the device has a kernel for an op with these types, and which one."""
        ...

    def first_fit(self, lives: list[tuple[int, int, int]]) -> list[int]:
        """Return the byte offset of each block of memory in an arena.

        Each block is (first instruction, last instruction, bytes): it is in use from the first to
        the last instruction, both included. The blocks are placed in the order of the list. Each
        gets the lowest offset at which all of its bytes are free while it is in use.
        """
        ...


def query_node(target: Target, node: Node) -> Verdict:
    """Return whether the device has a kernel for a node, and which one.

    A loop or branch is accepted without a question to the device, because it needs no kernel.
    """
    control_flow = node.op.kernel.control_flow
    if control_flow:
        return Verdict(True, control_flow, frozenset())
    name, attrs = node.op.lower(**node.attrs)
    outputs = [r.type for r in node.results] if node.has_several_results else [node.type]
    return target.query(name, [i.type for i in node.inputs], outputs, attrs)
