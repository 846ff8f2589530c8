# SPDX-License-Identifier: Apache-2.0
"""Compare ngd.horovod.torch with Horovod 0.28.1 over gloo, in random calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import harness

pytest.importorskip("horovod.torch", reason="needs Horovod, which .ci/clusters builds")

CALLS = 250


def results(launcher: list[str], module: str, ranks: int, folder: Path) -> list[Any]:
    program = str(Path(__file__).with_name("horovod_calls.py"))
    done = subprocess.run(
        [*launcher, sys.executable, program, module, str(ranks), str(CALLS), str(folder)],
        env={**os.environ, "HOROVOD_DYNAMIC_PROCESS_SETS": "1", "NGD_TIMEOUT": "60"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{module}.{rank}.json").read_text()) for rank in range(ranks)]


def check_equal(a: Any, b: Any, where: str) -> None:
    """Check equality, except the last bit of a mean of three, which Horovod multiplies by 1/3."""
    if isinstance(a, list):
        assert len(a) == len(b), where
        for one, other in zip(a, b, strict=True):
            check_equal(one, other, where)
    elif isinstance(a, float):
        np.testing.assert_allclose(b, a, rtol=2e-7, err_msg=where)
    else:
        assert a == b, where


@harness.needs_ranks
@pytest.mark.parametrize("ranks", [2, 3])
def test_random_calls_have_the_results_of_horovod(ranks: int, tmp_path: Path) -> None:
    horovodrun = ["horovodrun", "-np", str(ranks), "--gloo"]
    ngd_run = [sys.executable, "-m", "ngd.launch", "-n", str(ranks)]
    theirs = results(horovodrun, "horovod.torch", ranks, tmp_path)
    ours = results(ngd_run, "ngd.horovod.torch", ranks, tmp_path)
    for rank in range(ranks):
        assert len(theirs[rank]) == CALLS
        for i, (a, b) in enumerate(zip(theirs[rank], ours[rank], strict=True)):
            check_equal(a, b, f"rank {rank}, call {i}")
