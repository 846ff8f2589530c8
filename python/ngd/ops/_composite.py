# SPDX-License-Identifier: Apache-2.0
"""Base classes of elementwise ops that expand into other ops, but have a gradient of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from ..dtypes import FLOATS, DType
from ..graph.node import Node
from ..graph.samples import Operand, Sample
from ..graph.traits import Kernel
from ._casting import cast
from ._elementwise import BINARY_SHAPES, UNARY_SHAPES, Binary, Unary, align
from ._operands import Value, as_node, compute_dtype, float_of

Ranges = tuple[tuple[float, float], ...]
"""One interval (low, high) per operand, from which tests draw the values of the operand."""

FURTHER_SHAPE: Final = (3, 4)
"""The shape of the operands that tests draw from the intervals in the class attribute `further`.

Operands that tests draw from the intervals `domain` have other shapes, such as `UNARY_SHAPES`.
"""


class CompositeUnary(Unary):
    """A function of one operand, which the op expands into other ops. Integers become floats.

    The op has no kernel of its own. The compiler replaces it by the ops of the expansion, and can
    fuse these into one kernel.
    """

    kernel = Kernel(is_elementwise=False)
    dtypes = FLOATS
    further: ClassVar[tuple[tuple[float, float], ...]] = ()
    """Intervals from which tests draw the operand, in addition to the interval in `domain`.

    With them, the tests reach all branches of the function.
    """

    def samples(self) -> Iterable[Sample]:
        for shape in UNARY_SHAPES:
            low, high = self.domain[0]
            yield Sample((Operand(shape, low, high, away_from_zero=self.kink_at_zero),))
        for low, high in self.further:
            yield Sample((Operand(FURTHER_SHAPE, low, high),))


class CompositeBinary(Binary):
    """A function of two operands that broadcast, expanded into other ops. It returns floats."""

    kernel = Kernel(is_elementwise=False)
    dtypes = FLOATS
    further: ClassVar[tuple[Ranges, ...]] = ()
    """Pairs of intervals from which tests draw the operands, in addition to the pair `domain`.

    With them, the tests reach all branches of the function.
    """

    def __call__(self, a: Value, b: Value) -> Node:
        operands = align(self.name, a, b)
        return self.node([cast(x, float_of(x.dtype)) for x in operands])

    def samples(self) -> Iterable[Sample]:
        for shapes in BINARY_SHAPES:
            yield Sample(tuple(self._operand(shape, i) for i, shape in enumerate(shapes)))
        for ranges in self.further:
            yield Sample(tuple(Operand(FURTHER_SHAPE, low, high) for low, high in ranges))

    def _operand(self, shape: tuple[int, ...], operand: int) -> Operand:
        """Describe test values for operand number `operand` (0 or 1), drawn from its domain."""
        low, high = self.domain[operand]
        return Operand(shape, low, high, away_from_zero=self.kink_at_zero)


def polynomial(x: Node, coefficients: Sequence[float]) -> Node:
    """Return the sum of coefficients[k] * x ** k, by Horner's rule."""
    *rest, first, second = coefficients
    result = x * second + first
    for coefficient in reversed(rest):
        result = result * x + coefficient
    return result


def as_compute_dtype(where: str, x: Value) -> tuple[Node, DType]:
    """Return (x cast to the dtype in which an op computes, dtype of the op's result).

    The result has the dtype of x for floats, and that of numpy.exp(x) for integers. If this
    dtype is a 16-bit float, the op computes in float32. Otherwise it computes in this dtype.
    """
    node = as_node(x, where=where)
    dtype = float_of(node.dtype)
    return cast(node, compute_dtype(dtype)), dtype
