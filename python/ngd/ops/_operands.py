# SPDX-License-Identifier: Apache-2.0
"""What all families of ops share: operands become nodes, dtypes are checked, halves are widened."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from .._util.caller_arrays import view
from ..dtypes import (
    FLOATS,
    NUMBERS,
    Array,
    DType,
    Shape,
    Type,
    as_dtype,
    bfloat16,
    bool_,
    describe_dtypes,
    float16,
    float32,
    float64,
    int64,
    is_float,
    uint64,
)
from ..errors import DTypeError, OutOfRangeError, ShapeError
from ..graph.leaves import CONSTANT, PLACEHOLDER, VARIABLE, constant_node
from ..graph.node import Node
from ..graph.registry import public

__all__ = ["as_node"]

Axis: TypeAlias = int | Sequence[int] | None
"""One axis, several, or all."""

Value: TypeAlias = Node | ArrayLike
"""What an op takes for an operand: a node, an array, or a Python scalar, whose dtype is weak."""

HALVES: Final = (float16, bfloat16)
INDICES: Final = (np.dtype(np.int32), np.dtype(np.int64))
"""The dtypes in which kernels take indices and labels; the public calls cast the others."""

FEW: Final = 64
"""Of so many ops a weak scalar may be made."""


def got(*types: Type) -> str:
    """Operands as error messages show them."""
    return " and ".join(map(str, types)) if types else "nothing"


def expect_dtype(where: str, types: tuple[Type, ...], allowed: tuple[DType, ...]) -> DType:
    """Return the one dtype of all operands, checked."""
    dtype = types[0].dtype
    for t in types:
        if t.dtype is not dtype or dtype not in allowed:
            break
    else:
        return dtype
    if any(t.dtype not in allowed for t in types):
        raise DTypeError(
            f"{where}: expected {describe_dtypes(allowed)}; got {got(*types)}. "
            f"{cast_fix(types, allowed)}"
        )
    if any(t.dtype != types[0].dtype for t in types):
        fix = f'Cast the others: x.astype("{types[0].dtype.name}").'
        raise DTypeError(f"{where}: expected operands of one dtype; got {got(*types)}. {fix}")
    return types[0].dtype


def cast_fix(types: tuple[Type, ...], allowed: tuple[DType, ...]) -> str:
    """Return the advice for operands whose dtype an op does not take."""
    dtype = next(d for d in (float32, INDICES[1], bool_, allowed[0]) if d in allowed)
    if any(t.dtype == bool_ for t in types) and allowed == NUMBERS:
        return (
            "For bools use ops.logical_and, ops.logical_or or ops.logical_not, or cast them: "
            'x.astype("float32").'
        )
    return f'Cast: x.astype("{dtype.name}").'


def check_indices(
    where: str, indices: Array, size: int, *, negative: bool = True, axis: int | None = None
) -> Array:
    """Raise an OutOfRangeError that names the first index outside the axis.

    The message is that of src/cpp/kernels/shapes/indices.cpp.
    """
    lowest = -size if negative else 0
    bad = np.argwhere((indices < lowest) | (indices >= size))
    if len(bad):
        position = tuple(map(int, bad[0]))
        found = f" at {list(position)} of the indices" if position else ""
        of_axis = "" if axis is None else f" for axis {axis}"
        raise OutOfRangeError(
            f"{where}: expected an index in [{lowest}, {size}){of_axis}; "
            f"got {indices[position]}{found}"
        )
    return indices


def product_dtype(
    where: str,
    factors: tuple[Type, ...],
    behind: tuple[Type, ...],
    allowed: tuple[DType, ...],
    dtype: DType | None,
) -> DType:
    """Return the dtype of a product, by default the factors', checked with all operands.

    Of two-byte floats the product, and what is added `behind`, may be float32 too.
    """
    own = expect_dtype(where, factors, allowed)
    known = (own, float32) if own in HALVES else (own,)
    if any(t.dtype not in known for t in behind):
        raise DTypeError(
            f"{where}: expected operands of one dtype; got {got(*factors, *behind)}. "
            f'Cast the others: x.astype("{own.name}").'
        )
    if dtype is not None and dtype not in known:
        raise DTypeError(
            f"{where}: expected a result of {describe_dtypes(known)}; got {dtype.name}. "
            "Cast the result instead."
        )
    return dtype or own


def is_weak(value: Any) -> bool:
    """Whether this is a Python scalar, which takes the dtype of what it meets."""
    return isinstance(value, (bool, int, float)) and not isinstance(value, np.generic)


def is_weak_node(node: Node) -> bool:
    """Whether this is a Python float that a step is given, or is made of such alone.

    It is a scalar of float64 which, as the number itself would, takes the dtype of what it meets.
    """
    given, seen, waiting = False, set[Node](), [node]
    while waiting:
        node = waiting.pop()
        if node in seen or (node.op is CONSTANT and not node.shape):
            continue
        seen.add(node)
        scalar = node.type.dtype == float64 and not node.shape
        if not scalar or len(seen) > FEW:
            return False
        if node.op is PLACEHOLDER and node.attrs.get("weak"):
            given = True
        elif (kernel := node.op.kernel).is_view:
            waiting += node.inputs[:1]
        elif kernel.is_elementwise:
            waiting += node.inputs
        else:
            return False
    return given


def weak_value(node: Node) -> float | None:
    """The Python float that a constant is made of, and that it counts as."""
    return node.attrs.get("weak") if node.op is CONSTANT else None


@public
def as_node(value: Value, like: Node | None = None, where: str = "as_node") -> Node:
    """Return a node as it is, anything else as a constant.

    A Python scalar takes the dtype of `like`, or else NumPy's default: bool, int64, float64.
    """
    if isinstance(value, Node):
        return value
    if is_weak(value) and like is not None:
        return scalar(value, like.dtype, where)
    if value is None or isinstance(value, (str, bytes)):
        raise DTypeError(
            f"{where}: expected a node, an array or a number; got {value!r}. "
            "Pass numbers, or a NumPy array of numbers."
        )
    if isinstance(value, (list, tuple)) and has_node(value):
        raise TypeError(
            f"{where}: expected a node, an array or a number; got a {type(value).__name__} of "
            "nodes. Join them by ops.stack."
        )
    array = view(value, where)
    as_dtype(array.dtype, where)
    return constant_node(array)


def has_node(value: Any) -> bool:
    """Return whether nested lists hold a node that has no value, unlike a variable."""
    if isinstance(value, (list, tuple)):
        return any(map(has_node, value))
    return isinstance(value, Node) and value.op is not VARIABLE


def scalar(value: Any, dtype: DType, where: str) -> Node:
    """Make a constant of shape () from a Python scalar that must fit the dtype."""
    try:
        with np.errstate(over="ignore"):
            return constant_node(value, dtype)
    except OverflowError:
        raise DTypeError(
            f"{where}: expected a number that fits into {dtype.name}, the dtype of the other "
            f"operand; got {value}, which does not. Cast that operand first."
        ) from None


def local_number(value: float, like: Node) -> Node:
    """Make a scalar that follows from local shapes, such as a number of rows.

    Ranks with shards of different lengths have different values of it, in steps that belong
    together (passes/fingerprint.py).
    """
    made = scalar(value, like.dtype, "local_number")
    return Node(CONSTANT, (), {**made.attrs, "local": True}, made.type)


def scalar_value(node: Node) -> Any:
    """The one value of a constant, also behind views and broadcasts; None for anything else."""
    while (kernel := node.op.kernel).is_view or kernel.is_broadcast:
        node = node.inputs[0]
    if node.op is CONSTANT and node.type.count == 1:
        return node.attrs["value"].reshape(())[()]
    return None


def is_one(node: Node) -> bool:
    """Whether this is a constant 1."""
    value = scalar_value(node)
    return value is not None and bool(value == 1)


def unchanged(node: Node) -> Node | None:
    """The input of an op that hands its values on, where the type is the same too."""
    return node.inputs[0] if node.type == node.inputs[0].type else None


def float_of(dtype: DType) -> DType:
    """Return the floating dtype in which NumPy computes exp, log and their kin for this dtype."""
    if dtype in FLOATS:
        return dtype
    return np.exp.resolve_dtypes((dtype, None))[1]


def compute_dtype(dtype: DType) -> DType:
    """Return the dtype in which floats are computed: float32 for 16-bit floats."""
    return float32 if dtype in HALVES else dtype


def widen(x: Array) -> Array:
    """Return two-byte floats as float32, in which everything on them is computed."""
    return x.astype(float32) if x.dtype in HALVES else x


def narrow(x: Any, dtype: DType) -> Array:
    """Round a result to its dtype; float64 reaches a two-byte float by way of float32."""
    array = np.asarray(x)
    if dtype in HALVES and array.dtype == float64:
        array = array.astype(float32)
    return array.astype(dtype, copy=False)


def accumulator(dtype: DType) -> DType:
    """Return the dtype in which NumPy adds elements of this one up."""
    if is_float(dtype):
        return dtype
    return uint64 if dtype.kind == "u" else int64


def as_shape(shape: Any) -> Shape:
    """Make a shape from an int or a sequence of them."""
    extents = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    return tuple(int(n) for n in extents)


def as_axis(where: str, axis: Any, ndim: int, of: Any) -> int:
    """Make an axis non-negative; `of` is what it is an axis of, for the message."""
    try:
        index = operator.index(axis)
    except TypeError:
        raise TypeError(
            f"{where}: axis: expected a whole number; got {axis!r}. Give the number of the axis: 0 "
            "is the first, -1 the last."
        ) from None
    if not -ndim <= index < ndim:
        raise ShapeError(f"{where}: expected an axis in [{-ndim}, {ndim}) of {of}; got {axis}")
    return index % ndim


def node_of_axes(where: str, x: Any, least: int) -> Node:
    """Return a value as a node, which must have at least some number of axes."""
    node = as_node(x, where=where)
    if node.ndim < least:
        axes = "one axis" if least == 1 else f"{least} axes"
        raise ShapeError(f"{where}: expected at least {axes}; got {node.type}")
    return node


def normalize_axes(where: str, axis: Axis, x: Type) -> Shape:
    """Make the axes non-negative and sorted; None is all of them."""
    if axis is None:
        return tuple(range(len(x.shape)))
    given = tuple(axis) if isinstance(axis, Iterable) and not isinstance(axis, str) else (axis,)
    axes = sorted(as_axis(where, a, len(x.shape), x) for a in given)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{where}: expected axes that differ; got {axis} of {x}. Give each once.")
    return tuple(axes)


def broadcast_shapes(where: str, *shapes: Shape) -> Shape:
    """NumPy's broadcasting; `where` names the public call in the message."""
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    try:
        return _broadcast(shapes)
    except ValueError:
        found = " with ".join(str(s) for s in shapes)
        raise ShapeError(
            f"{where}: expected shapes that broadcast; got {found}. Reshape one, or add axes of "
            "size 1 by ops.expand_dims."
        ) from None


@lru_cache(maxsize=4096)
def _broadcast(shapes: tuple[Shape, ...]) -> Shape:
    return tuple([int(n) for n in np.broadcast_shapes(*shapes)])
