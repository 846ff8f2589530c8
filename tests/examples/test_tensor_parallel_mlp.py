# SPDX-License-Identifier: Apache-2.0
"""A network divided between ranks takes the steps of one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ngd

EXAMPLE = Path(__file__).parents[2] / "examples" / "tensor_parallel_mlp.py"
needs_ranks = pytest.mark.skipif(
    ngd.build_info()["mode"] == "OFF", reason="built with NGD_DISTRIBUTED_ENABLE=OFF"
)
pytest.importorskip("sklearn", reason="the example's data are scikit-learn's")


def start(ranks: int, *options: str) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "ngd.launch", "-n", str(ranks), "--no-prefix", "--"]
    return subprocess.run(
        [sys.executable, *launcher, str(EXAMPLE), *options],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NGD_TIMEOUT": "60", "NGD_CHECK": "1"},
    )


def losses(ranks: int, *options: str) -> list[float]:
    done = start(ranks, "--dtype", "float64", "--steps", "50", "--hidden", "60", *options)
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout.splitlines()[-1])["losses"]
    return found


@pytest.fixture(scope="module")
def alone() -> list[float]:
    return losses(1)


def test_alone_it_learns(alone: list[float]) -> None:
    assert len(alone) == 50
    assert np.mean(alone[-5:]) < alone[0] / 4


@needs_ranks
@pytest.mark.parametrize(
    ("ranks", "model", "device"),
    [(2, 2, "CPU"), (2, 2, "INTERPRETER"), (3, 3, "CPU"), (4, 2, "CPU")],
)
def test_any_grid_takes_the_steps_of_one_rank(
    ranks: int, model: int, device: str, alone: list[float]
) -> None:
    found = losses(ranks, "--model", str(model), "--device", device)
    np.testing.assert_allclose(found, alone, rtol=0, atol=1e-9)


@needs_ranks
def test_what_cannot_be_divided_is_refused() -> None:
    done = start(2, "--hidden", "61")
    assert done.returncode == 2
    assert "--hidden: 61 is no positive multiple of 2" in done.stderr
