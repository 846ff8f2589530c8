# SPDX-License-Identifier: Apache-2.0
"""Elementwise comparisons, logic, bits, and the choice between two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from ..dtypes import ALL, INTEGERS, Array, DType, Type, bool_
from ..errors import DTypeError
from ..graph.node import Node
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ..graph.traits import Numerics
from ._casting import cast
from ._elementwise import Binary, Elementwise, Unary, align
from ._operands import Value, as_node, broadcast_shapes, expect_dtype, got

__all__ = [
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "not_equal",
    "where",
]


class Comparison(Binary):
    """A bool of two operands."""

    numerics = Numerics(needs_float32_gradient=False)
    dtypes: ClassVar[tuple[DType, ...]] = ALL
    result = bool_
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None, None)


class Logical(Comparison):
    """A bool of two bools; other dtypes are compared with zero first."""

    dtypes = (bool_,)
    domain = ((0, 1), (0, 1))

    def __call__(self, a: Value, b: Value) -> Node:
        return self.node([cast(as_node(x, where=self.name), bool_) for x in (a, b)])


class Equal(Comparison):
    """a == b; NaN equals nothing."""

    name = "equal"
    compute = np.equal


equal: Final[Equal] = register(Equal())


class NotEqual(Comparison):
    """a != b."""

    name = "not_equal"
    compute = np.not_equal


not_equal: Final[NotEqual] = register(NotEqual())


class Less(Comparison):
    """a < b."""

    name = "less"
    compute = np.less


less: Final[Less] = register(Less())


class LessEqual(Comparison):
    """a <= b."""

    name = "less_equal"
    compute = np.less_equal


less_equal: Final[LessEqual] = register(LessEqual())


class Greater(Comparison):
    """a > b."""

    name = "greater"
    compute = np.greater


greater: Final[Greater] = register(Greater())


class GreaterEqual(Comparison):
    """a >= b."""

    name = "greater_equal"
    compute = np.greater_equal


greater_equal: Final[GreaterEqual] = register(GreaterEqual())


class LogicalAnd(Logical):
    """Whether both are true."""

    name = "logical_and"
    compute = np.logical_and


logical_and: Final[LogicalAnd] = register(LogicalAnd())


class LogicalOr(Logical):
    """Whether one is true."""

    name = "logical_or"
    compute = np.logical_or


logical_or: Final[LogicalOr] = register(LogicalOr())


class LogicalNot(Unary):
    """Whether x is false; other dtypes are compared with zero first."""

    name = "logical_not"
    dtypes = (bool_,)
    smooth = False
    domain = ((0, 1),)
    compute = np.logical_not

    def __call__(self, x: Value) -> Node:
        return self.node((cast(as_node(x, where=self.name), bool_),))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)


logical_not: Final[LogicalNot] = register(LogicalNot())


class Bitwise(Binary):
    """Bit by bit, of integers and bools."""

    dtypes: ClassVar[tuple[DType, ...]] = (bool_, *INTEGERS)
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None, None)


class BitwiseAnd(Bitwise):
    """The bits that both have."""

    name = "bitwise_and"
    compute = np.bitwise_and


bitwise_and: Final[BitwiseAnd] = register(BitwiseAnd())


class BitwiseOr(Bitwise):
    """The bits that one has."""

    name = "bitwise_or"
    compute = np.bitwise_or


bitwise_or: Final[BitwiseOr] = register(BitwiseOr())


class BitwiseXor(Bitwise):
    """The bits that one alone has."""

    name = "bitwise_xor"
    compute = np.bitwise_xor


bitwise_xor: Final[BitwiseXor] = register(BitwiseXor())


class BitwiseNot(Unary):
    """The bits that x has not; of a bool, logical_not."""

    name = "bitwise_not"
    dtypes = INTEGERS
    smooth = False
    compute = np.invert

    def __call__(self, x: Value) -> Node:
        x = as_node(x, where=self.name)
        return logical_not(x) if x.dtype == bool_ else self.node((x,))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)


bitwise_not: Final[BitwiseNot] = register(BitwiseNot())


def expect_choice(where: str, condition: Any) -> None:
    """Refuse a Python bool: it is known already, and mostly the answer to another question."""
    if isinstance(condition, bool):
        raise TypeError(
            f"{where}: expected a node or an array as the condition; got the Python bool "
            f"{condition}, which `is`, `in`, `not`, and a comparison with None give. Use "
            "ops.equal, "
            "ops.logical_not, or Python's if."
        )


class Where(Elementwise):
    """where(condition, x, y): x where the condition is true, else y, all broadcast together."""

    name = "where"
    numerics = Numerics(needs_float32_gradient=False)
    dtypes = ALL

    def __call__(self, condition: Value, x: Value, y: Value) -> Node:
        expect_choice(self.name, condition)
        chosen = cast(as_node(condition, where=self.name), bool_)
        return self.node((chosen, *align(self.name, x, y)))

    def infer(self, *inputs: Type) -> Type:
        condition, *choices = inputs
        if condition.dtype != bool_:
            raise DTypeError(
                f"where: expected a bool condition; got {got(*inputs)}. Compare first: condition "
                "!= 0."
            )
        dtype = expect_dtype(self.name, tuple(choices), self.dtypes)
        return Type(dtype, broadcast_shapes(self.name, *(t.shape for t in inputs)))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        condition, *_ = node.inputs
        return None, self(condition, dy, 0), self(condition, 0, dy)

    def reference(self, *inputs: Array) -> Array:
        return np.where(*inputs)

    def samples(self) -> Iterable[Sample]:
        for c, x, y in (((), (3,), (3,)), ((2, 3),) * 3, ((2, 1), (3,), ()), ((0, 2), (2,), (2,))):
            yield Sample((Operand(c, 0, 1, dtype=bool_), Operand(x), Operand(y)))


where: Final[Where] = register(Where())
