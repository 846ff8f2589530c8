# SPDX-License-Identifier: Apache-2.0
"""Sums of all elements up to each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from ..dtype import FLOATS, Type, float32, float64, int64, uint64
from ..ir import Array, Node, Op, Operand, Sample, register
from .casting import cast
from .operands import Value, accumulator, as_axis, as_node, expect_dtype, narrow, widen
from .shape import reshape


class CumSum(Op):
    """cumsum(x, axis=None, reverse=False): the sum of each element and all before it.

    In reverse, of all behind it. axis=None sums along the flattened tensor. Bools and small
    integers become int64 or uint64. float32 is summed in float64, two-byte floats in float32; each
    sum is rounded once. Attrs: axis, reverse.
    """

    name = "cumsum"
    dtypes = (int64, uint64, *FLOATS)

    def __call__(self, x: Value, axis: int | None = None, reverse: bool = False) -> Node:
        x = as_node(x, where=self.name)
        x = cast(x, accumulator(x.dtype))
        line = reshape(x, -1) if axis is None else x
        along = as_axis(self.name, 0 if axis is None else axis, line.ndim, x.type)
        return self.node((line,), {"axis": along, "reverse": bool(reverse)})

    def infer(self, x: Type, *, axis: int, reverse: bool) -> Type:
        expect_dtype(self.name, (x,), self.dtypes)
        return x

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (self.node((dy,), {**node.attrs, "reverse": not node.attrs["reverse"]}),)

    def reference(self, x: Array, *, axis: int, reverse: bool) -> Array:
        wide = x.astype(float64) if x.dtype == float32 else widen(x)
        order = np.flip(wide, axis) if reverse else wide
        sums = np.cumsum(order, axis, dtype=wide.dtype)
        return narrow(np.flip(sums, axis) if reverse else sums, x.dtype)

    def samples(self) -> Iterable[Sample]:
        for shape, axis in (((7,), 0), ((2, 5, 3), 1), ((3, 70), 0), ((2, 0), 1), ((0, 3), 1)):
            for reverse in (False, True):
                yield Sample((Operand(shape),), {"axis": axis, "reverse": reverse})


cumsum: Final[CumSum] = register(CumSum())
