# SPDX-License-Identifier: Apache-2.0
"""The traits of ops that passes and devices read, in five records: Kernel, Fusion and so on.

The class of an op sets a record if the op needs a value that differs from a default, for example
`kernel = Kernel(is_elementwise=True)`. The new record replaces the whole record of the base class.
Fields that are not given have their defaults, not the values in the record of the base class.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Kernel(NamedTuple):
    """The computation of an op. Passes read it to fuse, to plan memory and to choose kernels.

    An op with `kernel = Kernel()`, the default, is computed by the native kernel that `Op.lower`
    names. By default, this is the kernel with the name of the op. If the device has no such kernel,
    the compiler replaces the op by its expansion (`Op.expand`). Collectives, and ops without
    operands (leaves), run no kernel.
    """

    is_elementwise: bool = False
    """True for an op on single elements, which fused kernels compute by an opcode.

    `kernels/tiles/opcodes.inc` has the opcodes. Fusion, layouts, mixed precision, sharding and
    rematerialisation read this field. The default is False.
    """
    opcode: str = ""
    """The opcode of an elementwise op, read by fusion. The default is the name of the op."""
    is_conversion: bool = False
    """True for an elementwise op that converts its operand to another dtype.

    A fused kernel has one statement per elementwise op. The statement of a conversion has two
    dtypes, that of the operand and that of the result; any other statement has one. The fusion of
    elementwise ops reads this field.
    """
    is_broadcast: bool = False
    """True for an op that repeats elements of its operand.

    Kernels that read the result may read the operand instead, with stride 0. Fusion, layouts,
    sharding and costs read this field.
    """
    is_view: bool = False
    """True for an op whose result can be stored as a part of its first operand, without a copy.

    `Op.offset` returns the offset in bytes, or None if the result needs a copy. The memory plan,
    mixed precision and sharding read this field. By default the result has memory of its own.
    """
    is_copy: bool = False
    """True for an op that copies elements and computes nothing.

    Such an op counts as 0 scalar operations in the cost of a step. Rematerialisation treats it as
    cheap, and mixed precision lets it copy 16-bit floats.
    """
    reduction: str = ""
    """The kind of reduction along attrs["axes"] that the op computes, such as "sum".

    The kernel "reduce" gets this value as its attribute `op`. The fusion of reductions, mixed
    precision and sharding read this field. The default is "", for an op that the kernel "reduce"
    does not compute.
    """
    control_flow: str = ""
    """The instruction, "scan" or "cond", that runs the graphs in the attributes of this op.

    Each graph is an attribute of type Body; the attribute `length` is the number of iterations. The
    compiler plans the graphs, and asks for no kernel. An op without this field runs no graphs.
    """


class Fusion(NamedTuple):
    """The properties that passes read to fuse ops into a heavy op and to move factors out of sums.

    A heavy op is one with `Op.cost`, such as a matmul. To fuse elementwise ops with each other,
    passes read the record `Kernel` instead.
    """

    post_operations: tuple[str, ...] = ()
    """The names of the elementwise ops that the kernel of this op can apply to its result.

    An example is an activation after a matmul. The pass `fuse_post_operations` fuses such an
    elementwise op into this op. The attribute `post` of the new node lists the fused ops. By
    default no op can be fused.
    """
    is_addition: bool = False
    """True for the sum of two operands.

    If a matmul or convolution computes one operand, its kernel may also add the other operand, a
    bias or a residual. The pass `fuse_post_operations` makes this change.
    """
    is_multiplication: bool = False
    """True for the elementwise product of two operands.

    The pass `share_sums` looks for such products in sums. It replaces sum(a * x) by a * sum(x) if
    a is constant along the summed axes and sum(x) is computed anyway.
    """
    is_linear_reduction: bool = False
    """True for a sum or a mean: if a is constant along the axes, the sum of a * x is a * sum(x).

    The pass `share_sums` moves such a factor a out of the sum.

    If this is False for a reduction, mixed precision treats the reduction like a maximum. The
    gradient of a maximum compares the result with the elements, so mixed precision does not round
    the elements to 16 bits.
    """


class Numerics(NamedTuple):
    """The dtypes (16-bit floats or float32) in which an op and its gradient are computed.

    Mixed precision and gradients read this record.

    In a step of mixed precision, an op with `numerics = Numerics()`, the default, computes in
    float32, unless it is elementwise, a reduction, or only moves elements. By default the gradient
    of an op is computed in the dtype of its operands.
    """

    is_contraction: bool = False
    """True for a matrix multiplication or a convolution: mixed precision casts its two factors.

    The cast is to the 16-bit precision of the step. The attribute `dtype` of the node gives the
    dtype of the result; further operands, such as a bias, may be float32.
    """
    can_keep_16_bits: bool = False
    """True for an op whose operand and result may be 16-bit floats, because it adds few elements.

    For example, average pooling adds only a few elements for each element of its result.
    """
    has_float32_results: bool = False
    """True for an op whose results are float32 if its operand is a 16-bit float."""
    needs_float32_gradient: bool = False
    """True for an op whose gradient is computed in float32 even if its operands are 16-bit floats.

    Such a gradient consists of several ops, and in 16 bits the result of each op would be rounded.
    Ops that copy, select, negate or add values round at most once: their field is False.
    """


class Layout(NamedTuple):
    """The order in memory of the axes of an op's arrays. `assign_layouts` and reports read it."""

    name: str = "row-major"
    """The name of the layout in reports."""
    row_major_op: Any = None
    """The standard op, with row-major operands, if this op is a variant of it; None if it is not.

    A variant computes the same in another layout, such as channels last. `assign_layouts` replaces
    the standard op with the variant if the device has a kernel for the variant. See
    `Op.replace_row_major`.
    """
    is_transpose: bool = False
    """True for an op that returns its operand with its axes in the order attrs["axes"].

    `assign_layouts` moves transpositions towards the outputs of the graph, because adjacent ones
    may cancel. By default the op is not a transposition.
    """


class Comm(NamedTuple):
    """The properties of an op that communicates, or whose value the group of ranks determines.

    Examples are an all-reduce, and the number of the rank. An op that only reads the results of
    such ops has `comm = Comm()`, the default.
    """

    is_collective: bool = False
    """True for an op that exchanges data with other ranks.

    The compiler gives it a sort key (`Order`) that is equal on all ranks, so that all ranks start
    their collectives in one order. A collective starts as soon as its operand is computed, and
    other ops run until its result is read. By default an op does not communicate.
    """
    has_group_value: bool = False
    """True for an op whose value is determined by the group, such as the number of the rank.

    `order_collectives` replaces it by a constant, which `Op.group_value` returns.
    """
