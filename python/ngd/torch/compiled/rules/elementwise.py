# SPDX-License-Identifier: Apache-2.0
"""Rules that translate elementwise ops of PyTorch into ngd nodes.

The ops are arithmetic, comparisons, activations and casts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from .... import ops
from ....graph.node import Node
from .registry import Call, NodeOrNodes, Sample, T, as_flags, as_node, rule

aten: Final = torch.ops.aten

X: Final = T((2, 3))
POSITIVE: Final = T((2, 3), low=0.5, high=2.0)
INSIDE: Final = T((2, 3), low=-0.9, high=0.9)
WITHOUT_GRADIENT: Final = T((2, 3), low=0.5, high=2.0, has_grad=False)
INTEGERS: Final = T((2, 3), torch.int64, low=-5, high=6)
FLAGS: Final = T((2, 3), torch.bool)

UNARY: Final[dict[Any, tuple[Callable[[Node], Node], T]]] = {
    aten.abs.default: (ops.abs, X),
    aten.acos.default: (ops.acos, INSIDE),
    aten.acosh.default: (ops.acosh, T((2, 3), low=1.5, high=3.0)),
    aten.asin.default: (ops.asin, INSIDE),
    aten.asinh.default: (ops.asinh, X),
    aten.atan.default: (ops.atan, X),
    aten.atanh.default: (ops.atanh, INSIDE),
    aten.ceil.default: (ops.ceil, X),
    aten.cos.default: (ops.cos, X),
    aten.cosh.default: (ops.cosh, X),
    aten.digamma.default: (ops.digamma, POSITIVE),
    aten.erf.default: (ops.erf, X),
    aten.erfinv.default: (ops.erfinv, INSIDE),
    aten.exp.default: (ops.exp, X),
    aten.exp2.default: (ops.exp2, X),
    aten.expm1.default: (ops.expm1, X),
    aten.floor.default: (ops.floor, X),
    aten.hardsigmoid.default: (ops.hardsigmoid, X),
    aten.hardswish.default: (ops.hardswish, X),
    aten.lgamma.default: (ops.lgamma, POSITIVE),
    aten.log.default: (ops.log, POSITIVE),
    aten.log10.default: (ops.log10, POSITIVE),
    aten.log1p.default: (ops.log1p, POSITIVE),
    aten.log2.default: (ops.log2, POSITIVE),
    aten.log_sigmoid.default: (ops.logsigmoid, X),
    aten.mish.default: (ops.mish, X),
    aten.neg.default: (ops.negative, X),
    aten.reciprocal.default: (ops.reciprocal, POSITIVE),
    aten.relu.default: (ops.relu, X),
    aten.round.default: (ops.round, X),
    aten.rsqrt.default: (ops.rsqrt, POSITIVE),
    aten.selu.default: (ops.selu, X),
    aten.sigmoid.default: (ops.sigmoid, X),
    aten.sign.default: (ops.sign, X),
    aten.silu.default: (ops.silu, X),
    aten.sin.default: (ops.sin, X),
    aten.sinh.default: (ops.sinh, X),
    aten.sqrt.default: (ops.sqrt, POSITIVE),
    aten.square.default: (ops.square, X),
    aten.tan.default: (ops.tan, INSIDE),
    aten.tanh.default: (ops.tanh, X),
    aten.trunc.default: (ops.trunc, X),
}
"""The ops of one operand. Each has the ngd function that computes it, and a sample operand with
which the tests call the op."""


def _register_unary(target: Any, function: Callable[[Node], Node], operand: T) -> None:
    @rule(target, samples=[Sample(operand)])
    def translate(call: Call, x: Any) -> Node:
        return function(call.cast(x))


for _target, (_function, _operand) in UNARY.items():
    _register_unary(_target, _function, _operand)

TESTS: Final[dict[Any, Callable[[Node], Node]]] = {
    aten.isfinite.default: ops.isfinite,
    aten.isinf.default: ops.isinf,
    aten.isnan.default: ops.isnan,
}
"""The predicates, such as isnan, with the ngd functions that compute them. A predicate returns a
boolean for each element of a tensor, which may have any dtype."""


def _register_test(target: Any, function: Callable[[Node], Node]) -> None:
    @rule(target, samples=[Sample(X)])
    def translate(call: Call, x: Any) -> Node:
        return function(as_node(x))


for _target, _function in TESTS.items():
    _register_test(_target, _function)

BINARY: Final[dict[str, tuple[Callable[..., Node], list[Any], T]]] = {
    "atan2": (ops.atan2, [aten.atan2.default], X),
    "divide": (ops.divide, [aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor], POSITIVE),
    "floor_divide": (ops.floor_divide, [aten.floor_divide.default], WITHOUT_GRADIENT),
    "fmod": (ops.fmod, [aten.fmod.Tensor, aten.fmod.Scalar], POSITIVE),
    "hypot": (ops.hypot, [aten.hypot.default], X),
    "logaddexp": (ops.logaddexp, [aten.logaddexp.default], X),
    "maximum": (ops.maximum, [aten.maximum.default, aten.max.other], X),
    "minimum": (ops.minimum, [aten.minimum.default, aten.min.other], X),
    "multiply": (ops.multiply, [aten.mul.Tensor, aten.mul.Scalar, aten.multiply.Tensor], X),
    "remainder": (ops.remainder, [aten.remainder.Tensor, aten.remainder.Scalar], POSITIVE),
    "xlogy": (
        lambda a, b: ops.where(a == 0, ops.zeros(a.shape, a.dtype), a * ops.log(b)),
        [aten.xlogy.Tensor],
        POSITIVE,
    ),
}
"""The ops of two operands, which are cast to the dtype of the result."""


def _second(target: Any, operand: T) -> Any:
    """Return a second operand for the test of a binary op.

    For an op with a scalar operand it is a number. Otherwise it is a tensor that is broadcast.
    """
    return 1.5 if "Scalar" in target._overloadname else operand._replace(shape=(3,))


def _register_binary(target: Any, function: Callable[..., Node], operand: T) -> None:
    @rule(target, samples=[Sample(operand, _second(target, operand))])
    def translate(call: Call, a: Any, b: Any) -> Node:
        return function(call.cast(a), call.cast(b))


for _binary, _targets, _operand in BINARY.values():
    for _target in _targets:
        _register_binary(_target, _binary, _operand)

COMPARISONS: Final[dict[str, Callable[..., Node]]] = {
    "eq": ops.equal,
    "ge": ops.greater_equal,
    "gt": ops.greater,
    "le": ops.less_equal,
    "lt": ops.less,
    "ne": ops.not_equal,
}
"""The comparisons, whose operands are cast to their common dtype."""


def _register_comparison(target: Any, function: Callable[..., Node]) -> None:
    second = 1.5 if "Scalar" in target._overloadname else INTEGERS

    @rule(target, samples=[Sample(X, second), Sample(INTEGERS, second)])
    def translate(call: Call, a: Any, b: Any) -> Node:
        dtype = call.operand_dtype
        return function(as_node(a, dtype), as_node(b, dtype))


for _name, _function in COMPARISONS.items():
    _packet = getattr(aten, _name)
    for _target in (_packet.Tensor, _packet.Scalar):
        _register_comparison(_target, _function)

LOGICAL: Final[dict[Any, Callable[..., Node]]] = {
    aten.logical_and.default: ops.logical_and,
    aten.logical_or.default: ops.logical_or,
    aten.logical_xor.default: ops.logical_xor,
}
"""The ops on booleans. Elements of other dtypes count as true if they are not 0."""


def _register_logical(target: Any, function: Callable[..., Node]) -> None:
    @rule(target, samples=[Sample(FLAGS, FLAGS), Sample(INTEGERS, FLAGS)])
    def translate(call: Call, a: Any, b: Any) -> Node:
        return function(as_flags(a), as_flags(b))


for _target, _function in LOGICAL.items():
    _register_logical(_target, _function)

BITWISE: Final[dict[str, Callable[..., Node]]] = {
    "bitwise_and": ops.bitwise_and,
    "bitwise_or": ops.bitwise_or,
    "bitwise_xor": ops.bitwise_xor,
}


def _register_bitwise(target: Any, function: Callable[..., Node], samples: list[Sample]) -> None:
    @rule(target, samples=samples)
    def translate(call: Call, a: Any, b: Any) -> Node:
        return function(call.cast(a), call.cast(b))


for _name, _function in BITWISE.items():
    _packet = getattr(aten, _name)
    _register_bitwise(_packet.Tensor, _function, [Sample(FLAGS, FLAGS), Sample(INTEGERS, INTEGERS)])
    _register_bitwise(_packet.Scalar, _function, [Sample(INTEGERS, 5)])
_register_bitwise(aten.__and__.Tensor, ops.bitwise_and, [Sample(FLAGS, FLAGS)])
_register_bitwise(aten.__or__.Tensor, ops.bitwise_or, [Sample(FLAGS, FLAGS)])


@rule(aten.logical_not.default, samples=[Sample(FLAGS), Sample(INTEGERS)])
def logical_not(call: Call, x: Any) -> Node:
    return ops.logical_not(as_flags(x))


@rule(aten.bitwise_not.default, samples=[Sample(FLAGS), Sample(INTEGERS)])
def bitwise_not(call: Call, x: Any) -> Node:
    return ops.bitwise_not(as_node(x))


@rule(
    aten.add.Tensor,
    aten.sub.Tensor,
    samples=[Sample(X, T((3,))), Sample(X, X, alpha=0.5), Sample(INTEGERS, X), Sample(X, 2)],
)
def add_or_subtract(call: Call, a: Any, b: Any, alpha: Any = 1) -> Node:
    a, b = call.cast(a), call.cast(b)
    if alpha != 1:
        b = b * call.cast(alpha)
    return a + b if call.name.startswith("aten.add") else a - b


@rule(aten.add.Scalar, aten.sub.Scalar, samples=[Sample(X, 2.5), Sample(X, 2, 3)])
def add_or_subtract_number(call: Call, a: Any, b: Any, alpha: Any = 1) -> Node:
    return add_or_subtract(call, a, b * alpha)


@rule(aten.rsub.Scalar, samples=[Sample(X, 2.5), Sample(X, 1, 2)])
@rule(aten.rsub.Tensor, samples=[Sample(X, T((3,))), Sample(X, X, alpha=2)])
def subtract_reversed(call: Call, a: Any, b: Any, alpha: Any = 1) -> Node:
    return call.cast(b) - call.cast(a) * call.cast(alpha)


@rule(
    aten.div.Tensor_mode,
    samples=[Sample(X, POSITIVE, rounding_mode=mode) for mode in (None, "floor", "trunc")],
)
@rule(
    aten.div.Scalar_mode,
    samples=[Sample(X, 0.7, rounding_mode=mode) for mode in (None, "floor", "trunc")],
)
def divide_and_round(call: Call, a: Any, b: Any, rounding_mode: str | None = None) -> Node:
    a, b = call.cast(a), call.cast(b)
    if rounding_mode == "floor":
        return ops.floor_divide(a, b)
    if rounding_mode is None:
        return a / b
    if a.dtype.kind in "iu":
        return (a - ops.fmod(a, b)) // b
    return ops.trunc(a / b)


SMALL_POWERS: Final[dict[float, Callable[[Node], Node]]] = {
    0.5: ops.sqrt,
    1.0: lambda x: x,
    2.0: ops.square,
    3.0: lambda x: x * ops.square(x),
}


@rule(
    aten.pow.Tensor_Scalar,
    samples=[Sample(POSITIVE, power) for power in (0.5, 1, 2, 3, -1.5)] + [Sample(INTEGERS, 2)],
)
@rule(aten.pow.Tensor_Tensor, samples=[Sample(POSITIVE, T((3,)))])
@rule(aten.pow.Scalar, samples=[Sample(1.5, X)])
def power(call: Call, a: Any, b: Any) -> Node:
    if isinstance(b, (int, float)) and b in SMALL_POWERS:
        return SMALL_POWERS[b](call.cast(a))
    return ops.power(call.cast(a), call.cast(b))


@rule(aten.gelu.default, samples=[Sample(X), Sample(X, approximate="tanh")])
def gelu(call: Call, x: Any, approximate: str = "none") -> Node:
    return ops.gelu(as_node(x), approximate=approximate)


@rule(aten.softplus.default, samples=[Sample(X), Sample(X, 2.0, 0.5)])
def softplus(call: Call, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Node:
    x = call.cast(x)
    scaled = x * call.cast(beta)
    smooth = ops.softplus(scaled) / call.cast(beta)
    return ops.where(scaled > call.cast(threshold), x, smooth)


@rule(aten.leaky_relu.default, samples=[Sample(X), Sample(X, 0.2)])
def leaky_relu(call: Call, x: Any, negative_slope: float = 0.01) -> Node:
    return ops.leaky_relu(as_node(x), negative_slope)


@rule(aten.elu.default, samples=[Sample(X), Sample(X, 0.5), Sample(X, 1.5, 1.2, 0.7)])
def elu(call: Call, x: Any, alpha: float = 1.0, scale: float = 1.0, factor: float = 1.0) -> Node:
    x = call.cast(x)
    if scale == factor == 1:
        return ops.elu(x, alpha)
    negative = call.cast(alpha) * ops.expm1(ops.minimum(x, call.cast(0)) * call.cast(factor))
    return ops.where(x > 0, x, negative) * call.cast(scale)


@rule(aten.prelu.default, aten._prelu_kernel.default, samples=[Sample(X, T((3,)))])
def prelu(call: Call, x: Any, weight: Any) -> Node:
    x, weight = as_node(x), as_node(weight)
    if weight.ndim == 1 and x.ndim > 1:
        weight = ops.reshape(weight, (weight.size,) + (1,) * (x.ndim - 2))
    return ops.where(x > 0, x, x * weight)


@rule(aten.glu.default, samples=[Sample(T((2, 4))), Sample(T((2, 4)), 0)])
def glu(call: Call, x: Any, dim: int = -1) -> Node:
    return ops.glu(as_node(x), dim)


@rule(aten.hardtanh.default, samples=[Sample(X), Sample(X, -0.5, 0.5)])
def hardtanh(call: Call, x: Any, low: float = -1.0, high: float = 1.0) -> Node:
    return _between(call.cast(x), call.cast(low), call.cast(high))


@rule(aten.relu6.default, samples=[Sample(T((2, 3), low=-9, high=9))])
def relu6(call: Call, x: Any) -> Node:
    return _between(call.cast(x), call.cast(0), call.cast(6))


def _between(x: Node, low: Node, high: Node) -> Node:
    """Clip as PyTorch's hardtanh does: the gradient is 0 where x equals a bound."""
    return ops.where(x <= low, low, ops.where(x >= high, high, x))


@rule(
    aten.clamp.default,
    aten.clip.default,
    samples=[
        Sample(X, -0.5, 0.5),
        Sample(X, min=-0.5),
        Sample(X, max=0.5),
        Sample(INTEGERS, -1, 2),
    ],
)
@rule(aten.clamp.Tensor, samples=[Sample(X, T((3,), low=-1, high=0), None)])
def clamp(call: Call, x: Any, min: Any = None, max: Any = None) -> Node:
    low = None if min is None else call.cast(min)
    high = None if max is None else call.cast(max)
    return ops.clip(call.cast(x), low, high)


@rule(aten.clamp_min.default, samples=[Sample(X, 0.1)])
def clamp_min(call: Call, x: Any, min: Any) -> Node:
    return ops.clip(call.cast(x), call.cast(min), None)


@rule(aten.clamp_max.default, samples=[Sample(X, 0.1)])
def clamp_max(call: Call, x: Any, max: Any) -> Node:
    return ops.clip(call.cast(x), None, call.cast(max))


@rule(aten.where.self, samples=[Sample(FLAGS, X, T((3,))), Sample(FLAGS, X, INTEGERS)])
@rule(aten.where.ScalarOther, samples=[Sample(FLAGS, X, 2.0)])
@rule(aten.where.ScalarSelf, samples=[Sample(FLAGS, 2.0, X)])
@rule(aten.where.Scalar, samples=[Sample(FLAGS, 2.0, 3.0)])
def where(call: Call, condition: Any, a: Any, b: Any) -> Node:
    return ops.where(as_flags(condition), call.cast(a), call.cast(b))


@rule(aten.masked_fill.Scalar, samples=[Sample(X, FLAGS, -1.0), Sample(X, T((3,), torch.bool), 0)])
@rule(aten.masked_fill.Tensor, samples=[Sample(X, FLAGS, T(()))])
def masked_fill(call: Call, x: Any, mask: Any, value: Any) -> Node:
    return ops.where(as_node(mask), call.cast(value), call.cast(x))


@rule(aten.lerp.Scalar, samples=[Sample(X, X, 0.3)])
@rule(aten.lerp.Tensor, samples=[Sample(X, X, INSIDE)])
def lerp(call: Call, start: Any, end: Any, weight: Any) -> Node:
    start = call.cast(start)
    return start + call.cast(weight) * (call.cast(end) - start)


@rule(aten.nan_to_num.default, samples=[Sample(X), Sample(X, nan=1.0, posinf=2.0, neginf=-2.0)])
def nan_to_num(
    call: Call,
    x: Any,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Node:
    return ops.nan_to_num(as_node(x), nan or 0.0, posinf, neginf)


@rule(
    aten.clone.default,
    aten.alias.default,
    aten.contiguous.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    samples=[Sample(X)],
)
def identity(call: Call, x: Any, memory_format: Any = None) -> Node:
    return as_node(x)


@rule(aten.detach.default, samples=[Sample(T((2, 3), has_grad=False))])
def detach(call: Call, x: Any) -> Node:
    return ops.stop_gradient(as_node(x))


@rule(
    aten._to_copy.default, samples=[Sample(X, dtype=torch.float32), Sample(INTEGERS, dtype=X.dtype)]
)
@rule(aten.to.dtype, samples=[Sample(X, torch.float32)])
@rule(aten.to.device, samples=[Sample(X, torch.device("cpu"), torch.float32)])
@rule(aten.to.dtype_layout, samples=[Sample(X, dtype=torch.float32)])
@rule(aten.type_as.default, aten.to.other, samples=[Sample(X, T((1,), torch.float32))])
def convert(call: Call, x: Any, *how: Any, **options: Any) -> Node:
    if call.dtype == bool:
        return as_flags(x)
    return call.cast(x)


@rule(
    aten._assert_tensor_metadata.default,
    aten._assert_async.msg,
    aten._assert_scalar.default,
    aten.sym_constrain_range_for_size.default,
)
def check_nothing(call: Call, *args: Any, **options: Any) -> NodeOrNodes:
    return None


@rule(aten.copy.default, samples=[Sample(WITHOUT_GRADIENT, WITHOUT_GRADIENT)])
def copy(call: Call, destination: Any, source: Any, non_blocking: bool = False) -> Node:
    return ops.broadcast_to(call.cast(source), call.shape)


@rule(aten.fill.Tensor, samples=[Sample(X, T(()))])
@rule(aten.fill.Scalar, samples=[Sample(X, 2.0)])
def fill(call: Call, x: Any, value: Any) -> Node:
    return ops.broadcast_to(call.cast(value), call.shape)
