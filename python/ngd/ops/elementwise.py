# SPDX-License-Identifier: Apache-2.0
"""Elementwise ops, by NumPy's broadcasting and NumPy 2's promotion.

The public calls promote by explicit casts, so that every node has operands of one dtype; the shapes
broadcast in the node itself. Two-byte floats are computed in float32 and rounded once an op. Where
this differs from NumPy: arithmetic on two bools is an error (ask for logical_and and its kin); two
floats without a common type (float16 with bfloat16) meet in float32; floor, ceil and round leave
integers alone; reciprocal of an integer is a float.

A block's `compute` is its arithmetic in NumPy, in the dtype of the operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from ..dtype import (
    ALL,
    FLOATS,
    INTEGERS,
    bool_,
    float64,
    is_float,
    promote,
)
from ..errors import DTypeError
from ..ir import (
    Array,
    DType,
    Node,
    Op,
    Operand,
    Sample,
    Type,
    broadcast_shapes,
    constant_node,
    register,
)
from .cast import cast
from .operands import (
    Value,
    as_node,
    expect_dtype,
    float_of,
    got,
    is_one,
    is_weak,
    narrow,
    scalar,
    widen,
)

UNARY_SHAPES: Final = ((), (5,), (2, 3, 4), (0, 3), (1, 37))
BINARY_SHAPES: Final = (
    ((), ()),
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((4, 1), (1, 3)),
    ((), (2, 3)),
    ((0, 3), (1, 3)),
    ((35,), (35,)),
)


class Elementwise(Op):
    """An op whose result at a place depends on its operands at that place alone."""

    elementwise = True
    gradient_rounds = True
    result: ClassVar[DType | None] = None
    """The result's dtype, where it is not the operands'."""
    compute: ClassVar[Callable[..., Any]]
    domain: ClassVar[tuple[tuple[float, float], ...]]
    """From where samples draw each operand."""
    kink_at_zero: ClassVar[bool] = False

    def infer(self, *inputs: Type) -> Type:
        dtype = expect_dtype(self.name, inputs, self.dtypes)
        shape = broadcast_shapes(self.name, *[t.shape for t in inputs])
        if self.result is None and shape is inputs[0].shape:
            return inputs[0]
        return Type(self.result or dtype, shape)

    def reference(self, *inputs: Array) -> Array:
        result = self.result or inputs[0].dtype
        return narrow(type(self).compute(*(widen(x) for x in inputs)), result)

    def samples(self) -> Iterable[Sample]:
        shapes = BINARY_SHAPES if len(self.domain) == 2 else [(s,) for s in UNARY_SHAPES]
        for case in shapes:
            yield Sample(
                tuple(
                    Operand(shape, low, high, away_from_zero=self.kink_at_zero)
                    for shape, (low, high) in zip(case, self.domain, strict=True)
                )
            )


class Unary(Elementwise):
    """An elementwise op of one operand. One that takes floats only makes floats of integers."""

    domain: ClassVar[tuple[tuple[float, float], ...]] = ((-2, 2),)

    def __call__(self, x: Value) -> Node:
        x = as_node(x, where=self.name)
        return self.node((cast(x, float_of(x.dtype)) if self.dtypes is FLOATS else x,))


class Rounding(Unary):
    """A step function: its gradient is zero. Integers are their own result."""

    dtypes = FLOATS
    gradient_rounds = False
    smooth = False

    def __call__(self, x: Value) -> Node:
        x = as_node(x, where=self.name)
        return x if x.dtype in INTEGERS else self.node((x,))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (zero_like(dy),)


class Binary(Elementwise):
    """An elementwise op of two operands."""

    domain: ClassVar[tuple[tuple[float, float], ...]] = ((-2, 2), (-2, 2))

    def __call__(self, a: Value, b: Value) -> Node:
        return self.node(align(self.name, a, b))


class Comparison(Binary):
    """A bool of two operands."""

    gradient_rounds = False
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


def one_dtype(values: Sequence[Value]) -> DType | None:
    """The dtype of all nodes among the operands, where the others are scalars that take it."""
    found, weak = None, False
    for v in values:
        if isinstance(v, Node):
            if found is not None and v.type.dtype is not found:
                return None
            found = v.type.dtype
        elif is_weak(v):
            weak = True
        else:
            return None
    return found if found is None or not weak or is_float(found) else None


def align(where: str, *values: Value) -> list[Node]:
    """Make nodes of operands, all of the dtype that NumPy would compute in."""
    only = one_dtype(values)
    if only is not None:  # the usual case
        return [v if isinstance(v, Node) else scalar(v, only, where) for v in values]
    given = [v if is_weak(v) else as_node(v, where=where) for v in values]
    try:
        dtype = promote(*(v.dtype if isinstance(v, Node) else v for v in given))
    except DTypeError as error:
        raise DTypeError(f"{where}: {error}") from None
    return [cast(v, dtype) if isinstance(v, Node) else scalar(v, dtype, where) for v in given]


def zero_like(x: Node) -> Node:
    """Make a scalar zero of this node's dtype; it broadcasts."""
    return constant_node(np.zeros((), x.dtype))


class Add(Binary):
    """a + b."""

    name = "add"
    adds = True
    gradient_rounds = False
    compute = np.add

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return dy, dy


add: Final[Add] = register(Add())


class Subtract(Binary):
    """a - b."""

    name = "subtract"
    gradient_rounds = False
    compute = np.subtract

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return dy, -dy


subtract: Final[Subtract] = register(Subtract())


class Multiply(Binary):
    """a * b."""

    name = "multiply"
    compute = np.multiply

    def simplify(self, node: Node) -> Node | None:
        a, b = node.inputs
        if is_one(b) and node.type == a.type:
            return a
        return b if is_one(a) and node.type == b.type else None

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        return dy * b, dy * a


multiply: Final[Multiply] = register(Multiply())


class Divide(Binary):
    """a / b in floats: integers become float64 first."""

    name = "divide"
    dtypes = FLOATS
    compute = np.divide
    kink_at_zero = True

    def __call__(self, a: Value, b: Value) -> Node:
        operands = align(self.name, a, b)
        if not is_float(operands[0].dtype):
            operands = [cast(x, float64) for x in operands]
        return self.node(operands)

    def simplify(self, node: Node) -> Node | None:
        a, b = node.inputs
        return a if is_one(b) and node.type == a.type else None

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        _, b = node.inputs
        return dy / b, -(dy * node / b)


divide: Final[Divide] = register(Divide())


def _power(a: Array, b: Array) -> Array:
    if is_float(b.dtype):
        return np.power(a, b)
    unit = np.where(b % 2 == 0, np.abs(a), a)  # (-1)^b and 1^b
    below_zero = np.where(np.abs(a) == 1, unit, a.dtype.type(0))
    return np.where(b < 0, below_zero, np.power(a, np.maximum(b, 0)))


class Power(Binary):
    """a ** b. Integers to negative powers are the true value, truncated: 0 unless |a| is 1.

    The gradient to the exponent is 0 where a <= 0.
    """

    name = "power"
    compute = staticmethod(_power)
    domain = ((0.2, 2), (-2, 2))

    def __call__(self, a: Value, b: Value) -> Node:
        if isinstance(a, Node) and is_weak(b) and b == 2:
            return square(a)
        return super().__call__(a, b)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        less_one = where(equal(b, 0), 1, b - 1)  # so that a ** 0 has slope 0 at a = 0 too
        positive = a > 0
        logarithm = where(positive, log(where(positive, a, 1)), 0)
        return dy * b * power(a, less_one), dy * node * logarithm


power: Final[Power] = register(Power())


class FloorDivide(Binary):
    """The floor of a / b, as NumPy: an integer divided by zero is 0. Its gradient is zero."""

    name = "floor_divide"
    compute = np.floor_divide
    kink_at_zero = True
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return zero_like(dy), zero_like(dy)


floor_divide: Final[FloorDivide] = register(FloorDivide())


class Remainder(Binary):
    """a - floor_divide(a, b) * b, with the sign of b, as NumPy: an integer modulo zero is 0."""

    name = "remainder"
    compute = np.remainder
    kink_at_zero = True
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        return dy, -(dy * floor_divide(a, b))


remainder: Final[Remainder] = register(Remainder())


class Maximum(Binary):
    """The larger of a and b; NaN propagates. Equal operands get half of the gradient each."""

    name = "maximum"
    compute = np.maximum
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        to_a = where(a > b, dy, where(equal(a, b), dy * 0.5, 0))
        return to_a, dy - to_a


maximum: Final[Maximum] = register(Maximum())


class Minimum(Binary):
    """The smaller of a and b; NaN propagates. Equal operands get half of the gradient each."""

    name = "minimum"
    compute = np.minimum
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        to_a = where(a < b, dy, where(equal(a, b), dy * 0.5, 0))
        return to_a, dy - to_a


minimum: Final[Minimum] = register(Minimum())


class Negative(Unary):
    """-x."""

    name = "negative"
    gradient_rounds = False
    compute = np.negative

    def simplify(self, node: Node) -> Node | None:
        (x,) = node.inputs
        return x.inputs[0] if x.op is self else None

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (-dy,)


negative: Final[Negative] = register(Negative())


class Abs(Unary):
    """|x|; its gradient at 0 is 0."""

    name = "abs"
    gradient_rounds = False
    compute = np.abs
    kink_at_zero = True
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * sign(node.inputs[0]),)


abs: Final[Abs] = register(Abs())


class Sign(Unary):
    """-1, 0 or 1; NaN stays. Its gradient is zero."""

    name = "sign"
    gradient_rounds = False
    compute = np.sign
    kink_at_zero = True
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (zero_like(dy),)


sign: Final[Sign] = register(Sign())


class Exp(Unary):
    """e to the power x."""

    name = "exp"
    dtypes = FLOATS
    compute = np.exp

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * node,)


exp: Final[Exp] = register(Exp())


class Log(Unary):
    """The natural logarithm."""

    name = "log"
    dtypes = FLOATS
    compute = np.log
    domain = ((0.2, 3),)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / node.inputs[0],)


log: Final[Log] = register(Log())


class Log1p(Unary):
    """log(1 + x), accurate near 0."""

    name = "log1p"
    dtypes = FLOATS
    compute = np.log1p
    domain = ((-0.7, 2),)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy / (node.inputs[0] + 1),)


log1p: Final[Log1p] = register(Log1p())


class Expm1(Unary):
    """exp(x) - 1, accurate near 0."""

    name = "expm1"
    dtypes = FLOATS
    compute = np.expm1

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * (node + 1),)


expm1: Final[Expm1] = register(Expm1())


class Sqrt(Unary):
    """The square root."""

    name = "sqrt"
    dtypes = FLOATS
    compute = np.sqrt
    domain = ((0.2, 3),)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * 0.5 / node,)


sqrt: Final[Sqrt] = register(Sqrt())


class Rsqrt(Unary):
    """1 / sqrt(x)."""

    name = "rsqrt"
    dtypes = FLOATS
    compute = staticmethod(lambda x: 1 / np.sqrt(x))
    domain = ((0.2, 3),)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * -0.5 * (node * node * node),)


rsqrt: Final[Rsqrt] = register(Rsqrt())


class Square(Unary):
    """x * x."""

    name = "square"
    compute = np.square

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * 2 * node.inputs[0],)


square: Final[Square] = register(Square())


class Reciprocal(Unary):
    """1 / x."""

    name = "reciprocal"
    dtypes = FLOATS
    compute = np.reciprocal
    kink_at_zero = True

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (-(dy * node * node),)


reciprocal: Final[Reciprocal] = register(Reciprocal())


class Tanh(Unary):
    """The hyperbolic tangent."""

    name = "tanh"
    dtypes = FLOATS
    compute = np.tanh

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * (1 - node * node),)


tanh: Final[Tanh] = register(Tanh())


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


class Sigmoid(Unary):
    """1 / (1 + exp(-x))."""

    name = "sigmoid"
    dtypes = FLOATS
    compute = staticmethod(_sigmoid)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * node * (1 - node),)


sigmoid: Final[Sigmoid] = register(Sigmoid())


class Relu(Unary):
    """max(x, 0); NaN propagates. Its gradient at 0 is 0."""

    name = post = "relu"
    gradient_rounds = False
    compute = staticmethod(lambda x: np.maximum(x, x.dtype.type(0)))
    kink_at_zero = True
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (where(node > 0, dy, 0),)  # of the result: the operand need not be kept


relu: Final[Relu] = register(Relu())


class Sin(Unary):
    """The sine of x radians."""

    name = "sin"
    dtypes = FLOATS
    compute = np.sin

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * cos(node.inputs[0]),)


sin: Final[Sin] = register(Sin())


class Cos(Unary):
    """The cosine of x radians."""

    name = "cos"
    dtypes = FLOATS
    compute = np.cos

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (-(dy * sin(node.inputs[0])),)


cos: Final[Cos] = register(Cos())


class Erf(Unary):
    """The error function, 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to x."""

    name = "erf"
    dtypes = FLOATS
    compute = np.vectorize(math.erf, otypes=[np.float64])

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * (2 / math.sqrt(math.pi)) * exp(-square(node.inputs[0])),)


erf: Final[Erf] = register(Erf())


class Floor(Rounding):
    """The largest whole number <= x."""

    name = "floor"
    compute = np.floor


floor: Final[Floor] = register(Floor())


class Ceil(Rounding):
    """The smallest whole number >= x."""

    name = "ceil"
    compute = np.ceil


ceil: Final[Ceil] = register(Ceil())


class Round(Rounding):
    """The nearest whole number, halves to the even one."""

    name = "round"
    compute = np.rint


round: Final[Round] = register(Round())


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


class Where(Elementwise):
    """where(condition, x, y): x where the condition is true, else y, all broadcast together."""

    name = "where"
    gradient_rounds = False
    dtypes = ALL

    def __call__(self, condition: Value, x: Value, y: Value) -> Node:
        chosen = cast(as_node(condition, where=self.name), bool_)
        return self.node((chosen, *align(self.name, x, y)))

    def infer(self, *inputs: Type) -> Type:
        condition, *choices = inputs
        if condition.dtype != bool_:
            raise DTypeError(f"where: expected a bool condition; got {got(*inputs)}")
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
