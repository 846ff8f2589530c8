# SPDX-License-Identifier: Apache-2.0
"""Resizing of images and other spatial data, and rearrangements of channels and space.

A linear or cubic resize multiplies each spatial axis by a matrix of weights [n, size], which is
known when the graph is built. n is the number of elements of the axis before the resize, and `size`
the number after it. The weights are those of PyTorch's functions (aten's UpSample.h).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ..dtypes import Array, Shape, is_float
from ..errors import DTypeError, ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._casting import cast
from ._composite import as_compute_dtype
from ._gathering import take
from ._matmul import matmul
from ._operands import Value, as_node
from ._pooling import adaptive_avg_pool
from ._rearrangement import moveaxis, pad
from ._shape import broadcast_to, expand_dims, reshape, transpose
from ._slicing import pad_slice
from ._windows import PerAxis, per_axis

__all__ = ["fold", "interpolate", "pixel_shuffle", "pixel_unshuffle", "resize", "unfold"]

LINEAR: Final = {"linear": 1, "bilinear": 2, "trilinear": 3}
"""A dict from each linear mode to the number of spatial axes that the mode resizes."""
MODES: Final = ("nearest", "nearest-exact", "area", *LINEAR, "bicubic")
CUBIC: Final = -0.75
"""The coefficient a of the cubic kernel (Keys, IEEE Trans. ASSP 29, 1981, equation 15)."""
SMOOTH: Final = -0.5
"""The coefficient a of the cubic kernel if antialias is set."""
DENSE: Final = 256
"""The largest size, before the resize, of an axis that is resized by a matrix product.

A larger axis is resized by weighted sums of elements that the op `take` reads. Times of a bilinear
resize of float32 [4, 16, n, n] to twice the size, on one core of a server CPU:

    n     matrix product   take
    64    4.4 ms           15 ms
    128   35 ms            43 ms
    256   199 ms           283 ms
"""


def _cubic(x: Array, a: float) -> Array:
    """Return the weights of Keys's cubic kernel at the distances x.

    The kernel is centered at an output element. x has the signed distances from this center to
    input elements; 1.0 is one input element. If antialias widens the kernel by a factor, the
    distances are divided by this factor. `a` is the coefficient of the kernel.
    """
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    values: Array = np.where(x < 1, near, np.where(x < 2, far, 0))
    return values


def _triangle(x: Array, a: float) -> Array:
    """Return the weights of the linear kernel at the distances x.

    The kernel is centered at an output element. x has the signed distances from this center to
    input elements; 1.0 is one input element. If antialias widens the kernel by a factor, the
    distances are divided by this factor.

    The parameter `a` is unused. It gives `_triangle` the signature of `_cubic`.
    """
    values: Array = np.maximum(1 - np.abs(x), 0)
    return values


def _coordinates(n: int, size: int, scale: float, align_corners: bool) -> Array:
    """Return, for each output element along one axis, its coordinate in the input.

    Coordinates are in elements: 0.0 is the center of input element 0. n and size are the numbers of
    elements of the input and of the output along the axis. `scale` is the number of input elements
    per output element; it is unused if `align_corners` is True.
    """
    if align_corners:
        return np.arange(size) * ((n - 1) / (size - 1) if size > 1 else 0.0)
    return scale * (np.arange(size) + 0.5) - 0.5


def _taps(coordinates: Array, n: int, cubic: bool) -> tuple[Array, Array]:
    """Return the indices of the input elements that each output element reads, and their weights.

    Both arrays are [outputs, 2] for the linear kernel and [outputs, 4] for the cubic one.
    """
    if not cubic:
        coordinates = np.maximum(coordinates, 0)
    first = np.floor(coordinates)
    offsets = np.arange(-1, 3) if cubic else np.arange(2)
    distance = (coordinates - first)[:, None] - offsets
    weights = (_cubic if cubic else _triangle)(distance, CUBIC)
    indices = np.clip(first[:, None].astype(np.int64) + offsets, 0, n - 1)
    return indices, weights


def _smooth_weights(n: int, size: int, scale: float, cubic: bool) -> Array:
    """Return the matrix [n, size] of weights that resizes an axis of n elements with antialias.

    `scale` is the number of input elements per output element. If it is above 1, the kernel is
    `scale` times as wide; otherwise the kernel keeps its width.
    """
    kernel: Callable[[Array, float], Array] = _cubic if cubic else _triangle
    spread = max(scale, 1.0)
    support = (2 if cubic else 1) * spread
    center = scale * (np.arange(size) + 0.5)
    low = np.maximum((center - support + 0.5).astype(np.int64), 0)
    high = np.minimum((center + support + 0.5).astype(np.int64), n)
    index = np.arange(n)[:, None]
    is_inside = (index >= low) & (index < high)
    weights = np.where(is_inside, kernel((index - center + 0.5) / spread, SMOOTH), 0)
    normalized: Array = weights / weights.sum(0)
    return normalized


def _along(x: Node, axis: int, size: int, scale: float, options: tuple[bool, bool, bool]) -> Node:
    """Resize one axis of x to `size` elements with a linear or a cubic kernel.

    `options` is the tuple (cubic, align_corners, antialias).
    """
    cubic, align_corners, antialias = options
    n = x.shape[axis]
    if antialias:
        matrix = _smooth_weights(n, size, scale, cubic)
    else:
        indices, weights = _taps(_coordinates(n, size, scale, align_corners), n, cubic)
        if n > DENSE:
            shape = [-1 if a == axis else 1 for a in range(x.ndim)]
            terms = [
                take(x, indices[:, k], axis) * reshape(np.asarray(weights[:, k], x.dtype), shape)
                for k in range(indices.shape[1])
            ]
            total = terms[0]
            for term in terms[1:]:
                total = total + term
            return total
        matrix = np.zeros((n, size))
        for k in range(indices.shape[1]):
            np.add.at(matrix, (indices[:, k], np.arange(size)), weights[:, k])
    product = matmul(moveaxis(x, axis, -1), np.asarray(matrix, x.dtype))
    return moveaxis(product, -1, axis)


def _nearest(x: Node, axis: int, size: int, scale: float, exact: bool) -> Node:
    """Resize one axis to `size` elements, each a copy of an element of x.

    Element i is element floor(i * scale) of x, or floor((i + 0.5) * scale) if `exact` is True. The
    product is computed in float32, as in PyTorch.
    """
    n = x.shape[axis]
    if size % n == 0 and scale == n / size:
        expanded = expand_dims(x, axis + 1)
        shape = (*x.shape[: axis + 1], size // n, *x.shape[axis + 1 :])
        return reshape(broadcast_to(expanded, shape), (*x.shape[:axis], size, *x.shape[axis + 1 :]))
    outputs = np.arange(size, dtype=np.float32) + np.float32(0.5 if exact else 0)
    indices = np.floor(outputs * np.float32(scale)).astype(np.int64)
    return take(x, np.minimum(indices, n - 1), axis)


def _resized(
    where_: str,
    x: Node,
    sizes: Shape,
    scales: Sequence[float],
    mode: str,
    align_corners: bool,
    antialias: bool,
) -> Node:
    """Check the options of a resize, and resize all spatial axes of x.

    x is a batch of images [N, C, spatial...]: the spatial axes follow the axes N and C.
    """
    axes = x.ndim - 2
    if mode not in MODES:
        raise ValueError(f"{where_}: expected a mode among {', '.join(MODES)}; got {mode!r}")
    num_axes = LINEAR.get(mode, 2 if mode == "bicubic" else axes)
    if axes != num_axes:
        raise ShapeError(
            f"{where_}: expected {num_axes} spatial axes for {mode!r}; got {x.type}. Use another "
            "mode, or reshape x."
        )
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(f"{where_}: expected antialias with bilinear or bicubic; got {mode!r}")
    if align_corners and mode not in (*LINEAR, "bicubic"):
        known = ", ".join([*LINEAR, "bicubic"])
        raise ValueError(f"{where_}: expected align_corners with one of {known}; got {mode!r}")
    if not all(x.shape[2:]) or not all(sizes):
        raise ShapeError(f"{where_}: expected extents >= 1; got {x.type} and the sizes {sizes}")
    if mode == "area":
        return adaptive_avg_pool(x, sizes)
    if mode.startswith("nearest"):
        for i, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
            x = _nearest(x, 2 + i, size, scale, mode == "nearest-exact")
        return x
    if not is_float(x.dtype):
        raise DTypeError(
            f"{where_}: expected floats for {mode!r}; got {x.type}. Cast: x.astype('float32')."
        )
    wide, dtype = as_compute_dtype(where_, x)
    options = (mode == "bicubic", align_corners, antialias)
    for i, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
        if size != x.shape[2 + i] or scale != 1:
            wide = _along(wide, 2 + i, size, scale, options)
    return cast(wide, dtype)


def _expect_space(where_: str, x: Value) -> Node:
    """Return x as a node; ShapeError unless it is [N, C, spatial...]."""
    node = as_node(x, where=where_)
    if node.ndim not in (3, 4, 5):
        raise ShapeError(
            f"{where_}: expected [N, C, spatial...] of 1 to 3 axes; got {node.type}. Reshape it."
        )
    return node


@public
def resize(
    x: Value,
    size: PerAxis,
    mode: str = "nearest",
    align_corners: bool = False,
    antialias: bool = False,
) -> Node:  # long because each argument is described
    """Resize the spatial axes, as torch.nn.functional.interpolate with size=.

    Parameters
    ----------
    x : node or array
        [N, C, spatial...] with one to three spatial axes.
    size : int or sequence of int
        The sizes of the result: one number for all spatial axes, or one per axis.
    mode : str, default "nearest"
        For index i of the result, "nearest" copies element floor(i * n / size) of an axis of n
        elements, and "nearest-exact" element floor((i + 0.5) * n / size). "area" takes means.
        "linear" is for one spatial axis, "bilinear" and "bicubic" for two, and "trilinear" for
        three.
    align_corners : bool, default False
        If True, the centers of the corner elements of x and of the result coincide. If False, the
        outer corners of these elements coincide.
    antialias : bool, default False
        For "bilinear" and "bicubic": if True, a smaller result averages over wider kernels, as in
        Pillow.

    Returns
    -------
    Node
        [N, C, *size], of the dtype of x.

    Raises
    ------
    ShapeError
        The number of axes does not fit the mode, or a size is 0.
    ValueError
        The mode is unknown, or an option does not exist for it.
    DTypeError
        x has integers, and the mode is linear or cubic.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.resize(x, 4, "linear"))(np.array([[[0.0, 1.0]]]))
        array([[[0.  , 0.25, 0.75, 1.  ]]])
    """
    node = _expect_space("resize", x)
    sizes = per_axis("resize", "a size", size, node.ndim - 2, 1)
    scales = [n / s for n, s in zip(node.shape[2:], sizes, strict=True)]
    return _resized("resize", node, sizes, scales, mode, align_corners, antialias)


def _sizes_and_scales(
    extents: Shape, size: PerAxis | None, scale_factor: float | Sequence[float] | None
) -> tuple[Shape, list[float]]:
    """Return the size of the result along each axis, and the scale along each axis.

    The scale is the number of input elements per output element.
    """
    axes = len(extents)
    if (size is None) == (scale_factor is None):
        raise ValueError(
            f"interpolate: expected either size or scale_factor; got {size} and {scale_factor}"
        )
    if size is not None:
        sizes = per_axis("interpolate", "a size", size, axes, 1)
        return sizes, [n / s for n, s in zip(extents, sizes, strict=True)]
    is_sequence = isinstance(scale_factor, (Sequence, np.ndarray))
    factors = [float(f) for f in (scale_factor if is_sequence else [scale_factor] * axes)]  # type: ignore[union-attr, arg-type]
    if len(factors) != axes or not all(0 < f < math.inf for f in factors):
        raise ValueError(
            f"interpolate: expected a factor > 0, or {axes} of them; got {scale_factor}"
        )
    sizes = tuple(math.floor(n * f) for n, f in zip(extents, factors, strict=True))
    return sizes, [1 / f for f in factors]


@public
def interpolate(
    x: Value,
    size: PerAxis | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    antialias: bool = False,
) -> Node:
    """Resize the spatial axes by a size or by factors, as torch.nn.functional.interpolate.

    Parameters
    ----------
    x, mode, antialias
        The same as for ops.resize.
    size : int or sequence of int, optional
        The sizes of the result: one number for all spatial axes, or one per axis.
    scale_factor : float or sequence of float, optional
        The factors, instead of a size. An axis of n elements gets floor(n * factor) elements.
        Unless align_corners is True or the mode is "area", coordinates are computed from the
        factor, not from the two sizes: the step from one element of the result to the next is
        1 / factor elements of x. With `size`, the step is n / size.
    align_corners : bool, optional
        The same as for ops.resize. None means False.

    Raises
    ------
    ValueError
        Both or neither of size and scale_factor are given.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.interpolate(x, scale_factor=2))(np.array([[[0.0, 1.0]]]))
        array([[[0., 0., 1., 1.]]])
    """
    node = _expect_space("interpolate", x)
    sizes, scales = _sizes_and_scales(node.shape[2:], size, scale_factor)
    corners = bool(align_corners)
    return _resized("interpolate", node, sizes, scales, mode, corners, antialias)


def _channels(where_: str, x: Value, factor: int) -> Node:
    """Return x as a node; ShapeError if it has fewer than three axes, or if `factor` < 1."""
    node = as_node(x, where=where_)
    if node.ndim < 3 or factor < 1:
        raise ShapeError(
            f"{where_}: expected [..., C, H, W] and a factor >= 1; got {node.type} and {factor}"
        )
    return node


@public
def pixel_shuffle(x: Value, upscale_factor: int) -> Node:
    """Move channels to space, as torch.nn.functional.pixel_shuffle.

    [..., C * r * r, H, W] becomes [..., C, H * r, W * r], where C is the number of channels of the
    result, H the height and W the width of x.

    Parameters
    ----------
    x : node or array
        [..., C * r * r, H, W].
    upscale_factor : int
        The factor r.

    Raises
    ------
    ShapeError
        The number of channels is not a multiple of r * r.

    Notes
    -----
    Shi et al. 2016 (arXiv:1609.05158), equation 4.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.pixel_shuffle(x, 2))(np.arange(4.0).reshape(1, 4, 1, 1))
        array([[[[0., 1.],
                 [2., 3.]]]])
    """
    r = int(upscale_factor)
    node = _channels("pixel_shuffle", x, r)
    *batch, channels, height, width = node.shape
    if channels % (r * r):
        raise ShapeError(
            f"pixel_shuffle: expected channels in {r * r} groups; got {node.type}. Change the "
            "factor."
        )
    n = len(batch)
    separated = reshape(node, (*batch, channels // (r * r), r, r, height, width))
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return reshape(
        transpose(separated, order), (*batch, channels // (r * r), height * r, width * r)
    )


@public
def pixel_unshuffle(x: Value, downscale_factor: int) -> Node:
    """Move space to channels, the inverse of ops.pixel_shuffle.

    Parameters
    ----------
    x : node or array
        [..., C, H * r, W * r]: C channels of the height H * r and the width W * r.
    downscale_factor : int
        The factor r.

    Raises
    ------
    ShapeError
        The height or the width is not a multiple of r.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.pixel_unshuffle(x, 2))(np.ones((1, 1, 2, 2))).shape
        (1, 4, 1, 1)
    """
    r = int(downscale_factor)
    node = _channels("pixel_unshuffle", x, r)
    *batch, channels, height, width = node.shape
    if height % r or width % r:
        raise ShapeError(
            f"pixel_unshuffle: expected extents that {r} divides; got {node.type}. Pad x, or "
            "change the factor."
        )
    n = len(batch)
    separated = reshape(node, (*batch, channels, height // r, r, width // r, r))
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    shape = (*batch, channels * r * r, height // r, width // r)
    return reshape(transpose(separated, order), shape)


def _windows(where_: str, extents: Shape, options: Sequence[PerAxis]) -> list[Shape]:
    """Return kernel_size, dilation, padding, stride and the number of windows, each per axis.

    There are two spatial axes, of the sizes `extents`. `options` has the arguments kernel_size,
    dilation, padding and stride of the public call.
    """
    kernel, dilation, padding, stride = (
        per_axis(where_, name, value, 2, lowest)
        for (name, lowest), value in zip(
            (("kernel_size", 1), ("dilation", 1), ("padding", 0), ("stride", 1)),
            options,
            strict=True,
        )
    )
    counts = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, d, p, s in zip(extents, kernel, dilation, padding, stride, strict=True)
    )
    if min(counts) < 1:
        raise ShapeError(
            f"{where_}: expected a kernel that fits into {extents}; got {kernel}. Use a smaller "
            "kernel, or more padding."
        )
    return [kernel, dilation, padding, stride, counts]


@public
def unfold(
    x: Value, kernel_size: PerAxis, dilation: PerAxis = 1, padding: PerAxis = 0, stride: PerAxis = 1
) -> Node:
    """Return sliding windows as columns (im2col), as torch.nn.functional.unfold.

    Parameters
    ----------
    x : node or array
        [N, C, H, W].
    kernel_size, dilation, padding, stride : int or sequence of int
        The size of a window, the distance of its elements, the number of zeros on both sides, and
        the distance between windows: one number, or one per axis.

    Returns
    -------
    Node
        [N, C * kernel elements, windows].

    Raises
    ------
    ShapeError
        x does not have four axes, or no window fits.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.unfold(x, 2))(np.arange(9.0).reshape(1, 1, 3, 3)).shape
        (1, 4, 4)
    """
    node = as_node(x, where="unfold")
    if node.ndim != 4:
        raise ShapeError(f"unfold: expected [N, C, H, W]; got {node.type}. Reshape it.")
    options = (kernel_size, dilation, padding, stride)
    kernel, dilations, zeros, strides, counts = _windows("unfold", node.shape[2:], options)
    node = pad(node, ((0, 0), (0, 0), *((p, p) for p in zeros)))
    # Split each spatial axis into two: the index in the window, and the number of the window.
    for axis in (0, 1):
        elements = np.arange(kernel[axis])[:, None] * dilations[axis]
        indices = elements + np.arange(counts[axis]) * strides[axis]
        node = take(node, indices, 2 + 2 * axis)
    n, c = node.shape[:2]
    columns = transpose(node, (0, 1, 2, 4, 3, 5))
    return reshape(columns, (n, c * math.prod(kernel), math.prod(counts)))


def _separate_windows(x: Node, kernel: Shape, counts: Shape) -> Node:
    """Reshape [N, C * kernel elements, windows] to [N, C, *kernel, *windows per axis]."""
    elements = math.prod(kernel)
    if x.ndim != 3 or x.shape[1] % elements or x.shape[2] != math.prod(counts):
        raise ShapeError(
            f"fold: expected [N, C * {elements}, {math.prod(counts)}]; got {x.type}. Reshape "
            "it, or change output_size."
        )
    return reshape(x, (x.shape[0], x.shape[1] // elements, *kernel, *counts))


def _overlap_add(windows: Node, shape: Shape, dilations: Shape, strides: Shape) -> Node:
    """Add overlapping windows [N, C, *kernel, *windows per axis] into images of shape `shape`."""
    total = None
    for i, j in np.ndindex(*windows.shape[2:4]):
        starts = (0, 0, i * dilations[0], j * dilations[1])
        part = pad_slice(windows[:, :, i, j], shape, starts, (1, 1, *strides))
        total = part if total is None else total + part
    assert total is not None
    return total


@public
def fold(
    x: Value,
    output_size: PerAxis,
    kernel_size: PerAxis,
    dilation: PerAxis = 1,
    padding: PerAxis = 0,
    stride: PerAxis = 1,
) -> Node:
    """Sum windows into an image (col2im), as torch.nn.functional.fold; the adjoint of ops.unfold.

    Parameters
    ----------
    x : node or array
        [N, C * kernel elements, windows].
    output_size : int or sequence of int
        (H, W) of the result.
    kernel_size, dilation, padding, stride : int or sequence of int
        The same as for ops.unfold.

    Returns
    -------
    Node
        [N, C, H, W].

    Raises
    ------
    ShapeError
        x does not have the shape that ops.unfold gives.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.fold(x, 3, 2))(np.ones((1, 4, 4)))
        array([[[[1., 2., 1.],
                 [2., 4., 2.],
                 [1., 2., 1.]]]])
    """
    node = as_node(x, where="fold")
    extents = per_axis("fold", "output_size", output_size, 2, 1)
    options = (kernel_size, dilation, padding, stride)
    kernel, dilations, zeros, strides, counts = _windows("fold", extents, options)
    windows = _separate_windows(node, kernel, counts)
    shape = (*windows.shape[:2], *(e + 2 * p for e, p in zip(extents, zeros, strict=True)))
    total = _overlap_add(windows, shape, dilations, strides)
    (top, left), (height, width) = zeros, extents
    return total[:, :, top : top + height, left : left + width]
