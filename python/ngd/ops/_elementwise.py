# SPDX-License-Identifier: Apache-2.0
"""Base classes of elementwise ops, with the broadcasting of NumPy and the promotion of NumPy 2.

The public calls promote operands by explicit casts, so that all operands of a node have one dtype.
Operands of different shapes need no such conversion: each op broadcasts them. 16-bit floats are
computed in float32, and each op rounds once.

There are four differences from NumPy:

- arithmetic on two bools raises an error; use logical_and and similar ops;
- two floats without a common dtype (float16 with bfloat16) become float32;
- floor, ceil and round return integers unchanged;
- reciprocal of an integer is a float.

The attribute `compute` of an op is the NumPy function that computes it. This function gets 16-bit
floats as float32, and all other operands in their own dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from ..dtypes import FLOATS, Array, DType, Type, float64, is_float, promote
from ..errors import DTypeError
from ..graph import notes
from ..graph.leaves import CONSTANT, constant_node
from ..graph.node import Node, Op
from ..graph.samples import Operand, Sample
from ..graph.traits import Kernel, Numerics
from ._casting import Cast, cast
from ._operands import (
    Value,
    as_node,
    broadcast_shapes,
    describe_types,
    expect_dtype,
    float_of,
    is_weak,
    is_weak_node,
    narrow,
    scalar,
    scalar_value,
    weak_value,
    widen,
)

MANY: Final = 1000
"""The maximum number of nodes that `is_cast_by_user` searches for a cast that the user wrote.

`is_cast_by_user` searches the nodes that a value is computed from. If it has found no such cast
when it reaches the maximum, it returns False. So the search is short in a large graph.
"""
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
    """The base of ops whose result at an index depends only on the operands at this index."""

    kernel = Kernel(is_elementwise=True)
    numerics = Numerics(needs_float32_gradient=True)
    result: ClassVar[DType | None] = None
    """The dtype of the result, or None if it is the dtype of the operands."""
    compute: ClassVar[Callable[..., Any]]
    domain: ClassVar[tuple[tuple[float, float], ...]]
    """One interval (low, high) per operand, from which tests draw the values of the operand."""
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
    """The base of elementwise ops of one operand.

    An op that is defined only for floats casts an integer operand to floats.
    """

    domain: ClassVar[tuple[tuple[float, float], ...]] = ((-2, 2),)

    def __call__(self, x: Value) -> Node:
        x = as_node(x, where=self.name)
        return self.node((cast(x, float_of(x.dtype)) if self.dtypes is FLOATS else x,))


class Binary(Elementwise):
    """The base of elementwise ops of two operands, which broadcast."""

    domain: ClassVar[tuple[tuple[float, float], ...]] = ((-2, 2), (-2, 2))

    def __call__(self, a: Value, b: Value) -> Node:
        return self.node(align(self.name, a, b))


def one_dtype(values: Sequence[Value]) -> DType | None:
    """Return the common dtype of operands that need no promotion rules, else None.

    Operands need no rules in two cases: all are nodes of one dtype, or they are nodes of one
    floating dtype and Python scalars. A Python scalar takes the floating dtype of the nodes.
    """
    dtype, weak = None, False
    for v in values:
        if isinstance(v, Node):
            if dtype is not None and v.type.dtype is not dtype:
                return None
            dtype = v.type.dtype
        elif is_weak(v):
            weak = True
        else:
            return None
    return dtype if dtype is None or not weak or is_float(dtype) else None


def align(where: str, *values: Value) -> list[Node]:
    """Return the operands as nodes of one dtype, the one that NumPy would compute in."""
    common = one_dtype(values)
    if common is not None:  # the common case: no promotion
        return [v if isinstance(v, Node) else scalar(v, common, where) for v in values]
    operands = [v if is_weak(v) else as_node(v, where=where) for v in values]
    try:
        dtype = promote(*(promotion_kind(v) if isinstance(v, Node) else v for v in operands))
    except DTypeError as error:
        raise DTypeError(f"{where}: {error}") from None
    nodes = [cast(v, dtype) if isinstance(v, Node) else scalar(v, dtype, where) for v in operands]
    if dtype == float64:
        note_promotion(where, operands, nodes)
    return nodes


def note_promotion(where: str, operands: Sequence[Any], nodes: Sequence[Node]) -> None:
    """Record a note if float32 or 16-bit floats became float64 because of another operand.

    ngd.compile reports notes as warnings (graph/notes.py). There is no note in two cases: if the
    narrower operand is a constant, or if the user made the float64 operand by a cast.
    """
    strong_operands = [
        v for v in operands if isinstance(v, Node) and not isinstance(promotion_kind(v), float)
    ]
    for before, after in zip(operands, nodes, strict=True):
        if (
            before is after
            or not any(before is v for v in strong_operands)
            or not is_float(before.dtype)
        ):
            continue
        if scalar_value(before) is not None or before.op is CONSTANT:
            continue
        wider = next(
            (v for v in strong_operands if v.dtype == float64 or not is_float(v.dtype)), before
        )
        if not is_cast_by_user(wider):
            types = describe_types(*(v.type for v in operands if isinstance(v, Node)))
            notes.add(after, notes.Promotion(where, types, advice(wider), after.site))
        return


def is_cast_by_user(value: Node) -> bool:
    """Return True if a float64 value is computed from a cast to float64 that the user wrote.

    For example, the user wrote x.astype("float64") for a float32 node x. A cast does not count if
    it has a note from `note_promotion`, because ngd inserted it to promote an operand.
    """
    visited, stack = set[Node](), [value]
    while stack and len(visited) < MANY:
        node = stack.pop()
        if node in visited or node.dtype != float64:
            continue
        visited.add(node)
        if isinstance(node.op, Cast) and is_float(node.inputs[0].dtype):
            if not notes.find([node]):
                return True
        else:
            stack += node.inputs
    return False


def advice(other: Node) -> str:
    """Return the advice in a warning about a promotion to float64.

    The operand `other` caused the promotion. The advice is to cast it, or to make it a Python
    float.
    """
    if not is_float(other.dtype):
        return f'Cast the operand {other.type}: x.astype("float32").'
    if other.op is CONSTANT and not other.shape:
        return (
            "Make the NumPy scalar a Python float, which takes the dtype of the other operand: "
            "float(np.sqrt(d))."
        )
    return f'Cast the operand {other.type} (made at {other.site}): x.astype("float32").'


def promotion_kind(node: Node) -> Any:
    """Return the value that stands for a node in NumPy's promotion: its dtype, or a Python float.

    A weak node is a float64 scalar that takes the dtype of the other operands. The function returns
    a Python float for a weak node, and the dtype for any other node.
    """
    return 0.0 if weak_value(node) is not None or is_weak_node(node) else node.dtype


def zero_like(x: Node) -> Node:
    """Return a scalar zero of the node's dtype. It broadcasts."""
    return constant_node(np.zeros((), x.dtype))
