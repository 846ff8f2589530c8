# SPDX-License-Identifier: Apache-2.0
"""Elementwise activation functions of neural networks.

Their expansions into other ops and their gradients have neither overflow nor catastrophic
cancellation. They compute an exponential only of arguments that are not positive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from ..dtypes import FLOATS, Array, Type
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ..graph.traits import Numerics
from ._arithmetic import abs, maximum, minimum, square
from ._casting import cast
from ._compare import logical_and, where
from ._elementwise import UNARY_SHAPES, Unary
from ._operands import Value, as_node, expect_dtype, float_of, narrow, widen
from ._transcendental import erf, exp, expm1, log1p, tanh

__all__ = [
    "elu",
    "gelu",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "relu",
    "sigmoid",
    "silu",
    "softplus",
]


class Relu(Unary):
    """Return max(x, 0), element by element.

    NaN propagates. The gradient at 0 is 0.

    Parameters
    ----------
    x
        Numbers of any shape.

    Examples
    --------
    ::

        >>> ngd.function(ops.relu)(np.array([-2.0, 0.0, 3.0]))
        array([0., 0., 3.])
    """

    name = "relu"
    numerics = Numerics(needs_float32_gradient=False)
    compute = staticmethod(lambda x: np.maximum(x, x.dtype.type(0)))
    kink_at_zero = True
    smooth = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (where(node > 0, dy, 0),)  # tests the result and not x, so that x need not be stored


relu: Final[Relu] = register(Relu())


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))  # the exponent is at most 0, so exp cannot overflow
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


class Sigmoid(Unary):
    """Return 1 / (1 + exp(-x)), without overflow.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.sigmoid)(np.array([-1.0, 0.0, 1.0])).round(4)
        array([0.2689, 0.5   , 0.7311])
    """

    name = "sigmoid"
    dtypes = FLOATS
    compute = staticmethod(_sigmoid)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * node * (1 - node),)


sigmoid: Final[Sigmoid] = register(Sigmoid())


class Activation(Op):
    """An elementwise function of floats that is composed of other ops. Integers become floats."""

    dtypes = FLOATS
    numerics = Numerics(needs_float32_gradient=True)
    domains: ClassVar[tuple[tuple[float, float], ...]] = ((-2, 2), (-6, -4), (4, 6))
    """The intervals (low, high) of the test samples. Each sample draws x from one interval."""
    kink_at_zero: ClassVar[bool] = False

    def __call__(self, x: Value) -> Node:
        return self.of(x, {})

    def of(self, x: Value, attrs: dict[str, Any]) -> Node:
        """Return a node of this op with the attributes `attrs`, for x cast to floats."""
        x = as_node(x, where=self.name)
        return self.node((cast(x, float_of(x.dtype)),), attrs)

    def infer(self, *inputs: Type, **attrs: Any) -> Type:
        expect_dtype(self.name, inputs, self.dtypes)
        return inputs[0]

    def compute(self, x: Array, **attrs: Any) -> Array:
        """Compute the function in NumPy, in the dtype of the operand."""
        raise NotImplementedError(self.name)

    def reference(self, x: Array, **attrs: Any) -> Array:
        return narrow(self.compute(widen(x), **attrs), x.dtype)

    def attributes(self) -> Iterable[dict[str, Any]]:
        """Return the dicts of attributes to test, such as ({"alpha": 1.0}, {"alpha": 0.25}).

        For each dict, `samples` yields test samples of the op with these attributes.
        """
        return ({},)

    def samples(self) -> Iterable[Sample]:
        for attrs in self.attributes():
            for shape in UNARY_SHAPES:
                operand = Operand(shape, *self.domains[0], away_from_zero=self.kink_at_zero)
                yield Sample((operand,), attrs)
            for low, high in self.domains[1:]:
                yield Sample((Operand((3, 4), low, high),), attrs)


class Softplus(Activation):
    """Return log(1 + exp(x)), without overflow.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.

    Notes
    -----
    It is computed as max(x, 0) + log1p(exp(-abs(x))). Dugas et al., "Incorporating second-order
    functional knowledge" (NIPS 2000), equation 3.

    Examples
    --------
    ::

        >>> ngd.function(ops.softplus)(np.array([-1.0, 0.0, 1.0])).round(4)
        array([0.3133, 0.6931, 1.3133])
    """

    name = "softplus"

    def compute(self, x: Array, **attrs: Any) -> Array:
        result: Array = np.logaddexp(x, x.dtype.type(0))
        return result

    def expand(self, x: Node) -> Node:
        return maximum(x, 0) + log1p(exp(-abs(x)))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy * sigmoid(node.inputs[0]),)


softplus: Final[Softplus] = register(Softplus())


class Silu(Activation):
    """Return x * sigmoid(x), which is also called swish.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.

    Notes
    -----
    Elfwing, Uchibe and Doya 2018 (arXiv:1702.03118), equation 3.

    Examples
    --------
    ::

        >>> ngd.function(ops.silu)(np.array([-1.0, 0.0, 1.0])).round(4)
        array([-0.2689,  0.    ,  0.7311])
    """

    name = "silu"

    def compute(self, x: Array, **attrs: Any) -> Array:
        return x * _sigmoid(x)

    def expand(self, x: Node) -> Node:
        return x * sigmoid(x)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        s = sigmoid(x)
        return (dy * (s * (1 + x * (1 - s))),)


silu: Final[Silu] = register(Silu())

_erf = np.vectorize(math.erf, otypes=[np.float64])

TANH_SATURATES: Final = 16.0
"""A bound for x in the gradient of gelu(x) with approximate="tanh".

If abs(x) > 16, the tanh in the formula of gelu(x) is rounded to 1 or -1 in every dtype. So the
derivative of this tanh is 0. The gradient limits x to [-16, 16] in the derivative, because
otherwise x**2 could overflow, and 0 times infinity is NaN.
"""


def _tanh_operand(x: Any) -> Any:
    """Return the operand of tanh in the tanh approximation of gelu(x)."""
    return math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))


class Gelu(Activation):
    """Return x times the standard normal distribution function of x.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.
    approximate
        "none" (the default) for the exact function, or "tanh" for an approximation.

    Raises
    ------
    ValueError
        `approximate` is neither "none" nor "tanh".

    Notes
    -----
    The formulas of "none" and of "tanh" are those of Hendrycks and Gimpel 2016 (arXiv:1606.08415),
    section 2:

        0.5 * x * (1 + erf(x / sqrt(2)))
        0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))

    Examples
    --------
    ::

        >>> ngd.function(ops.gelu)(np.array([-1.0, 0.0, 1.0])).round(4)
        array([-0.1587,  0.    ,  0.8413])
    """

    name = "gelu"
    APPROXIMATIONS: ClassVar[tuple[str, ...]] = ("none", "tanh")

    def __call__(self, x: Value, approximate: str = "none") -> Node:
        if approximate not in self.APPROXIMATIONS:
            known = ", ".join(self.APPROXIMATIONS)
            raise ValueError(f"gelu: expected approximate among {known}; got {approximate!r}")
        return self.of(x, {"approximate": approximate})

    def compute(self, x: Array, **attrs: Any) -> Array:
        if attrs["approximate"] == "tanh":
            factor = np.tanh(_tanh_operand(x))
        else:
            factor = _erf(x / math.sqrt(2))
        result: Array = 0.5 * x * (1 + factor)
        return result

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return {"none": "gelu", "tanh": "gelu_tanh"}[attrs["approximate"]], {}

    def expand(self, x: Node, *, approximate: str) -> Node:
        if approximate == "tanh":
            return 0.5 * x * (1 + tanh(_tanh_operand(x)))
        return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        if node.attrs["approximate"] == "tanh":
            # Beyond the bound the slope of tanh is 0. The bound keeps square(x) finite.
            bounded = limit_magnitude(x, TANH_SATURATES)
            t = tanh(_tanh_operand(bounded))
            slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * square(bounded))
            return (dy * (0.5 * (1 + t) + 0.5 * bounded * ((1 - t * t) * slope)),)
        density = exp(-0.5 * square(x)) * (1 / math.sqrt(2 * math.pi))
        return (dy * (0.5 * (1 + erf(x * math.sqrt(0.5))) + x * density),)

    def attributes(self) -> Iterable[dict[str, Any]]:
        return ({"approximate": a} for a in self.APPROXIMATIONS)


gelu: Final[Gelu] = register(Gelu())

POSTS: Final[Mapping[str, tuple[Op, Mapping[str, Any]]]] = {
    op.lower(**attrs)[0]: (op, attrs)
    for op, attrs in ((relu, {}), (silu, {}), *((gelu, a) for a in gelu.attributes()))
}
"""The post-operations: elementwise ops that a kernel can apply to its result before storing it.

The kernel is that of an op such as matmul. A key is the name by which the kernel knows the
elementwise op, such as "relu". A value is (op, attributes of the op).
"""


ADDED: Final = "add"
"""The name of the post-operation that adds an array to the result of an op such as matmul.

A post-operation is an elementwise op that the kernel applies to its result before storing it. The
added array is the last operand of the matmul, and has the type of the matmul's result.
"""


def split_added(operands: Sequence[Any], posts: Sequence[str]) -> tuple[Sequence[Any], Any]:
    """Split the operands of an op such as matmul into (other operands, addend).

    `posts` has the names of the post-operations: the elementwise ops that the kernel applies to its
    result before storing it. If "add" is among them, the last operand is the addend, the array that
    is added to the result. Otherwise the addend is None.
    """
    return (operands[:-1], operands[-1]) if ADDED in posts else (operands, None)


def adjoint_before_post(node: Node, dy: Node) -> tuple[Node, list[Node]]:
    """Return (adjoint of a node's result before post-operations, adjoints of addends).

    The node is a matmul or a convolution. Its kernel applies post-operations, such as relu, to the
    result. `dy` is the adjoint of the result after all post-operations. The gradients of the
    post-operations read the values before and after each post-operation. So this function adds
    nodes to the graph that compute these values again. The second result is a list. With the
    post-operation "add", it has the adjoint of the array that is added. Otherwise it is empty.
    """
    posts: tuple[str, ...] = node.attrs.get("post", ())
    if not posts:
        return dy, []
    inputs, added = split_added(node.inputs, posts)
    values = [node.op.node(inputs, {**node.attrs, "post": ()})]
    for name in posts:
        op, attrs = POSTS.get(name, (None, {}))
        values.append(op.node((values[-1],), attrs) if op else values[-1] + added)
    added_adjoints: list[Node] = []
    for name, value in zip(posts[::-1], values[:0:-1], strict=True):
        if name == ADDED:
            added_adjoints = [dy]
            continue
        (slope,) = value.op.grad(value, dy)
        assert slope is not None
        dy = slope
    return dy, added_adjoints


def apply_post_operations(x: Array, posts: Sequence[str], added: Array | None = None) -> Array:
    """Apply elementwise ops such as "relu" to x one after the other, in NumPy.

    `posts` has the names of the ops: keys of POSTS, and "add", which adds the array `added`.
    """
    for name in posts:
        op, attrs = POSTS.get(name, (None, {}))
        x = np.asarray(op.reference(x, **attrs) if op else x + added)
    return x


def limit_magnitude(x: Node, bound: float) -> Node:
    """Return x with each element limited to [-bound, bound]."""
    return minimum(maximum(x, -bound), bound)


class LeakyRelu(Activation):
    """Return x where it is positive, and negative_slope * x elsewhere.

    The gradient at 0 is negative_slope.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.
    negative_slope
        The slope for negative x, a Python float.

    Notes
    -----
    Maas, Hannun and Ng, "Rectifier nonlinearities improve neural network acoustic models" (2013),
    equation 2.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.leaky_relu(x))(np.array([-1.0, 0.0, 1.0]))
        array([-0.01,  0.  ,  1.  ])
    """

    name = "leaky_relu"
    kink_at_zero = True
    smooth = False

    def __call__(self, x: Value, negative_slope: float = 0.01) -> Node:
        return self.of(x, {"negative_slope": float(negative_slope)})

    def compute(self, x: Array, **attrs: Any) -> Array:
        return np.where(x > 0, x, x.dtype.type(attrs["negative_slope"]) * x)

    def expand(self, x: Node, *, negative_slope: float) -> Node:
        return where(x > 0, x, x * negative_slope)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (where(node.inputs[0] > 0, dy, dy * node.attrs["negative_slope"]),)

    def attributes(self) -> Iterable[dict[str, Any]]:
        return ({"negative_slope": slope} for slope in (0.01, -1.5))


leaky_relu: Final[LeakyRelu] = register(LeakyRelu())


class Elu(Activation):
    """Return x where it is positive, and alpha * (exp(x) - 1) elsewhere.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.
    alpha
        A Python float. elu(x) tends to -alpha as x goes to minus infinity.

    Notes
    -----
    Clevert, Unterthiner and Hochreiter 2016 (arXiv:1511.07289), equation 14.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.elu(x))(np.array([-1.0, 0.0, 1.0])).round(4)
        array([-0.6321,  0.    ,  1.    ])
    """

    name = "elu"
    kink_at_zero = True

    def __call__(self, x: Value, alpha: float = 1.0) -> Node:
        return self.of(x, {"alpha": float(alpha)})

    def compute(self, x: Array, **attrs: Any) -> Array:
        return np.where(x > 0, x, x.dtype.type(attrs["alpha"]) * np.expm1(np.minimum(x, 0)))

    def expand(self, x: Node, *, alpha: float) -> Node:
        return where(x > 0, x, alpha * expm1(minimum(x, 0)))

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        return (where(x > 0, dy, dy * (node.attrs["alpha"] * exp(minimum(x, 0)))),)

    def attributes(self) -> Iterable[dict[str, Any]]:
        return ({"alpha": alpha} for alpha in (1.0, 0.25))


elu: Final[Elu] = register(Elu())


def _inside(x: Node) -> Node:
    """Return True where -3 < x < 3. There, hardsigmoid(x) is x / 6 + 1 / 2."""
    return logical_and(x > -3, x < 3)


class Hardsigmoid(Activation):
    """Return min(max(x + 3, 0), 6) / 6, element by element.

    The gradient at -3 and at 3 is 0. ops.hardswish(x) is x * hardsigmoid(x).

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.

    Examples
    --------
    ::

        >>> ngd.function(ops.hardsigmoid)(np.array([-1.0, 0.0, 1.0])).round(4)
        array([0.3333, 0.5   , 0.6667])
    """

    name = "hardsigmoid"
    smooth = False

    def compute(self, x: Array, **attrs: Any) -> Array:
        result: Array = np.minimum(np.maximum(x + 3, 0), 6) / 6
        return result

    def expand(self, x: Node) -> Node:
        return minimum(maximum(x + 3, 0), 6) / 6

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (where(_inside(node.inputs[0]), dy / 6, 0),)


hardsigmoid: Final[Hardsigmoid] = register(Hardsigmoid())


class Hardswish(Activation):
    """Return x * min(max(x + 3, 0), 6) / 6.

    The gradient at -3 is 0, and at 3 it is 1.

    Parameters
    ----------
    x
        Floats of any shape. Integers become floats.

    Notes
    -----
    Howard et al. 2019 (arXiv:1905.02244), section 5.2.

    Examples
    --------
    ::

        >>> ngd.function(ops.hardswish)(np.array([-1.0, 0.0, 1.0])).round(4)
        array([-0.3333,  0.    ,  0.6667])
    """

    name = "hardswish"
    smooth = False

    def compute(self, x: Array, **attrs: Any) -> Array:
        return x * hardsigmoid.compute(x)

    def expand(self, x: Node) -> Node:
        return x * hardsigmoid(x)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        (x,) = node.inputs
        return (where(_inside(x), dy * (x / 3 + 0.5), where(x > 0, dy, 0)),)


hardswish: Final[Hardswish] = register(Hardswish())
