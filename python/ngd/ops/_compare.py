# SPDX-License-Identifier: Apache-2.0
"""Elementwise comparisons, logic, operations on bits, and `where`."""

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
from ._operands import Value, as_node, broadcast_shapes, describe_types, expect_dtype

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
    """The base of ops that compare two operands and return bools."""

    numerics = Numerics(needs_float32_gradient=False)
    dtypes: ClassVar[tuple[DType, ...]] = ALL
    result = bool_
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None, None)


class Logical(Comparison):
    """The base of ops that combine two bools to a bool.

    Operands of other dtypes become bools: True where they are not zero.
    """

    dtypes = (bool_,)
    domain = ((0, 1), (0, 1))

    def __call__(self, a: Value, b: Value) -> Node:
        return self.node([cast(as_node(x, where=self.name), bool_) for x in (a, b)])


class Equal(Comparison):
    """Return True where a equals b. NaN does not equal any number.

    Parameters
    ----------
    a, b
        Arrays of any dtype that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.equal)(np.array([1.0, 2.0, np.nan]), np.array([1.0, 3.0, np.nan]))
        array([ True, False, False])
    """

    name = "equal"
    compute = np.equal


equal: Final[Equal] = register(Equal())


class NotEqual(Comparison):
    """Return True where a differs from b. NaN differs from every number.

    Parameters
    ----------
    a, b
        Arrays of any dtype that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.not_equal)(np.array([1.0, 2.0, np.nan]), np.array([1.0, 3.0, np.nan]))
        array([False,  True,  True])
    """

    name = "not_equal"
    compute = np.not_equal


not_equal: Final[NotEqual] = register(NotEqual())


class Less(Comparison):
    """Return True where a < b.

    Parameters
    ----------
    a, b
        Arrays of any dtype that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.less)(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0]))
        array([ True, False, False])
    """

    name = "less"
    compute = np.less


less: Final[Less] = register(Less())


class LessEqual(Comparison):
    """Return True where a <= b.

    Parameters
    ----------
    a, b
        Arrays of any dtype that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.less_equal)(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0]))
        array([ True,  True, False])
    """

    name = "less_equal"
    compute = np.less_equal


less_equal: Final[LessEqual] = register(LessEqual())


class Greater(Comparison):
    """Return True where a > b.

    Parameters
    ----------
    a, b
        Arrays of any dtype that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.greater)(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0]))
        array([False, False,  True])
    """

    name = "greater"
    compute = np.greater


greater: Final[Greater] = register(Greater())


class GreaterEqual(Comparison):
    """Return True where a >= b.

    Parameters
    ----------
    a, b
        Arrays of any dtype that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.greater_equal)(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0]))
        array([False,  True,  True])
    """

    name = "greater_equal"
    compute = np.greater_equal


greater_equal: Final[GreaterEqual] = register(GreaterEqual())


class LogicalAnd(Logical):
    """Return True where both a and b are true.

    Parameters
    ----------
    a, b
        Arrays of any dtype that broadcast. Numbers other than 0 are true.

    Examples
    --------
    ::

        >>> ngd.function(ops.logical_and)(np.array([True, False]), np.array([True, True]))
        array([ True, False])
    """

    name = "logical_and"
    compute = np.logical_and


logical_and: Final[LogicalAnd] = register(LogicalAnd())


class LogicalOr(Logical):
    """Return True where a or b is true.

    Parameters
    ----------
    a, b
        Arrays of any dtype that broadcast. Numbers other than 0 are true.

    Examples
    --------
    ::

        >>> ngd.function(ops.logical_or)(np.array([True, False]), np.array([False, False]))
        array([ True, False])
    """

    name = "logical_or"
    compute = np.logical_or


logical_or: Final[LogicalOr] = register(LogicalOr())


class LogicalNot(Unary):
    """Return True where x is false.

    Parameters
    ----------
    x
        An array of any dtype and shape. Numbers other than 0 are true.

    Examples
    --------
    ::

        >>> ngd.function(ops.logical_not)(np.array([True, False]))
        array([False,  True])
    """

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
    """The base of ops on each bit of two integers, or on two bools."""

    dtypes: ClassVar[tuple[DType, ...]] = (bool_, *INTEGERS)
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None, None)


class BitwiseAnd(Bitwise):
    """Return the bits that are set in both a and b.

    Parameters
    ----------
    a, b
        Integers or bools that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.bitwise_and)(np.array([6, 3]), np.array([3, 5]))
        array([2, 1])
    """

    name = "bitwise_and"
    compute = np.bitwise_and


bitwise_and: Final[BitwiseAnd] = register(BitwiseAnd())


class BitwiseOr(Bitwise):
    """Return the bits that are set in a, in b, or in both.

    Parameters
    ----------
    a, b
        Integers or bools that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.bitwise_or)(np.array([6, 3]), np.array([3, 5]))
        array([7, 7])
    """

    name = "bitwise_or"
    compute = np.bitwise_or


bitwise_or: Final[BitwiseOr] = register(BitwiseOr())


class BitwiseXor(Bitwise):
    """Return the bits that are set in exactly one of a and b.

    Parameters
    ----------
    a, b
        Integers or bools that broadcast. They are promoted to one dtype.

    Examples
    --------
    ::

        >>> ngd.function(ops.bitwise_xor)(np.array([6, 3]), np.array([3, 5]))
        array([5, 6])
    """

    name = "bitwise_xor"
    compute = np.bitwise_xor


bitwise_xor: Final[BitwiseXor] = register(BitwiseXor())


class BitwiseNot(Unary):
    """Invert each bit of an integer. For bools this is ops.logical_not.

    Parameters
    ----------
    x
        Integers or bools of any shape.

    Examples
    --------
    ::

        >>> ngd.function(ops.bitwise_not)(np.array([0, 6]))
        array([-1, -7])
    """

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
    """Raise a TypeError if a condition is a Python bool.

    The condition is an argument of ops.where or ops.cond. A Python bool is known when the graph is
    built, so every call of the compiled function would make the same choice. A Python bool is
    usually a mistake: `is`, `in`, `not` and comparisons with None return Python bools.
    """
    if isinstance(condition, bool):
        raise TypeError(
            f"{where}: expected a node or an array as the condition; got the Python bool "
            f"{condition}, which `is`, `in`, `not`, and a comparison with None give. Use "
            "ops.equal, "
            "ops.logical_not, or Python's if."
        )


class Where(Elementwise):
    """Return x where the condition is true, and y elsewhere.

    Parameters
    ----------
    condition
        An array of bools. Numbers other than 0 are true.
    x, y
        Arrays of any dtype. They are promoted to one dtype, and all three arguments broadcast.

    Raises
    ------
    TypeError
        The condition is a Python bool, which `is`, `in`, `not` and comparisons with None return.

    Examples
    --------
    ::

        >>> x = np.array([-1.0, 2.0])
        >>> ngd.function(lambda x: ops.where(x > 0, x, 0.0))(x)
        array([0., 2.])
    """

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
                f"where: expected a bool condition; got {describe_types(*inputs)}. Compare first: "
                "condition != 0."
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
