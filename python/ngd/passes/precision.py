# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: matmuls multiply 16-bit floats, and activations are stored as 16-bit floats.

Only operands and stored results are 16-bit floats. Matmuls and convolutions accumulate in float32.
Elementwise kernels, reductions and the statistics of normalizations (mean, variance) widen 16-bit
operands to float32. They round each result once, when they store it.
Variables, their updates, outputs, and operands of collectives stay float32, and so does every value
of an op that has no kernel for 16-bit floats.

The pass uses these words:

- A *product* is a matrix multiplication or a convolution.
- A *move* is an op that copies, repeats or views elements, or an op such as average pooling, which
  adds only a few elements for each element of its result.
- A float32 value is *exact* if the step writes it to a variable or if it is the operand of a
  collective. A value from which elementwise ops and moves compute an exact value is exact, too. An
  exact value is never rounded. If the result of a reduction is exact, its operand is exact only if
  it is computed from variables and constants, such as weights that are averaged. Activations that
  are reduced may be rounded.
- A float32 value is *wanted* in 16 bits if a product multiplies it. If an elementwise kernel
  computes a wanted value, the operands that this kernel reads without broadcasting are wanted, too.
- A float32 value is needed *wide* if one of its readers cannot read 16-bit floats.

A kernel of elementwise ops stores a result in float32, in 16 bits, or in both. A product stores its
result in float32 or in 16 bits, and always in float32 if the result is needed wide. Readers convert
what is stored by casts, which are statements of their kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from .._util.callsite import warn
from ..dtypes import DType, Type, float32
from ..errors import PrecisionWarning
from ..graph.graph import Graph
from ..graph.leaves import CONSTANT, VARIABLE, Leaf
from ..graph.node import Node, offset_of
from ..graph.registry import OPS
from ..ops._casting import cast
from .fusion.elementwise import dense_strides
from .fusion.kernel_body import (
    FusedKernel,
    Input,
    KernelBody,
    Reductions,
    body_of,
    cast_statement,
    fused_node,
    shape_of,
)
from .options import CompileOptions
from .target import Target
from .views import source_of


def has_low_precision(graph: Graph, options: CompileOptions, changed: bool) -> bool:
    """Return whether the precision of the step is a 16-bit dtype."""
    return options.has_low_precision


def lower_precision(graph: Graph, target: Target | None, options: CompileOptions) -> Graph:
    """Return a graph that multiplies and stores 16-bit floats. It has nodes for the casts.

    `target` is asked which kernels the device has. If it is None, every op is assumed to have a
    kernel for 16-bit floats.
    """
    uses = Uses(graph, target, options.precision)
    if uses.unsupported is not None and not uses.products:
        name, node = options.precision.name, uses.unsupported
        warn(
            f"compile: precision: expected a {name} kernel for the matmuls and convolutions of "
            f"this step; got a CPU without one, for example for {node.op.name} {node.type} (made "
            f"at {node.site}). They stay float32. Leave precision out on this CPU.",
            PrecisionWarning,
        )
    return graph.rewrite(Rewriting(uses).change)


class Uses:
    """An analysis of the readers of each float32 value, which decides how the value is stored."""

    def __init__(self, graph: Graph, target: Target | None, dtype: DType) -> None:
        self.dtype, self.target = dtype, target
        self.wanted: set[Node] = set()
        self.exact: set[Node] = {value for _, value in graph.updates}
        self.of_variables = made_of_variables(graph)
        self.float32_values: set[Node] = {*graph.roots}
        self.products: dict[Node, DType] = {}
        """For each matmul or convolution of 16-bit operands: the dtype of the stored result."""
        self.others: set[Node] = set()
        """The nodes that read 16-bit floats and are not matmuls, convolutions or elementwise ops.
        They are moves (copies, views, pooling), or the mean and variance of a normalization."""
        self.unsupported: Node | None = None
        """The first matmul or convolution in the graph without a kernel for 16-bit floats, or
        None."""
        for node in reversed(graph.nodes):
            if not isinstance(node.op, Leaf):
                self.visit(node)

    def visit(self, node: Node) -> None:
        """Record in which dtypes a node needs its operands.

        The caller visits nodes in reverse order: all readers of a node before the node.
        """
        wide_flags = zip(node.results, stay_float32(node), strict=True)
        self.float32_values.update(result for result, is_wide in wide_flags if is_wide)
        self.float32_values.update(chosen_values(node))
        floats = [x for x in node.inputs if x.dtype == float32]
        self.demand_exact(node, floats)
        if node.op.numerics.is_contraction and node.dtype == float32:
            self.visit_product(node)
        elif node.op.kernel.is_elementwise or isinstance(node.op, FusedKernel):
            if self.wanted.intersection(node.results):
                full_shape = shape_of(node)
                self.wanted.update(x for x in floats if x.shape == full_shape)
        elif moves(node):
            self.visit_move(node, floats)
        elif node.op.numerics.has_float32_results and self.has_16_bit_kernel(node):
            self.others.add(node)
        elif not (node.op.kernel.reduction and self.target):
            self.float32_values.update(floats)

    def demand_exact(self, node: Node, floats: Sequence[Node]) -> None:
        """Add to `exact` the float32 operands of a node that must never be rounded.

        At first, `exact` has the values that the step writes to variables. If the node is a
        collective, its operands are added. If it is an elementwise op or a move (copy, broadcast,
        view) with a result in `exact`, its operands are added, too. If it is a reduction with a
        result in `exact`, only the operands that are computed from variables and constants are
        added.
        """
        exact: set[Node] = set()
        reduces = node.op.kernel.reduction or is_reducing_kernel(node)
        if reduces and self.exact.intersection(node.results):
            exact.update(self.of_variables.intersection(floats))
        is_fusible = node.op.kernel.is_elementwise or isinstance(node.op, FusedKernel)
        hands_on = is_fusible or moves(node)
        if node.op.comm.is_collective or (hands_on and self.exact.intersection(unreduced(node))):
            exact.update(floats)
        self.exact.update(exact)
        self.float32_values.update(exact)

    def visit_move(self, node: Node, floats: Sequence[Node]) -> None:
        """Record in which dtype an op that moves elements needs its operands.

        If the op should move 16-bit floats (`moves_16_bits`), add it to `others`, the ops that read
        16-bit floats. Also add its operands to `wanted`, the values that a reader needs as 16-bit
        floats. Otherwise its operands stay float32.
        """
        if node.op.kernel.is_view:  # other inputs only order the execution; they are not read
            floats = [x for x in node.inputs[:1] if x.dtype == float32]
        if self.moves_16_bits(node):
            self.others.add(node)
            self.wanted.update(floats)
        else:
            self.float32_values.update(floats)

    def visit_product(self, node: Node) -> None:
        """Record in `products` the dtype in which the result of a matmul or convolution is stored.

        If the result must stay float32 (ngd.full_precision), or the device has no kernel for 16-bit
        operands, the operands stay float32 and nothing is recorded.
        """
        if node.keeps_float32:
            self.float32_values.update(node.inputs)
            return
        operand_types = [
            x.type if n > 1 else self.as_16_bits(x.type) for n, x in enumerate(node.inputs)
        ]
        own_dtype = (
            self.dtype if node in self.wanted and node not in self.float32_values else float32
        )
        for dtype in dict.fromkeys((own_dtype, float32)):
            if self.has_kernel(node, operand_types, [Type(dtype, node.shape)]):
                self.products[node] = dtype
                self.wanted.update(node.inputs[:2])
                added = [x for x in node.inputs[2:] if x.type == node.type]
                if dtype == self.dtype:
                    self.wanted.update(added)
                self.float32_values.update(x for x in node.inputs[2:] if x.type != node.type)
                return
        if node.type.count:
            self.unsupported = node
        self.float32_values.update(node.inputs)

    def moves_16_bits(self, node: Node) -> bool:
        """Return whether an op that moves elements should move 16-bit floats.

        It should if three conditions hold: a reader needs a result in 16 bits, every result may be
        stored in 16 bits, and the device has a kernel. A broadcast or a view needs no kernel. A
        slice of a larger input, variable or constant stays float32.
        """
        floats = [r for r in node.results if r.dtype == float32]
        if not self.wanted.intersection(floats) or self.float32_values.intersection(floats):
            return False
        source = source_of(node.inputs[0])
        if isinstance(source.op, Leaf) and source.type.count > node.type.count:
            return False  # rounding the whole leaf would take longer than rounding the part
        if node.op.kernel.is_broadcast or offset_of(node) is not None:
            return True
        return self.has_16_bit_kernel(node, [self.as_16_bits(r.type) for r in node.results])

    def has_16_bit_kernel(self, node: Node, made: Sequence[Type] | None = None) -> bool:
        """Return whether the device has a kernel that reads float32 operands as 16-bit floats.

        `made` has the types of the kernel's results. If it is None, they are those of the node.
        """
        return self.has_kernel(node, [self.as_16_bits(x.type) for x in node.inputs], made)

    def as_16_bits(self, type_: Type) -> Type:
        """Return a type with float32 replaced by the 16-bit dtype."""
        return Type(self.dtype, type_.shape) if type_.dtype == float32 else type_

    def has_kernel(
        self, node: Node, operand_types: Sequence[Type], made: Sequence[Type] | None
    ) -> bool:
        """Return whether the device has a kernel with these types of operands and results.

        `made` has the types of the kernel's results. If it is None, they are those of the node.
        """
        if self.target is None:
            return True
        name, attrs = node.op.lower(**node.attrs)
        types = [r.type for r in node.results] if made is None else made
        return self.target.query(name, operand_types, types, attrs).accepted


class Rewriting:
    """The rewrite of a graph to one that multiplies and stores 16-bit floats."""

    def __init__(self, uses: Uses) -> None:
        self.uses, self.dtype = uses, uses.dtype
        self.stored: dict[Node, Node] = {}
        """For a float32 node of the new graph, the 16-bit node that it is cast from."""
        self.rounded: dict[Node, Node] = {}
        """A dict from a float32 node of the new graph to its 16-bit copy. The node is stored in
        float32, but is also read in 16 bits."""

    def to_16_bits(self, x: Node) -> Node:
        """Return a value as 16-bit floats."""
        if x.dtype != float32:
            return x
        if x in self.stored:
            return self.stored[x]
        if x not in self.rounded:
            self.rounded[x] = cast.node((x,), {"dtype": self.dtype})
        return self.rounded[x]

    def as_stored(self, x: Node) -> Node:
        """Return a value in the dtype in which it is stored in memory."""
        return self.stored.get(x, x)

    def replacement_of(self, old: Node, new: Node) -> Node:
        """Return the node that replaces `old`, a value of the old graph.

        This is `new`, a node of the new graph, or its cast to float32 if `new` has 16-bit floats.
        """
        if new.type == old.type:
            return new
        wide = cast.node((new,), {"dtype": float32})
        self.stored[wide] = new
        return wide

    def change(self, node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        """Return the new nodes that replace a node's results. `inputs` are its new inputs.

        `Graph.rewrite` calls this for each node. A result that is stored as a 16-bit float is
        replaced by the cast of the stored value to float32.
        """
        op = node.op
        if node in self.uses.products:
            return self.product(node, inputs)
        if node in self.uses.others:
            if op.numerics.has_float32_results:
                operands = [self.as_stored(x) for x in inputs]
            elif op.kernel.is_view:
                operands = [self.to_16_bits(inputs[0]), *map(self.as_stored, inputs[1:])]
            else:
                operands = [self.to_16_bits(x) for x in inputs]
            made = op.node(operands, node.attrs)
            results = tuple(map(self.replacement_of, node.results, made.results))
            return results if node.has_several_results else results[0]
        if isinstance(op, FusedKernel):
            return self.fused(node, inputs)
        if op.kernel.reduction and inputs[0] in self.stored:
            return self.reduction(node, inputs[0])
        if op.kernel.is_view and len(inputs) > 1:
            return node.with_inputs((inputs[0], *map(self.as_stored, inputs[1:])))
        return node.with_inputs(inputs)

    def product(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        """Return a matmul or convolution of 16-bit floats that replaces a node."""
        factors = [self.to_16_bits(x) for x in inputs[:2]]
        other_operands = [self.as_stored(x) if x.type == node.type else x for x in inputs[2:]]
        wide = {} if self.uses.products[node] == self.dtype else {"dtype": float32}
        made = node.op.node((*factors, *other_operands), {**node.attrs, **wide})
        return self.replacement_of(node, made)

    def fused(self, node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        """Return a fused kernel with casts for 16-bit operands and results.

        The kernel is unchanged if it needs no casts, or if the device does not accept the new one.
        """
        kernel = NarrowKernel(node, self.dtype)
        operands = [self.as_stored(x) for x in inputs]
        kernel.read(operands)
        for number, result in enumerate(kernel.results):
            if result in self.uses.wanted and result.type == Type(float32, kernel.shape):
                kernel.store(number, keeps_wide=result in self.uses.float32_values)
        made, target = kernel.node(operands), self.uses.target
        if made is None or (target and not accepted(made, target)):
            return node.with_inputs(inputs)
        made_here = [made.results[n] for n in kernel.positions]
        results = list(map(self.replacement_of, node.results, made_here))
        for number, extra in kernel.extra.items():
            self.rounded[results[number]] = made.results[extra]
        return tuple(results) if node.has_several_results else results[0]

    def reduction(self, node: Node, x: Node) -> Node:
        """Return a fused kernel that widens the 16-bit operand of a reduction and reduces it.

        If the device is not known to have this kernel, return the reduction of the float32 `x`.
        """
        reductions = Reductions(x.shape, node.attrs["axes"], (0,), (node.op.kernel.reduction,))
        cast = cast_statement(Input(0), self.dtype, float32)
        body = KernelBody((cast,), (), dense_strides(x.shape), reductions)
        made = fused_node((self.stored[x],), body, (node.type,), node.op.fused_ops(node))
        target = self.uses.target
        return made if target and accepted(made, target) else node.with_inputs((x,))


def moves(node: Node) -> bool:
    """Return whether an op is a move: it copies, repeats or views elements, or adds a few of them.

    For example, average pooling adds only a few elements for each element of its result.
    """
    kernel = node.op.kernel
    is_move = kernel.is_copy or kernel.is_broadcast or kernel.is_view
    return is_move or node.op.numerics.can_keep_16_bits


def made_of_variables(graph: Graph) -> set[Node]:
    """Return the values that are computed from variables and constants only.

    A value is left out if it is the result of a matmul or convolution, or is computed from such a
    result.
    """
    made: set[Node] = set()
    for node in graph.nodes:
        read = [x for x in node.inputs if x.dtype == float32 and x.op is not CONSTANT]
        is_computed = read and not node.op.numerics.is_contraction
        if node.op is VARIABLE or (is_computed and made.issuperset(read)):
            made.update(node.results)
    return made


def unreduced(node: Node) -> tuple[Node, ...]:
    """Return the results of a node, without the reductions that a fused kernel computes."""
    return stored_results(node) if is_reducing_kernel(node) else node.results


def stay_float32(node: Node) -> tuple[bool, ...]:
    """Return for each result of an op whether it stays float32 because of ngd.full_precision."""
    if isinstance(node.op, FusedKernel):
        return (
            *node.op.keeps_float32,
            *(False for _ in range(len(node.results) - len(node.op.keeps_float32))),
        )
    return (node.keeps_float32,) * len(node.results)


@cache
def selecting_reductions() -> frozenset[str]:
    """Return the kinds of the reductions that return one of the elements, such as a maximum.

    The gradient of such a reduction finds the chosen element by comparing the elements with the
    result. So if the result is not rounded, the elements must not be rounded either.
    """
    choosing = (op for op in OPS.values() if not op.fusion.is_linear_reduction)
    return frozenset(op.kernel.reduction for op in choosing if op.kernel.reduction)


def chosen_values(node: Node) -> list[Node]:
    """Return the values from which a node chooses elements, such as the operand of a maximum.

    A fused kernel may compute the maximum of one of its own results or inputs. Then this result or
    input is returned.
    """
    if node.op.kernel.reduction in selecting_reductions():
        return list(node.inputs)
    if not is_reducing_kernel(node):
        return []
    body, chosen = body_of(node), list[Node]()
    assert body.reductions is not None
    for number, kind in zip(body.reduced, body.reductions.kinds, strict=True):
        if kind in selecting_reductions():
            stored = zip(node.results, body.stored, strict=False)
            chosen += [result for result, made in stored if made == number]
            operands = body.statements[number].operands
            chosen += [node.inputs[x.number] for x in operands if isinstance(x, Input)]
    return chosen


def is_reducing_kernel(node: Node) -> bool:
    """Return whether a node is a fused kernel with reductions."""
    return isinstance(node.op, FusedKernel) and body_of(node).reductions is not None


def stored_results(node: Node) -> tuple[Node, ...]:
    """Return the results of a fused kernel that are not reductions."""
    return node.results[: len(body_of(node).stored)]


def drop_unread(graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Remove each result of a fused kernel that no node reads.

    An example is the float32 copy of a result if all readers read its 16-bit copy.
    """
    read = {operand for node in graph.nodes for operand in node.inputs} | {*graph.roots}

    def change(node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        if not isinstance(node.op, FusedKernel) or read.issuperset(stored_results(node)):
            return node.with_inputs(inputs)
        read_results = [r for r in node.results if r in read]
        body = body_of(node).keep_results([r.number for r in stored_results(node) if r in read])
        made = fused_node(inputs, body, [r.type for r in read_results], node.op.fused_ops(node))
        results = iter(made.results)
        return tuple(next(results) if r in read else r for r in node.results)

    return graph.rewrite(change)


def accepted(node: Node, target: Target) -> bool:
    """Return whether the device has a kernel for the op of a node, with the types of this node."""
    types = [r.type for r in node.results]
    name, attrs = node.op.lower(**node.attrs)
    return target.query(name, [x.type for x in node.inputs], types, attrs).accepted


class NarrowKernel:
    """A fused kernel while casts are added to its body."""

    def __init__(self, node: Node, dtype: DType) -> None:
        self.original, self.dtype, self.shape = node, dtype, shape_of(node)
        self.body = body_of(node)
        self.results = stored_results(node)
        """The results of the original kernel, without those that are reductions."""
        self.types = [result.type for result in self.results]
        self.extra: dict[int, int] = {}
        """A dict {position of the float32 result: position of its 16-bit copy}, for results that
        are stored twice. Both are positions in the results of the new kernel."""

    def read(self, operands: Sequence[Node]) -> None:
        """Add casts to float32 to the body, for the operands that are now 16-bit floats."""
        inputs = self.original.inputs
        narrow = [n for n, x in enumerate(operands) if x.dtype != inputs[n].dtype]
        if narrow:
            self.body = self.body.cast_inputs(narrow, self.dtype)

    def store(self, number: int, *, keeps_wide: bool) -> None:
        """Store a result as a 16-bit float, in addition to the float32 one or instead of it."""
        self.body = self.body.cast_result(number, self.dtype, keeps_wide=keeps_wide)
        narrow = Type(self.dtype, self.shape)
        if keeps_wide:
            self.extra[number] = len(self.types)
            self.types.append(narrow)
        else:
            self.types[number] = narrow

    @property
    def positions(self) -> Iterable[int]:
        """For each result of the original node, its position among the results of the new node.

        If a result is stored in both dtypes, this is the position of the float32 one.
        """
        count = len(self.results)
        reductions = len(self.original.results) - count
        return (*range(count), *(len(self.types) + n for n in range(reductions)))

    def node(self, operands: Sequence[Node]) -> Node | None:
        """Return a node that computes the kernel with its casts, or None if no cast was added."""
        original = self.original
        if self.body is body_of(original):
            return None
        types = (*self.types, *(r.type for r in original.results[len(self.results) :]))
        return fused_node(operands, self.body, types, original.op.fused_ops(original))


__all__ = ["drop_unread", "has_low_precision", "lower_precision"]
