# SPDX-License-Identifier: Apache-2.0
"""Attacks of another user on the same host, which must fail (docs/security.md)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import ngd
from tests.support import harness
from tests.support.attackers import (
    KNOCKERS,
    NAMES,
    NOBODY,
    SQUATTERS,
    attackers,
    leave_with_3,
    meet_twice,
    names_of,
    needs_root,
)
from tests.support.harness import Job, say

pytestmark = harness.needs_ranks


def check_sums(job: Job, ranks: int = 2) -> None:
    total = sum(10**rank for rank in range(ranks))
    for outcome in job.wait(90):  # the attackers use all cores
        assert outcome.value == {"sums": [total] * 2}, outcome


# Public names.


def run_and_return_key() -> str:
    """Run a job for a while, and return its key."""
    ngd.init()
    ngd.barrier()
    say("up")
    time.sleep(0.5)
    ngd.barrier()
    return os.environ["NGD_JOB"]


def test_names_reveal_nothing_of_the_key() -> None:
    names: set[str] = set()
    with Job(run_and_return_key, 2, launcher="ngd run") as job:
        while not job.any_has_ended() and not (names and "up" in job.read(0, "out")):
            names |= {line for line in sockets() if "ngd" in line}
            time.sleep(0.001)
        assert job.launcher is not None
        arguments = Path(f"/proc/{job.launcher.pid}/cmdline").read_text()
        (key, _) = [outcome.value for outcome in job.wait(20)]
    assert len(key) == 32
    assert names, "the rendezvous was never seen"
    assert not [name for name in names if key in name]
    assert key not in arguments


def sockets() -> list[str]:
    return Path("/proc/net/unix").read_text().splitlines()


# Squatters.


@pytest.mark.long
@needs_root
@pytest.mark.parametrize("kind", SQUATTERS)
def test_ranks_avoid_a_squatter(kind: str) -> None:
    """A squatter holds the first names that rank 0 would take. No rank sends it anything."""
    key = f"test-{os.getpid()}-{kind}"
    with attackers([kind], names_of(f"ngd:{key}")[:3]) as (squatter,):
        with Job(meet_twice, 3, env={"NGD_JOB": key}) as job:
            check_sums(job, 3)
        assert squatter.end() == "got 0 0\n"


@needs_root
def test_ranks_of_torchrun_avoid_a_squatter() -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 10000)}
    names = names_of(f"torch:{':'.join(env.values())}::")
    with attackers(["silent"], names[:1]), Job(meet_twice, 2, env=env) as job:
        check_sums(job)


@needs_root
@pytest.mark.parametrize("kind", ["silent", "bound"])
def test_a_user_that_takes_all_names_is_named(kind: str) -> None:
    key = f"test-{os.getpid()}-all-{kind}"
    env = {"NGD_JOB": key, "NGD_TIMEOUT": "20"}
    with attackers([kind], names_of(f"ngd:{key}")), Job(meet_twice, 2, env=env) as job:
        since = time.monotonic()
        outcomes = job.wait(30)
    assert time.monotonic() - since < 15
    for outcome in outcomes:
        assert outcome.value["error"] == "InitError", outcome
        assert f"uid {NOBODY} holds {NAMES} of the {NAMES} names" in outcome.value["message"]


@pytest.mark.long
@needs_root
def test_a_squatter_is_named_if_rank_0_never_starts() -> None:
    key = f"test-{os.getpid()}-alone"
    env = {"NGD_JOB": key, "NGD_TIMEOUT": "3"}
    with (
        attackers(["silent"], names_of(f"ngd:{key}")[:2]),
        Job(meet_twice, 2, env=env, start=[1]) as job,
    ):
        (outcome,) = job.wait(30)
    assert outcome.value["error"] == "CollectiveTimeoutError", outcome
    assert f"uid {NOBODY} holds 2 of the {NAMES} names" in outcome.value["message"]


# Knockers.


@pytest.mark.long
@needs_root
@pytest.mark.parametrize("launcher", ["plain", "ngd run"])
def test_a_flood_of_strangers_does_not_keep_ranks_out(launcher: str) -> None:
    """Attackers connect continuously, and send a rank's messages, with descriptors."""
    with attackers(KNOCKERS), Job(meet_twice, 3, launcher=launcher) as job:
        check_sums(job, 3)


@needs_root
def test_other_users_cannot_report_exits_to_ngd_run() -> None:
    with attackers(["forge"]), Job(leave_with_3, 2, launcher="ngd run") as job:
        job.wait(30)
        assert job.launcher is not None
        assert job.launcher.returncode == 3, job.said
        assert "rank 1 returned 3" in job.said or "rank 1, which had ended before" in job.said
