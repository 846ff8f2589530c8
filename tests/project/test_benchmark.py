# SPDX-License-Identifier: Apache-2.0
"""Tests that benchmarks/comm/bench.py, and models/scaling.py over hosts, run and draw charts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import harness
from tests.support.hosts import permitted

__all__ = ["permitted"]

pytestmark = harness.needs_ranks

COMM = Path(__file__).parents[2] / "benchmarks" / "comm"
SCALING = COMM.parent / "models" / "scaling.py"
KINDS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"]


def lines_of(program: Path, *options: str) -> list[dict[str, Any]]:
    """Return the lines that a benchmark prints."""
    env = {k: v for k, v in os.environ.items() if not harness.LAUNCHED.fullmatch(k)}
    command = [sys.executable, str(program), *options]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
def test_every_kind_of_collective_has_its_lines() -> None:
    options = ["--kind", *KINDS, "--ranks", "1", "3", "--bytes", "8", "12288", "--turns", "2"]
    lines = lines_of(COMM / "bench.py", *options)
    cases = [(line["kind"], line["ranks"], line["from"], line["bytes"]) for line in lines]
    expected = {
        (kind, ranks, way, nbytes)
        for kind in KINDS
        for ranks in (1, 3)
        for way in ("array", "graph")
        for nbytes in (8, 12288)
    }
    assert len(cases) == len(expected)
    assert set(cases) == expected
    assert all(line["ngd_us"] > 0 for line in lines if line["from"] == "array")


def test_the_chart_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    common = {"kind": "all_reduce", "ranks": 2, "cpu": "some", "cores": 2, "ngd_us": 2.5}
    lines = [
        {**common, "from": way, "bytes": nbytes, "peer": peer, "peer_us": nbytes / 7}
        for way in ("array", "graph")
        for peer in ("Open MPI 5.0", "MPICH 5.0", "gloo (PyTorch 2.9)")
        for nbytes in (8, 1 << 16, 1 << 20)
    ]
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, lines)))
    for name in ("chart.svg", "chart.png"):
        command = [sys.executable, str(COMM / "chart.py"), "lines", name]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=100)
    text = (tmp_path / "chart.svg").read_text()
    assert text.startswith("<?xml")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("permitted")
def test_scaling_runs_over_hosts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    chart = tmp_path / "scaling.svg"
    size = ["--network", "mlp", "--hidden", "8", "--batch", "4", "--turns", "1", "--steps", "2"]
    ranks = ["--ranks", "1", "2", "4", "--hosts", "1", "2", "--rate", "1gbit"]
    lines = lines_of(SCALING, *size, *ranks, "--chart", str(chart))
    cases = [(line["hosts"], line["ranks"]) for line in lines]
    assert cases == [(1, 1), (1, 2), (1, 4), (2, 2), (2, 4)]
    assert all(line["samples_per_s"]["ngd"] > 0 for line in lines)
    assert chart.read_text().startswith("<?xml")
