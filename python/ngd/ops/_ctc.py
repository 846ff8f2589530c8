# SPDX-License-Identifier: Apache-2.0
"""Connectionist temporal classification.

The *path* of a target of S labels has L = 2 S + 1 positions: the labels, with blanks before them,
between them and after them. In each step an alignment stays at its position, goes to the next one,
or skips a blank between two different labels. After step t, alpha[s] is the logarithm of the sum of
the probabilities of all alignments of the steps 0 to t that end at position s. A scan over the
steps computes alpha (Graves et al. 2006, section 4.1).
"""

from __future__ import annotations

import math
from typing import Final

from ..errors import ShapeError
from ..graph.node import Node
from ..graph.registry import public
from ._along_axis import take_along_axis
from ._arithmetic import clip, maximum
from ._casting import cast
from ._compare import logical_and, not_equal, where
from ._composite import as_compute_dtype
from ._concatenation import concat, stack
from ._creation import arange, full
from ._exponentials import logaddexp
from ._gathering import as_indices
from ._operands import Value, as_node, describe_types
from ._shape import broadcast_to, reshape
from ._softmax import LOSS_REDUCTIONS, check_reduction, class_weights, reduce_loss
from .control.loops import scan

__all__ = ["ctc_loss"]

IMPOSSIBLE: Final = -1e30
"""The finite number that stands for log(0) = -inf, so that gradients are finite too."""


def path_of(labels: Node, num_labels: Node, blank: int) -> Node:
    """Return the path of each sequence, [N, L]: its labels, and blanks before, between and after.

    `labels` is [N, S], so L is 2 S + 1. For example, the path of the labels [3, 4] is
    [0, 3, 0, 4, 0] if `blank` is 0. Sequence n has num_labels[n] labels. Blanks replace the later
    entries of its row in `labels`.
    """
    n, count = labels.shape
    is_label = arange(count) < reshape(num_labels, (n, 1))
    blanks = full((n, count), blank, labels.dtype)
    pairs = reshape(stack([blanks, where(is_label, labels, blank)], 2), (n, 2 * count))
    return concat([pairs, full((n, 1), blank, labels.dtype)], 1)


def shifted(alpha: Node, by: int) -> Node:
    """Return alpha, [N, L], moved by `by` positions: element [n, s] is alpha[n, s - by].

    alpha has logarithms of probabilities, for N sequences and the L positions of their paths. The
    first `by` elements of each row of the result are IMPOSSIBLE, which stands for log(0).
    """
    n, count = alpha.shape
    before = full((n, min(by, count)), IMPOSSIBLE, alpha.dtype)
    return concat([before, alpha[:, : max(count - by, 0)]], 1)


def last_alpha(scores: Node, path: Node, num_steps: Node, blank: int) -> Node:
    """Return alpha after the last step of each sequence, [N, L].

    N is the number of sequences. L is the length of `path`, which has the labels of each sequence
    and blanks around them. alpha[n, s] is the logarithm of a probability: the sum over all
    alignments of sequence n that end at position s of its path. scores[t, n, s] is the logarithm of
    the probability that sequence n has label path[n, s] in step t.
    """
    steps, n, count = scores.shape
    skips = concat([full((n, min(2, count)), False, bool), not_equal(path[:, 2:], path[:, :-2])], 1)
    skips = logical_and(skips, not_equal(path, blank))
    alpha = where(arange(count) < 2, scores[0], IMPOSSIBLE)

    def step(alpha: Node, slices: tuple[Node, Node]) -> tuple[Node, None]:
        score, number = slices
        two_before = where(skips, shifted(alpha, 2), IMPOSSIBLE)
        new = logaddexp(logaddexp(alpha, shifted(alpha, 1)), two_before) + score
        return where(number < reshape(num_steps, (n, 1)), new, alpha), None

    last, _ = scan(step, alpha, (scores[1:], arange(1, steps)))
    return last  # type: ignore[no-any-return]


def expect_batch(x: Node, labels: Node, steps: Node, counts: Node, blank: int) -> None:
    """Raise an error if the operands of ctc_loss do not fit or `blank` is not a class."""
    n = x.shape[1] if x.ndim == 3 else -1
    if labels.ndim != 2 or labels.shape[0] != n or not steps.shape == counts.shape == (n,):
        types = describe_types(x.type, labels.type, steps.type, counts.type)
        raise ShapeError(
            "ctc_loss: expected log probabilities [T, N, C], targets [N, S], and lengths [N] and "
            f"[N]; got {types}. Transpose or reshape them."
        )
    if not 0 <= blank < x.shape[2] or not x.shape[0]:
        raise ValueError(f"ctc_loss: expected a step and blank in [0, C); got {x.type} and {blank}")


def log_likelihood(x: Node, labels: Node, steps: Node, counts: Node, blank: int) -> Node:
    """Return the logarithm of the probability of the target of each sequence, [N].

    The probability of a target is the sum of the probabilities of all its alignments. `x`, [T, N,
    C], has the logarithms of the probabilities of the classes. `labels`, [N, S], has the targets.
    `steps` and `counts`, [N], are the numbers of steps and of labels of each sequence.
    """
    n = x.shape[1]
    path = path_of(labels, counts, blank)
    index = broadcast_to(clip(path, 0, x.shape[2] - 1), (x.shape[0], *path.shape))
    ones = class_weights("ctc_loss", None, x, path)  # for its check that labels are in [0, C)
    alpha = last_alpha(take_along_axis(x, index, 2) * ones, path, steps, blank)
    ends = [
        take_along_axis(alpha, reshape(maximum(e, 0), (n, 1)), 1)
        for e in (2 * counts, 2 * counts - 1)
    ]
    return reshape(where(reshape(counts, (n, 1)) > 0, logaddexp(*ends), ends[0]), (n,))


@public
def ctc_loss(
    log_probabilities: Value,
    targets: Value,
    input_lengths: Value,
    target_lengths: Value,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Node:  # long because each argument is described
    """Return the CTC loss (connectionist temporal classification), as torch.nn.functional.ctc_loss.

    Parameters
    ----------
    log_probabilities
        [T, N, C]: the result of ops.log_softmax for T steps of N sequences, with C classes.
    targets
        [N, S]: for each sequence, up to S labels in [0, C). Those after the end of a target are not
        read.
    input_lengths, target_lengths
        [N]: the number of steps and of labels of each sequence.
    blank
        The class of the blank.
    reduction
        "none", "sum" or "mean". "mean" divides the loss of each sequence by its number of labels,
        or by 1 if it has none, then returns the mean over the sequences.
    zero_infinity
        If True, the loss of a sequence with too few steps for its target is 0. By default it is
        infinite. The gradient of such a sequence is 0 in both cases.

    Raises
    ------
    OutOfRangeError
        At run time: a label is outside of [0, C).
    ShapeError
        The shapes do not fit.
    ValueError
        The reduction is unknown, `blank` is not a class, or T is 0.

    Notes
    -----
    Graves et al. 2006 (ICML), section 4.1.

    Examples
    --------
    ::

        >>> def f(x):
        ...     return ops.ctc_loss(ops.log_softmax(x), [[1]], [2], [1])
        >>> round(float(ngd.function(f)(np.zeros((2, 1, 2)))), 4)
        0.2877
    """
    check_reduction("ctc_loss", reduction, LOSS_REDUCTIONS)
    x = as_node(log_probabilities, where="ctc_loss")
    labels, steps, counts = (
        as_indices(v, "ctc_loss") for v in (targets, input_lengths, target_lengths)
    )
    expect_batch(x, labels, steps, counts, blank)
    log_probs, dtype = as_compute_dtype("ctc_loss", x)
    total = log_likelihood(log_probs, labels, steps, counts, blank)
    is_possible = total > IMPOSSIBLE / 2
    loss = where(is_possible, -total, 0.0 if zero_infinity else math.inf)
    if reduction == "mean":
        loss = loss / cast(maximum(counts, 1), loss.dtype)
    return reduce_loss(loss, reduction, dtype)
