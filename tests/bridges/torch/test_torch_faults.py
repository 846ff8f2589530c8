# SPDX-License-Identifier: Apache-2.0
"""Tests of failures between ranks of torch.distributed, and of the errors of each rank."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from tests.support import harness
from tests.support.harness import say

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import ngd  # noqa: E402
from ngd.torch.distributed import rendezvous  # noqa: E402
from tests.bridges.torch import torch_ranks  # noqa: E402

pytestmark = harness.needs_ranks


def last_error(outcome: harness.Outcome) -> str:
    """Return the error that ended a rank, without the rank that PyTorch puts before each line."""
    lines = [line for line in outcome.err.splitlines() if "ngd.errors." in line]
    assert lines, outcome
    return lines[-1].partition("ngd.errors.")[2]


def train_until_failure(raises: bool = False) -> None:
    rank, _ = torch_ranks.join()
    model = DistributedDataParallel(torch.nn.Linear(300, 300))
    x = torch.ones(2, 300)
    for number in range(1_000_000):
        model(x).sum().backward()
        if number == 3:
            say("training")
        if raises and rank == 1 and number == 10:
            raise KeyError("no such batch")


def test_a_killed_rank_is_named() -> None:
    with torch_ranks.job(train_until_failure, 3) as job:
        job.wait_for(1, "training")
        job.kill(1)
        for outcome in job.wait(30, [0, 2]):
            words = last_error(outcome)
            assert words.startswith("RankLostError: all_reduce(sum)"), outcome
            assert ": rank 1 (process " in words, outcome
        job.wait(10)


def test_the_error_of_a_rank_is_quoted() -> None:
    with torch_ranks.job(train_until_failure, 2, arguments={"raises": True}) as job:
        other, raised = job.wait(60)
        assert "no such batch" in raised.err
        assert "RemoteRankError: rank 1 failed" in other.err
        assert "KeyError: 'no such batch'" in other.err


def call_differently() -> list[dict[str, str]]:
    rank, _ = torch_ranks.join()
    pair = dist.new_group([0, 2])
    errors = []
    if rank != 1:
        tensor = torch.ones(3 + rank)
        errors.append(harness.caught(lambda: dist.all_reduce(tensor, group=pair)))
    tensors = [torch.ones(2, 2 + rank % 2), torch.ones(2)]
    calls = [lambda: dist.all_reduce(tensors[0]), lambda: dist.broadcast(tensors[1], 0)]
    errors += [harness.caught(call) for call in calls]
    # After the failure, a new world works.
    dist.destroy_process_group()
    torch_ranks.join(store="another")
    dist.all_reduce(tensor := torch.ones(1))
    assert tensor.item() == 3
    return errors


def test_a_mismatch_shows_both_calls() -> None:
    outcomes = torch_ranks.run(call_differently, 3)
    for rank in (0, 2):
        errors = outcomes[rank][0]
        assert errors["error"] == "CollectiveMismatchError"
        assert "of 3 float32" in errors["message"]
        assert "of 5 float32" in errors["message"]
        assert "the global ranks [0, 2]" in errors["message"]
        assert errors["ranks"] == [0, 2]
        assert errors["message"].count("test_torch_faults.py:") == 2
    for errors in outcomes:
        mismatch, closed = errors[-2:]
        assert mismatch["error"] == "CollectiveMismatchError"
        assert "of 4 float32" in mismatch["message"]
        assert "of 6 float32" in mismatch["message"]
        assert closed["error"] == "GroupClosedError"


def arrive_late(seconds: float) -> Any:
    rank, _ = torch_ranks.join(timeout=timedelta(seconds=seconds))
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        time.sleep(3 * seconds)
        return None
    begin = time.monotonic()
    error = harness.caught(lambda: dist.all_reduce(torch.ones(7)))
    return [error, time.monotonic() - begin]


def test_the_timeout_is_that_of_the_process_group() -> None:
    (error, seconds), _ = torch_ranks.run(arrive_late, 2, arguments={"seconds": 1.5})
    assert error["error"] == "CollectiveTimeoutError"
    assert "rank 1" in error["message"]
    assert ": rank 1 did not arrive within 1.5 s.\n  rank 1 (process " in error["message"]
    assert error["message"].endswith("\nTimed out waiting 1500ms")
    assert 1.4 < seconds < 10


def leave_early() -> None:
    rank, _ = torch_ranks.join()
    if rank == 0:
        raise SystemExit(0)
    dist.barrier()


def test_a_rank_that_leaves_is_named() -> None:
    with torch_ranks.job(leave_early, 2) as job:
        _, stayed = job.wait(60)
        words = last_error(stayed)
        assert words.startswith("RankLostError: barrier at ")
        assert words.endswith(": rank 0 has left the job.")


def test_ranks_of_several_hosts_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    store.set("ngd/member/1", "0 elsewhere")
    monkeypatch.setenv("NGD_HOST", "here")
    with pytest.raises(ngd.errors.InitError, match=r"rank 0 on here, rank 1 on elsewhere, .*gloo"):
        rendezvous.create_group(store, 0, 2, [0, 1], "torch's group 1")
