# SPDX-License-Identifier: Apache-2.0
"""The change of dtype: elementwise, and what all other ops promote by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import ALL, INTEGERS, Array, DType, Type, as_dtype, float32, float64, is_float
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ..graph.traits import Kernel
from ._operands import HALVES, Value, as_node, scalar, unchanged, weak_value, widen

__all__ = ["cast"]


class Cast(Op):
    """cast(x, dtype): the values in another dtype; attrs: dtype.

    Integers wrap. A float becomes an integer towards zero; out of range it saturates, and NaN is 0.
    Anything but zero is True. float64 and integers reach a two-byte float by way of float32.
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
        return unchanged(node)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        return (self(dy, x.dtype) if is_float(x.dtype) else None,)

    def reference(self, x: Array, *, dtype: DType) -> Array:
        x = widen(x)
        if is_float(x.dtype) and dtype in INTEGERS:
            limits = np.iinfo(dtype)
            low, beyond = float(limits.min), float(int(limits.max) + 1)
            whole = np.trunc(x.astype(float64))
            inside = (whole >= low) & (whole < beyond)
            outside = np.where(whole >= beyond, limits.max, limits.min).astype(dtype)
            kept = np.where(inside, whole, 0).astype(dtype)
            return np.where(inside, kept, np.where(np.isnan(whole), dtype.type(0), outside))
        return (x.astype(float32) if dtype in HALVES else x).astype(dtype)

    def samples(self) -> Iterable[Sample]:
        for dtype in ALL:
            yield Sample((Operand((3, 5), -300, 300),), {"dtype": dtype})
        yield Sample((Operand((), -2, 2),), {"dtype": float32})


cast: Final[Cast] = register(Cast())


def as_floats(x: Node) -> Node:
    """Return floats as they are, and other numbers as float64."""
    return x if is_float(x.dtype) else cast(x, float64)
