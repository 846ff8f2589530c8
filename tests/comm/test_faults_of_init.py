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


def message_of_failed_init(ranks: int, env: dict[str, str]) -> str:
    with Job(cannot_init, ranks, env={"NGD_TIMEOUT": "20", **env}) as job:
        errors = [outcome.value for outcome in job.wait(30)]
    assert [e["error"] for e in errors] == ["InitError"] * ranks, errors
    return str(errors[0]["message"])


def test_self_communicator_under_a_launcher_of_two_raises() -> None:
    assert "2 ranks" in message_of_failed_init(2, {"NGD_COMM": "self"})


@pytest.mark.skipif(harness.MODE != "OMPI", reason="needs mode OMPI")
def test_mpi_that_sees_one_rank_of_two_raises() -> None:
    message = message_of_failed_init(2, {"NGD_COMM": "mpi"})
    assert "2 ranks" in message
    assert "MPI sees 1" in message


def test_two_hosts_need_mpi() -> None:
    """Each of the 2 ranks has an environment in which it is the only rank of its host."""
    comm = {"NGD_COMM": "shm"} if harness.MODE == "OMPI" else {}
    with Job(cannot_init, 2, env=comm, start=[]) as job:
        for rank in range(2):
            job.start(rank, harness.plain_environment(rank, 2) | {"LOCAL_WORLD_SIZE": "1"})
        for outcome in job.wait(30):
            assert outcome.value["error"] == "InitError", outcome
            assert "OMPI" in outcome.value["message"]
            assert "hosts" in outcome.value["message"]


@pytest.mark.long
def test_a_bad_environment_variable_is_named() -> None:
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
def test_infinite_timeouts_work(seconds: str) -> None:
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
    """Call ngd.init() when the file `go` exists, so that all ranks call it together."""
    say("coming")
    while not Path(go).exists():
        time.sleep(0.002)
    return caught(ngd.init)


@pytest.mark.parametrize("victim", [0, 1])
def test_rank_that_dies_in_init_is_named(victim: int) -> None:
    """Rank 2 never starts, so the other two are in ngd.init() when the victim dies."""
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
    """Fail on rank 1 after the rendezvous, and continue with its error."""

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
def test_a_rank_that_fails_after_the_rendezvous_is_named() -> None:
    with Job(init_that_fails_late, 2, env={"NGD_TIMEOUT": "15"}) as job:
        first, second = (outcome.value for outcome in job.wait(40))
    assert second["error"] == "MemoryError"
    assert first["error"] == "RemoteRankError", first
    assert "rank 1 failed: MemoryError: no memory for a hook" in first["message"]
    assert first["at"] - second["at"] < 4


# Limits.


def init_with_limit(rank: int, limit: int, bytes_left: int) -> dict[str, str]:
    """Call ngd.init() with a limit of `bytes_left` more than rank `rank` uses."""
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
def test_no_memory_for_a_segment_raises_on_all_ranks(victim: int, limit: str, left: int) -> None:
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
    """Compile a step that needs more shared memory than there is, and then a collective.

    Segments are 256 MiB.
    """
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


def test_no_memory_for_a_step_raises() -> None:
    for outcome in harness.run(init_with_small_segments, 2):
        assert outcome.value["error"] == "MemoryError"
        assert "shared" in outcome.value["message"]


def test_more_ranks_than_a_segment_supports_raise() -> None:
    with Job(cannot_init, 257, start=[0, 5]) as job:
        outcomes = job.wait(20)
    for outcome in outcomes:
        assert outcome.value["error"] == "InitError", outcome
        assert "at most 256 ranks on one host; got 257" in outcome.value["message"]


def init_with_descriptors(count: int) -> dict[str, str]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
    return caught(ngd.init)


def test_more_ranks_than_file_descriptors_raise() -> None:
    with Job(init_with_descriptors, 32, arguments={"count": 64}, start=[0, 5]) as job:
        outcomes = job.wait(20)
    for outcome in outcomes:
        assert outcome.value["error"] == "InitError", outcome
        assert "RLIMIT_NOFILE" in outcome.value["message"]
        assert "32 ranks" in outcome.value["message"]


def run_out_of_descriptors(victim: int, room: int) -> dict[str, Any]:
    """Join, and limit the victim to `room` free descriptors while it waits for the other rank."""
    if int(os.environ["RANK"]) == victim:
        resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
        threading.Timer(0.5, leave_descriptors, (room,)).start()
    try:
        return join_and_sum()
    finally:
        for each in opened_files:
            os.close(each)


opened_files: list[int] = []


def leave_descriptors(room: int) -> None:
    """Open files until exactly `room` descriptors are free.

    Not fewer for a moment: a waiting rank opens one now and then.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    while (
        not opened_files or opened_files[-1] < limit - 1 - room
    ):  # open() returns the lowest free number
        opened_files.append(os.open(os.devnull, os.O_RDONLY))
    say("full")


# One descriptor is left, because a rank cannot report its error without a connection.
@pytest.mark.long
@pytest.mark.parametrize("room", range(1, 8))
@pytest.mark.parametrize("victim", [0, 1])
def test_too_few_descriptors_in_the_rendezvous_raise_on_all_ranks(victim: int, room: int) -> None:
    """Both ranks raise at once, or both join the world."""
    arguments = {"victim": victim, "room": room}
    with Job(run_out_of_descriptors, 2, arguments=arguments, start=[victim]) as job:
        job.wait_for(victim, "full")
        begin = time.monotonic()
        job.start(1 - victim, harness.plain_environment(1 - victim, 2))
        outcomes_of_job = job.wait(20)
    assert time.monotonic() - begin < 8
    assert all(each.value for each in outcomes_of_job), "\n".join(map(str, outcomes_of_job))
    outcomes = [each.value for each in outcomes_of_job]
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
    data = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable bits 0 to 31 come first
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, data) == 0, os.strerror(ctypes.get_errno())
    data[0] &= ~(1 << CAP_SYS_ADMIN | 1 << CAP_SYS_RESOURCE)
    assert libc.capset(header, data) == 0, os.strerror(ctypes.get_errno())


def join_with_descriptors_in_transit(seconds: float) -> dict[str, Any]:
    """Join while the limit of descriptors in transit is exceeded for `seconds`.

    Rank 0 sends more descriptors than RLIMIT_NOFILE, and closes the sockets later.
    """
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


def test_init_waits_while_too_many_descriptors_are_in_transit() -> None:
    outcomes = run(join_with_descriptors_in_transit, 3, arguments={"seconds": 1.5})
    assert [o.value.get("sum") for o in outcomes] == [111] * 3, "\n".join(map(str, outcomes))
    assert outcomes[0].value["seconds"] > 1


@pytest.mark.long
def test_too_many_descriptors_in_transit_raise() -> None:
    for outcome in run(join_with_descriptors_in_transit, 3, arguments={"seconds": 60}):
        assert outcome.value.get("error") == "InitError", outcome
        assert "RLIMIT_NOFILE allows (80)" in outcome.value["message"]
        assert "ulimit -n 160" in outcome.value["message"]
        assert outcome.value["seconds"] < 20


# Jobs with one key.


def join_and_sum() -> dict[str, Any]:
    """Return the sum of an all_reduce, or the error of ngd.init()."""
    say("coming")
    try:
        world = ngd.init()
    except ngd.errors.Error as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"sum": int(ngd.all_reduce(10**world.rank, op="sum"))}


@pytest.mark.long
@pytest.mark.parametrize("twice", [0, 1])
def test_a_second_job_with_the_same_key_raises(twice: int) -> None:
    """While a job waits for rank 2, another process claims the number of a present rank."""
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


def test_jobs_of_different_sizes_with_one_key_raise() -> None:
    env = {"NGD_JOB": f"test-{os.getpid()}-sizes", "NGD_TIMEOUT": "10"}
    with Job(join_and_sum, 2, env=env, start=[0]) as job:
        job.wait_for(0, "coming")
        with Job(join_and_sum, 3, env=env, start=[1]) as other:
            (stranger,) = other.wait(20, [1])
        (host,) = job.wait(20)
    for outcome in (host, stranger):
        assert outcome.value["error"] == "InitError", outcome
        assert "got 2 on rank 0 and 3 on rank 1" in outcome.value["message"]


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
    """Return the abstract socket at which the ranks of a job meet."""
    limit = time.monotonic() + 20
    mine = {f"@{name}" for name in names_of(f"ngd:{job}")}
    while time.monotonic() < limit:
        names = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()}
        if matches := names & mine:
            return matches.pop()[1:]
        time.sleep(0.01)
    raise AssertionError("no rendezvous in 20 s")


def send_from_user(uid: int, name: str) -> str:
    """Return the answer that a process of that user gets from the rendezvous socket."""
    done = subprocess.run(
        [sys.executable, "-c", KNOCK, str(uid), name], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("uid", [os.geteuid(), pytest.param(NOBODY, marks=needs_root)])
def test_other_users_cannot_join(uid: int) -> None:
    key = f"test-{os.getpid()}-door"
    with Job(join_and_sum, 2, env={"NGD_JOB": key}, start=[0]) as job:
        job.wait_for(0, "coming")
        answer = send_from_user(uid, rendezvous(key))
        if uid != os.geteuid():
            assert "rank" not in answer  # the connection is closed without an answer
        job.start(1, harness.plain_environment(1, 2))
        assert [each.value for each in job.wait(20)] == [{"sum": 11}] * 2


@needs_root
def test_segments_are_not_given_to_another_user() -> None:
    """A process of another user holds the socket name that rank 0 would use."""
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
