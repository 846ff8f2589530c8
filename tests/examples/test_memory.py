# SPDX-License-Identifier: Apache-2.0
"""Tests of memory.py: all forms take the same steps, and the bytes equal the expected bytes."""

from __future__ import annotations

import pytest

from tests.examples.runs import needs_ranks, report_of, start

pytestmark = pytest.mark.long

LAYERS, WIDTH = 3, 32
NUMBERS = LAYERS * (2 * WIDTH + 4 * WIDTH * WIDTH + 4 * WIDTH + 4 * WIDTH * WIDTH + WIDTH)
"""The number of weights: a normalization and two linear layers per block."""


@needs_ranks
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_forms_take_the_same_steps_with_different_memory(ranks: int) -> None:
    report = report_of(start("memory.py", ranks, "--smoke"))
    plain, remat, limit, shard = (
        report[form] for form in ("plain", "remat", "memory_limit", "shard")
    )
    assert plain["loss"] < plain["first_loss"]
    for form in (remat, limit, shard):
        assert form["first_loss"] == pytest.approx(plain["first_loss"], rel=1e-6)
        assert form["loss"] == pytest.approx(plain["loss"], rel=1e-6)
        assert 3 * 4 * NUMBERS <= form["variables"] < 3 * 4 * NUMBERS + 200  # and two moments
        assert form["host_bytes"] < plain["host_bytes"]
    arena = plain["private"] + plain["shared"]
    assert remat["private"] + remat["shared"] < 0.7 * arena
    assert limit["private"] + limit["shared"] <= 0.75 * arena
    assert plain["sharded"] == 0
    large = LAYERS * 8 * WIDTH * WIDTH  # the matrices: only variables above 2 KiB are sharded
    assert shard["sharded"] == 3 * 4 * large
    saved = plain["host_bytes"] - shard["host_bytes"]
    others = ranks * (arena - shard["private"] - shard["shared"])
    assert saved == (ranks - 1) * shard["sharded"] + others
