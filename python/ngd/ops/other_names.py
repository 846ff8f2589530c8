# SPDX-License-Identifier: Apache-2.0
"""Other libraries' names for the functions of ngd.ops, and the error of an unknown name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from ..links import page_url
from .numpy_functions import UFUNCS

OTHER_NAMES: Final[dict[str, str]] = UFUNCS | {
    "addmm": "matmul",
    "allgather": "all_gather",
    "allreduce": "all_reduce",
    "alltoall": "all_to_all",
    "amax": "max",
    "amin": "min",
    "astype": "cast",
    "avg_pool1d": "avg_pool",
    "avg_pool2d": "avg_pool",
    "avg_pool3d": "avg_pool",
    "bce_loss": "binary_cross_entropy",
    "bmm": "matmul",
    "cat": "concat",
    "clamp": "clip",
    "concatenate": "concat",
    "conv1d": "conv",
    "conv2d": "conv",
    "conv3d": "conv",
    "conv_transpose1d": "conv_transpose",
    "conv_transpose2d": "conv_transpose",
    "conv_transpose3d": "conv_transpose",
    "convert_element_type": "cast",
    "detach": "stop_gradient",
    "div": "divide",
    "dot": "matmul",
    "eq": "equal",
    "erf_inv": "erfinv",
    "fix": "trunc",
    "flatten": "reshape",
    "ge": "greater_equal",
    "gt": "greater",
    "index_select": "take",
    "iota": "arange",
    "le": "less_equal",
    "linear": "matmul",
    "lt": "less",
    "masked_fill": "where",
    "max_pool1d": "max_pool",
    "max_pool2d": "max_pool",
    "max_pool3d": "max_pool",
    "mean_squared_error": "mse_loss",
    "mm": "matmul",
    "mod": "remainder",
    "mul": "multiply",
    "ne": "not_equal",
    "neg": "negative",
    "norm": "vector_norm",
    "normal": "random_normal",
    "permute": "transpose",
    "pow": "power",
    "psum": "all_reduce",
    "rand": "random_uniform",
    "randn": "random_normal",
    "randperm": "permutation",
    "ravel": "reshape",
    "reducescatter": "reduce_scatter",
    "repeat_interleave": "repeat",
    "scaled_dot_product_attention": "attention",
    "sub": "subtract",
    "swish": "silu",
    "topk": "top_k",
    "trapz": "trapezoid",
    "true_divide": "divide",
    "uniform": "random_uniform",
    "unsqueeze": "expand_dims",
    "view": "reshape",
}
"""For a name of another library, the function of ngd.ops that computes it."""


def unknown_name(name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for a name that ngd.ops does not have."""
    text = f"ngd.ops: expected a function of ngd.ops; got {name!r}, which it does not have."
    if name in OTHER_NAMES:
        return AttributeError(f"{text} Use ops.{OTHER_NAMES[name]}.")
    close = get_close_matches(name, known, 1)
    if close:
        return AttributeError(f"{text} Did you mean ops.{close[0]}?")
    return AttributeError(f"{text} See the list at {page_url('ops')}")
