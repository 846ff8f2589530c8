# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: against NumPy's own permutations, for any number of ranks, and resumed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ngd import data


def batches(size: int, epochs: int = 2, **options: Any) -> list[list[int]]:
    """What all ranks together take in each step."""
    samplers = [data.Sampler(23, 4, rank=rank, size=size, **options) for rank in range(size)]
    found = []
    for parts in (step for _ in range(epochs) for step in zip(*samplers, strict=True)):
        assert {part.total for part in parts} == {sum(part.weight for part in parts)}
        assert all(len(part.indices) == max(part.weight, 1) for part in parts)
        found.append([int(i) for part in parts for i in part.indices[: part.weight]])
    return found


def test_an_epoch_is_a_permutation_in_batches() -> None:
    orders = [np.random.default_rng((7, epoch)).permutation(23) for epoch in range(2)]
    expected = [order[i : i + 4].tolist() for order in orders for i in range(0, 23, 4)]
    assert batches(1, seed=7) == expected


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"replace": True}], ids=str)
def test_any_number_of_ranks_takes_the_same_batches(size: int, options: dict[str, Any]) -> None:
    assert batches(size, **options) == batches(1, **options)


def test_parts_are_near_equal_and_a_rank_without_samples_has_one_that_weighs_nothing() -> None:
    parts = [data.Sampler(5, 5, rank=r, size=3, shuffle=False).part(0) for r in range(3)]
    assert [part.indices.tolist() for part in parts] == [[0, 1], [2, 3], [4]]
    idle = data.Sampler(2, 5, rank=2, size=3, shuffle=False).part(0)
    assert (idle.indices.tolist(), idle.weight, idle.total) == ([0], 0, 2)


def test_in_order_without_shuffle() -> None:
    assert batches(1, 1, shuffle=False)[-1] == [20, 21, 22]
    assert [i for b in batches(1, 2, shuffle=False) for i in b] == [*range(23)] * 2


def test_drop_last_leaves_out_what_fills_no_batch() -> None:
    sampler = data.Sampler(23, 4, drop_last=True)
    assert len(sampler) == sampler.steps == 5
    assert [len(part.indices) for part in sampler] == [4] * 5
    assert [part.epoch for part in sampler] == [1] * 5


def test_with_replacement_each_batch_is_drawn_by_its_number() -> None:
    sampler = data.Sampler(10**12, 3, seed=5, replace=True)
    sampler.done = 9
    expected = np.random.default_rng((5, 9)).integers(0, 10**12, 3)
    assert next(iter(sampler)).indices.tolist() == expected.tolist()


@pytest.mark.parametrize("size", [1, 3])
def test_it_goes_on_in_the_middle_of_an_epoch(size: int) -> None:
    whole = batches(1, 3)
    first = data.Sampler(23, 4)
    for number, _ in enumerate(first):
        if number == 2:
            break
    saved = json.loads(json.dumps(first.state()))
    kind = {"shuffle": True, "replace": False, "drop_last": False}
    assert saved == {"epoch": 0, "step": 3, "count": 23, "batch": 4, "seed": 0, **kind}
    again = [data.Sampler(23, 4, rank=rank, size=size) for rank in range(size)]
    for sampler in again:
        sampler.load_state(saved)
    rest = []
    for _ in range(3):
        for parts in zip(*again, strict=True):
            rest.append([int(i) for part in parts for i in part.indices[: part.weight]])
    assert rest == whole[3:]


def test_the_last_batch_of_an_epoch_is_followed_by_the_next_epoch() -> None:
    sampler = data.Sampler(23, 4)
    assert [sampler.state()["step"] for _ in sampler] == [1, 2, 3, 4, 5, 0]
    assert sampler.epoch == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"count": 0}, "expected a number of samples >= 1; got 0"),
        ({"batch": 0}, "expected a number of samples a batch >= 1; got 0"),
        ({"size": 0}, "expected a number of ranks >= 1; got 0"),
        ({"rank": 2, "size": 2}, "expected a rank of 2; got 2"),
        ({"seed": -1}, "expected a seed >= 0; got -1"),
        ({"count": 3, "drop_last": True}, "3 samples fill no batch of 4"),
        ({"shuffle": False, "replace": True}, "expected shuffle, too"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        data.Sampler(**{"count": 23, "batch": 4, **arguments})


def test_a_state_of_other_batches_is_refused() -> None:
    sampler = data.Sampler(23, 4)
    for bad in ({"epoch": 1}, None, 3):
        with pytest.raises(ValueError, match="load_state: expected"):
            sampler.load_state(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="saved with batch 8; this one has 4"):
        sampler.load_state(data.Sampler(23, 8).state())
    assert sampler.done == 0


@pytest.mark.parametrize("other", [{"shuffle": False}, {"replace": True}, {"drop_last": True}])
def test_the_state_of_other_batches_is_refused(other: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match=f"saved with {next(iter(other))} "):
        data.Sampler(24, 8).load_state(data.Sampler(24, 8, **other).state())
