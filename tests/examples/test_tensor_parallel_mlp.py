# SPDX-License-Identifier: Apache-2.0
"""Tests that a network divided among ranks takes the steps of one rank."""

from __future__ import annotations

import numpy as np
import pytest

from tests.examples.configured import train_configured
from tests.examples.runs import needs_ranks, start

pytestmark = pytest.mark.long

EXAMPLE = "tensor_parallel_mlp.py"
pytest.importorskip("sklearn", reason="the example's data are scikit-learn's")


def losses(ranks: int, *options: str) -> list[float]:
    arguments = ["--steps", "50", "--hidden", "60", *options]
    losses_of_steps: list[float] = train_configured(EXAMPLE, ranks, *arguments, dtype="float64")[
        "losses"
    ]
    return losses_of_steps


@pytest.fixture(scope="module")
def alone() -> list[float]:
    return losses(1)


def test_one_rank_learns(alone: list[float]) -> None:
    assert len(alone) == 50
    assert np.mean(alone[-5:]) < alone[0] / 4


@needs_ranks
@pytest.mark.parametrize(
    ("ranks", "model", "device"),
    [(2, 2, "CPU"), (2, 2, "INTERPRETER"), (3, 3, "CPU"), (4, 2, "CPU")],
)
def test_any_mesh_takes_the_steps_of_one_rank(
    ranks: int, model: int, device: str, alone: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NGD_DEVICE", device)
    found = losses(ranks, "--model", str(model))
    np.testing.assert_allclose(found, alone, rtol=0, atol=1e-9)


@needs_ranks
def test_sizes_that_cannot_be_divided_are_rejected() -> None:
    done = start(EXAMPLE, 2, "--hidden", "61")
    assert done.returncode == 2
    assert "--hidden: expected a positive multiple of 2; got 61" in done.stderr
