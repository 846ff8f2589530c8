# SPDX-License-Identifier: Apache-2.0
"""Make tensors: ranges, grids, identity matrices and one-hot rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ..dtype import (
    NUMBERS,
    DType,
    Type,
    as_dtype,
    bool_,
    float32,
    float64,
    int32,
    int64,
)
from ..errors import ShapeError
from ..ir import Array, Node, Op, Operand, Sample, constant_node, register
from .arithmetic import add, multiply
from .casting import cast
from .compare import equal
from .operands import INDICES, Value, expect_dtype, narrow, scalar
from .shape import as_indices, expand_dims


class Arange(Op):
    """Return start, start + step, start + 2 * step, ... below stop, as numpy.arange.

    arange(n) counts from 0 to n - 1. The bounds are numbers that are known when the graph is
    built. The dtype is int64 if all are ints, else float32. Attrs: size, dtype.
    """

    name = "arange"
    dtypes = ()

    def __call__(
        self,
        start: int | float,
        stop: int | float | None = None,
        step: int | float = 1,
        dtype: Any = None,
    ) -> Node:
        first, end = (0, start) if stop is None else (start, stop)
        if any(isinstance(n, Node) for n in (first, end, step)):
            raise TypeError(
                f"arange: expected numbers; got the nodes among {[first, end, step]}. The shape of "
                "a result is known when the graph is built; scale and shift arange(n) instead."
            )
        if step == 0:
            raise ValueError("arange: expected a step that is not 0; got 0")
        ints = all(isinstance(n, (int, np.integer)) for n in (first, end, step))
        kind = as_dtype((int64 if ints else float32) if dtype is None else dtype, self.name)
        size = max(-((first - end) // step) if ints else math.ceil((end - first) / step), 0)
        if ints and (first, step) == (0, 1):
            return self.node((), {"size": int(size), "dtype": kind})
        wide = int64 if ints else float64
        counted = self.node((), {"size": int(size), "dtype": wide})
        scaled = multiply(counted, scalar(step, wide, self.name))
        return cast(add(scaled, scalar(first, wide, self.name)), kind)

    def infer(self, *, size: int, dtype: DType) -> Type:
        if size < 0 or dtype == bool_:
            raise ShapeError(f"arange: expected a size >= 0 and not bool; got {size}, {dtype}")
        return Type(dtype, (size,))

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return "iota", {"axis": 0}

    def expand(self, *, size: int, dtype: DType) -> Node:
        return constant_node(self.reference(size=size, dtype=dtype))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return ()

    def reference(self, *, size: int, dtype: DType) -> Array:
        return narrow(np.arange(size), dtype)

    def samples(self) -> Iterable[Sample]:
        for dtype in NUMBERS:
            yield Sample((), {"size": 5, "dtype": dtype})
        yield Sample((), {"size": 0, "dtype": int64})


arange: Final[Arange] = register(Arange())


class OneHot(Op):
    """one_hot(indices, depth, dtype=float32): 1 at the index along a new last axis, else 0.

    An index outside [0, depth) makes a row of zeros. Attrs: depth, dtype.
    """

    name = "one_hot"
    dtypes = INDICES

    def __call__(self, indices: Value, depth: int, dtype: Any = float32) -> Node:
        chosen = as_indices(indices, self.name)
        return self.node((chosen,), {"depth": int(depth), "dtype": as_dtype(dtype, self.name)})

    def infer(self, indices: Type, *, depth: int, dtype: DType) -> Type:
        expect_dtype(self.name, (indices,), self.dtypes)
        if depth < 0:
            raise ShapeError(f"one_hot: expected a depth >= 0; got {depth}")
        return Type(dtype, (*indices.shape, depth))

    def expand(self, indices: Node, *, depth: int, dtype: DType) -> Node:
        return cast(equal(expand_dims(indices, -1), arange(depth, dtype=indices.dtype)), dtype)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)

    def reference(self, indices: Array, *, depth: int, dtype: DType) -> Array:
        return narrow(indices[..., None] == np.arange(depth), dtype)

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((4,), -1, 3),), {"depth": 3, "dtype": float32})
        yield Sample((Operand((2, 2), 0, 4),), {"depth": 5, "dtype": int32})
        yield Sample((Operand((), 0, 1),), {"depth": 2, "dtype": bool_})


one_hot: Final[OneHot] = register(OneHot())
