# SPDX-License-Identifier: Apache-2.0
"""Rules that translate loss functions of PyTorch into ngd nodes."""

from __future__ import annotations

from typing import Any, Final

import torch

from .... import ops
from ....graph.node import Node
from .registry import Call, NodeOrNodes, Sample, T, as_node, as_optional_node, expect, rule

aten: Final = torch.ops.aten

REDUCTIONS: Final = ("none", "mean", "sum")
"""The names of PyTorch's reductions, which have the numbers 0, 1 and 2."""

LOGITS: Final = T((4, 5))
LABELS: Final = T((4,), torch.int64, low=0, high=5)
TARGET: Final = T((4, 5), low=0.0, high=1.0, has_grad=False)
WEIGHT: Final = T((5,), low=0.5, high=2.0, has_grad=False)


@rule(
    aten.cross_entropy_loss.default,
    samples=[
        Sample(LOGITS, LABELS),
        Sample(LOGITS, LABELS, WEIGHT, 2),
        Sample(LOGITS, LABELS, None, 0, 2, 0.1),
        Sample(LOGITS, TARGET),
        Sample(T((2, 5, 3)), T((2, 3), torch.int64, low=0, high=5)),
    ],
)
def cross_entropy(
    call: Call,
    logits: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Node:
    logits, target = as_node(logits), as_node(target)
    how = REDUCTIONS[reduction]
    if target.dtype.kind in "iu":
        return ops.cross_entropy(
            logits, target, as_optional_node(weight), ignore_index, label_smoothing, how
        )
    expect(weight is None and label_smoothing == 0, "probabilities as labels with other options")
    loss = -ops.sum(ops.log_softmax(logits, 1) * target, 1)
    return _reduced(loss, reduction)


def _reduced(loss: Node, reduction: int) -> Node:
    """Return the losses of all elements if `reduction` is 0, their mean if 1, their sum if 2."""
    if reduction == 0:
        return loss
    return ops.mean(loss) if reduction == 1 else ops.sum(loss)


@rule(aten.nll_loss_nd.default, samples=[Sample(LOGITS, LABELS, WEIGHT, 1, -100)])
@rule(aten.nll_loss.default, samples=[Sample(LOGITS, LABELS)])
def nll_loss(
    call: Call,
    log_probabilities: Any,
    labels: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
) -> Node:
    x, labels, weight = as_node(log_probabilities), as_node(labels), as_optional_node(weight)
    return ops.nll_loss(x, labels, weight, ignore_index, REDUCTIONS[reduction])


@rule(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default, samples=[])
def nll_loss_and_weight(call: Call, *args: Any) -> NodeOrNodes:
    return nll_loss(call, *args), None


@rule(aten.mse_loss.default, samples=[Sample(LOGITS, LOGITS), Sample(LOGITS, LOGITS, 2)])
@rule(aten.l1_loss.default, samples=[Sample(LOGITS, LOGITS), Sample(LOGITS, LOGITS, 0)])
def elementwise_loss(call: Call, x: Any, target: Any, reduction: int = 1) -> Node:
    function = ops.mse_loss if "mse" in call.name else ops.l1_loss
    return function(call.cast(x), call.cast(target), REDUCTIONS[reduction])


@rule(aten.smooth_l1_loss.default, samples=[Sample(LOGITS, LOGITS), Sample(LOGITS, LOGITS, 2, 0.5)])
def smooth_l1_loss(call: Call, x: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> Node:
    return ops.smooth_l1_loss(call.cast(x), call.cast(target), beta, REDUCTIONS[reduction])


@rule(aten.huber_loss.default, samples=[Sample(LOGITS, LOGITS), Sample(LOGITS, LOGITS, 2, 0.5)])
def huber_loss(call: Call, x: Any, target: Any, reduction: int = 1, delta: float = 1.0) -> Node:
    return ops.huber_loss(call.cast(x), call.cast(target), delta, REDUCTIONS[reduction])


@rule(
    aten.kl_div.default,
    samples=[Sample(LOGITS, TARGET), Sample(LOGITS, LOGITS, 2, log_target=True)],
)
def kl_div(
    call: Call, x: Any, target: Any, reduction: int = 1, *, log_target: bool = False
) -> Node:
    return ops.kl_div(as_node(x), as_node(target), log_target, REDUCTIONS[reduction])


@rule(
    aten.binary_cross_entropy_with_logits.default,
    samples=[Sample(LOGITS, TARGET), Sample(LOGITS, TARGET, WEIGHT, WEIGHT, 2)],
)
def binary_cross_entropy_with_logits(
    call: Call,
    logits: Any,
    target: Any,
    weight: Any = None,
    pos_weight: Any = None,
    reduction: int = 1,
) -> Node:
    return ops.binary_cross_entropy_with_logits(
        as_node(logits),
        as_node(target),
        as_optional_node(weight),
        as_optional_node(pos_weight),
        REDUCTIONS[reduction],
    )


@rule(aten.binary_cross_entropy.default, samples=[Sample(T((4, 5), low=0.1, high=0.9), TARGET)])
def binary_cross_entropy(
    call: Call, x: Any, target: Any, weight: Any = None, reduction: int = 1
) -> Node:
    return ops.binary_cross_entropy(
        as_node(x), as_node(target), as_optional_node(weight), REDUCTIONS[reduction]
    )


@rule(
    aten.cosine_similarity.default,
    samples=[Sample(LOGITS, LOGITS), Sample(T((2, 3, 4)), T((2, 3, 4)), -1)],
)
def cosine_similarity(call: Call, a: Any, b: Any, dim: int = 1, eps: float = 1e-8) -> Node:
    return ops.cosine_similarity(as_node(a), as_node(b), dim, eps)
