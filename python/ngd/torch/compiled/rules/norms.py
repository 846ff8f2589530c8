# SPDX-License-Identifier: Apache-2.0
"""Rules that translate normalization ops of PyTorch into ngd nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from .... import ops
from ....graph.node import Node
from .registry import Call, NodeOrNodes, Sample, T, as_node, as_optional_node, rule

aten: Final = torch.ops.aten

X: Final = T((2, 4, 3))
CHANNELS: Final = T((4,))
VARIANCES: Final = T((4,), low=0.5, high=2.0, has_grad=False)
MEANS: Final = T((4,), has_grad=False)


@rule(
    aten.layer_norm.default, samples=[Sample(X, [3]), Sample(X, [4, 3], T((4, 3)), T((4, 3)), 0.1)]
)
def layer_norm(
    call: Call,
    x: Any,
    shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Node:
    weight, bias = as_optional_node(weight), as_optional_node(bias)
    return ops.layer_norm(as_node(x), tuple(shape), weight, bias, eps)


@rule(aten.native_layer_norm.default, samples=[])
def layer_norm_with_statistics(
    call: Call, x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> NodeOrNodes:
    return layer_norm(call, x, shape, weight, bias, eps), None, None


@rule(aten.rms_norm.default, samples=[Sample(X, [3]), Sample(X, [3], T((3,)), 0.1)])
def rms_norm(
    call: Call, x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Node:
    x = as_node(x)
    if eps is None:
        eps = torch.finfo(call.outputs[0].dtype).eps
    return ops.rms_norm(x, tuple(shape), as_optional_node(weight), eps)


@rule(aten.group_norm.default, samples=[Sample(X, 2), Sample(X, 2, CHANNELS, CHANNELS, 0.1)])
def group_norm(
    call: Call,
    x: Any,
    groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Node:
    return ops.group_norm(as_node(x), groups, as_optional_node(weight), as_optional_node(bias), eps)


@rule(
    aten.instance_norm.default,
    samples=[Sample(X, CHANNELS, CHANNELS, None, None, True, 0.1, 1e-5, True)],
)
def instance_norm(
    call: Call,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Node:
    x, weight, bias = as_node(x), as_optional_node(weight), as_optional_node(bias)
    if use_input_stats:
        return ops.instance_norm(x, weight, bias, eps)
    return ops.batch_norm_inference(x, as_node(mean), as_node(variance), weight, bias, eps)


@rule(
    aten._native_batch_norm_legit_functional.default,
    samples=[
        Sample(X, CHANNELS, CHANNELS, MEANS, VARIANCES, True, 0.1, 1e-5),
        Sample(X, None, None, MEANS, VARIANCES, False, 0.1, 1e-5),
    ],
)
def batch_norm_and_statistics(
    call: Call,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> NodeOrNodes:
    """Return the result, None, None, and the next running mean and variance.

    None replaces the statistics that PyTorch saves for its backward op, because ngd does not use
    that op. The running variance is an average of the unbiased variances of the batches, as in
    torch.nn.BatchNorm1d.
    """
    x, mean, variance = as_node(x), as_node(mean), as_node(variance)
    weight, bias = as_optional_node(weight), as_optional_node(bias)
    if not training:
        y = ops.batch_norm_inference(x, mean, variance, weight, bias, eps)
        return y, None, None, mean, variance
    y, batch_mean, batch_variance = ops.batch_norm(x, weight, bias, eps)
    count = x.size // x.shape[1]
    unbiased = momentum * count / max(count - 1, 1)
    return (
        y,
        None,
        None,
        _average(mean, batch_mean, 1 - momentum, momentum),
        _average(variance, batch_variance, 1 - momentum, unbiased),
    )


def _average(old: Node, new: Node, old_factor: float, new_factor: float) -> Node:
    """Return old * old_factor + new * new_factor, in the dtype of the running statistic `old`."""
    factors = (np.asarray(factor, old.dtype) for factor in (old_factor, new_factor))
    old_weight, new_weight = factors
    return old * old_weight + ops.cast(new, old.dtype) * new_weight


@rule(aten._native_batch_norm_legit.no_stats, samples=[])
def batch_norm_of_batch(
    call: Call, x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> NodeOrNodes:
    y, *_ = ops.batch_norm(as_node(x), as_optional_node(weight), as_optional_node(bias), eps)
    return y, None, None


@rule(
    aten.batch_norm.default,
    samples=[Sample(X, CHANNELS, CHANNELS, MEANS, VARIANCES, False, 0.1, 1e-5, True)],
)
def batch_norm(call: Call, *args: Any) -> Node:
    x, weight, bias, mean, _, training, momentum, eps, _ = args
    if training and mean is None:
        return batch_norm_of_batch(call, x, weight, bias, training, momentum, eps)[0]
    return batch_norm_and_statistics(call, *args[:-1])[0]


@rule(
    aten._native_batch_norm_legit_no_training.default,
    samples=[Sample(X, CHANNELS, CHANNELS, MEANS, VARIANCES, 0.1, 1e-5)],
)
def batch_norm_inference(call: Call, *args: Any) -> NodeOrNodes:
    *inputs, momentum, eps = args
    y, *_ = batch_norm_and_statistics(call, *inputs, False, momentum, eps)
    return y, None, None


@rule(aten._weight_norm.default, samples=[Sample(T((4, 3)), T((4, 1)))])
def weight_norm(call: Call, direction: Any, length: Any, dim: int = 0) -> Node:
    v, g = as_node(direction), as_node(length)
    axes = tuple(axis for axis in range(v.ndim) if axis != dim % v.ndim)
    return v * (g / ops.vector_norm(v, axes, keepdims=True))
