# SPDX-License-Identifier: Apache-2.0
"""Differences, slopes and integrals of sampled values, and convolutions of two sequences."""

from __future__ import annotations

from typing import Any

from ..dtypes import bool_, float64, is_float
from ..errors import ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._casting import as_floats, cast
from ._compare import not_equal
from ._concatenation import concat
from ._convolution import conv
from ._elementwise import align
from ._operands import Value, as_axis, as_node, describe_types
from ._rearrangement import flip
from ._reductions import sum
from ._shape import reshape

__all__ = ["convolve", "correlate", "diff", "ediff1d", "gradient", "trapezoid"]


def _part(x: Node, axis: int, begin: int | None, end: int | None) -> Node:
    """Return the slice begin:end of x along `axis`."""
    return x[(*(slice(None),) * axis, slice(begin, end))]


@public
def diff(x: Value, n: int = 1, axis: int = -1) -> Node:
    """Return the differences of neighbouring elements, as numpy.diff.

    Parameters
    ----------
    x
        Numbers or bools of at least one axis. The difference of bools is True where neighbours
        differ.
    n
        The number of times that differences are taken.
    axis
        The axis. It becomes shorter by n.

    Raises
    ------
    ValueError
        `n` is negative.

    Examples
    --------
    ::

        >>> ngd.function(ops.diff)(np.array([1, 2, 4, 7]))
        array([1, 2, 3])
    """
    node = as_node(x, where="diff")
    along = as_axis("diff", axis, node.ndim, node.type)
    if n < 0:
        raise ValueError(f"diff: expected n >= 0; got {n}")
    for _ in range(min(n, node.shape[along])):
        later, earlier = _part(node, along, 1, None), _part(node, along, None, -1)
        node = not_equal(later, earlier) if node.dtype == bool_ else later - earlier
    return node


@public
def ediff1d(x: Value, to_end: Value | None = None, to_begin: Value | None = None) -> Node:
    """Return the differences of neighbours in the flattened array, as numpy.ediff1d.

    Parameters
    ----------
    x
        Numbers of any shape.
    to_end, to_begin
        Numbers to append and to prepend to the result, or None. They are cast to the dtype of x.

    Examples
    --------
    ::

        >>> ngd.function(ops.ediff1d)(np.array([1, 2, 4, 7]))
        array([1, 2, 3])
    """
    node = reshape(as_node(x, where="ediff1d"), -1)
    ends = [
        [] if end is None else [cast(reshape(as_node(end, where="ediff1d"), -1), node.dtype)]
        for end in (to_begin, to_end)
    ]
    return concat([*ends[0], diff(node), *ends[1]], 0)


@public
def gradient(x: Value, *spacing: Value, axis: Any = None) -> Any:
    """Return the slopes of sampled values by central differences, as numpy.gradient.

    At the ends of an axis the differences are one-sided, of first order. To differentiate a
    function, use ngd.grad.

    Parameters
    ----------
    x
        The sampled values. Integers become float64.
    spacing
        The distance between neighbours: a scalar, or the array of the coordinates along an axis.
        One argument applies to all axes; several arguments are one per axis. If omitted, the
        distance is 1.
    axis
        An axis or several. None, the default, means all axes.

    Returns
    -------
    Node, or a tuple of Node if there are several axes

    Raises
    ------
    ShapeError
        The number of spacings is not that of the axes, or an axis has fewer than two elements.

    Examples
    --------
    ::

        >>> ngd.function(ops.gradient)(np.array([1.0, 2.0, 4.0, 7.0]))
        array([1. , 1.5, 2.5, 3. ])
    """
    node = as_node(x, where="gradient")
    node = as_floats(node)
    requested = range(node.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    axes = [as_axis("gradient", a, node.ndim, node.type) for a in requested]
    steps = [1.0] * len(axes) if not spacing else list(spacing)
    if len(steps) == 1:
        steps *= len(axes)
    if len(steps) != len(axes):
        raise ShapeError(
            f"gradient: expected a spacing for each of {axes}; got {len(spacing)}. Give one number "
            "for all axes, or one per axis."
        )
    slopes = [_slope(node, a, step) for a, step in zip(axes, steps, strict=True)]
    return slopes[0] if len(slopes) == 1 else tuple(slopes)


def _slope(x: Node, axis: int, step: Value) -> Node:
    """Return the slopes of x along one axis.

    `step` is the distance between neighbours, or an array of the coordinates.
    """
    n = x.shape[axis]
    if n < 2:
        raise ShapeError(
            f"gradient: expected two elements along axis {axis}; got {x.type}. Choose another axis."
        )
    distance = as_node(step, like=x, where="gradient")
    if distance.ndim > 1 or distance.shape not in ((), (n,)):
        raise ShapeError(
            f"gradient: expected a scalar or {n} coordinates for axis {axis}; got {distance.type}"
        )
    steps = diff(x, axis=axis)
    if distance.ndim:
        shape = [-1 if a == axis else 1 for a in range(x.ndim)]
        widths = reshape(cast(diff(distance), x.dtype), shape)
        sides = steps / widths
        before, after = _part(widths, axis, None, -1), _part(widths, axis, 1, None)
        left, right = _part(sides, axis, None, -1), _part(sides, axis, 1, None)
        inner = (left * after + right * before) / (before + after)
    else:
        sides = steps / cast(distance, x.dtype)
        inner = 0.5 * (_part(sides, axis, None, -1) + _part(sides, axis, 1, None))
    return concat([_part(sides, axis, None, 1), inner, _part(sides, axis, -1, None)], axis)


@public
def trapezoid(y: Value, x: Value | None = None, dx: float = 1.0, axis: int = -1) -> Node:
    """Integrate sampled values along an axis by the trapezoidal rule, as numpy.trapezoid.

    Parameters
    ----------
    y
        The sampled values. Integers become float64.
    x
        The coordinates: an array of one axis, or of the shape of y. By default, the distance
        between neighbours is dx.
    dx
        The distance between neighbours. It is not used if x is given.
    axis
        The axis of the integration.

    Examples
    --------
    ::

        >>> ngd.function(ops.trapezoid)(np.array([1.0, 2.0, 3.0]))
        array(4.)
    """
    node = as_node(y, where="trapezoid")
    node = as_floats(node)
    along = as_axis("trapezoid", axis, node.ndim, node.type)
    widths: Value = dx
    if x is not None:
        points = as_node(x, where="trapezoid")
        if points.ndim == 1:
            widths = reshape(diff(points), [-1 if a == along else 1 for a in range(node.ndim)])
        else:
            widths = diff(points, axis=along)
        widths = cast(widths, node.dtype)
    means = 0.5 * (_part(node, along, 1, None) + _part(node, along, None, -1))
    return sum(means * widths, along)


@public
def convolve(a: Value, v: Value, mode: str = "full") -> Node:
    """Return the convolution of two arrays of one axis, as numpy.convolve.

    Parameters
    ----------
    a, v
        Numbers of one axis, at least one element each. Integers become float64.
    mode
        "full" returns all positions at which a and v overlap. "same" returns the middle of these,
        max(len(a), len(v)) positions. "valid" returns the positions with a complete overlap.

    Raises
    ------
    ShapeError
        An operand has another number of axes, or no element.
    ValueError
        The mode is unknown.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.convolve([1.0, 2.0, 3.0], [0.0, 1.0, 0.5]))()
        array([0. , 1. , 2.5, 4. , 1.5])
    """
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"convolve: expected mode full, same or valid; got {mode!r}")
    x, y = align("convolve", a, v)
    if x.ndim != 1 or y.ndim != 1 or not x.shape[0] or not y.shape[0]:
        raise ShapeError(
            f"convolve: expected two tensors of one axis; got {describe_types(x.type, y.type)}. "
            "Reshape them, or use ops.conv."
        )
    if not is_float(x.dtype):
        x, y = cast(x, float64), cast(y, float64)
    if x.shape[0] < y.shape[0]:
        x, y = y, x
    n, m = x.shape[0], y.shape[0]
    sides = {"full": (m - 1, m - 1), "valid": (0, 0), "same": (m // 2, (m - 1) // 2)}[mode]
    kernel = reshape(flip(y), (1, 1, m))
    return reshape(conv(reshape(x, (1, 1, n)), kernel, padding=(sides,)), -1)


@public
def correlate(a: Value, v: Value, mode: str = "valid") -> Node:
    """Return the cross-correlation of two arrays of one axis, as numpy.correlate.

    Parameters
    ----------
    a, v
        Numbers of one axis, at least one element each. Integers become float64.
    mode
        "full", "same" or "valid", as in ops.convolve.

    Raises
    ------
    ShapeError
        An operand has another number of axes, or no element.
    ValueError
        The mode is unknown.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.correlate([1.0, 2.0, 3.0], [0.0, 1.0, 0.5]))()
        array([3.5])
    """
    x, y = (as_node(value, where="correlate") for value in (a, v))
    if x.ndim != 1 or y.ndim != 1 or not x.shape[0] or not y.shape[0]:
        raise ShapeError(
            f"correlate: expected two tensors of one axis; got {describe_types(x.type, y.type)}"
        )
    if x.shape[0] < y.shape[0]:  # as NumPy: swap the operands and reverse the result
        return flip(convolve(y, flip(x), mode))
    return convolve(x, flip(y), mode)
