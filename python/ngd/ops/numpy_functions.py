# SPDX-License-Identifier: Apache-2.0
"""NumPy's functions on nodes: those that an op means, and what to write for some others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..ir import NUMPY
from . import (
    along_axis,
    arithmetic,
    compare,
    contraction,
    cumulative,
    ordering,
    rearrange,
    reduce,
    shape,
)

FUNCTIONS: Final[dict[Any, Callable[..., Any]]] = {
    np.sum: reduce.sum,
    np.mean: reduce.mean,
    np.prod: reduce.prod,
    np.max: reduce.max,
    np.min: reduce.min,
    np.var: reduce.var,
    np.any: reduce.any,
    np.all: reduce.all,
    np.cumsum: cumulative.cumsum,
    np.sort: ordering.sort,
    np.argsort: ordering.argsort,
    np.argmax: reduce.argmax,
    np.argmin: reduce.argmin,
    np.where: compare.where,
    np.round: arithmetic.round,
    np.clip: arithmetic.clip,
    np.concatenate: shape.concat,
    np.stack: shape.stack,
    np.split: shape.split,
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
    np.take_along_axis: along_axis.take_along_axis,
    np.einsum: contraction.einsum,
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a: a.type.count,
}

INSTEAD: Final[dict[Any, str]] = {
    np.std: "ngd.ops.sqrt(ngd.ops.var(x))",
    np.take: "ngd.ops.gather(x, indices, axis)",
    np.dot: "x @ y",
    np.zeros_like: "ngd.ops.zeros(x.shape, x.dtype)",
    np.ones_like: "ngd.ops.ones(x.shape, x.dtype)",
    np.full_like: "ngd.ops.full(x.shape, value, x.dtype)",
    np.linalg.norm: "ngd.ops.vector_norm(x)",
    np.average: "ngd.ops.mean(x), or ngd.ops.sum(x * w) / ngd.ops.sum(w)",
    np.array_equal: "x == y, elementwise",
    np.allclose: "abs(x - y) <= tolerance, elementwise",
}

UFUNCS: Final[dict[str, str]] = {
    "absolute": "abs",
    "fabs": "abs",
    "rint": "round",
    "invert": "bitwise_not",
    "positive": "as_node",
}
"""Functions whose ops are called otherwise."""


def call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Apply the op that a function of NumPy's means; TypeError where there is none."""
    name = f"{function.__module__}.{function.__name__}"
    op = FUNCTIONS.get(function)
    if op is None:
        instead = INSTEAD.get(function, "see ngd.ops")
        raise TypeError(f"{name} has no op on a Node: {instead}")
    signature = inspect.signature(op)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        shown = ", ".join(signature.parameters)
        raise TypeError(f"{name} on a Node takes ({shown}): {error}") from None
    return op(*args, **kwargs)


NUMPY.ufuncs, NUMPY.call = UFUNCS, call
