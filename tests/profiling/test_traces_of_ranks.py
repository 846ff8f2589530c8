# SPDX-License-Identifier: Apache-2.0
"""Tests of timelines and reports of several ranks: one clock, and the waits for other ranks."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import _core, nn, ops, optim
from ngd.profiling import perfetto
from tests.support import harness
from tests.support.standing import run_in_world

NAP = 0.1


def run_with_a_late_rank(folder: str) -> dict[str, Any]:
    """Take three steps. The last rank sleeps before each of them."""
    world = ngd.init()
    x = ngd.placeholder("x", (1000,))
    step = ngd.compile([x], [ops.all_reduce(ops.exp(x), op="sum")])
    step(np.zeros(1000, np.float32))
    with ngd.timeline(Path(folder) / "trace.json"):
        for _ in range(3):
            world.barrier()
            if world.rank == world.size - 1:
                time.sleep(NAP)
            step(np.zeros(1000, np.float32))
    (wait,) = [row for row in step.report().rows if row.action == "wait"]
    return {
        "last": {str(rank): times for rank, times in wait.last.items()},
        "waited": wait.seconds,
        "flight": wait.flight,
        "overlap": wait.overlap,
        "op": wait.op,
    }


@harness.needs_ranks
@pytest.mark.parametrize(("communicator", "ranks"), harness.worlds(2, 3))
def test_timelines_of_ranks_use_one_clock(communicator: str, ranks: int, tmp_path: Path) -> None:
    outcomes = run_in_world(run_with_a_late_rank, communicator, ranks, folder=str(tmp_path))
    found = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]

    def events_of(rank: int, cat: str) -> list[dict[str, Any]]:
        events = [e for e in found if e["pid"] == rank and e["ph"] == "X" and e["cat"] == cat]
        return sorted(events, key=lambda e: e["ts"])

    for rank in range(ranks - 1):
        for wait, start in zip(events_of(rank, "wait"), events_of(ranks - 1, "start"), strict=True):
            assert wait["ts"] < start["ts"]
            assert wait["ts"] + wait["dur"] > start["ts"]
            assert wait["dur"] > 1e6 * NAP / 2
    for rank in range(ranks):
        assert len(events_of(rank, "step")) == 3
        flights = [e["ph"] for e in found if e["pid"] == rank and e.get("cat") == "collective"]
        assert flights == ["b", "e"] * 3
    first = outcomes[0].value
    assert first["op"] == "all_reduce(sum)"
    assert first["waited"] > 3 * NAP / 2
    assert first["flight"] >= first["waited"]
    assert 0 <= first["overlap"] < 0.5
    if communicator == "shm":
        assert first["last"] == {str(ranks - 1): 3}
    names = [e["args"]["name"] for e in found if e.get("name") == "process_name"]
    assert [name.split(" on ")[0] for name in names] == [f"rank {r}" for r in range(ranks)]


def training(folder: str) -> dict[str, Any]:
    """Take two training steps of two parameters, and a sum that updates no variable."""
    ngd.init()
    model, x = nn.Linear(5, 3), ngd.placeholder("x", (4, 5))
    loss = ops.mean(model(x))
    updates = optim.Adam(0.1).minimize(loss, model.parameters())
    step = ngd.compile([x], [ops.all_reduce(loss, op="sum")], updates=updates)
    step(np.ones((4, 5), np.float32))
    with ngd.timeline(Path(folder) / "trace.json"):
        for _ in range(2):
            step(np.ones((4, 5), np.float32))
    report = step.report()
    waits = [row for row in report.rows if row.action == "wait"]
    return {
        "variables": {row.types: row.variables for row in waits},
        "waited": sum(row.seconds for row in waits),
        "flight": sum(row.flight for row in waits),
        "overlap": report.overlap,
        "text": str(report),
        "json": report.to_dict(),
    }


@harness.needs_ranks
def test_waits_show_their_type_and_their_variable(tmp_path: Path) -> None:
    (first, _) = [rank.value for rank in run_in_world(training, "shm", 2, folder=str(tmp_path))]
    assert first["variables"] == {
        "-> f32[3,5]": ["weight"],
        "-> f32[3]": ["bias"],
        "-> f32[]": [],
    }
    rows = [line for line in first["text"].splitlines() if "wait all_reduce" in line]
    assert sum("f32[3,5] of weight, overlap" in row for row in rows) == 1
    assert sum("f32[3] of bias, overlap" in row for row in rows) == 1
    assert sum("f32[], overlap" in row for row in rows) == 1
    assert all("last to arrive on this line" in row for row in rows[1:])
    assert first["overlap"] == pytest.approx(1 - first["waited"] / first["flight"])
    assert first["json"]["overlap"] == first["overlap"]
    assert f"overlap of all collectives {100 * first['overlap']:.0f} %" in first["text"]
    found = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for category, phase in (("start", "X"), ("wait", "X"), ("collective", "b")):
        shown = [
            (e["args"]["type"], e["args"].get("variables", ""))
            for e in found
            if (e.get("cat"), e["ph"]) == (category, phase)
        ]
        assert sorted(shown) == sorted(
            [("f32[3,5]", "weight"), ("f32[3]", "bias"), ("f32[]", "")] * 4
        )


def one_line(folder: str) -> None:
    """Take two steps that are built at one line. The second step has another type."""
    ngd.init()
    steps = []
    for count in (3, 4):
        x = ngd.placeholder("x", (count,))
        steps.append(
            ngd.compile([x], [ops.all_reduce(x, op="sum"), ops.all_reduce(x[0], op="sum")])
        )
    with ngd.timeline(Path(folder) / "trace.json"):
        steps[0](np.ones(3, np.float32))


@harness.needs_ranks
def test_an_ambiguous_type_is_left_out(tmp_path: Path) -> None:
    run_in_world(one_line, "shm", 2, folder=str(tmp_path))
    found = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    types = [e["args"].get("type", "unknown") for e in found if e.get("cat") == "wait"]
    assert sorted(types) == ["f32[]", "f32[]", "unknown", "unknown"]


def test_a_step_without_collectives_has_no_overlap() -> None:
    x = ngd.placeholder("x", (3,))
    step = ngd.compile([x], [ops.exp(x)])
    with ngd.profile():
        step(np.zeros(3, np.float32))
    assert step.report().overlap == 0
    assert "overlap" not in str(step.report())


def clock_offset(shift_ns: int) -> int:
    """Return the measured difference of the clocks. The last rank reports another kernel."""
    world = ngd.init()
    if world.rank == world.size - 1:
        perfetto.clock_name = lambda: "another kernel"
        perfetto._core = SimpleNamespace(clock_ns=lambda: _core.clock_ns() + shift_ns)
    try:
        return perfetto.offset_to_root(world)
    finally:
        perfetto._core = _core


@harness.needs_ranks
@pytest.mark.parametrize("shift", [0, -(10**12), 3_600 * 10**9])
def test_clocks_of_different_kernels_are_measured(shift: int) -> None:
    first, last = [rank.value for rank in run_in_world(clock_offset, "shm", 2, shift_ns=shift)]
    assert first == 0
    assert abs(last + shift) < 0.1e9


def run_and_raise(folder: str) -> str:
    """Raise an exception in the block of each rank. No rank waits for another one."""
    world = ngd.init()
    x = ngd.placeholder("x", (3,))
    step = ngd.compile([x], [ops.exp(x)])
    try:
        with ngd.timeline(Path(folder) / "trace.json"):
            step(np.zeros(3, np.float32))
            raise KeyError(world.rank)
    except KeyError:
        return "raised"


@harness.needs_ranks
def test_a_rank_whose_block_fails_writes_its_own_file(tmp_path: Path) -> None:
    outcomes = run_in_world(run_and_raise, "shm", 2, folder=str(tmp_path))
    assert [outcome.value for outcome in outcomes] == ["raised", "raised"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "trace.rank0.json",
        "trace.rank1.json",
    ]
    for rank in range(2):
        found = json.loads((tmp_path / f"trace.rank{rank}.json").read_text())["traceEvents"]
        assert {event["pid"] for event in found} == {rank}
