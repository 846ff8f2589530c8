# SPDX-License-Identifier: Apache-2.0
"""Tests of loss modules: values compared with NumPy, and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import nn, ops

RANDOM = np.random.default_rng(0)
A, B = RANDOM.normal(size=(4, 3)), RANDOM.normal(size=(4, 3))
P, Q = RANDOM.dirichlet(np.ones(3), 4), RANDOM.dirichlet(np.ones(3), 4)
LABELS = np.array([0, 2, 1, 2])
WEIGHT = np.array([1.0, 2.0, 3.0])
LOG_A = A - np.log(np.exp(A).sum(1, keepdims=True))
OF_LABELS = -LOG_A[np.arange(4), LABELS]
D = np.abs(A - B)
CASES: dict[str, tuple[nn.Module, tuple[Any, ...], Any]] = {
    "mse": (nn.MSELoss(), (A, B), np.mean(D**2)),
    "mse of none": (nn.MSELoss("none"), (A, B), D**2),
    "l1": (nn.L1Loss("sum"), (A, B), D.sum()),
    "huber": (nn.HuberLoss(0.5), (A, B), np.where(D < 0.5, D**2 / 2, 0.5 * (D - 0.25)).mean()),
    "smooth l1": (
        nn.SmoothL1Loss(beta=0.5),
        (A, B),
        np.where(D < 0.5, D**2, D - 0.25).mean(),
    ),
    "kl": (nn.KLDivLoss(reduction="batchmean"), (np.log(P), Q), (Q * np.log(Q / P)).sum() / 4),
    "kl of logs": (
        nn.KLDivLoss(log_target=True, reduction="sum"),
        (np.log(P), np.log(Q)),
        (Q * np.log(Q / P)).sum(),
    ),
    "bce": (nn.BCELoss(), (P, Q), -(Q * np.log(P) + (1 - Q) * np.log(1 - P)).mean()),
    "bce of logits": (
        nn.BCEWithLogitsLoss("sum"),
        (np.log(P / (1 - P)), Q),
        -(Q * np.log(P) + (1 - Q) * np.log(1 - P)).sum(),
    ),
    "nll": (nn.NLLLoss(), (LOG_A, LABELS), OF_LABELS.mean()),
    "cross entropy": (nn.CrossEntropyLoss(), (A, LABELS), OF_LABELS.mean()),
    "cross entropy of weights": (
        nn.CrossEntropyLoss(WEIGHT, ignore_index=0),
        (A, LABELS),
        (OF_LABELS * WEIGHT[LABELS])[1:].sum() / WEIGHT[LABELS][1:].sum(),
    ),
    "cross entropy, smooth": (
        nn.CrossEntropyLoss(label_smoothing=0.3, reduction="none"),
        (A, LABELS),
        0.7 * OF_LABELS - 0.1 * LOG_A.sum(1),
    ),
    "triplet": (
        nn.TripletMarginLoss(margin=0.5, reduction="none"),
        (A, B, P),
        np.maximum(
            np.linalg.norm(A - B + 1e-6, axis=1) - np.linalg.norm(A - P + 1e-6, axis=1) + 0.5, 0
        ),
    ),
    "gaussian nll": (
        nn.GaussianNLLLoss(full=True),
        (A, B, P),
        (0.5 * (np.log(P) + D**2 / P) + 0.5 * np.log(2 * np.pi)).mean(),
    ),
    "cosine": (
        nn.CosineSimilarity(dim=0),
        (A, B),
        (A * B).sum(0) / np.linalg.norm(A, axis=0) / np.linalg.norm(B, axis=0),
    ),
    "ctc": (
        nn.CTCLoss(blank=1, reduction="sum"),
        (np.log(np.full((2, 1, 2), 0.5)), np.array([[0]]), np.array([2]), np.array([1])),
        -np.log(0.75),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_equal_numpy(case: str) -> None:
    loss, arrays, wanted = CASES[case]
    found = ngd.function(lambda *given: loss(*given))(*arrays)
    npt.assert_allclose(found, wanted, rtol=1e-12)


def test_repr_of_a_loss_shows_its_options() -> None:
    assert repr(nn.HuberLoss(2.0)) == "HuberLoss(delta=2.0, reduction='mean')"
    assert repr(nn.CosineSimilarity(-1)) == "CosineSimilarity(dim=-1, eps=1e-08)"
    assert repr(nn.CTCLoss()) == "CTCLoss(blank=0, reduction='mean', zero_infinity=False)"


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: nn.MSELoss("max")(A, B), "mse_loss: expected a reduction among"),
    (lambda: nn.CrossEntropyLoss(label_smoothing=2.0)(A, LABELS), "cross_entropy: expected smooth"),
]


@pytest.mark.parametrize(("call", "says"), REFUSED)
def test_bad_options_raise_value_error(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


def test_a_loss_has_no_variables_and_names_its_nodes() -> None:
    x = ngd.placeholder("x", (4, 3))
    loss = nn.MSELoss()
    assert loss.variables() == {}
    assert " in MSELoss(reduction='mean')" in loss(x, ops.zeros((4, 3))).site
