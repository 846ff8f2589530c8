# SPDX-License-Identifier: Apache-2.0
"""What goes wrong between ranks of torch.distributed: who is named, and where."""

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


def last_words(outcome: harness.Outcome) -> str:
    """The error that a rank died of; torch puts the rank before every line."""
    lines = [line for line in outcome.err.splitlines() if "ngd.errors." in line]
    assert lines, outcome
    return lines[-1].partition("ngd.errors.")[2]


def train_on(raises: bool = False) -> None:
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
    with torch_ranks.job(train_on, 3) as job:
        job.wait_for(1, "training")
        job.kill(1)
        for outcome in job.wait(30, [0, 2]):
            words = last_words(outcome)
            assert words.startswith("RankLostError: all_reduce(sum)"), outcome
            assert ": rank 1 (process " in words, outcome
        job.wait(10)


def test_a_rank_that_raises_is_quoted() -> None:
    with torch_ranks.job(train_on, 2, arguments={"raises": True}) as job:
        other, raised = job.wait(60)
        assert "no such batch" in raised.err
        assert "RemoteRankError: rank 1 failed" in other.err
        assert "KeyError: 'no such batch'" in other.err


def disagree() -> list[dict[str, str]]:
    rank, _ = torch_ranks.join()
    pair = dist.new_group([0, 2])
    found = []
    if rank != 1:
        tensor = torch.ones(3 + rank)
        found.append(harness.caught(lambda: dist.all_reduce(tensor, group=pair)))
    tensors = [torch.ones(2, 2 + rank % 2), torch.ones(2)]
    calls = [lambda: dist.all_reduce(tensors[0]), lambda: dist.broadcast(tensors[1], 0)]
    found += [harness.caught(call) for call in calls]
    # What comes after a failure: a new world.
    dist.destroy_process_group()
    torch_ranks.join(store="another")
    dist.all_reduce(tensor := torch.ones(1))
    assert tensor.item() == 3
    return found


def test_a_mismatch_shows_both_sides() -> None:
    outcomes = torch_ranks.run(disagree, 3)
    for rank in (0, 2):
        found = outcomes[rank][0]
        assert found["error"] == "CollectiveMismatchError"
        assert "of 3 float32" in found["message"]
        assert "of 5 float32" in found["message"]
        assert "the global ranks [0, 2]" in found["message"]
        assert found["ranks"] == [0, 2]
        assert found["message"].count("test_torch_faults.py:") == 2
    for found in outcomes:
        mismatch, closed = found[-2:]
        assert mismatch["error"] == "CollectiveMismatchError"
        assert "of 4 float32" in mismatch["message"]
        assert "of 6 float32" in mismatch["message"]
        assert closed["error"] == "GroupClosedError"


def stay_away(seconds: float) -> Any:
    rank, _ = torch_ranks.join(timeout=timedelta(seconds=seconds))
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        time.sleep(3 * seconds)
        return None
    begin = time.monotonic()
    found = harness.caught(lambda: dist.all_reduce(torch.ones(7)))
    return [found, time.monotonic() - begin]


def test_the_timeout_is_the_process_groups() -> None:
    (found, seconds), _ = torch_ranks.run(stay_away, 2, arguments={"seconds": 1.5})
    assert found["error"] == "CollectiveTimeoutError"
    assert "rank 1" in found["message"]
    assert ": rank 1 did not arrive within 1.5 s.\n  rank 1 (process " in found["message"]
    assert found["message"].endswith("\nTimed out waiting 1500ms")
    assert 1.4 < seconds < 10


def leave_early() -> None:
    rank, _ = torch_ranks.join()
    if rank == 0:
        raise SystemExit(0)
    dist.barrier()


def test_a_rank_that_leaves_is_named() -> None:
    with torch_ranks.job(leave_early, 2) as job:
        _, stayed = job.wait(60)
        words = last_words(stayed)
        assert words.startswith("RankLostError: barrier at ")
        assert words.endswith(": rank 0 has left the job.")


def test_ranks_of_several_hosts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    store.set("ngd/member/1", "0 elsewhere")
    monkeypatch.setenv("NGD_HOST", "here")
    with pytest.raises(ngd.errors.InitError, match=r"rank 0 on here, rank 1 on elsewhere, .*gloo"):
        rendezvous.create_group(store, 0, 2, [0, 1], "torch's group 1")
