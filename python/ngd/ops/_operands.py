# SPDX-License-Identifier: Apache-2.0
"""Functions for all ops: they convert operands to nodes, check dtypes and axes, choose dtypes."""

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
"""The argument `axis`: one axis, several axes, or None for all axes."""

Value: TypeAlias = Node | ArrayLike
"""An operand: a node, an array, or a Python scalar, which takes the other operands' dtype."""

FLOATS_16_BIT: Final = (float16, bfloat16)
"""The 16-bit floats."""
INDICES: Final = (np.dtype(np.int32), np.dtype(np.int64))
"""The dtypes in which kernels read indices and labels: int32 and int64.

Public calls cast integers of other dtypes to one of them.
"""

MAX_WEAK_NODES: Final = 64
"""The maximum number of nodes that `is_weak_node` visits, so that a call takes little time.

To decide if a scalar takes the dtype of the other operand, `is_weak_node` visits the nodes that the
scalar is computed from. With more nodes than this, it returns False.
"""


def describe_types(*types: Type) -> str:
    """Return the types of operands, joined by "and", for an error message."""
    return " and ".join(map(str, types)) if types else "nothing"


def expect_dtype(where: str, types: tuple[Type, ...], allowed: tuple[DType, ...]) -> DType:
    """Return the common dtype of the operands.

    Raise DTypeError if the dtypes of the operands differ, or if one is not in `allowed`.
    """
    dtype = types[0].dtype
    for t in types:
        if t.dtype is not dtype or dtype not in allowed:
            break
    else:
        return dtype
    if any(t.dtype not in allowed for t in types):
        raise DTypeError(
            f"{where}: expected {describe_dtypes(allowed)}; got {describe_types(*types)}. "
            f"{cast_fix(types, allowed)}"
        )
    if any(t.dtype != types[0].dtype for t in types):
        fix = f'Cast the others: x.astype("{types[0].dtype.name}").'
        raise DTypeError(
            f"{where}: expected operands of one dtype; got {describe_types(*types)}. {fix}"
        )
    return types[0].dtype


def cast_fix(types: tuple[Type, ...], allowed: tuple[DType, ...]) -> str:
    """Return the advice of an error message: how to cast operands to a dtype in `allowed`."""
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
    """Return the indices unchanged; OutOfRangeError if one is outside of [0, size).

    If `negative` is True, the indices -size to -1 are allowed too. The error message has the first
    invalid index, its position, `where` and `axis`. src/cpp/kernels/shapes/indices.cpp raises an
    error with the same message.
    """
    lowest = -size if negative else 0
    bad = np.argwhere((indices < lowest) | (indices >= size))
    if len(bad):
        position = tuple(map(int, bad[0]))
        at_position = f" at {list(position)} of the indices" if position else ""
        of_axis = "" if axis is None else f" for axis {axis}"
        raise OutOfRangeError(
            f"{where}: expected an index in [{lowest}, {size}){of_axis}; "
            f"got {indices[position]}{at_position}"
        )
    return indices


def product_dtype(
    where: str,
    factors: tuple[Type, ...],
    added: tuple[Type, ...],
    allowed: tuple[DType, ...],
    dtype: DType | None,
) -> DType:
    """Return the dtype of a matrix product, after a check of the dtypes of all operands.

    `factors` are the types of the two matrices, and `added` the types of arrays to add to the
    product. If the factors are 16-bit floats, the product and these arrays may also be float32.
    `dtype` is the requested dtype; None means that of the factors.
    """
    own = expect_dtype(where, factors, allowed)
    allowed_dtypes = (own, float32) if own in FLOATS_16_BIT else (own,)
    if any(t.dtype not in allowed_dtypes for t in added):
        raise DTypeError(
            f"{where}: expected operands of one dtype; got {describe_types(*factors, *added)}. "
            f'Cast the others: x.astype("{own.name}").'
        )
    if dtype is not None and dtype not in allowed_dtypes:
        raise DTypeError(
            f"{where}: expected a result of {describe_dtypes(allowed_dtypes)}; got {dtype.name}. "
            "Cast the result instead."
        )
    return dtype or own


def is_weak(value: Any) -> bool:
    """Return True for a Python scalar.

    It is called weak, because it takes the dtype of the other operand.
    """
    return isinstance(value, (bool, int, float)) and not isinstance(value, np.generic)


def is_weak_node(node: Node) -> bool:
    """Return True for a node that takes the dtype of the other operand, as a Python float does.

    Such a node is a float64 scalar. It is the placeholder for a Python float that the user passes
    to an @ngd.function, or it is computed only from such placeholders and constants.
    """
    has_weak_input, seen, pending = False, set[Node](), [node]
    while pending:
        node = pending.pop()
        if node in seen or (node.op is CONSTANT and not node.shape):
            continue
        seen.add(node)
        is_scalar = node.type.dtype == float64 and not node.shape
        if not is_scalar or len(seen) > MAX_WEAK_NODES:
            return False
        if node.op is PLACEHOLDER and node.attrs.get("weak"):
            has_weak_input = True
        elif (kernel := node.op.kernel).is_view:
            pending += node.inputs[:1]
        elif kernel.is_elementwise:
            pending += node.inputs
        else:
            return False
    return has_weak_input


def weak_value(node: Node) -> float | None:
    """Return the Python float that a constant was made from, or None for all other nodes."""
    return node.attrs.get("weak") if node.op is CONSTANT else None


@public
def as_node(value: Value, like: Node | None = None, where: str = "as_node") -> Node:
    """Return a node unchanged, and anything else as a constant.

    Parameters
    ----------
    value : node or array
        A node, an array, a number, or nested lists of numbers.
    like : node, optional
        A node whose dtype a Python scalar takes. Without it, a scalar gets NumPy's default dtype:
        bool, int64 or float64.
    where : str, default "as_node"
        The name of the public call, for error messages.

    Raises
    ------
    DTypeError
        The value is not numeric, or a number does not fit the dtype of `like`.
    TypeError
        The value is a list or tuple of nodes. ops.stack joins them.

    Examples
    --------
    ::

        >>> ops.as_node(np.ones((2, 3))).shape
        (2, 3)
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
    """Return True if nested lists contain a node whose value is not known yet.

    The result is False for a variable, because it has a value while the graph is built.
    """
    if isinstance(value, (list, tuple)):
        return any(map(has_node, value))
    return isinstance(value, Node) and value.op is not VARIABLE


def scalar(value: Any, dtype: DType, where: str) -> Node:
    """Return a Python scalar as a constant of shape (); DTypeError if it does not fit the dtype."""
    try:
        with np.errstate(over="ignore"):
            return constant_node(value, dtype)
    except OverflowError:
        raise DTypeError(
            f"{where}: expected a number that fits into {dtype.name}, the dtype of the other "
            f"operand; got {value}, which does not. Cast that operand first."
        ) from None


def local_number(value: float, like: Node) -> Node:
    """Return a constant that may differ between ranks, such as 1 / (number of rows of a shard).

    Ranks compare the hashes of their compiled functions (passes/fingerprint.py). The attribute
    `local` excludes the value from the hash. So the hashes are equal even if the shards of the
    ranks have different lengths.
    """
    number = scalar(value, like.dtype, "local_number")
    return Node(CONSTANT, (), {**number.attrs, "local": True}, number.type)


def scalar_value(node: Node) -> Any:
    """Return the value of a constant with one element, or None for any other node.

    The node may also be a view or a broadcast of such a constant.
    """
    while (kernel := node.op.kernel).is_view or kernel.is_broadcast:
        node = node.inputs[0]
    if node.op is CONSTANT and node.type.count == 1:
        return node.attrs["value"].reshape(())[()]
    return None


def is_one(node: Node) -> bool:
    """Return True for the constant 1, or a view or broadcast of it."""
    value = scalar_value(node)
    return value is not None and bool(value == 1)


def unchanged_operand(node: Node) -> Node | None:
    """Return the operand of a node if the node has the same dtype and shape, else None.

    Ops such as cast and reshape call this function: they do not change an operand that has the
    dtype and shape of the result.
    """
    return node.inputs[0] if node.type == node.inputs[0].type else None


def float_of(dtype: DType) -> DType:
    """Return the dtype of numpy.exp(x) for x of a dtype, such as float64 for int64.

    A floating dtype is returned unchanged.
    """
    if dtype in FLOATS:
        return dtype
    return np.exp.resolve_dtypes((dtype, None))[1]


def compute_dtype(dtype: DType) -> DType:
    """Return the dtype in which an op computes: float32 for 16-bit floats, else the dtype."""
    return float32 if dtype in FLOATS_16_BIT else dtype


def widen(x: Array) -> Array:
    """Return an array of 16-bit floats cast to float32, and any other array unchanged."""
    return x.astype(float32) if x.dtype in FLOATS_16_BIT else x


def narrow(x: Any, dtype: DType) -> Array:
    """Round an array to the dtype of a result.

    If `dtype` is a 16-bit float, a float64 array is rounded to float32 first.
    """
    array = np.asarray(x)
    if dtype in FLOATS_16_BIT and array.dtype == float64:
        array = array.astype(float32)
    return array.astype(dtype, copy=False)


def accumulator(dtype: DType) -> DType:
    """Return the dtype of NumPy's sum of elements of `dtype`.

    It is int64 for signed integers and bools, uint64 for unsigned integers, and `dtype` for floats.
    """
    if is_float(dtype):
        return dtype
    return uint64 if dtype.kind == "u" else int64


def as_shape(shape: Any) -> Shape:
    """Return a shape as a tuple of ints. The argument is an int or a sequence of ints."""
    extents = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    return tuple(int(n) for n in extents)


def as_axis(where: str, axis: Any, ndim: int, of: Any) -> int:
    """Return an axis as a number >= 0. `of` describes the array in error messages."""
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
    """Return a value as a node; ShapeError if it has fewer than `least` axes."""
    node = as_node(x, where=where)
    if node.ndim < least:
        axes = "one axis" if least == 1 else f"{least} axes"
        raise ShapeError(f"{where}: expected at least {axes}; got {node.type}")
    return node


def normalize_axes(where: str, axis: Axis, x: Type) -> Shape:
    """Return axes as sorted non-negative numbers; None means all axes."""
    if axis is None:
        return tuple(range(len(x.shape)))
    requested = tuple(axis) if isinstance(axis, Iterable) and not isinstance(axis, str) else (axis,)
    axes = sorted(as_axis(where, a, len(x.shape), x) for a in requested)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{where}: expected axes that differ; got {axis} of {x}. Give each once.")
    return tuple(axes)


def broadcast_shapes(where: str, *shapes: Shape) -> Shape:
    """Return the shape to which NumPy broadcasts shapes; `where` names the call in an error."""
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    try:
        return _broadcast(shapes)
    except ValueError:
        listed = " with ".join(str(s) for s in shapes)
        raise ShapeError(
            f"{where}: expected shapes that broadcast; got {listed}. Reshape one, or add axes of "
            "size 1 by ops.expand_dims."
        ) from None


@lru_cache(maxsize=4096)
def _broadcast(shapes: tuple[Shape, ...]) -> Shape:
    """Return the shape to which `shapes` broadcast; ValueError if they do not broadcast."""
    return tuple([int(n) for n in np.broadcast_shapes(*shapes)])
