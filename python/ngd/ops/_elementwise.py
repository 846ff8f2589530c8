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
    expect_dtype,
    float_of,
    got,
    is_weak,
    is_weak_node,
    narrow,
    scalar,
    scalar_value,
    weak_value,
    widen,
)

MANY: Final = 1000
"""The number of nodes among which a cast to float64 is looked for."""
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

    kernel = Kernel(is_elementwise=True)
    numerics = Numerics(needs_float32_gradient=True)
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


class Binary(Elementwise):
    """An elementwise op of two operands."""

    domain: ClassVar[tuple[tuple[float, float], ...]] = ((-2, 2), (-2, 2))

    def __call__(self, a: Value, b: Value) -> Node:
        return self.node(align(self.name, a, b))


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
        dtype = promote(*(kind_of(v) if isinstance(v, Node) else v for v in given))
    except DTypeError as error:
        raise DTypeError(f"{where}: {error}") from None
    nodes = [cast(v, dtype) if isinstance(v, Node) else scalar(v, dtype, where) for v in given]
    if dtype == float64:
        note_promotion(where, given, nodes)
    return nodes


def note_promotion(where: str, given: Sequence[Any], nodes: Sequence[Node]) -> None:
    """Note that narrower floats became float64 because of the other operands.

    A narrower constant is left out, since it makes nothing wider, and so is float64 that the user
    asked for.
    """
    strong = [v for v in given if isinstance(v, Node) and not isinstance(kind_of(v), float)]
    for before, after in zip(given, nodes, strict=True):
        if before is after or not any(before is v for v in strong) or not is_float(before.dtype):
            continue
        if scalar_value(before) is not None or before.op is CONSTANT:
            continue
        wider = next((v for v in strong if v.dtype == float64 or not is_float(v.dtype)), before)
        if not is_asked_for(wider):
            types = got(*(v.type for v in given if isinstance(v, Node)))
            notes.add(after, notes.Promotion(where, types, advice(wider), after.site))
        return


def is_asked_for(wide: Node) -> bool:
    """Return whether a float64 value is made of a narrower float that the user has cast."""
    seen, waiting = set[Node](), [wide]
    while waiting and len(seen) < MANY:
        node = waiting.pop()
        if node in seen or node.dtype != float64:
            continue
        seen.add(node)
        if isinstance(node.op, Cast) and is_float(node.inputs[0].dtype):
            if not notes.find([node]):
                return True
        else:
            waiting += node.inputs
    return False


def advice(other: Node) -> str:
    """Say how the operand that made float64 is made float32."""
    if not is_float(other.dtype):
        return f'Cast the operand {other.type}: x.astype("float32").'
    if other.op is CONSTANT and not other.shape:
        return (
            "Make the NumPy scalar a Python float, which takes the dtype of the other operand: "
            "float(np.sqrt(d))."
        )
    return f'Cast the operand {other.type} (made at {other.site}): x.astype("float32").'


def kind_of(node: Node) -> Any:
    """What a node counts for in promotion: its dtype, or as a Python float."""
    return 0.0 if weak_value(node) is not None or is_weak_node(node) else node.dtype


def zero_like(x: Node) -> Node:
    """Make a scalar zero of this node's dtype; it broadcasts."""
    return constant_node(np.zeros((), x.dtype))
