# SPDX-License-Identifier: Apache-2.0
"""The class that turns a graph for one example into a graph for a batch, and the batching rules.

ngd.vmap traces the user's function for one example, without the batch axis. `Batching` then makes
nodes for all examples, which replace the traced nodes. A traced node is *mapped* if its value may
differ between examples. Its replacement then has the batch axis as axis 0. A node that is not
mapped is computed once for all examples.

The decorator `batches` registers a batching rule for classes of ops, and subclasses inherit it. For
an op without a rule, `Batching` uses the attribute `Op.batching`, or else the expansion of the op:
other ops that compute the same results. An op that has neither raises a CompileError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from ..._util.callsite import at_site
from ...dtypes import Shape, Type
from ...errors import CompileError
from ...graph import notes
from ...graph.graph import Graph, bodies_of
from ...graph.node import Node, Op, topological
from ...graph.precision_marks import KEEPS_FLOAT32, keep_float32
from .._precision import expansion
from .._random import Draw, Dropout, RandomBits
from .._shape import broadcast_to, reshape
from ..control.bodies import body_input


@dataclass(frozen=True, slots=True)
class Batched:
    """The node that replaces a node of the traced graph, in the graph for all examples.

    `is_mapped` is True if axis 0 of the node is the batch axis. If it is False, the node has no
    batch axis, and all examples share its value.
    """

    node: Node
    is_mapped: bool = True


Results: TypeAlias = Node | Sequence[Node | Batched]
"""The return value of a batching rule: the nodes that replace the results of one op.

A rule returns a sequence with one entry per result: a `Batched`, or a node with the batch axis. For
an op with one result, it may return just this node. For an op with several results, such as top_k,
it may return the first result of a new op. All results of the new op are then the replacements.
"""
BatchingRule: TypeAlias = Callable[["Batching", Node, Sequence[Batched]], Results]
"""A function that returns the nodes that replace the results of a traced node (see `Results`).

Its arguments are the Batching, the traced node, and a `Batched` per operand of the traced node. At
least one operand has the batch axis, unless the node draws random numbers.
"""

RULES: Final[dict[type[Op], BatchingRule]] = {}
"""The batching rule for each class of ops that has one."""

AnyRule = TypeVar("AnyRule", bound=BatchingRule)


def batches(*kinds: type[Op]) -> Callable[[AnyRule], AnyRule]:
    """Register the decorated function as the batching rule of some classes of ops."""

    def enter(rule: AnyRule) -> AnyRule:
        RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return enter


class Batching:
    """A map from the nodes of a traced graph to nodes that compute `size` examples at once.

    The mapped function is the function that the user passed to ngd.vmap. Each node has a number,
    `Node.id`, and a later node has a larger number. Nodes with a number of at least `since` were
    made by the mapped function. Older nodes were not, and are not replaced. The body of a loop or
    a branch has a Batching of its own, whose `outer` is the Batching of the graph around the body.
    """

    def __init__(self, size: int, since: int, outer: Batching | None = None) -> None:
        self.size, self.since, self.outer = size, since, outer
        self.new: dict[Node, Batched] = {}
        self.fresh: dict[Node, bool] | None = None
        """A dict with a bool per input, for the body of a loop or branch. Otherwise it is None.

        The bool is True if the mapped function creates the value that the loop or branch passes to
        this input. `is_fresh` needs it if the value is a random seed: the input node itself does
        not show whether the seed was created inside or outside of the mapped function.
        """

    def find(self, node: Node) -> Batched:
        """Return the `Batched` that replaces a traced node.

        If it does not exist, return a `Batched` of the traced node with `is_mapped` = False.
        """
        batched = self.new.get(node)
        if batched is not None:
            return batched
        return self.outer.find(node) if self.outer is not None else Batched(node, False)

    def rewrite(self, roots: Sequence[Node]) -> list[Batched]:
        """Replace the traced nodes `roots`, and the traced nodes that they depend on.

        Return one `Batched` per root: the node that replaces it, or the root itself if it does not
        change.
        """
        with at_site("") as move_to, keep_float32(False):
            for node in topological(roots):
                if node.id < self.since or self.find(node).node is not node:
                    continue
                move_to(node.site)
                KEEPS_FLOAT32.set(node.keeps_float32)
                self.add(node)
        return [self.find(root) for root in roots]

    def add(self, node: Node) -> None:
        """Make the nodes that replace the results of a traced node, and store them in `self.new`.

        If the node does not change, store nothing: `find` then returns the traced node.
        """
        operands = [self.find(x) for x in node.inputs]
        new_inputs = tuple(x.node for x in operands)
        if any(x.is_mapped for x in operands) or self.draws(node):
            new_results = rule_of(node)(self, node, operands)
        elif any(new is not old for new, old in zip(new_inputs, node.inputs, strict=True)):
            new_results = [Batched(r, False) for r in node.with_inputs(new_inputs).results]
        else:
            return
        if isinstance(new_results, Node):
            new_results = new_results.results if node.has_several_results else (new_results,)
        results = [r if isinstance(r, Batched) else Batched(r) for r in new_results]
        notes.take_over(results[0].node, [node])
        self.new.update(zip(node.results, results, strict=True))

    def draws(self, node: Node) -> bool:
        """Return True if a node draws random numbers by a seed that the mapped function creates.

        The mapped function is the function that the user passed to ngd.vmap. If such a node draws,
        each example gets its own numbers, even if no operand of the node has the batch axis. A loop
        or a branch draws if its body does.
        """
        if isinstance(node.op, (Draw, Dropout, RandomBits)):
            return self.is_fresh(node.inputs[-1])
        for graph in bodies_of(node):
            body = self.body(graph, node)
            if any(body.draws(inner) for inner in graph.nodes):
                return True
        return False

    def is_fresh(self, seed: Node) -> bool:
        """Return True if the function that the user passed to ngd.vmap creates this seed.

        False means that the seed was created outside of the function. All examples then draw the
        same numbers.
        """
        if self.fresh is None:
            return seed.id >= self.since if self.outer is None else self.outer.is_fresh(seed)
        if seed in self.fresh:
            return self.fresh[seed]
        if not seed.inputs:
            return self.outer is not None and self.outer.is_fresh(seed)
        return any(self.is_fresh(x) for x in seed.inputs)

    def body(self, graph: Graph, node: Node) -> Batching:
        """Return a Batching for `graph`, a body of the loop or cond `node`.

        Its attribute `new`, a dict from traced nodes to their replacements, is empty. A caller
        that wants to rewrite the body must first add the replacement of each input of the body.
        """
        batching = Batching(self.size, -1, self)
        operands = node.inputs[len(node.inputs) - len(graph.inputs) :]
        batching.fresh = {p: self.is_fresh(x) for p, x in zip(graph.inputs, operands, strict=True)}
        return batching

    def body_on_inputs(self, graph: Graph, node: Node, mapped: Sequence[bool]) -> Batching:
        """Return a Batching for `graph`, a body of a loop or cond, and replace the body's inputs.

        `mapped` has a bool per input of the body. If it is True, a new input with the batch axis
        replaces the input. If it is False, the input does not change.
        """
        batching = self.body(graph, node)
        for traced, is_mapped in zip(graph.inputs, mapped, strict=True):
            new = body_input(self.batched_type(traced)) if is_mapped else traced
            batching.new[traced] = Batched(new, is_mapped)
        return batching

    def batched_type(self, node: Node) -> Type:
        """Return the type (dtype and shape) of a traced node, with the batch axis in front."""
        return self.batched_type_of(node.type)

    def batched_type_of(self, one: Type) -> Type:
        """Return the given type (dtype and shape), with the batch axis in front of the shape."""
        return Type(one.dtype, (self.size, *one.shape))

    def with_batch_axis(self, x: Batched) -> Node:
        """Return the node of x, with the batch axis in front.

        If the node has no batch axis, broadcast it: all examples have the same value.
        """
        return x.node if x.is_mapped else broadcast_to(x.node, (self.size, *x.node.shape))


def rule_of(node: Node) -> BatchingRule:
    """Return the batching rule of a node's op; CompileError if it has none."""
    for kind in type(node.op).__mro__:
        if kind in RULES:
            return RULES[kind]
    if node.op.batching:
        return apply_declaration
    if node.op.has_expansion:
        return expand
    raise CompileError(
        f"vmap: expected ops that have a batching rule; got {node.op.name} (made at {node.site}). "
        "Call the function for one example after the other instead: ops.scan loops over an axis."
    )


def apply_declaration(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply an op to operands that all have the batch axis, as `Op.batching` declares.

    If `Op.batching` is "axis" or "axes", the node has an attribute of this name, with one axis or
    several. 1 is added to each of them, because the batch axis is in front. For other values of
    `Op.batching`, the attributes of the node are unchanged.
    """
    attrs = dict(node.attrs)
    if node.op.batching == "axis":
        attrs["axis"] += 1
    elif node.op.batching == "axes":
        attrs["axes"] = after_batch_axis(attrs["axes"])
    return node.op.node([batching.with_batch_axis(x) for x in operands], attrs)


def after_batch_axis(axes: Sequence[int]) -> Shape:
    """Return the axes plus 1, because the batch axis is in front of the other axes."""
    return tuple(axis + 1 for axis in axes)


def expand(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Replace an op that has no batching rule by its expansion, for all examples.

    The expansion is a graph of other ops that computes the same results for one example. The
    batching rules of these ops are applied.
    """
    return batching.rewrite(expansion(node))


def align_batch_axis(x: Batched, ndim: int) -> Node:
    """Insert axes of size 1 after the batch axis, so that `ndim` axes follow the batch axis.

    If x has no batch axis, return its node unchanged: it broadcasts along the batch axis.
    """
    if not x.is_mapped or x.node.ndim > ndim:
        return x.node
    batch, *shape = x.node.shape
    return reshape(x.node, (batch, *(1,) * (ndim - len(shape)), *shape))
