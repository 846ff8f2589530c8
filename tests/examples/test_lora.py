# SPDX-License-Identifier: Apache-2.0
"""Tests of lora.py: frozen weights stay unchanged, adapters learn, and merging equals NumPy."""

from __future__ import annotations

from pathlib import Path

import lora
import numpy as np
import pytest

import ngd
from ngd import nn
from tests.examples.runs import needs_ranks, report_of, start

pytestmark = pytest.mark.long


def test_only_the_adapters_change_and_they_merge_into_the_weights() -> None:
    base = nn.Sequential(nn.Linear(lora.WIDTH, lora.WIDTH), nn.Tanh(), nn.Linear(lora.WIDTH, 8))
    base.initialize(1)
    before = base.state_dict()
    model = lora.add_adapters(base, rank=2, alpha=6.0)
    adapters = {name: v for name, v in model.parameters().items() if "lora_" in name}
    assert {name: v.shape for name, v in adapters.items()} == {
        "0.lora_a": (2, 32),
        "0.lora_b": (32, 2),
        "2.lora_a": (2, 32),
        "2.lora_b": (8, 2),
    }
    losses = lora.train(model, adapters, lora.make_task(seed=2, change=8.0), steps=64, lr=0.02)
    assert np.mean(losses[-8:]) < losses[0] / 2
    frozen = {name: value.tobytes() for name, value in base.state_dict().items()}
    assert frozen == {name: value.tobytes() for name, value in before.items()}
    values = {name: v.numpy().astype(np.float64) for name, v in adapters.items()}
    for part in ("0", "2"):
        model[int(part)].merge()
        change = 3.0 * values[f"{part}.lora_b"] @ values[f"{part}.lora_a"]
        assert np.abs(change).max() > 0.01
        expected = before[f"{part}.weight"] + change
        np.testing.assert_allclose(base[int(part)].weight.numpy(), expected, atol=1e-6)


@needs_ranks
def test_two_ranks_learn_and_save_the_adapters(tmp_path: Path) -> None:
    one, two = (
        report_of(start("lora.py", ranks, "--smoke", "--save", tmp_path / str(ranks)))
        for ranks in (1, 2)
    )
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=1e-3)
    assert two["loss"] < two["loss_before"] / 2
    assert two["trained_numbers"] == 4 * (32 + 32) + 4 * (32 + 8)
    assert two["frozen_numbers"] == 33 * (32 + 8)
    assert two["merged_difference"] < 1e-5
    saved = ngd.checkpoint.read_safetensors(tmp_path / "2" / "checkpoint-1.safetensors")
    assert sorted(saved) == ["0.lora_a", "0.lora_b", "2.lora_a", "2.lora_b"]
