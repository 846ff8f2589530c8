# SPDX-License-Identifier: Apache-2.0
"""The traits of ops that passes and devices read, in five records: Kernel, Fusion and so on.

The class of an op states a record if one of its fields differs from the default:
`kernel = Kernel(is_elementwise=True)`. This replaces the whole record of the base class. Fields
that are not given have the default, not the value that the base class gives them.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Kernel(NamedTuple):
    """The computation of an op. Passes read it to fuse, to plan memory and to choose kernels.

    If an op does not state this record, the device has a kernel with the name of the op, or the
    compiler replaces the op by its expansion (`Op.expand`).
    """

    is_elementwise: bool = False
    """True for an op that the fused kernel computes by an opcode (`kernels/tiles/opcodes.inc`).

    Fusion, layouts, mixed precision, sharding and rematerialisation read this field. By default
    they do not treat the op as elementwise.
    """
    opcode: str = ""
    """The opcode of an elementwise op, read by fusion. The default is the name of the op."""
    is_conversion: bool = False
    """True for an elementwise op with a result dtype of its own, read by fusion.

    The statement of a fused kernel then names the dtypes of operand and result. By default the two
    are equal.
    """
    is_broadcast: bool = False
    """True for an op that repeats elements of its operand.

    Kernels that read the result may read the operand instead, with stride 0. Read by fusion,
    layouts, sharding and costs.
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

    It is the attribute `op` of the kernel "reduce". The fusion of reductions, mixed precision and
    sharding read this field. By default the op is not a
    reduction that elementwise kernels can compute.
    """
    control_flow: str = ""
    """The instruction, "scan" or "cond", that runs the graphs in the attributes of this op.

    Each graph is an attribute of type Body; the attribute `length` is the number of iterations. The
    compiler plans the graphs, and asks for no kernel. An op without this field runs no graphs.
    """


class Fusion(NamedTuple):
    """The fields for fusion into heavy ops and of sums. Elementwise fusion reads `Kernel`."""

    post_operations: tuple[str, ...] = ()
    """The names of the elementwise ops that the kernel of this heavy op can apply to its result.

    `fuse_post_operations` moves such an op into the attribute `post` of the heavy op. By default
    it moves none.
    """
    is_addition: bool = False
    """True for the sum of two operands.

    If a heavy op computes one operand, `fuse_post_operations` fuses the addition into the heavy op,
    as a bias or a residual sum.
    """
    is_multiplication: bool = False
    """True for the elementwise product of two operands.

    If one factor of a product is constant along the axes of a sum, `share_sums` may move it out of
    the sum.
    """
    is_linear_reduction: bool = False
    """True for a sum or a mean: if a is constant along the axes, the sum of a * x is a * sum(x).

    `share_sums` moves such factors out of it. Mixed precision treats any other reduction like a
    maximum, whose result is one of the elements: the result and its operand keep the same bits,
    because gradients compare them.
    """


class Numerics(NamedTuple):
    """The use of 16-bit floats. Mixed precision and gradients read this record.

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
    """True for an op that may read and store 16-bit floats, as it adds few elements: pooling."""
    has_float32_results: bool = False
    """True for an op whose results are float32 if its operand is a 16-bit float."""
    needs_float32_gradient: bool = False
    """True for an op whose gradient is computed in float32, because it would be rounded repeatedly.

    Ops that copy, choose, negate or add round at most once, and do not set it.
    """


class Layout(NamedTuple):
    """The order in memory of the axes of an op's arrays. `assign_layouts` and reports read it."""

    name: str = "row-major"
    """The name of the layout in reports."""
    row_major_op: Any = None
    """The standard op with row-major operands. The op with this record is a variant of it.

    The variant computes the same in another layout. `assign_layouts` replaces the standard op with
    the variant if the device has a kernel for it; see `Op.replace_row_major`. None, the default:
    the op is not a variant.
    """
    is_transpose: bool = False
    """True for an op that returns its operand with its axes in the order attrs["axes"].

    `assign_layouts` moves it after other ops. By default the op is not a transposition.
    """


class Comm(NamedTuple):
    """The dependence of an op on other ranks, apart from that of its operands."""

    is_collective: bool = False
    """True for an op that exchanges data with other ranks.

    The compiler gives it a number, the same on all ranks, by which the ranks start collectives in
    one order. The compiler starts it early. By default an op runs on its rank only.
    """
    has_group_value: bool = False
    """True for an op whose value is determined by the group, such as the number of the rank.

    `order_collectives` replaces it by a constant, which `Op.group_value` returns.
    """
