# SPDX-License-Identifier: Apache-2.0
"""The op `row_number`, which combines one index per axis into one row-major position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import Array, Shape, Type, int64
from ..errors import ShapeError
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ._operands import INDICES, check_indices, describe_types, expect_dtype


class RowNumber(Op):
    """The op that combines one index per axis into one row number, as numpy.ravel_multi_index.

    The row number is the row-major position of an element in an array whose sizes are the attribute
    `extents`. Negative indices count from the end. `x[...]` and `x.at[...]` use this op to combine
    several index arrays. An error about an index out of range names the user's index and its axis,
    and not the computed row number.
    """

    # Attributes of a node: extents, the sizes of the axes; axes and caller, for error messages.
    name = "row_number"
    batching = "leading"
    public = False
    dtypes = INDICES

    def infer(self, *indices: Type, extents: Shape, axes: Shape, caller: str | None = None) -> Type:
        for each in indices:
            expect_dtype(self.name, (each,), INDICES)
        if any(each.shape != indices[0].shape for each in indices) or len(extents) != len(indices):
            raise ShapeError(
                f"{self.name}: expected indices of one shape; got {describe_types(*indices)}"
            )
        return Type(int64, indices[0].shape)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return [None] * len(node.inputs)

    def reference(
        self, *indices: Array, extents: Shape, axes: Shape, caller: str | None = None
    ) -> Array:
        rows: Any = np.zeros(indices[0].shape, np.int64)
        for array, extent, axis in zip(indices, extents, axes, strict=True):
            check_indices(caller or self.name, array, extent, axis=axis)
            rows = rows * extent + np.where(array < 0, array + extent, array)
        return np.asarray(rows, np.int64)

    def samples(self) -> Iterable[Sample]:
        for shape, extents in (((), (3,)), ((5,), (4, 3)), ((2, 3), (2, 5, 3)), ((0,), (3,))):
            operands = tuple(Operand(shape, -n, n - 1) for n in extents)
            yield Sample(operands, {"extents": extents, "axes": tuple(range(len(extents)))})


row_number: Final[RowNumber] = register(RowNumber())
