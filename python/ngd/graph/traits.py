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

    Leaves and collectives run no kernel. Any other op that does not set this record is computed by
    the kernel that `Op.lower` names, by default the kernel with the name of the op. If the device
    has no such kernel, the compiler replaces the op by its expansion (`Op.expand`).
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

    Its cost has no operations, rematerialisation treats it as cheap, and mixed precision lets it
    copy 16-bit floats.
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
    """The properties for two rewrites: fusing ops into a heavy op, and moving factors out of sums.

    A heavy op is one with `Op.cost`, such as a matmul. The fusion of elementwise ops reads `Kernel`
    instead of this record.
    """

    post_operations: tuple[str, ...] = ()
    """The names of the elementwise ops that the kernel of this heavy op can apply to its result.

    A heavy op is one with `Op.cost`. `fuse_post_operations` fuses such an elementwise op into the
    heavy op, whose attribute `post` lists the fused ops. By default no op can be fused.
    """
    is_addition: bool = False
    """True for the sum of two operands.

    If a heavy op, such as a matmul, computes one operand, `fuse_post_operations` fuses the addition
    into the heavy op, as a bias or a residual sum.
    """
    is_multiplication: bool = False
    """True for the elementwise product of two operands.

    `share_sums` looks for such products in sums. It may move a factor that is constant along the
    axes of the sum out of the sum.
    """
    is_linear_reduction: bool = False
    """True for a sum or a mean: if a is constant along the axes, the sum of a * x is a * sum(x).

    `share_sums` moves such a factor a out of the sum.

    If this is False for a reduction, mixed precision assumes that the reduction returns one of the
    elements, such as the maximum. The gradient of such a reduction compares the result with the
    elements, so mixed precision does not round the elements to 16 bits.
    """


class Numerics(NamedTuple):
    """The dtypes (16-bit floats or float32) in which an op and its gradient are computed.

    Mixed precision and gradients read this record.

    In a step of mixed precision, an op without this record computes in float32. Exceptions are
    elementwise ops, ops that only move elements, and reductions. By default the gradient of an op
    is computed in the dtype of its operands.
    """

    is_contraction: bool = False
    """True for a matrix multiplication or a convolution: mixed precision casts its two factors.

    The cast is to the 16-bit precision of the step. The attribute `dtype` of the node gives the
    dtype of the result; further operands, such as a bias, may be float32.
    """
    can_keep_16_bits: bool = False
    """True for an op that may read and store 16-bit floats, because it adds only a few elements.

    An example is pooling.
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
    """The standard op with row-major operands. The op with this record is a variant of that op.

    The variant computes the same in another layout. `assign_layouts` replaces the standard op with
    the variant if the device has a kernel for the variant; see `Op.replace_row_major`. None, the
    default: the op is not a variant.
    """
    is_transpose: bool = False
    """True for an op that returns its operand with its axes in the order attrs["axes"].

    `assign_layouts` moves transpositions towards the outputs of the graph, because adjacent ones
    may cancel. By default the op is not a transposition.
    """


class Comm(NamedTuple):
    """The properties of an op that depends on other ranks.

    Such an op exchanges data with them, or its value is determined by the group of ranks. If only
    the operands of an op depend on other ranks, the op has the default record.
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
