# SPDX-License-Identifier: Apache-2.0
"""Tests of jobs whose memory cgroup is too small. They raise MemoryError, and no rank is killed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from tests.support import harness
from tests.support.harness import Job, caught

pytestmark = harness.needs_ranks

MIB = 1 << 20
LIMIT = 400 * MIB
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    """Yield a new memory cgroup with this limit. Skip the test if it cannot be made."""
    v1 = (V1 / "memory.limit_in_bytes").exists()
    folder = (V1 if v1 else V2) / f"ngd-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"needs to make a memory cgroup: {error}")
    try:
        file = folder / ("memory.limit_in_bytes" if v1 else "memory.max")
        if not file.exists():
            pytest.skip("needs a memory cgroup: the controller is not enabled")
        file.write_text(str(limit))
        yield folder
    finally:
        folder.rmdir()


def compile_too_much(mib: int) -> dict[str, Any]:
    """Compile a step that needs `mib` MiB of shared memory, and then use a smaller one."""
    world = ngd.init()
    x = ngd.placeholder("x", (1,), np.float32)
    large = ops.all_reduce(ops.broadcast_to(x, (mib * MIB // 4,)), op="sum")
    error: dict[str, Any] = caught(lambda: ngd.compile([x], [large[:1]]))
    ngd.barrier()
    small = ops.all_reduce(ops.broadcast_to(x, (MIB,)), op="sum")
    (result,) = ngd.compile([x], [small[:1]])(np.ones(1, np.float32))
    error["result"] = float(result[0])
    error["shared"] = shared_bytes()
    assert int(ngd.all_reduce(1, op="sum")) == world.size
    return error


def shared_bytes() -> int:
    """Return the shared part of this process's resident memory, which an OOM killer counts."""
    status = Path("/proc/self/status").read_text()
    match = re.search(r"RssShmem:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024


def test_a_too_small_memory_cgroup_raises_memory_error() -> None:
    with memory_cgroup(LIMIT) as folder:
        into = f'echo $$ > {folder}/cgroup.procs && exec "$@"'
        launcher = ["/bin/sh", "-c", into, "sh", *harness.launcher_command("ngd run", 2)]
        with Job(compile_too_much, 2, arguments={"mib": 600}, launcher=launcher) as job:
            outcomes = job.wait(60)
            assert job.launcher is not None
            assert job.launcher.returncode == 0, job.said
    for outcome in outcomes:
        assert outcome.value["error"] == "MemoryError", outcome
        assert f"the memory cgroup /{folder.name} (400 MiB)" in outcome.value["message"]
        assert outcome.value["result"] == 2.0


def shared_bytes_of_a_step() -> int:
    ngd.init()
    x = ngd.placeholder("x", (1,), np.float32)
    large = ops.all_reduce(ops.broadcast_to(x, (8 * MIB,)), op="sum")
    step = ngd.compile([x], [large[:1]])
    num_bytes = shared_bytes()
    step(np.ones(1, np.float32))
    return num_bytes


def test_committed_memory_counts_for_its_rank() -> None:
    """An OOM killer counts committed memory for the rank that owns it."""
    for outcome in harness.run(shared_bytes_of_a_step, 2):
        assert outcome.value >= 32 * MIB, outcome
