# SPDX-License-Identifier: Apache-2.0
"""Fusion of reductions into the elementwise kernels that compute or read their operands.

First, `share_sums` moves factors that are constant along the summed axes out of a sum. It does so
if the step also sums the product of the other factors. For example, the backward pass of a norm
needs sum(dy), sum(dy * weight), sum(dy * value) and sum(dy * weight * value). If weight is constant
along the axes, the sums with weight are computed as weight * sum(dy) and weight * sum(dy * value),
so two sums are saved.

Then `fuse_reductions` adds reductions to elementwise kernels. A kernel may compute reductions of
its results. It may also compute a reduction of one of its operands if the reduction and the kernel
have the same *depth*. The depth of a node is the largest number of ops that are not elementwise on
a path from an input to the node (elementwise.depths). All reductions of one kernel have the same
axes. A result that only these reductions read is not stored.

Neither pass makes a cycle. A reduction of a result comes after the kernel anyway. A reduction of an
operand is fused only if it has the depth of the kernel. A kernel or a reduction is deeper than
every node that it needs. So of a kernel and a reduction of equal depth, neither needs the other.
The fusion delays no collective either: the first collective that needs the kernel is also the first
one that needs the reduction (elementwise.needs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from ...dtypes import SHORT_NAMES, Shape, Type, float32, float64
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.order import Order
from ...ops._shape import reshape
from ..options import CompileOptions
from ..target import Target
from .elementwise import dense_operands, depths, needs, order_bundles, see_through
from .kernel_body import (
    FusedKernel,
    Input,
    KernelBody,
    Reductions,
    Statement,
    body_of,
    fused_node,
    is_elementwise_kernel,
    kernel_name,
)

EXACT: Final = (float32, float64)
"""The dtypes of the sums from which `share_sums` moves factors out. A 16-bit sum may overflow if a
factor that is less than 1 is moved out of it."""
MAX_FACTORS: Final = 8
MAX_REDUCTIONS: Final = 8

Product: TypeAlias = tuple[Shape, tuple[int, Shape], tuple[int, ...]]
"""A key for a sum of a product, such as sum(a * b). Two sums with equal keys differ only in factors
that are constant along the summed axes. The key is (axes, (ndim, sizes), ids): the summed axes, the
number of axes of the operand, the sizes of the summed axes, and the sorted ids of the factors that
vary along them."""


class SumBundle(NamedTuple):
    """A sum that `share_sums` computes from another sum, and the nodes that must come before it.

    `order_bundles` puts the nodes in `outside` before the sum. They are the operand of the sum and
    the operand of the other sum. `members` has one element, the sum.
    """

    members: Sequence[Node]
    outside: Sequence[Node]


def share_sums(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Move factors out of a sum if the sum of its other factors is computed anyway.

    For example, sum(w * x) becomes w * sum(x) if the graph also has sum(x), and w is constant along
    the summed axes.
    """
    taken = dict(shareable_sums(graph))
    if not taken:
        return graph
    new: dict[Node, Node] = {}
    bundles = {node: SumBundle([node], [*node.inputs, x]) for node, (x, _) in taken.items()}

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        found = taken.get(node)
        if found is None:
            made = node.with_inputs(inputs)
            new.update(zip(node.results, made.results, strict=True))
            return made
        x, outside = found
        made = node.op.node((new.get(x, x),), node.attrs)
        for term in outside:
            source = see_through(term)
            made = scale(made, new.get(source, source), node)
        new[node] = made
        return made

    return graph.rewrite(change, order_bundles(graph.roots, bundles))


def shareable_sums(graph: Graph) -> Iterator[tuple[Node, tuple[Node, list[Node]]]]:
    """Yield each sum that equals another sum times factors that are constant along the summed axes.

    Each sum comes with a pair: the operand of that other sum, and the list of these factors.
    """
    sums_by_product: dict[Product, list[tuple[Node, Counter[Node]]]] = {}
    for node in graph.nodes:
        if node.op.fusion.is_linear_reduction and node.dtype in EXACT and node.inputs[0].type.count:
            (x,), axes = node.inputs, node.attrs["axes"]
            inside: list[Node] = []
            outside: Counter[Node] = Counter()
            for term in factors(x):
                if is_constant_along(term, x.shape, axes):
                    outside[term] += 1
                else:
                    inside.append(term)
            extents = x.ndim, tuple(x.shape[axis] for axis in axes)
            key = axes, extents, tuple(sorted(term.id for term in inside))
            sums_by_product.setdefault(key, []).append((node, outside))
    for sums in sums_by_product.values():
        least, common = min(sums, key=lambda entry: entry[1].total())
        for node, outside in sums:
            if outside > common:
                yield node, (least.inputs[0], list((outside - common).elements()))


def factors(node: Node, max_factors: int = MAX_FACTORS) -> Iterator[Node]:
    """Yield the factors of a product: a, b and c for a * b * c.

    If the node is not a product, yield the node itself. At most `max_factors` are yielded, so a
    factor may itself be a product.
    """
    if node.op.fusion.is_multiplication and max_factors > 1:
        for operand in node.inputs:
            yield from factors(operand, max_factors // 2)
    else:
        yield node


def with_leading_axes(shape: Shape, ndim: int) -> Shape:
    """Return a shape with axes of extent 1 in front, so that it has `ndim` axes."""
    return (*(1,) * (ndim - len(shape)), *shape)


def is_constant_along(term: Node, shape: Shape, axes: Shape) -> bool:
    """Return whether `term`, a factor of a product, is broadcast and is constant along `axes`.

    `shape` is the shape of the product.
    """
    extents = with_leading_axes(see_through(term).shape, len(shape))
    return all(extents[axis] == 1 for axis in axes) and extents != shape


def scale(total: Node, factor: Node, reduction: Node) -> Node:
    """Return a sum times a factor that was moved out of it.

    `reduction` is the sum before the factor was moved.
    """
    (x,), axes = reduction.inputs, reduction.attrs["axes"]
    shape = with_leading_axes(factor.shape, x.ndim)
    if not reduction.attrs["keepdims"]:
        shape = tuple(n for axis, n in enumerate(shape) if axis not in axes)
    return x.op.node((total, reshape(factor, shape)), {})


class ReducingKernel(NamedTuple):
    """A fused kernel, and the reductions that it is going to compute, too."""

    kernel: Node
    stored: list[Node]
    """The results of the kernel that have readers other than the nodes in `reductions`."""
    reductions: list[Node]
    body: KernelBody
    """The body of the kernel with the reductions."""

    @property
    def members(self) -> Sequence[Node]:
        """The kernel and the reductions."""
        return [self.kernel, *self.reductions]

    @property
    def outside(self) -> Sequence[Node]:
        """The operands of the kernel, which are computed before the kernel and the reductions."""
        return self.kernel.inputs

    @property
    def fused_ops(self) -> tuple[tuple[str, str], ...]:
        """The ops that the kernel with the reductions computes: the name and call site of each."""
        return sum((node.op.fused_ops(node) for node in self.members), ())

    @property
    def keeps_float32(self) -> tuple[bool, ...]:
        """For each stored result, True if it stays float32 (ngd.full_precision)."""
        op = self.kernel.op
        assert isinstance(op, FusedKernel)
        return tuple(
            bool(op.keeps_float32) and op.keeps_float32[result.number] for result in self.stored
        )

    @property
    def types(self) -> tuple[Type, ...]:
        """The types of the results of the kernel with the reductions."""
        return tuple(node.type for node in (*self.stored, *self.reductions))


def fuse_reductions(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Replace elementwise kernels by kernels that also compute reductions."""
    reducing_kernel_of: dict[Node, ReducingKernel] = {}
    for reducing in reducing_kernels(graph):
        types = [i.type for i in reducing.kernel.inputs]
        name, attrs = kernel_name(reducing.body), reducing.body.lowered
        if target.query(name, types, reducing.types, attrs).accepted:
            reducing_kernel_of.update(dict.fromkeys(reducing.members, reducing))
    if not reducing_kernel_of:
        return graph
    new: dict[Node, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        reducing = reducing_kernel_of.get(node)
        if reducing is None:
            return node.with_inputs(inputs)
        if node is reducing.kernel:
            made = fused_node(
                inputs, reducing.body, reducing.types, reducing.fused_ops, reducing.keeps_float32
            )
            new.update(zip((*reducing.stored, *reducing.reductions), made.results, strict=True))
            results = tuple(new.get(result, result) for result in node.results)
            return results if node.has_several_results else results[0]
        return new[node]

    return graph.rewrite(change, order_bundles(graph.roots, reducing_kernel_of))


def reducing_kernels(graph: Graph) -> Iterator[ReducingKernel]:
    """Yield a `ReducingKernel` for each elementwise kernel that could also compute reductions."""
    reductions = [node for node in graph.nodes if node.op.kernel.reduction]
    if not reductions:
        return
    readers = Counter(operand for node in graph.nodes for operand in node.inputs)
    readers.update(graph.roots)
    for kernel, candidates in reductions_by_kernel(graph, reductions).items():
        axes, _ = Counter(node.attrs["axes"] for node in candidates).most_common(1)[0]
        taken = [node for node in candidates if node.attrs["axes"] == axes][:MAX_REDUCTIONS]
        inside = Counter(node.inputs[0] for node in taken)
        stored = [result for result in kernel.results if readers[result] > inside[result]]
        yield ReducingKernel(kernel, stored, taken, body_with_reductions(kernel, stored, taken))


def reductions_by_kernel(graph: Graph, reductions: Sequence[Node]) -> dict[Node, list[Node]]:
    """Return for each elementwise kernel the reductions that it may compute.

    A kernel may compute any reduction of its results. It may compute a reduction of one of its
    operands if two conditions hold:

    - The reduction and the kernel have the same depth. Each of them has a larger depth than every
      node that it needs (elementwise.depths). So neither needs the other, and no cycle is made.
    - The first collective that needs the kernel is also the first one that needs the reduction
      (elementwise.needs). So no collective is delayed.
    """
    depth_of = depths(graph)
    need_of = needs(graph, depth_of)
    readers_of = kernels_by_dense_operand(graph)
    found: dict[Node, list[Node]] = {}

    def first_collective(node: Node) -> Order:
        return min([need_of[result][0] for result in node.results])

    for node in reductions:
        (x,) = node.inputs
        if is_elementwise_kernel(x):
            found.setdefault(x.results[0], []).append(node)
            continue
        for kernel in readers_of.get(x, []):
            is_together = first_collective(kernel) == first_collective(node)
            if is_together and depth_of[kernel] == depth_of[node]:
                found.setdefault(kernel, []).append(node)
                break
    return found


def kernels_by_dense_operand(graph: Graph) -> dict[Node, list[Node]]:
    """Return for each node the elementwise kernels that read it whole, in row-major order."""
    found: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if is_elementwise_kernel(node):
            for operand in dense_operands(node):
                found.setdefault(operand, []).append(node)
    return found


def body_with_reductions(
    kernel: Node, stored: Sequence[Node], reductions: Sequence[Node]
) -> KernelBody:
    """Return the body of `kernel` after reductions are added.

    The new body stores only the results in `stored`, and computes the nodes in `reductions`.
    """
    body, dense = body_of(kernel), dense_operands(kernel)
    read = [node.inputs[0] for node in reductions]
    # The first statements read the operands that are reduced, because a result may be written over
    # one of them later.
    own_results = {*kernel.results}
    copied_operands = [x for x in dict.fromkeys(read) if x not in own_results]
    copies = [Statement("copy", SHORT_NAMES[x.dtype], (Input(dense[x]),)) for x in copied_operands]
    body = body.prepend(copies)
    made = {x: number for number, x in enumerate(copied_operands)}
    made |= dict(zip(kernel.results, body.stored, strict=True))
    taken = Reductions(
        kernel.shape,
        reductions[0].attrs["axes"],
        tuple([made[x] for x in read]),
        tuple([node.op.kernel.reduction for node in reductions]),
    )
    return KernelBody(
        body.statements,
        tuple([made[node] for node in stored]),
        body.input_strides,
        taken,
        body.products,
    )


__all__ = ["fuse_reductions", "share_sums"]
