# SPDX-License-Identifier: Apache-2.0
"""A job whose memory cgroup is too small gets MemoryError; nobody is killed for it."""

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
    """A cgroup of this test's own. Skips where there may be none."""
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
    """A step that wants so much of the shared lane; then a smaller one, and a collective."""
    world = ngd.init()
    x = ngd.placeholder("x", (1,), np.float32)
    large = ops.all_reduce(ops.broadcast_to(x, (mib * MIB // 4,)), op="sum")
    found: dict[str, Any] = caught(lambda: ngd.compile([x], [large[:1]]))
    ngd.barrier()
    small = ops.all_reduce(ops.broadcast_to(x, (MIB,)), op="sum")
    (result,) = ngd.compile([x], [small[:1]])(np.ones(1, np.float32))
    found["result"] = float(result[0])
    found["shared"] = shared_bytes()
    assert int(ngd.all_reduce(1, op="sum")) == world.size
    return found


def shared_bytes() -> int:
    """Of this process's resident memory, what it shares: what an OOM killer looks at."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"RssShmem:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def test_a_memory_cgroup_that_is_too_small_is_a_memory_error() -> None:
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


def commit_much() -> int:
    ngd.init()
    x = ngd.placeholder("x", (1,), np.float32)
    large = ops.all_reduce(ops.broadcast_to(x, (8 * MIB,)), op="sum")
    step = ngd.compile([x], [large[:1]])
    found = shared_bytes()
    step(np.ones(1, np.float32))
    return found


def test_what_is_committed_counts_for_its_rank() -> None:
    """An OOM killer sees who has it."""
    for outcome in harness.run(commit_much, 2):
        assert outcome.value >= 32 * MIB, outcome
