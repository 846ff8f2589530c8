# SPDX-License-Identifier: Apache-2.0
"""Batching rules: how each op computes on operands with a leading batch axis. ngd.vmap uses them.

A function is traced without the mapped axis. `Batching` rewrites the traced graph. A traced node is
*mapped* if it depends on a mapped input; its new node then has the batch axis as axis 0. Any other
node is computed once for all examples.

A rule belongs to a class of ops (`batches`), and a subclass inherits it. An op without a rule is
replaced by its expansion. If it has no expansion either, `Batching` raises a CompileError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from .._util.callsite import at_site
from ..dtypes import Array, Shape, Type, int64, is_float
from ..errors import CompileError
from ..graph import notes
from ..graph.graph import Body, Graph, bodies_of, communicates
from ..graph.node import Node, Op, topological
from ..graph.precision_marks import WIDE, wide
from ._activation import Activation
from ._along_axis import AddAlongAxis, TakeAlongAxis
from ._arithmetic import multiply
from ._attention import Attend, AttendGrad
from ._casting import Cast, cast
from ._compare import where
from ._concatenation import Concat, Split
from ._convolution import Conv, ConvDataGrad, ConvWeightGrad
from ._creation import OneHot, arange
from ._cumulative import CumSum
from ._custom import After, Rule, WithGradient
from ._elementwise import Elementwise
from ._gathering import ScatterAdd, Take, scatter_add, take
from ._grouped_rows import GroupedOp
from ._host import CallHost, HostFunction
from ._matmul import MatMul
from ._normalization import Moments, RmsStandardize, Standardize
from ._pooling import AvgPoolGrad, Pool
from ._precision import expansion
from ._random import Draw, Dropout, RandomBits
from ._rearrangement import moveaxis
from ._reductions import ArgExtremum, Reduction, sum
from ._rows import RowNumber, row_number
from ._shape import BroadcastTo, Reshape, StopGradient, Transpose, broadcast_to, reshape, transpose
from ._slicing import PadSlice, Slice
from ._softmax import AlongAxis, SoftmaxCrossEntropy, SoftmaxCrossEntropyGrad
from ._sorting import TopK
from .control.bodies import body_input as inside
from .control.branches import Cond
from .control.loops import Scan, scan


@dataclass(frozen=True, slots=True)
class Batched:
    """The new node of a traced node, and whether its axis 0 is the batch axis."""

    node: Node
    is_mapped: bool = True


Results: TypeAlias = Node | Sequence[Node | Batched]
"""The return value of a rule: a mapped node, the first of several, or one entry per result."""
BatchingRule: TypeAlias = Callable[["Batching", Node, Sequence[Batched]], Results]
"""Called with the traced node and its new operands, at least one of which is mapped."""

RULES: Final[dict[type[Op], BatchingRule]] = {}
"""The batching rules by the class of the op."""

AnyRule = TypeVar("AnyRule", bound=BatchingRule)


def batches(*kinds: type[Op]) -> Callable[[AnyRule], AnyRule]:
    """Register the batching rule of some classes of ops."""

    def enter(rule: AnyRule) -> AnyRule:
        RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return enter


class Batching:
    """A rewrite of a traced graph to operands with a leading batch axis.

    `since` is a node number: nodes of the mapped function have this id or a greater one. A body of
    a loop or a branch has a Batching of its own, whose `outer` is that of the graph around it.
    """

    def __init__(self, size: int, since: int, outer: Batching | None = None) -> None:
        self.size, self.since, self.outer = size, since, outer
        self.new: dict[Node, Batched] = {}
        self.fresh: dict[Node, bool] | None = None
        """For each input of a body, whether a seed that it holds is made in the function."""

    def find(self, node: Node) -> Batched:
        """Return the new node of a traced node; a node that did not change is its own."""
        found = self.new.get(node)
        if found is not None:
            return found
        return self.outer.find(node) if self.outer is not None else Batched(node, False)

    def rewrite(self, roots: Sequence[Node]) -> list[Batched]:
        """Return the new nodes of some traced nodes."""
        with at_site("") as move_to, wide(False):
            for node in topological(roots):
                if node.id < self.since or self.find(node).node is not node:
                    continue
                move_to(node.site)
                WIDE.set(node.wide)
                self.add(node)
        return [self.find(root) for root in roots]

    def add(self, node: Node) -> None:
        """Make the new nodes of one application of an op."""
        operands = [self.find(x) for x in node.inputs]
        changed = tuple(x.node for x in operands)
        if any(x.is_mapped for x in operands) or self.draws(node):
            made = rule_of(node)(self, node, operands)
        elif any(new is not old for new, old in zip(changed, node.inputs, strict=True)):
            made = [Batched(r, False) for r in node.with_inputs(changed).results]
        else:
            return
        if isinstance(made, Node):
            made = made.results if node.several else (made,)
        results = [r if isinstance(r, Batched) else Batched(r) for r in made]
        notes.take_over(results[0].node, [node])
        self.new.update(zip(node.results, results, strict=True))

    def draws(self, node: Node) -> bool:
        """Return whether the node draws random numbers by a seed that the function makes.

        Each example then gets numbers of its own, even if the node depends on no mapped input.
        """
        if isinstance(node.op, (Draw, Dropout, RandomBits)):
            return self.is_fresh(node.inputs[-1])
        for graph in bodies_of(node):
            body = self.body(graph, node)
            if any(body.draws(inner) for inner in graph.nodes):
                return True
        return False

    def is_fresh(self, seed: Node) -> bool:
        """Return whether a seed is made in the mapped function, and not captured by it."""
        if self.fresh is None:
            return seed.id >= self.since if self.outer is None else self.outer.is_fresh(seed)
        if seed in self.fresh:
            return self.fresh[seed]
        if not seed.inputs:
            return self.outer is not None and self.outer.is_fresh(seed)
        return any(self.is_fresh(x) for x in seed.inputs)

    def body(self, graph: Graph, node: Node) -> Batching:
        """Return a Batching for a body of a traced node; its inputs have no new nodes yet."""
        made = Batching(self.size, -1, self)
        operands = node.inputs[len(node.inputs) - len(graph.inputs) :]
        made.fresh = {p: self.is_fresh(x) for p, x in zip(graph.inputs, operands, strict=True)}
        return made

    def body_on_inputs(self, graph: Graph, node: Node, mapped: Sequence[bool]) -> Batching:
        """Return a Batching for a body, with new inputs, some of which are mapped."""
        made = self.body(graph, node)
        for place, is_mapped in zip(graph.inputs, mapped, strict=True):
            new = inside(self.batched_type(place)) if is_mapped else place
            made.new[place] = Batched(new, is_mapped)
        return made

    def batched_type(self, node: Node) -> Type:
        """Return the type of a traced node with the batch axis in front."""
        return self.batched_type_of(node.type)

    def batched_type_of(self, one: Type) -> Type:
        """Return a type with the batch axis in front."""
        return Type(one.dtype, (self.size, *one.shape))

    def with_batch_axis(self, x: Batched) -> Node:
        """Return the node with a batch axis; an operand that is not mapped is repeated."""
        return x.node if x.is_mapped else broadcast_to(x.node, (self.size, *x.node.shape))


def rule_of(node: Node) -> BatchingRule:
    """Return the batching rule of a node's op."""
    for kind in type(node.op).__mro__:
        if kind in RULES:
            return RULES[kind]
    if node.op.expands:
        return expand
    raise CompileError(
        f"vmap: expected ops that have a batching rule; got {node.op.name} (made at {node.site}). "
        "Call the function for one example after the other instead: ops.scan loops over an axis."
    )


def expand(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Batch the ops that an op without a rule is made of."""
    return batching.rewrite(expansion(node))


def lead(x: Batched, ndim: int) -> Node:
    """Insert axes of extent 1 after the batch axis, so that `ndim` axes follow it.

    A node that is not mapped broadcasts as it is.
    """
    if not x.is_mapped or x.node.ndim > ndim:
        return x.node
    batch, *shape = x.node.shape
    return reshape(x.node, (batch, *(1,) * (ndim - len(shape)), *shape))


def shift(axes: Sequence[int]) -> Shape:
    """Return the axes of a tensor with one more axis in front."""
    return tuple(axis + 1 for axis in axes)


@batches(Elementwise, Activation, Cast, OneHot, StopGradient, TopK)
def broadcast_operands(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply the op to operands whose trailing axes broadcast."""
    ndim = max(x.ndim for x in node.inputs)
    return node.op.node([lead(x, ndim) for x in operands], node.attrs)


@batches(RowNumber, SoftmaxCrossEntropy, SoftmaxCrossEntropyGrad)
def repeat_operands(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply the op to operands that all have the batch axis, as one more leading axis."""
    return node.op.node([batching.with_batch_axis(x) for x in operands], node.attrs)


@batches(AddAlongAxis, AlongAxis, ArgExtremum, Concat, CumSum, Split, TakeAlongAxis)
def shift_axis(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply the op along the axis that follows by one."""
    attrs = {**node.attrs, "axis": node.attrs["axis"] + 1}
    return node.op.node([batching.with_batch_axis(x) for x in operands], attrs)


@batches(Moments, Reduction, RmsStandardize, Standardize)
def shift_axes(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply the op over the axes that follow by one."""
    attrs = {**node.attrs, "axes": shift(node.attrs["axes"])}
    return node.op.node([x.node for x in operands], attrs)


@batches(Reshape)
def batch_reshape(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Reshape the axes after the batch axis."""
    return reshape(operands[0].node, (batching.size, *node.shape))


@batches(BroadcastTo)
def batch_broadcast_to(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Repeat along the axes after the batch axis."""
    return broadcast_to(lead(operands[0], node.ndim), (batching.size, *node.shape))


@batches(Transpose)
def batch_transpose(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Keep the batch axis in front."""
    return transpose(operands[0].node, (0, *shift(node.attrs["axes"])))


@batches(Slice, PadSlice)
def batch_slice(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Take the batch axis whole."""
    first = {"starts": 0, "steps": 1, "sizes": batching.size, "shape": batching.size}
    attrs = {key: (first[key], *values) for key, values in node.attrs.items()}
    return node.op.node([operands[0].node], attrs)


def rows_of_examples(batching: Batching, node: Node, indices: Node, extent: int) -> Node:
    """Return indices into the axis that joins the batch axis and an axis of this extent.

    An index outside its own axis is an error when the step runs, as without a batch axis.
    """
    caller = node.attrs.get("caller") or node.op.name
    if not node.attrs.get("negative", True):
        attrs = {"axis": 0, "caller": caller, "negative": False}
        indices = take.node((arange(extent), indices), attrs)
    indices = cast(indices, int64)
    examples = reshape(arange(batching.size), (batching.size, *(1,) * (indices.ndim - 1)))
    operands = (broadcast_to(examples, indices.shape), indices)
    axes = (0, node.attrs["axis"])
    attrs = {"extents": (batching.size, extent), "axes": axes, "caller": caller}
    return row_number.node(operands, attrs)


@batches(Take)
def batch_take(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Take along the axis that follows by one, or from the rows of all examples."""
    (x, indices), axis = operands, node.attrs["axis"]
    if not indices.is_mapped:
        return node.op.node((x.node, indices.node), {**node.attrs, "axis": axis + 1})
    if not x.is_mapped:
        return moveaxis(node.op.node((x.node, indices.node), node.attrs), axis, 0)
    first = moveaxis(x.node, axis + 1, 1)
    extent, *others = first.shape[1:]
    rows = reshape(first, (batching.size * extent, *others))
    found = take(rows, rows_of_examples(batching, node, indices.node, extent), 0)
    behind = indices.node.ndim
    order = [*range(behind, behind + axis), *range(1, behind), *range(behind + axis, found.ndim)]
    return transpose(found, [0, *order])


@batches(ScatterAdd)
def batch_scatter_add(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Add along the axis that follows by one, or to the rows of all examples."""
    (updates, indices), axis, size = operands, node.attrs["axis"], node.attrs["size"]
    if not indices.is_mapped:
        return node.op.node((updates.node, indices.node), {**node.attrs, "axis": axis + 1})
    given, end = batching.with_batch_axis(updates), axis + indices.node.ndim
    others = [*range(1, axis + 1), *range(end, given.ndim)]
    given = transpose(given, [0, *range(axis + 1, end), *others])
    rows = rows_of_examples(batching, node, indices.node, size)
    total = scatter_add(given, rows, 0, batching.size * size)
    total = reshape(total, (batching.size, size, *total.shape[1:]))
    return moveaxis(total, 1, axis + 1)


@batches(MatMul)
def batch_matmul(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Multiply one large matrix by a shared one, or one pair of matrices per example."""
    a, b = operands
    if not b.is_mapped and b.node.ndim == 2 and not node.attrs["transpose_a"]:
        rows = reshape(a.node, (-1, a.node.shape[-1])) if a.node.type.count else a.node
        return reshape(node.op.node((rows, b.node), node.attrs), (batching.size, *node.shape))
    ndim = max(x.ndim for x in node.inputs)
    return node.op.node((lead(a, ndim), lead(b, ndim)), node.attrs)


@batches(Attend, AttendGrad)
def batch_attention(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Take the batch axis as one more leading axis; a mask broadcasts."""
    ndim = node.inputs[0].ndim
    num_masks = len(operands) - (3 if isinstance(node.op, Attend) else 7)
    split = len(operands) - num_masks
    masks = [lead(x, ndim) for x in operands[split:]]
    return node.op.node(
        [*(batching.with_batch_axis(x) for x in operands[:split]), *masks], node.attrs
    )


def fold(x: Node) -> Node:
    """Join the batch axis with the next axis."""
    batch, n, *shape = x.shape
    return reshape(x, (batch * n, *shape))


def fold_into_channels(x: Node) -> Node:
    """Join the batch axis of [batch, N, C, spatial...] with the channels: [N, batch C, ...]."""
    batch, n, channels, *spatial = x.shape
    moved = transpose(x, (1, 0, *range(2, x.ndim)))
    return reshape(moved, (n, batch * channels, *spatial))


@batches(Pool, AvgPoolGrad)
def batch_pool(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Join the batch axis with the axis N."""
    made = node.op.node((fold(operands[0].node),), node.attrs)
    return [
        reshape(new, (batching.size, *old.shape))
        for new, old in zip(made.results, node.results, strict=True)
    ]


@batches(Conv, ConvDataGrad)
def batch_convolution(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Join the batch axis with N. If weights are mapped, each example is a group of channels."""
    data, weight = operands
    if not weight.is_mapped:
        made = node.op.node((fold(data.node), weight.node), node.attrs)
        return reshape(made, (batching.size, *node.shape))
    given = (fold_into_channels(batching.with_batch_axis(data)), fold(weight.node))
    made = node.op.node(given, in_groups(batching, node))
    n, channels, *spatial = node.shape
    made = reshape(made, (n, batching.size, channels, *spatial))
    return transpose(made, (1, 0, *range(2, made.ndim)))


@batches(ConvWeightGrad)
def batch_weight_grad(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Take each example as a group of channels."""
    given = [fold_into_channels(batching.with_batch_axis(x)) for x in operands]
    made = node.op.node(given, in_groups(batching, node))
    return reshape(made, (batching.size, *node.shape))


def in_groups(batching: Batching, node: Node) -> dict[str, Any]:
    """Return the attributes of a convolution with groups of channels for each example."""
    return {**node.attrs, "groups": node.attrs["groups"] * batching.size}


@batches(Draw, RandomBits)
def batch_draw(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Draw for all examples from one seed, or for each example from its own seed."""
    (seed,) = operands
    if seed.is_mapped:
        return one_by_one(batching, node, operands)
    shape = (batching.size, *node.attrs["shape"])
    return node.op.node((seed.node,), {**node.attrs, "shape": shape})


@batches(Dropout)
def batch_dropout(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Choose elements of each example; a captured seed makes one choice for all examples."""
    x, seed = operands
    if seed.is_mapped:
        return one_by_one(batching, node, operands)
    if not batching.is_fresh(node.inputs[1]):
        return expand(batching, node, operands)
    return node.op.node((batching.with_batch_axis(x), seed.node), node.attrs)


@batches(GroupedOp)
def one_by_one(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply an op of one result to one example after the other, in a loop."""

    def body(carry: Any, slices: Sequence[Node]) -> tuple[Any, Node]:
        rest = iter(slices)
        given = [next(rest) if x.is_mapped else x.node for x in operands]
        return carry, node.op.node(given, node.attrs)

    _, stacked = scan(body, (), [x.node for x in operands if x.is_mapped])
    made: Node = stacked
    return made


@batches(After)
def batch_after(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Order the new nodes as the traced ones."""
    made = node.op.node([x.node for x in operands], node.attrs)
    return [Batched(made, operands[0].is_mapped)]


@batches(Scan)
def batch_scan(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Batch the body. A carried value is mapped if it is so in any iteration."""
    graph, n, m = node.attrs["body"].graph, node.attrs["carries"], node.attrs["slices"]
    mapped = [x.is_mapped for x in operands]
    while True:
        body = batching.body_on_inputs(graph, node, mapped)
        made = body.rewrite(graph.outputs)
        after = [a or x.is_mapped for a, x in zip(mapped[:n], made, strict=False)]
        if after == mapped[:n]:
            break
        mapped[:n] = after
    outputs = [
        body.with_batch_axis(x) if is_mapped else x.node
        for x, is_mapped in zip(made, after, strict=False)
    ]
    outputs += [x.node for x in made[n:]]
    given = [
        batching.with_batch_axis(x) if is_mapped else x.node
        for x, is_mapped in zip(operands, after, strict=False)
    ]
    given += [moveaxis(x.node, 0, 1) if x.is_mapped else x.node for x in operands[n : n + m]]
    given += [x.node for x in operands[n + m :]]
    inputs = tuple(body.find(place).node for place in graph.inputs)
    attrs = {**node.attrs, "body": Body(Graph(inputs, tuple(outputs)))}
    results = node.op.node(given, attrs).results
    stacked = [*(x.is_mapped for x in made[n:]), *after]
    return [
        *(Batched(x, is_mapped) for x, is_mapped in zip(results, after, strict=False)),
        *(
            Batched(moveaxis(x, 1, 0) if is_mapped else x, is_mapped)
            for x, is_mapped in zip(results[n:], stacked, strict=True)
        ),
    ]


@batches(Cond)
def batch_cond(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Batch both branches. If the predicate is mapped, compute both and choose by `where`."""
    names = ("on_true", "on_false")
    graphs = {name: node.attrs[name].graph for name in names}
    predicate, *rest = operands
    if predicate.is_mapped:
        return choose_by_example(batching, node, operands)
    mapped = [x.is_mapped for x in rest]
    inputs = batching.body_on_inputs(graphs["on_true"], node, mapped)
    made = {}
    for name, graph in graphs.items():
        body = batching.body(graph, node)
        body.new.update(inputs.new)
        made[name] = body.rewrite(graph.outputs)
    pairs = list(zip(*made.values(), strict=True))
    either = [a.is_mapped or b.is_mapped for a, b in pairs]
    places = tuple(inputs.find(place).node for place in graphs["on_true"].inputs)
    attrs = {}
    for name, found in made.items():
        outputs = (
            batching.with_batch_axis(x) if m else x.node for x, m in zip(found, either, strict=True)
        )
        attrs[name] = Body(Graph(places, tuple(outputs)))
    results = node.op.node([x.node for x in operands], attrs).results
    return [Batched(x, is_mapped) for x, is_mapped in zip(results, either, strict=True)]


def choose_by_example(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Compute both branches of a cond for all examples, and choose for each example."""
    if communicates(node):
        raise CompileError(
            "vmap: expected a cond without collectives; got one with collectives (made at "
            f"{node.site}), because its "
            "predicate differs between examples and both branches are computed. Move the "
            "collectives out of the branches."
        )
    predicate, *rest = operands
    branches = []
    for name in ("on_true", "on_false"):
        graph = node.attrs[name].graph
        body = batching.body(graph, node)
        body.new.update(zip(graph.inputs, rest, strict=True))
        branches.append(body.rewrite(graph.outputs))
    made = []
    for result, a, b in zip(node.results, *branches, strict=True):
        ndim = result.ndim
        made.append(where(lead(predicate, ndim), lead(a, ndim), lead(b, ndim)))
    return made


@batches(WithGradient)
def batch_with_gradient(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Apply the gradient rule of the user to each example."""
    count, rule = node.attrs["count"], node.attrs["rule"]
    if getattr(rule, "follows_graph", False):
        results = node.op.node([x.node for x in operands], node.attrs).results
        return [Batched(r, x.is_mapped) for r, x in zip(results, operands, strict=False)]
    given = [
        *(batching.with_batch_axis(x) for x in operands[:count]),
        *(x.node for x in operands[count:]),
    ]
    return node.op.node(given, {"count": count, "rule": BatchedRule(batching, node, rule)})


class BatchedRule:
    """The gradient rule of a mapped with_gradient node.

    A rule of `custom_gradient` may read any node of the traced function. So it is called with the
    traced nodes, and the adjoints that it makes are rewritten.
    """

    def __init__(self, batching: Batching, node: Node, rule: Rule) -> None:
        self.batching, self.node, self.rule = batching, node, rule

    def __call__(
        self, results: Sequence[Node], operands: Sequence[Node], dy: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        """Return the adjoints of the results, then those of the operands."""
        node, batching = self.node, Batching(self.batching.size, self.batching.since, self.batching)
        seeds: list[Node | None] = []
        for result, part in zip(node.results, dy, strict=True):
            seeds.append(None if part is None else inside(result.type))
            if part is not None:
                batching.new[seeds[-1]] = Batched(part)  # type: ignore[index]
        count = node.attrs["count"]
        made = self.rule(node.inputs[:count], node.inputs[count:], seeds)
        found = iter(batching.rewrite([part for part in made if part is not None]))
        new = [None if part is None else next(found) for part in made]
        of_results, of_operands = new[:count], new[count:]
        return [
            *(None if part is None else batching.with_batch_axis(part) for part in of_results),
            *map(self.adjoint, of_operands, node.inputs[count:]),
        ]

    def adjoint(self, part: Batched | None, operand: Node) -> Node | None:
        """Return the adjoint of an operand; one that is not mapped gets the sum over examples."""
        if part is None or self.batching.find(operand).is_mapped:
            return None if part is None else self.batching.with_batch_axis(part)
        return sum(part.node, 0) if part.is_mapped else multiply(part.node, self.batching.size)

    def __repr__(self) -> str:
        return f"vmap({self.rule!r})"


@batches(CallHost)
def batch_call_host(batching: Batching, node: Node, operands: Sequence[Batched]) -> Results:
    """Call the Python function once per example, and its gradient too."""
    function: HostFunction = node.attrs["function"]
    is_mapped = [x.is_mapped for x in operands]
    nodes = tuple(x.node for x in operands)
    results = tuple(batching.batched_type_of(result) for result in function.results)
    forward = once_per_example(function, function.results, is_mapped, batching.size)
    gradient = function.gradient and gradient_per_example(
        function, function.gradient, is_mapped, batching.size
    )
    types = tuple(x.type for x in nodes)
    return node.op.node(nodes, {"function": HostFunction(forward, types, results, gradient)})


def once_per_example(
    function: Callable[..., Any], results: Sequence[Type], is_mapped: Sequence[bool], size: int
) -> Callable[..., Any]:
    """Return a function that calls another one per example, and stacks the results."""

    def examples(*arrays: Array) -> Any:
        stacks = [np.empty((size, *result.shape), result.dtype) for result in results]
        for i in range(size):
            row = [a[i] if mapped else a for a, mapped in zip(arrays, is_mapped, strict=True)]
            returned = function(*row)
            values = returned if isinstance(returned, tuple) else (returned,)
            for stack, value in zip(stacks, values, strict=True):
                stack[i] = value
        return tuple(stacks) if len(stacks) > 1 else stacks[0]

    return examples


def gradient_per_example(
    function: HostFunction, one: Callable[..., Any], is_mapped: Sequence[bool], size: int
) -> Callable[..., Any]:
    """Return the gradient of all examples, given that of one.

    An operand that is not mapped gets the sum over the examples.
    """
    floats = [i for i, operand in enumerate(function.inputs) if is_float(operand.dtype)]
    types = [function.inputs[i] for i in floats]
    all_mapped = [*is_mapped, *(True for _ in function.results)]

    def gradient(*arrays: Array) -> Any:
        each = once_per_example(one, types, all_mapped, size)(*arrays)
        stacks = each if len(types) > 1 else (each,)
        adjoints = [
            stack if is_mapped[i] else stack.sum(0) for i, stack in zip(floats, stacks, strict=True)
        ]
        return tuple(adjoints) if len(adjoints) > 1 else adjoints[0]

    return gradient
