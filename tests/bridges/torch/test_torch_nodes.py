# SPDX-License-Identifier: Apache-2.0
"""torchrun itself: ngd's ranks on one node, and the refusal of several."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import harness

pytest.importorskip("torch")
pytestmark = harness.needs_ranks

PROGRAM = """
import sys
import ngd
world = ngd.init()
total = int(ngd.all_reduce(world.rank + 1, op="sum"))
sys.stdout.write(f"{world.rank} {world.size} {total}\\n")  # at once: both ranks write here
"""


def agents(tmp_path: Path, nodes: int, ranks: int) -> list[subprocess.CompletedProcess[str]]:
    """One torchrun for each node; all are on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {k: v for k, v in os.environ.items() if not harness.LAUNCHED.fullmatch(k)}
    options = [f"--nnodes={nodes}", f"--nproc-per-node={ranks}", "--master-addr=127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, f"--master-port={port}"]
    started = [
        subprocess.Popen(
            [*command, f"--node-rank={node}", str(tmp_path / "program.py")],
            env={**env, "NGD_TIMEOUT": "60", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(nodes)
    ]
    try:
        said = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    done = zip(started, said, strict=True)
    return [subprocess.CompletedProcess([], p.returncode, *texts) for p, texts in done]


def test_one_node(tmp_path: Path) -> None:
    (agent,) = agents(tmp_path, 1, 2)
    assert agent.returncode == 0, agent.stderr
    assert sorted(agent.stdout.splitlines()) == ["0 2 3", "1 2 3"]


def test_several_nodes_are_refused_by_name(tmp_path: Path) -> None:
    """Each agent says so of its rank; to MPI, where it is built in, both ranks are alone."""
    reason = {
        "MLSL": "expected all ranks on one host, because mode MLSL has only shared memory",
        "OMPI": "torchrun started 2 ranks, but MPI sees 1: torchrun tells this MPI nothing of its",
    }
    both = agents(tmp_path, 2, 1)
    assert all(agent.returncode != 0 for agent in both)
    seen = [
        agent for agent in both if f"InitError: ngd.init: {reason[harness.MODE]}" in agent.stderr
    ]
    assert seen, both  # the agent that is second may end when the first one has
    assert all("mpirun" in agent.stderr for agent in seen)
