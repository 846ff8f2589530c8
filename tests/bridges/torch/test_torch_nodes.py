# SPDX-License-Identifier: Apache-2.0
"""Tests of torchrun: ranks on one node, and an error for ranks on several nodes."""

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


def run_agents(tmp_path: Path, nodes: int, ranks: int) -> list[subprocess.CompletedProcess[str]]:
    """Run one torchrun per node, all on this machine, and return how each ended."""
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
        outputs = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    done = zip(started, outputs, strict=True)
    return [subprocess.CompletedProcess([], p.returncode, *texts) for p, texts in done]


def test_torchrun_on_one_node(tmp_path: Path) -> None:
    (agent,) = run_agents(tmp_path, 1, 2)
    assert agent.returncode == 0, agent.stderr
    assert sorted(agent.stdout.splitlines()) == ["0 2 3", "1 2 3"]


def test_several_nodes_raise_with_a_reason(tmp_path: Path) -> None:
    """Each agent reports the error of its rank. In mode OMPI, MPI sees one rank in each process."""
    reason = {
        "MLSL": "expected all ranks on one host, because mode MLSL has only shared memory",
        "OMPI": "torchrun started 2 ranks, but MPI sees 1: torchrun does not pass its ranks to",
    }
    both = run_agents(tmp_path, 2, 1)
    assert all(agent.returncode != 0 for agent in both)
    failed = [
        agent for agent in both if f"InitError: ngd.init: {reason[harness.MODE]}" in agent.stderr
    ]
    assert failed, both  # the second agent may end when the first one has ended
    assert all("mpirun" in agent.stderr for agent in failed)
