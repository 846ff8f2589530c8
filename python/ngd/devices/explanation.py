# SPDX-License-Identifier: Apache-2.0
"""The instructions that compute a node of a step, for `Executable.explain`.

The compiler keeps no reference from an instruction to the nodes that it computes. So the step is
compiled once more. Before that, the id of each node is added to the call site of the node. During
the compilation, a record is made of the nodes that passes replace, and of their replacements. An
instruction computes a node if it has the call site of the node, or of a node that replaced it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from warnings import catch_warnings, simplefilter

from .._util.callsite import REWRITES, NodeSite, node_id
from ..graph.leaves import CONSTANT, PLACEHOLDER, VARIABLE
from ..graph.node import Node, Op
from ..passes import Instruction, Plan, Target
from ..passes.views import is_view, source_of
from ..profiling.rows import Peaks, Row, rows_of
from .executable import CompiledStep

LEAVES: Final[dict[Op, str]] = {
    PLACEHOLDER: "an input of the step: each call gives its value",
    VARIABLE: "a variable: the step reads its value",
    CONSTANT: "a constant: its value is known since the step was compiled",
}
"""A dict from the op of nodes without inputs to the text that explains such a node."""


class Explanation:
    """A writer of the texts that `Executable.explain` returns."""

    def __init__(self, plan_again: Callable[[], Plan], target: Target) -> None:
        self.plan_again, self.target = plan_again, target

    def of(self, step: CompiledStep, node: Node) -> str:
        """Return a text that describes `node` and the instructions of `step` that compute it."""
        expect_computed(step, node)
        with tagged(step.graph.nodes), recorded() as rewrites, catch_warnings():
            simplefilter("ignore")  # the first compilation has issued the warnings
            plan = self.plan_again()
            lineage = lineage_of(node, rewrites)
            found = instructions_of(plan, lineage)
            lines = [] if found else [without_instruction(lineage[-1])]
            if not found and is_view(lineage[-1]):
                found = instructions_of(plan, lineage_of(source_of(lineage[-1]), rewrites))
        rows = [row for row in rows_of(plan, None, 0, Peaks(0.0), "") if row.depth == 0]
        for number in found:
            lines += self.lines_of(plan.steps[number], rows[number])
        return "\n".join([heading(node), *lines])

    def lines_of(self, step: Instruction, row: Row) -> Iterator[str]:
        """Yield the lines about one instruction."""
        layout = "" if row.layout == "row-major" else f", {row.layout}"
        yield f"instruction {row.number}: {row.title}{self.kernel_of(step)}, {row.types}{layout}"
        yield from fused(row)

    def kernel_of(self, step: Instruction) -> str:
        """Return the kernel of an instruction in parentheses, or "" if it has none."""
        if step.action != "run":
            return ""
        operands, results = [t for t, _ in step.inputs], [t for t, _ in step.outputs]
        verdict = self.target.query(step.op, operands, results, step.attrs)
        return f" (kernel {verdict.implementation})"


def expect_computed(step: CompiledStep, node: Any) -> None:
    """Raise an error if a step does not compute a node."""
    if not isinstance(node, Node):
        raise TypeError(
            f"Executable.explain: expected a node of the step; got {node!r}. Give one of its "
            "outputs."
        )
    first = node.results[0]
    if not any(first is each for each in (*step.graph.nodes, *step.graph.inputs)):
        raise ValueError(
            f"Executable.explain: expected a node that the step compiled at {step.sequence.site} "
            f"computes; got {node!r} (made at {node.site}). Give a node of the same trace that its "
            "outputs or updates are computed from, or add the node to the outputs."
        )


def explain_reference(step: CompiledStep, node: Node) -> str:
    """Return the explanation of a node on the INTERPRETER device.

    This device computes each op by its reference implementation in NumPy.
    """
    expect_computed(step, node)
    leaf = LEAVES.get(node.op)
    return f"{heading(node)}\n{leaf or f'computed by the NumPy reference of {node.op.name}'}"


def heading(node: Node) -> str:
    """Return the op, the type and the call site of a node."""
    name = node.attrs.get("name")
    called = f" {name!r}" if isinstance(name, str) else ""
    return f"{node.op.name}{called} {node.type.short}, made at {node.site}"


def without_instruction(node: Node) -> str:
    """Return why no instruction computes a node: for example, it is a view, an input or unused."""
    if is_view(node):
        source = source_of(node)
        return f"no instruction: the result is a view of {source.type.short}, made at {source.site}"
    if node.op.kernel.is_broadcast:
        return "no instruction: kernels that read the result repeat the elements of its operand"
    return LEAVES.get(node.op, "no instruction: nothing in the compiled step needs the value")


def fused(row: Row) -> Iterator[str]:
    """Yield the lines about the ops that an instruction computes together."""
    posts = [f"then {post}" for post in row.attrs.get("post", ())]
    ops = [f"{op} (made at {site})" for op, site in dict.fromkeys(row.made_of)]
    if len(row.made_of) > 1 or posts:
        yield "  computes together:"
        yield from (f"    {text}" for text in (*ops, *posts))


@contextmanager
def tagged(nodes: Sequence[Node]) -> Iterator[None]:
    """Append the id of each node to its call site; restore the call sites after this block."""
    results = [result for node in nodes for result in node.results]
    old_sites = [result.site for result in results]
    try:
        for result in results:
            result.site = NodeSite(result.site, result.results[0].id)
        yield
    finally:
        for result, site in zip(results, old_sites, strict=True):
            result.site = site


@contextmanager
def recorded() -> Iterator[list[dict[Node, Node]]]:
    """Record within this block which nodes the passes replace, and by which nodes."""
    rewrites: list[dict[Node, Node]] = []
    token = REWRITES.set(rewrites)
    try:
        yield rewrites
    finally:
        REWRITES.reset(token)


def lineage_of(node: Node, rewrites: Sequence[dict[Node, Node]]) -> list[Node]:
    """Return a node and all nodes that replaced it, in the order of the replacements."""
    nodes = dict.fromkeys([node])
    for new in rewrites:
        nodes |= dict.fromkeys([new[each] for each in nodes if each in new])
    return [*nodes]


def instructions_of(plan: Plan, nodes: Sequence[Node]) -> list[int]:
    """Return the numbers of the instructions that have the call site of one of the nodes."""
    ids = {node_id(node.site) for node in nodes} - {None}
    found = []
    for number, step in enumerate(plan.steps):
        sites = [step.site, *(site for _, site in step.made_of)]
        if any(node_id(site) in ids for site in sites):
            found.append(number)
    return found


__all__ = ["Explanation", "explain_reference"]
