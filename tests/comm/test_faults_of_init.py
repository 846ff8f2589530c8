# SPDX-License-Identifier: Apache-2.0
"""Faults in the rendezvous, and the error of each rank (docs/failure-model.md)."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
import ngd.comm.world
from ngd import ops
from tests.support import harness
from tests.support.attackers import NOBODY, names_of, needs_root
from tests.support.harness import Job, caught, run, say

pytestmark = harness.needs_ranks

MIB = 1 << 20


def cannot_init() -> dict[str, str]:
    return caught(ngd.init)


# Launches that cannot become a group.


def refused(ranks: int, env: dict[str, str]) -> str:
    with Job(cannot_init, ranks, env={"NGD_TIMEOUT": "20", **env}) as job:
        errors = [outcome.value for outcome in job.wait(30)]
    assert [e["error"] for e in errors] == ["InitError"] * ranks, errors
    return str(errors[0]["message"])


def test_size_one_under_a_launcher_that_says_two() -> None:
    assert "2 ranks" in refused(2, {"NGD_COMM": "self"})


@pytest.mark.skipif(harness.MODE != "OMPI", reason="needs mode OMPI")
def test_mpi_that_does_not_see_its_launcher() -> None:
    message = refused(2, {"NGD_COMM": "mpi"})
    assert "2 ranks" in message
    assert "MPI sees 1" in message


def test_two_hosts_need_mpi() -> None:
    """The environment of ranks 0 and 1 of 2, each alone on its host."""
    comm = {"NGD_COMM": "shm"} if harness.MODE == "OMPI" else {}
    with Job(cannot_init, 2, env=comm, start=[]) as job:
        for rank in range(2):
            job.start(rank, harness.plain_environment(rank, 2) | {"LOCAL_WORLD_SIZE": "1"})
        for outcome in job.wait(30):
            assert outcome.value["error"] == "InitError", outcome
            assert "OMPI" in outcome.value["message"]
            assert "hosts" in outcome.value["message"]


@pytest.mark.long
def test_nonsense_in_the_environment_is_named() -> None:
    nonsense = {
        "NGD_TIMEOUT": "soon",
        "NGD_COMM": "pigeon",
        "NGD_ALLREDUCE": "star",
        "NGD_THREADS": "many",
        "NGD_NUMA_NODE": "left",
    }
    for name, value in nonsense.items():
        with Job(cannot_init, 2, env={name: value}) as job:
            for outcome in job.wait(30):
                assert name in outcome.value["message"], outcome
                assert value in outcome.value["message"], outcome


@pytest.mark.parametrize("seconds", ["0", "inf", "1e300"])
def test_deadlines_that_never_come(seconds: str) -> None:
    for outcome in harness.run(join_and_sum, 2, env={"NGD_TIMEOUT": seconds}):
        assert outcome.value == {"sum": 11}, outcome


# Absence.


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "present"), [(2, [0]), (2, [1]), (4, [0, 1, 3])])
def test_rank_that_never_starts_is_named(ranks: int, present: list[int], tmp_path: Path) -> None:
    (missing,) = set(range(ranks)) - set(present)
    go = tmp_path / "go"
    how: dict[str, Any] = {"env": {"NGD_TIMEOUT": "1.5"}, "arguments": {"go": str(go)}}
    with Job(init_together, ranks, start=present, **how) as job:
        for rank in present:
            job.wait_for(rank, "coming")
        start = time.monotonic()
        go.touch()
        outcomes = job.wait(20)
    assert time.monotonic() - start > 1.5
    for outcome in outcomes:
        assert outcome.value["error"] == "CollectiveTimeoutError", outcome
        assert f"rank {missing}" in outcome.value["message"]
        assert not any(f"rank {r} " in outcome.value["message"] for r in present)


def init_together(go: str) -> dict[str, str]:
    """However long the others took to start, no rank is late."""
    say("coming")
    while not Path(go).exists():
        time.sleep(0.002)
    return caught(ngd.init)


@pytest.mark.parametrize("victim", [0, 1])
def test_rank_that_dies_while_others_come_is_named(victim: int) -> None:
    """Rank 2 never comes, so that the other two are surely inside ngd.init()."""
    with Job(announced_init, 3, start=[0, 1]) as job:
        for rank in (0, 1):
            job.wait_for(rank, "coming")
        time.sleep(0.3)
        job.kill(victim)
        since = time.monotonic()
        (outcome,) = job.wait(10, [1 - victim])
        assert time.monotonic() - since < 2
    assert outcome.value["error"] == "RankLostError", outcome
    assert f"rank {victim}" in outcome.value["message"]


def announced_init() -> dict[str, str]:
    say("coming")
    return caught(ngd.init)


def init_that_fails_late() -> dict[str, Any]:
    """Rank 1 has met the other one, and fails then; it goes on, and keeps its error."""

    def without_memory() -> None:
        raise MemoryError("no memory for a hook")

    if os.environ["RANK"] == "1":
        ngd.comm.world.install_hooks = without_memory
    try:
        ngd.barrier()
    except (MemoryError, ngd.errors.Error) as error:
        now = time.monotonic()
        if os.environ["RANK"] == "1":
            time.sleep(6)
        return {"error": type(error).__name__, "message": str(error), "at": now}
    raise AssertionError("no error")


@pytest.mark.long
def test_a_rank_that_fails_after_the_meeting_is_named() -> None:
    with Job(init_that_fails_late, 2, env={"NGD_TIMEOUT": "15"}) as job:
        first, second = (outcome.value for outcome in job.wait(40))
    assert second["error"] == "MemoryError"
    assert first["error"] == "RemoteRankError", first
    assert "rank 1 failed: MemoryError: no memory for a hook" in first["message"]
    assert first["at"] - second["at"] < 4


# Limits.


def init_with_limit(rank: int, limit: int, bytes_left: int) -> dict[str, str]:
    """Rank `rank` may have so much more than it has now."""
    if int(os.environ["RANK"]) == rank:
        used = bytes_left
        if limit == resource.RLIMIT_AS:
            used += resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(limit, (used, used))
    say("coming")
    return caught(ngd.init)


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    ("limit", "left"),
    [("RLIMIT_AS", 100 * MIB), ("RLIMIT_AS", 3000 * MIB), ("RLIMIT_FSIZE", 10 * MIB)],
)
def test_no_memory_for_a_segment(victim: int, limit: str, left: int) -> None:
    others = [rank for rank in range(3) if rank != victim]
    arguments = {"rank": victim, "limit": getattr(resource, limit), "bytes_left": left}
    with Job(init_with_limit, 3, arguments=arguments, start=others) as job:
        for rank in others:
            job.wait_for(rank, "coming")
        time.sleep(0.3)
        job.start(victim, harness.plain_environment(victim, 3))
        outcomes = {outcome.rank: outcome for outcome in job.wait(20)}
    assert outcomes[victim].value["error"] == "MemoryError", outcomes[victim]
    assert limit in outcomes[victim].value["message"]
    for rank in others:
        assert outcomes[rank].value["error"] == "InitError", outcomes[rank]
        assert f"rank {victim} failed" in outcomes[rank].value["message"], outcomes[rank]
        assert limit in outcomes[rank].value["message"], outcomes[rank]


def init_with_small_segments() -> dict[str, Any]:
    """Segments of 256 MiB; a step that wants more of the shared lane than that; a smaller one."""
    used = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    limit = used + 900 * MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    world = ngd.init()
    small = ngd.all_reduce(np.full(MIB, world.rank + 1.0), op="sum")
    assert small[0] == small[-1] == 3
    x = ngd.placeholder("x", (1,), np.float32)
    large = ops.all_reduce(ops.broadcast_to(x, (100 * MIB,)), op="sum")
    error = caught(lambda: ngd.compile([x], [large[:1]]))
    assert int(ngd.all_reduce(1, op="sum")) == 2
    return error


def test_no_memory_for_a_step() -> None:
    for outcome in harness.run(init_with_small_segments, 2):
        assert outcome.value["error"] == "MemoryError"
        assert "shared" in outcome.value["message"]


def test_more_ranks_than_a_segment_has_room_for() -> None:
    with Job(cannot_init, 257, start=[0, 5]) as job:
        outcomes = job.wait(20)
    for outcome in outcomes:
        assert outcome.value["error"] == "InitError", outcome
        assert "at most 256 ranks on one host; got 257" in outcome.value["message"]


def init_with_descriptors(count: int) -> dict[str, str]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
    return caught(ngd.init)


def test_more_ranks_than_file_descriptors() -> None:
    with Job(init_with_descriptors, 32, arguments={"count": 64}, start=[0, 5]) as job:
        outcomes = job.wait(20)
    for outcome in outcomes:
        assert outcome.value["error"] == "InitError", outcome
        assert "RLIMIT_NOFILE" in outcome.value["message"]
        assert "32 ranks" in outcome.value["message"]


def run_out_of_descriptors(victim: int, room: int) -> dict[str, Any]:
    """The world; while the victim waits for the other rank, so many descriptors are left to it."""
    if int(os.environ["RANK"]) == victim:
        resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
        threading.Timer(0.5, leave_descriptors, (room,)).start()
    try:
        return join_and_sum()
    finally:
        for each in taken:
            os.close(each)


taken: list[int] = []


def leave_descriptors(room: int) -> None:
    """Leave so many descriptors, and never fewer: a waiting rank opens one now and then."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    while not taken or taken[-1] < limit - 1 - room:  # the lowest that is free
        taken.append(os.open(os.devnull, os.O_RDONLY))
    say("full")


# A rank without a descriptor for a connection cannot tell the others: so one is left.
@pytest.mark.long
@pytest.mark.parametrize("room", range(1, 8))
@pytest.mark.parametrize("victim", [0, 1])
def test_descriptors_run_out_while_ranks_meet(victim: int, room: int) -> None:
    """All hear of it at once, or there is a world."""
    arguments = {"victim": victim, "room": room}
    with Job(run_out_of_descriptors, 2, arguments=arguments, start=[victim]) as job:
        job.wait_for(victim, "full")
        begin = time.monotonic()
        job.start(1 - victim, harness.plain_environment(1 - victim, 2))
        ended = job.wait(20)
    assert time.monotonic() - begin < 8
    assert all(each.value for each in ended), "\n".join(map(str, ended))
    outcomes = [each.value for each in ended]
    if any("error" in each for each in outcomes):
        for each in outcomes:
            assert each["error"] == "InitError", outcomes
            assert "RLIMIT_NOFILE" in each["message"], outcomes
    else:
        assert [each["sum"] for each in outcomes] == [11, 11]


CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 21, 24
CAPABILITY_VERSION = 0x20080522


def drop_capabilities() -> None:
    """Drop the capabilities that exempt root from the limit of sent descriptors."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, of bits 0 to 31 first
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, data) == 0, os.strerror(ctypes.get_errno())
    data[0] &= ~(1 << CAP_SYS_ADMIN | 1 << CAP_SYS_RESOURCE)
    assert libc.capset(header, data) == 0, os.strerror(ctypes.get_errno())


def join_beside_others(seconds: float) -> dict[str, Any]:
    """Join while rank 0 has sent more descriptors than RLIMIT_NOFILE, for some seconds."""
    drop_capabilities()
    resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
    if os.environ["RANK"] == "0":
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for _ in range(2):
            socket.send_fds(near, [b"x"], [near.fileno()] * 50)
        timer = threading.Timer(seconds, lambda: (near.close(), far.close()))
        timer.daemon = True
        timer.start()
    begin = time.monotonic()
    return {**join_and_sum(), "seconds": time.monotonic() - begin}


def test_init_waits_while_too_many_descriptors_are_under_way() -> None:
    outcomes = run(join_beside_others, 3, arguments={"seconds": 1.5})
    assert [o.value.get("sum") for o in outcomes] == [111] * 3, "\n".join(map(str, outcomes))
    assert outcomes[0].value["seconds"] > 1


@pytest.mark.long
def test_too_many_descriptors_under_way_are_an_error() -> None:
    for outcome in run(join_beside_others, 3, arguments={"seconds": 60}):
        assert outcome.value.get("error") == "InitError", outcome
        assert "RLIMIT_NOFILE allows (80)" in outcome.value["message"]
        assert "ulimit -n 160" in outcome.value["message"]
        assert outcome.value["seconds"] < 20


# Jobs that meet.


def join_and_sum() -> dict[str, Any]:
    """What all_reduce says, or why there is no group."""
    say("coming")
    try:
        world = ngd.init()
    except ngd.errors.Error as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"sum": int(ngd.all_reduce(10**world.rank, op="sum"))}


@pytest.mark.long
@pytest.mark.parametrize("twice", [0, 1])
def test_two_jobs_with_one_key(twice: int) -> None:
    """While a job waits for rank 2, a second process comes that says it is one of those there."""
    env = {"NGD_JOB": f"test-{os.getpid()}-{twice}"}
    with Job(join_and_sum, 3, env=env, start=[0, 1]) as job:
        for rank in (0, 1):
            job.wait_for(rank, "coming")
        time.sleep(0.3)
        with Job(join_and_sum, 3, env=env, start=[twice]) as other:
            (outcome,) = other.wait(20, [twice])
        assert outcome.value["error"] == "InitError", outcome
        assert "same job key" in outcome.value["message"]
        job.start(2, harness.plain_environment(2, 3))
        assert [each.value for each in job.wait(20)] == [{"sum": 111}] * 3


def test_jobs_of_different_sizes_with_one_key() -> None:
    env = {"NGD_JOB": f"test-{os.getpid()}-sizes", "NGD_TIMEOUT": "10"}
    with Job(join_and_sum, 2, env=env, start=[0]) as job:
        job.wait_for(0, "coming")
        with Job(join_and_sum, 3, env=env, start=[1]) as other:
            (stranger,) = other.wait(20, [1])
        (host,) = job.wait(20)
    for outcome in (host, stranger):
        assert outcome.value["error"] == "InitError", outcome
        assert "2 ranks" in outcome.value["message"]
        assert "that it has 3" in outcome.value["message"]


# Strangers.

KNOCK = """
import os, socket, sys, time
os.setgid(int(sys.argv[1])), os.setuid(int(sys.argv[1]))
door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
door.settimeout(10)
door.connect("\\0" + sys.argv[2])
try:
    door.send(b"let me in" * 100)
    print("answer:", door.recv(1 << 16))
except OSError as error:
    print("answer:", error.strerror)
"""


def rendezvous(job: str) -> str:
    """The abstract socket at which the ranks of a job are meeting."""
    limit = time.monotonic() + 20
    mine = {f"@{name}" for name in names_of(f"ngd:{job}")}
    while time.monotonic() < limit:
        names = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()}
        if found := names & mine:
            return found.pop()[1:]
        time.sleep(0.01)
    raise AssertionError("no rendezvous in 20 s")


def knock(uid: int, name: str) -> str:
    """What a process of that user hears at the door."""
    done = subprocess.run(
        [sys.executable, "-c", KNOCK, str(uid), name], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("uid", [os.geteuid(), pytest.param(NOBODY, marks=needs_root)])
def test_strangers_are_not_let_in(uid: int) -> None:
    key = f"test-{os.getpid()}-door"
    with Job(join_and_sum, 2, env={"NGD_JOB": key}, start=[0]) as job:
        job.wait_for(0, "coming")
        answer = knock(uid, rendezvous(key))
        if uid != os.geteuid():
            assert "rank" not in answer  # the door is shut without a word
        job.start(1, harness.plain_environment(1, 2))
        assert [each.value for each in job.wait(20)] == [{"sum": 11}] * 2


@needs_root
def test_segments_are_not_given_to_another_user() -> None:
    """A process of another user sits where rank 0 should be."""
    key = f"test-{os.getpid()}-squat"
    with Job(join_and_sum, 2, env={"NGD_JOB": key}, start=[0]) as job:
        job.wait_for(0, "coming")
        name = rendezvous(key)
    squatter = subprocess.Popen(
        [sys.executable, "-c", SQUAT, str(NOBODY), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert squatter.stdout is not None
    try:
        assert squatter.stdout.readline() == "ready\n"
        with Job(join_and_sum, 2, env={"NGD_JOB": key}) as job:
            assert [each.value for each in job.wait(20)] == [{"sum": 11}] * 2
        assert squatter.communicate(timeout=20)[0] == "got 0 bytes, 0 descriptors\n"
    finally:
        squatter.kill()
        squatter.communicate()


SQUAT = """
import array, os, socket, sys
os.setgid(int(sys.argv[1])), os.setuid(int(sys.argv[1]))
door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
door.bind("\\0" + sys.argv[2])
door.listen()
print("ready", flush=True)
guest, _ = door.accept()
guest.settimeout(10)
data, ancillary, _, _ = guest.recvmsg(1 << 16, 1 << 10)
print("got", len(data), "bytes,", len(ancillary), "descriptors")
sys.stdin.read()  # the door stays taken until all have knocked
"""
