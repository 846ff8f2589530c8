# SPDX-License-Identifier: Apache-2.0
"""Tests of samplers: compared with NumPy's permutations, for any number of ranks, and resumed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import data
from ngd.comm import world
from ngd.errors import InitError


def batches(size: int, epochs: int = 2, **options: Any) -> list[list[int]]:
    """Return the samples of all ranks together in each step."""
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
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"replacement": True}], ids=str)
def test_any_number_of_ranks_takes_the_same_batches(size: int, options: dict[str, Any]) -> None:
    assert batches(size, **options) == batches(1, **options)


def test_shards_are_nearly_equal_and_an_idle_rank_has_weight_zero() -> None:
    parts = [data.Sampler(5, 5, rank=r, size=3, shuffle=False).shard(0) for r in range(3)]
    assert [part.indices.tolist() for part in parts] == [[0, 1], [2, 3], [4]]
    idle = data.Sampler(2, 5, rank=2, size=3, shuffle=False).shard(0)
    assert (idle.indices.tolist(), idle.weight, idle.total) == ([0], 0, 2)


def test_samples_are_in_order_without_shuffle() -> None:
    assert batches(1, 1, shuffle=False)[-1] == [20, 21, 22]
    assert [i for b in batches(1, 2, shuffle=False) for i in b] == [*range(23)] * 2


def test_drop_last_leaves_out_the_incomplete_batch() -> None:
    sampler = data.Sampler(23, 4, drop_last=True)
    assert len(sampler) == sampler.steps == 5
    assert [len(part.indices) for part in sampler] == [4] * 5
    assert [part.epoch for part in sampler] == [1] * 5


def test_with_replacement_a_batch_is_drawn_from_the_seed_and_the_step() -> None:
    sampler = data.Sampler(10**12, 3, seed=5, replacement=True)
    sampler.done = 9
    expected = np.random.default_rng((5, 9)).integers(0, 10**12, 3)
    assert next(iter(sampler)).indices.tolist() == expected.tolist()


@pytest.mark.parametrize("size", [1, 3])
def test_a_sampler_resumes_in_the_middle_of_an_epoch(size: int) -> None:
    expected = batches(1, 3)
    first = data.Sampler(23, 4)
    for number, _ in enumerate(first):
        if number == 2:
            break
    saved = json.loads(json.dumps(first.state()))
    kind = {"shuffle": True, "replacement": False, "drop_last": False}
    assert saved == {"epoch": 0, "step": 3, "num_samples": 23, "batch_size": 4, "seed": 0, **kind}
    resumed = [data.Sampler(23, 4, rank=rank, size=size) for rank in range(size)]
    for sampler in resumed:
        sampler.load_state(saved)
    rest = []
    for _ in range(3):
        for parts in zip(*resumed, strict=True):
            rest.append([int(i) for part in parts for i in part.indices[: part.weight]])
    assert rest == expected[3:]


def test_the_last_batch_of_an_epoch_is_followed_by_the_next_epoch() -> None:
    sampler = data.Sampler(23, 4)
    assert [sampler.state()["step"] for _ in sampler] == [1, 2, 3, 4, 5, 0]
    assert sampler.epoch == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_samples": 0}, "num_samples: expected an integer >= 1; got 0"),
        ({"batch_size": 0}, "batch_size: expected an integer >= 1; got 0"),
        ({"rank": 0, "size": 0}, "size: expected an integer >= 1; got 0"),
        ({"rank": -1, "size": 1}, "rank: expected an integer >= 0; got -1"),
        ({"rank": 2, "size": 2}, "rank: expected an integer below size, 2; got 2"),
        ({"rank": 2}, "expected rank and size together; got rank only. Give size too"),
        ({"size": 2}, "expected rank and size together; got size only. Give rank too"),
        ({"seed": -1}, "seed: expected an integer >= 0; got -1"),
        ({"num_samples": 3, "drop_last": True}, "got 3 samples for a batch_size of 4"),
        ({"shuffle": False, "replacement": True}, "expected shuffle=True with replacement=True"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        data.Sampler(**{"num_samples": 23, "batch_size": 4, **arguments})


def group_of_one() -> Any:
    return world.alone()


def test_the_launchers_rank_is_used_until_init_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(world, "current", None)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    sampler = data.Sampler(8, 4, shuffle=False)
    assert (sampler.rank, sampler.size) == (0, 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29400")
    assert data.Sampler(8, 4, shuffle=False).shard(0).indices.tolist() == [2, 3]
    assert (sampler.rank, sampler.size) == (1, 2)
    assert data.Sampler(8, 4, rank=0, size=1).rank_and_size() == (0, 1)
    monkeypatch.setattr(world, "current", group_of_one())
    assert (sampler.rank, sampler.size) == (0, 1)


def test_a_contradictory_environment_raises_in_the_constructor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(world, "current", None)
    monkeypatch.setenv("NGD_EXPECT_SIZE", "3")
    with pytest.raises(InitError, match="NGD_EXPECT_SIZE: expected 3 ranks"):
        data.Sampler(8, 4)
    data.Sampler(8, 4, rank=0, size=1)


def test_a_mesh_without_the_axis_is_rejected() -> None:
    mesh = ngd.make_mesh((1, 1), ("replica", "model"), group=group_of_one())
    assert data.Sampler(8, 4, mesh=mesh, axis="replica").rank_and_size() == (0, 1)
    with pytest.raises(ValueError, match=r"axis of the mesh, replica, model; got 'data'\. Give"):
        data.Sampler(8, 4, mesh=mesh)
    with pytest.raises(ValueError, match="expected mesh, or rank and size; got both"):
        data.Sampler(8, 4, mesh=mesh, axis="model", rank=0, size=1)
    with pytest.raises(TypeError, match=r"mesh: expected an ngd\.Mesh; got Group\. ngd\.make_mesh"):
        data.Sampler(8, 4, mesh=mesh["model"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("batch", "`batch` is called `batch_size`"),
        ("replace", "`replace` is called `replacement`"),
        ("num_replicas", "`num_replicas` is called `size`"),
        ("world_size", "`world_size` is called `size`"),
        ("shuffel", "`shuffel` is called `shuffle`"),
    ],
)
def test_an_unknown_argument_names_the_known_one(option: str, words: str) -> None:
    with pytest.raises(TypeError, match=rf"data\.Sampler: expected .*'{option}'.* {words}\.$"):
        data.Sampler(8, 4, **{option: 1})


def test_numbers_of_samples_must_be_integers() -> None:
    with pytest.raises(
        TypeError, match=r"num_samples: expected an integer; got Arrays\. Write len"
    ):
        data.Sampler(data.Arrays([1, 2]), 2)  # type: ignore[arg-type]
    for bad in (2.0, True, "2"):
        with pytest.raises(TypeError, match="batch_size: expected an integer; got"):
            data.Sampler(8, bad)  # type: ignore[arg-type]
    assert data.Sampler(np.int64(8), np.int32(4)).state()["num_samples"] == 8
    json.dumps(data.Sampler(np.int64(8), np.int32(4)).state())


def test_an_incomplete_state_is_rejected() -> None:
    sampler = data.Sampler(23, 4)
    for bad in (None, 3):
        with pytest.raises(ValueError, match=f"load_state: expected a result .*; got {bad}"):
            sampler.load_state(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a mapping without step, num_samples, batch_size, seed"):
        sampler.load_state({"epoch": 1})
    with pytest.raises(ValueError, match="with batch_size 4; got one with batch_size 8"):
        sampler.load_state(data.Sampler(23, 8).state())
    assert sampler.done == 0


@pytest.mark.parametrize("other", [{"shuffle": False}, {"replacement": True}, {"drop_last": True}])
def test_a_state_with_other_settings_is_rejected(other: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match=f"got one with {next(iter(other))} "):
        data.Sampler(24, 8).load_state(data.Sampler(24, 8, **other).state())
