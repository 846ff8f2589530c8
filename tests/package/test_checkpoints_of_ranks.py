# SPDX-License-Identifier: Apache-2.0
"""Tests of checkpoints of variables with a different value on each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import checkpoint
from tests.support.harness import needs_ranks
from tests.support.standing import run_in_world

DTYPES = ("float32", "bfloat16", "int64", "bool")


def values(rank: int) -> dict[str, Any]:
    """Return the values of a rank."""
    result_values = np.random.default_rng(rank).normal(size=(2, 3)) * 4
    return {dtype: result_values.astype(np.dtype(dtype)) for dtype in DTYPES}


def save_values(folder: str) -> None:
    rank = ngd.init().rank
    own = {name: ngd.variable(name, value) for name, value in values(rank).items()}
    shared = ngd.variable("shared", np.arange(3.0))
    for position in (1, 2):
        checkpoint.save(folder, [shared, own["int64"]], private=own, position=position)
        ngd.barrier()


def load_values(folder: str) -> tuple[Any, dict[str, list[Any]]]:
    own = {name: ngd.variable(name, np.zeros_like(value)) for name, value in values(0).items()}
    shared = ngd.variable("shared", np.zeros(3))
    position = checkpoint.load(folder, shared, private=own)
    assert shared.numpy().tolist() == [0, 1, 2]
    return position, {name: v.numpy().astype(np.float64).tolist() for name, v in own.items()}


def as_lists(values: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: value.astype(np.float64).tolist() for name, value in values.items()}


@needs_ranks
@pytest.mark.parametrize("ranks", [2, 3])
def test_each_rank_loads_its_own_values(tmp_path: Path, ranks: int) -> None:
    run_in_world(save_values, "shm", ranks, folder=str(tmp_path))
    result_values = [r.value for r in run_in_world(load_values, "shm", ranks, folder=str(tmp_path))]
    assert result_values == [[2, as_lists(values(rank))] for rank in range(ranks)]


@needs_ranks
def test_another_number_of_ranks_loads_the_mean(tmp_path: Path) -> None:
    run_in_world(save_values, "shm", 2, folder=str(tmp_path))
    first, second = values(0), values(1)
    for ranks in (1, 3):
        for result in run_in_world(load_values, "shm", ranks, folder=str(tmp_path)):
            position, result_values = result.value
            assert position == 2
            for name in ("int64", "bool"):  # the values of rank 0
                assert result_values[name] == first[name].astype(np.float64).tolist()
            for name in ("float32", "bfloat16"):
                mean = (first[name].astype(np.float64) + second[name].astype(np.float64)) / 2
                np.testing.assert_array_equal(result_values[name], mean.astype(first[name].dtype))


def test_one_rank_saves_one_value(tmp_path: Path) -> None:
    v = ngd.variable("v", np.arange(2.0))
    checkpoint.save(tmp_path, [], private=[v])
    assert checkpoint.read_safetensors(tmp_path / "checkpoint-1.safetensors").keys() == {"v"}
    v.assign([5.0, 5.0])
    checkpoint.load(tmp_path, [], private=[v])
    assert v.numpy().tolist() == [0, 1]
