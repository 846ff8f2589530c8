# SPDX-License-Identifier: Apache-2.0
"""Conversion to another dtype (`cast`). All other ops promote operands to one dtype by `cast`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import ALL, INTEGERS, Array, DType, Type, as_dtype, float32, float64, is_float
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ..graph.traits import Kernel
from ._operands import FLOATS_16_BIT, Value, as_node, scalar, unchanged_operand, weak_value, widen

__all__ = ["cast"]


class Cast(Op):
    """Return the values in another dtype.

    Parameters
    ----------
    x
        An array of any dtype and shape.
    dtype
        The dtype of the result, such as "float32" or np.int64.

    Notes
    -----
    Integers wrap around. A float becomes an integer by rounding towards zero; a value out of range
    becomes the nearest limit, and NaN becomes 0. If the dtype is bool, 0 becomes False and every
    other value becomes True. float64 and integers are rounded to float32 first if they become
    16-bit floats.

    A gradient is cast back to the dtype of x. No gradient flows to integers or bools.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.cast(x, "int32"))(np.array([1.7, -1.7, np.nan]))
        array([ 1, -1,  0], dtype=int32)
    """

    name = "cast"
    kernel = Kernel(is_elementwise=True, is_conversion=True)
    dtypes = ALL

    def __call__(self, x: Value, dtype: Any) -> Node:
        x = as_node(x, where=self.name)
        dtype = as_dtype(dtype, self.name)
        if x.dtype == dtype:
            return x
        number = weak_value(x) if is_float(dtype) else None
        if number is not None:
            return scalar(number, dtype, self.name)
        return self.node((x,), {"dtype": dtype})

    def infer(self, x: Type, *, dtype: DType) -> Type:
        return Type(dtype, x.shape)

    def simplify(self, node: Node) -> Node | None:
        return unchanged_operand(node)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        return (self(dy, x.dtype) if is_float(x.dtype) else None,)

    def reference(self, x: Array, *, dtype: DType) -> Array:
        x = widen(x)
        if is_float(x.dtype) and dtype in INTEGERS:
            limits = np.iinfo(dtype)
            low, upper = float(limits.min), float(int(limits.max) + 1)
            truncated = np.trunc(x.astype(float64))
            is_inside = (truncated >= low) & (truncated < upper)
            outside = np.where(truncated >= upper, limits.max, limits.min).astype(dtype)
            converted = np.where(is_inside, truncated, 0).astype(dtype)
            return np.where(
                is_inside, converted, np.where(np.isnan(truncated), dtype.type(0), outside)
            )
        return (x.astype(float32) if dtype in FLOATS_16_BIT else x).astype(dtype)

    def samples(self) -> Iterable[Sample]:
        for dtype in ALL:
            yield Sample((Operand((3, 5), -300, 300),), {"dtype": dtype})
        yield Sample((Operand((), -2, 2),), {"dtype": float32})


cast: Final[Cast] = register(Cast())


def as_floats(x: Node) -> Node:
    """Return x if its dtype is a float of any width; otherwise return x cast to float64."""
    return x if is_float(x.dtype) else cast(x, float64)
