# SPDX-License-Identifier: Apache-2.0
"""The functions that replace NumPy functions if an argument is a node.

For example, np.sum(x) calls ops.sum if x is a node. If a NumPy function has no replacement, the
dict INSTEAD may have a hint for the error message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from .._util.links import page_url
from ..errors import ShapeError
from ..graph.node import Node
from ..graph.registry import register_numpy
from . import _along_axis as along_axis
from . import _arithmetic as arithmetic
from . import _compare as compare
from . import _concatenation as concatenation
from . import _contraction as contraction
from . import _creation as creation
from . import _cumulative as cumulative
from . import _differences as differences
from . import _gathering as gathering
from . import _joining as joining
from . import _linear_algebra as linear_algebra
from . import _nan_reductions as nan_reductions
from . import _numeric as numeric
from . import _numpy_compositions as numpy_compositions
from . import _rearrangement as rearrange
from . import _reductions as reductions
from . import _searching as searching
from . import _shape as shape
from . import _sorting as ordering
from . import _statistics as statistics
from . import _trigonometric as trigonometric
from ._casting import as_floats
from ._operands import Axis, as_node, describe_types, normalize_axes


def numpy_take(a: Any, indices: Any, axis: int | None = None) -> Node:
    """Return the elements at indices along an axis, or of the flattened array, as numpy.take."""
    x = as_node(a, where="numpy.take")
    return gathering.take(shape.reshape(x, -1) if axis is None else x, indices, axis or 0)


def dot(a: Any, b: Any) -> Node:
    """Return numpy.dot of two arrays of at most two axes.

    An array of more axes raises a ShapeError, because numpy.dot then differs from `@`.
    """
    x, y = as_node(a, where="numpy.dot"), as_node(b, where="numpy.dot")
    if not x.ndim or not y.ndim:
        return arithmetic.multiply(a, b)
    if x.ndim > 2 or y.ndim > 2:
        types = describe_types(x.type, y.type)
        raise ShapeError(f"numpy.dot: expected at most 2 axes; got {types}: see x @ y")
    return x @ y


def norm(x: Any, ord: float | None = None, axis: Axis = None, keepdims: bool = False) -> Node:
    """Return the norm over one axis or several, as numpy.linalg.norm.

    Over one axis, `ord` is the order of the norm, and None means 2. Over several axes, `ord` must
    be None, the Frobenius norm; any other value raises a ShapeError.
    """
    where = "numpy.linalg.norm"
    x = as_node(x, where=where)
    axes = normalize_axes(where, axis, x.type)
    if not isinstance(ord, (int, float, type(None))) or (ord is not None and len(axes) != 1):
        raise ShapeError(f"{where}: expected ord=None, or a number and one axis; got ord={ord!r}")
    if axis is not None and len(axes) not in (1, 2):
        raise ShapeError(f"{where}: expected one axis or two; got {axis}")
    x = as_floats(x)
    return reductions.vector_norm(x, axes, keepdims, 2 if ord is None else ord)


def full_like(a: Any, fill_value: Any, dtype: Any = None) -> Node:
    """Return `fill_value` in an array of the shape and dtype of `a`, as numpy.full_like."""
    x = as_node(a, where="numpy.full_like")
    return creation.full(x.shape, fill_value, x.dtype if dtype is None else dtype)


def nan_to_num(
    x: Any,
    copy: bool = True,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Node:
    """Return numpy.nan_to_num. `copy` has no effect: a node never changes in place."""
    return numeric.nan_to_num(x, nan, posinf, neginf)


def zeros_like(a: Any, dtype: Any = None) -> Node:
    """Return zeros with the shape and dtype of an array, as numpy.zeros_like."""
    return full_like(a, 0, dtype)


def ones_like(a: Any, dtype: Any = None) -> Node:
    """Return ones with the shape and dtype of an array, as numpy.ones_like."""
    return full_like(a, 1, dtype)


FUNCTIONS: Final[dict[Any, Callable[..., Any]]] = {
    np.sum: reductions.sum,
    np.mean: reductions.mean,
    np.prod: reductions.prod,
    np.max: reductions.max,
    np.min: reductions.min,
    np.var: reductions.var,
    np.any: reductions.any,
    np.all: reductions.all,
    np.cumsum: cumulative.cumsum,
    np.sort: ordering.sort,
    np.argsort: ordering.argsort,
    np.argmax: reductions.argmax,
    np.argmin: reductions.argmin,
    np.where: compare.where,
    np.std: statistics.std,
    np.median: statistics.median,
    np.quantile: statistics.quantile,
    np.percentile: statistics.percentile,
    np.ptp: statistics.ptp,
    np.count_nonzero: statistics.count_nonzero,
    np.average: statistics.average,
    np.nansum: nan_reductions.nansum,
    np.nanmean: nan_reductions.nanmean,
    np.nanprod: nan_reductions.nanprod,
    np.nanvar: nan_reductions.nanvar,
    np.nanstd: nan_reductions.nanstd,
    np.nanargmax: nan_reductions.nanargmax,
    np.nanargmin: nan_reductions.nanargmin,
    np.nanmedian: nan_reductions.nanmedian,
    np.nanquantile: nan_reductions.nanquantile,
    np.nanpercentile: nan_reductions.nanpercentile,
    np.nancumsum: nan_reductions.nancumsum,
    np.nancumprod: nan_reductions.nancumprod,
    np.cov: statistics.cov,
    np.corrcoef: statistics.corrcoef,
    np.cumprod: cumulative.cumprod,
    np.diagonal: linear_algebra.diagonal,
    np.diag: linear_algebra.diag,
    np.trace: linear_algebra.trace,
    np.outer: linear_algebra.outer,
    np.inner: linear_algebra.inner,
    np.vdot: linear_algebra.vdot,
    np.kron: linear_algebra.kron,
    np.cross: linear_algebra.cross,
    np.tensordot: linear_algebra.tensordot,
    np.linspace: creation.linspace,
    np.meshgrid: creation.meshgrid,
    np.nan_to_num: nan_to_num,
    np.select: numeric.select,
    np.sinc: trigonometric.sinc,
    np.repeat: joining.repeat,
    np.vstack: joining.vstack,
    np.hstack: joining.hstack,
    np.array_split: joining.array_split,
    np.hsplit: joining.hsplit,
    np.vsplit: joining.vsplit,
    np.dsplit: joining.dsplit,
    np.append: joining.append,
    np.atleast_1d: joining.atleast_1d,
    np.atleast_2d: joining.atleast_2d,
    np.atleast_3d: joining.atleast_3d,
    np.diff: differences.diff,
    np.ediff1d: differences.ediff1d,
    np.correlate: differences.correlate,
    np.gradient: differences.gradient,
    np.convolve: differences.convolve,
    np.rot90: rearrange.rot90,
    np.searchsorted: searching.searchsorted,
    np.digitize: searching.digitize,
    np.histogram: searching.histogram,
    np.interp: searching.interp,
    np.partition: searching.partition,
    np.argpartition: searching.argpartition,
    np.round: numpy_compositions.round_to,
    np.around: numpy_compositions.round_to,
    np.amax: reductions.max,
    np.amin: reductions.min,
    np.nanmax: nan_reductions.nanmax,
    np.nanmin: nan_reductions.nanmin,
    np.isclose: numeric.isclose,
    np.isin: numpy_compositions.isin,
    np.flipud: rearrange.flipud,
    np.fliplr: rearrange.fliplr,
    np.column_stack: joining.column_stack,
    np.dstack: joining.dstack,
    np.block: numpy_compositions.block,
    np.delete: numpy_compositions.delete,
    np.rollaxis: numpy_compositions.rollaxis,
    np.diagflat: numpy_compositions.diagflat,
    np.polyval: numpy_compositions.polyval,
    np.fix: numeric.trunc,
    np.copy: numpy_compositions.copy,
    np.broadcast_arrays: numpy_compositions.broadcast_arrays,
    np.clip: arithmetic.clip,
    np.concatenate: concatenation.concat,
    np.stack: concatenation.stack,
    np.split: concatenation.split,
    np.reshape: shape.reshape,
    np.transpose: shape.transpose,
    np.broadcast_to: shape.broadcast_to,
    np.expand_dims: shape.expand_dims,
    np.squeeze: shape.squeeze,
    np.moveaxis: rearrange.moveaxis,
    np.swapaxes: rearrange.swapaxes,
    np.flip: rearrange.flip,
    np.roll: rearrange.roll,
    np.tile: rearrange.tile,
    np.tril: rearrange.tril,
    np.triu: rearrange.triu,
    np.pad: rearrange.pad,
    np.take: numpy_take,
    np.dot: dot,
    np.linalg.norm: norm,
    np.ravel: lambda a: shape.reshape(a, -1),
    np.full_like: full_like,
    np.zeros_like: zeros_like,
    np.empty_like: zeros_like,
    np.ones_like: ones_like,
    np.take_along_axis: along_axis.take_along_axis,
    np.einsum: contraction.einsum,
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a: a.type.count,
}
"""The op to call for each NumPy function that is called with a node."""

SINCE_NUMPY_2: Final[dict[str, Callable[..., Any]]] = {
    "matrix_transpose": numpy_compositions.matrix_transpose,
    "trapezoid": differences.trapezoid,
    "unstack": numpy_compositions.unstack,
    "cumulative_sum": numpy_compositions.cumulative_sum,
    "cumulative_prod": numpy_compositions.cumulative_prod,
}
"""The op for each NumPy function that NumPy 1.26 or NumPy 2.0 does not have yet.

The functions are given by name, because the installed NumPy may not have them.
"""

for _module in (np, np.linalg):
    for _name, _op in SINCE_NUMPY_2.items():
        if hasattr(_module, _name):
            FUNCTIONS[getattr(_module, _name)] = _op

SHAPES: Final = (
    "its shape would depend on values, and shapes are known when the graph is built; "
    "ngd.ops.where(mask, x, y) or x.at[mask].set(y) choose by a mask"
)
"""The hint in the error message for np.nonzero, np.argwhere, np.flatnonzero and np.unique.

The shapes of their results depend on the values of the operand.
"""
DECOMPOSITIONS: Final = (
    f"ngd has no decompositions of matrices. Use ngd.call_host. See {page_url('limitations')}"
)
"""The hint in the error message for decompositions of matrices."""

INSTEAD: Final[dict[Any, str]] = {
    np.nonzero: SHAPES,
    np.argwhere: SHAPES,
    np.flatnonzero: SHAPES,
    np.unique: SHAPES,
    np.linalg.inv: DECOMPOSITIONS,
    np.linalg.solve: DECOMPOSITIONS,
    np.linalg.svd: DECOMPOSITIONS,
    np.linalg.qr: DECOMPOSITIONS,
    np.linalg.det: DECOMPOSITIONS,
    np.linalg.eigh: DECOMPOSITIONS,
    np.linalg.cholesky: DECOMPOSITIONS,
    np.array_equal: "x == y, elementwise",
    np.allclose: "np.isclose(x, y).all()",
}
"""A dict from a NumPy function that ngd does not support to a hint for its error message."""

UFUNCS: Final[dict[str, str]] = {
    "absolute": "abs",
    "fabs": "abs",
    "rint": "round",
    "invert": "bitwise_not",
    "positive": "as_node",
    "conjugate": "as_node",
    "degrees": "rad2deg",
    "radians": "deg2rad",
    "arctan": "atan",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan2": "atan2",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
}
"""The name in ngd.ops of each NumPy universal function whose op has another name."""


METHODS: Final[dict[str, Callable[..., Any]]] = {
    "add.reduce": reductions.sum,
    "add.accumulate": cumulative.cumsum,
    "multiply.reduce": reductions.prod,
    "multiply.accumulate": cumulative.cumprod,
    "multiply.outer": lambda a, b: linear_algebra.tensordot(a, b, 0),
    "maximum.reduce": reductions.max,
    "maximum.accumulate": cumulative.cummax,
    "minimum.reduce": reductions.min,
    "minimum.accumulate": cumulative.cummin,
    "logaddexp.reduce": reductions.logsumexp,
    "logaddexp.accumulate": cumulative.logcumsumexp,
    "logical_and.reduce": reductions.all,
    "logical_or.reduce": reductions.any,
}
"""The op for each method of a NumPy universal function, such as `np.add.reduce`."""


register_numpy(FUNCTIONS, METHODS, UFUNCS, INSTEAD)
