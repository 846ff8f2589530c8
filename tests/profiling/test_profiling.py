# SPDX-License-Identifier: Apache-2.0
"""Tests of reports and timelines of one process, compared with counts by hand."""

from __future__ import annotations

import inspect
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.devices.cpu import target as cpu
from ngd.errors import BusyError, CompileError

HERE = Path(__file__).name


def a_step(device: str = "CPU", size: int = 64) -> tuple[Any, int]:
    """Return a step with a matmul and elementwise ops, and the line of the matmul."""
    x = ngd.placeholder("x", (32, size))
    w = ngd.variable("w", np.full((size, size), 0.01, np.float32))
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    hidden = x @ w
    scaled = ops.tanh(hidden) * 2.0
    loss = ops.sum(scaled)
    return ngd.compile([x], [loss], updates={w: w - 0.1 * ngd.grad(loss, w)}, device=device), line


def batch_of_ones(size: int = 64) -> np.ndarray[Any, Any]:
    return np.ones((32, size), np.float32)


def test_the_times_of_instructions_sum_up_to_the_time_of_the_step() -> None:
    step, _ = a_step()
    with ngd.profile():
        begin = time.monotonic()
        for _ in range(20):
            step(batch_of_ones())
        wall = time.monotonic() - begin
    report = step.report()
    assert report.runs == 20
    assert all(row.calls == 20 for row in report.rows)
    assert sum(row.seconds for row in report.rows) == pytest.approx(report.seconds, rel=0.03)
    assert sum(row.share for row in report.rows) == pytest.approx(1, rel=0.03)
    assert 0 < report.seconds <= wall
    assert all(0 <= row.least <= row.mean for row in report.rows)
    shares = report.shares()
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    (product,) = [row.share for row in report.rows if row.op == "matmul"]
    assert shares["matmul"] == pytest.approx(product)
    assert shares["elementwise_product"] > 0  # the gradient, in the update


def test_rows_show_the_ops_and_their_lines() -> None:
    step, line = a_step()
    rows = step.report().rows
    product = next(row for row in rows if row.site.endswith(f"{HERE}:{line}"))
    assert product.types == "f32[32,64], f32[64,64] -> f32[32,64]"
    assert (product.cost.flops, product.layout) == (2 * 32 * 64 * 64, "row-major")
    fused = next(row for row in rows if "tanh" in dict(row.made_of))
    lines = {(op, int(site.rpartition(":")[2])) for op, site in fused.made_of}
    assert {("tanh", line + 1), ("multiply", line + 1), ("sum", line + 2)} <= lines
    assert step.report().cost == step.cost()
    assert [row.number for row in rows] == [str(n) for n in range(len(rows))]


@pytest.mark.skipif(
    ("conv", "onednn") not in cpu.DEVICE.kernel_table(), reason="own kernels have one layout"
)
def test_convolutions_show_their_layout() -> None:
    x, w = ngd.placeholder("x", (2, 16, 8, 8)), ngd.placeholder("w", (16, 16, 3, 3))
    report = ngd.compile([x, w], [ops.conv(x, w, padding=1)]).report()
    heavy = [row for row in report.rows if row.cost.flops > 1e5]
    assert [row.layout for row in heavy] == ["channels last"]


def test_rates_are_relative_to_measured_peaks() -> None:
    x = ngd.placeholder("x", (256, 256))
    step = ngd.compile([x], [x @ x])
    with ngd.profile():
        for _ in range(3):
            step(np.ones((256, 256), np.float32))
    report = step.report()
    (product,) = [row for row in report.rows if row.cost.flops]
    peak = report.peaks.flops["float32"]
    bound = max(2 * 256**3 / peak, 3 * 4 * 256**2 / report.peaks.bytes)
    assert product.of_peak == pytest.approx(bound / product.mean)
    assert peak > 1e8
    assert report.peaks.bytes > 1e7


def test_loops_and_branches_have_separate_rows() -> None:
    x = ngd.placeholder("x", (8,))
    _, made = ops.scan(lambda carry, row: (carry + row, ops.exp(carry)), ops.sum(x), x)
    step = ngd.compile([x], [made])
    with ngd.profile():
        for _ in range(3):
            step(np.ones(8, np.float32))
    rows = {row.number: row for row in step.report().rows}
    (scan,) = [row for row in rows.values() if row.action == "scan"]
    inside = [row for row in rows.values() if row.number.startswith(f"{scan.number}.0.")]
    assert (scan.calls, scan.title) == (3, "scan")
    assert inside
    assert all(row.calls == 24 and row.depth == 1 for row in inside)
    assert sum(row.seconds for row in inside) <= scan.seconds
    outside = sum(row.seconds for row in rows.values() if row.depth == 0)
    assert outside == pytest.approx(step.report().seconds, rel=0.03)


def test_a_branch_that_is_not_taken_has_no_times() -> None:
    x = ngd.placeholder("x", (4,))
    made = ops.cond(ops.sum(x) > 0, lambda v: ops.exp(v), lambda v: ops.tanh(v), x)
    step = ngd.compile([x], [made])
    with ngd.profile():
        step(np.ones(4, np.float32))
    calls = {op: row.calls for row in step.report().rows for op, _ in row.made_of}
    assert (calls["exp"], calls["tanh"]) == (1, 0)
    with ngd.profile():
        step(-np.ones(4, np.float32))
    calls = {op: row.calls for row in step.report().rows for op, _ in row.made_of}
    assert (calls["exp"], calls["tanh"]) == (0, 1)


def test_a_loop_in_a_branch_that_is_not_taken_has_no_times() -> None:
    x = ngd.placeholder("x", (4, 8))

    def looped(v: ngd.Node) -> ngd.Node:
        total, _ = ops.scan(lambda c, part: (c + ops.tanh(part), None), ops.zeros((8,)), v)
        return total

    made = ops.cond(ops.sum(x) > 0, looped, lambda v: v[0], x)
    step = ngd.compile([x], [made])
    for sign, calls in ((1, 4), (-1, 0)):
        with ngd.profile():
            step(np.full((4, 8), sign, np.float32))
        found = [r.calls for r in step.report().rows for op, _ in r.made_of if op == "tanh"]
        assert found == [calls]


def test_steps_are_timed_only_inside_a_block() -> None:
    step, _ = a_step()
    step(batch_of_ones())
    report = step.report()
    assert report.runs == 0
    assert not any(row.calls for row in report.rows)
    assert "not timed" in str(report)
    with ngd.profile() as recording:
        step(batch_of_ones())
    step(batch_of_ones())
    assert step.report().runs == 1
    assert not recording.steps  # the step was built before the block


def test_a_new_block_replaces_the_times_of_the_last_one() -> None:
    step, _ = a_step()
    for runs in (3, 2):
        with ngd.profile():
            for _ in range(runs):
                step(batch_of_ones())
        assert step.report().runs == runs


def test_blocks_cannot_be_nested() -> None:
    with ngd.profile():
        for again in (ngd.profile, lambda: ngd.timeline("never.json")):
            with pytest.raises(BusyError, match=r"ngd\.profile, ngd\.timeline"), again():
                pass
    with ngd.profile():
        pass
    assert not Path("never.json").exists()


def test_a_block_ends_at_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), ngd.profile():
        raise ZeroDivisionError
    with ngd.profile():
        pass


def test_a_failed_run_is_in_the_report() -> None:
    table, rows = ngd.placeholder("table", (4, 2)), ngd.placeholder("rows", (1,), np.int64)
    step = ngd.compile([table, rows], [ops.exp(np.take(table, rows, 0))])
    with ngd.profile(), pytest.raises(ValueError, match="expected an index in"):
        step(np.ones((4, 2), np.float32), np.array([7]))
    calls = [row.calls for row in step.report().rows]
    assert step.report().runs == 1
    assert calls[0] == 1
    assert sum(calls) < len(calls)


def test_devices_without_instructions_report_the_reason() -> None:
    with pytest.raises(
        CompileError, match=r"report: expected a step of the device CPU.*got one of INTERPRETER"
    ):
        a_step("INTERPRETER")[0].report()
    report = a_step("NULL")[0].report()
    assert report.runs == 0
    assert len(report.rows) == len(a_step("CPU")[0].report().rows)


def test_a_step_with_nested_arguments_has_a_report() -> None:
    x = ngd.placeholder("x", (3,))
    step = ngd.compile([{"x": x}], {"y": ops.exp(x)})
    with ngd.profile():
        step({"x": np.zeros(3, np.float32)})
    assert step.report().runs == 1


def test_json_and_html_contain_all_rows() -> None:
    step, line = a_step()
    with ngd.profile():
        step(batch_of_ones())
    report = step.report()
    read = json.loads(report.to_json())
    assert [row["op"] for row in read["rows"]] == [row.op for row in report.rows]
    assert read["rows"][0]["seconds"] == report.rows[0].seconds
    assert read["cost"] == {"flops": step.cost().flops, "bytes": step.cost().bytes}
    page = report.to_html()
    assert page.count("<tr title=") == len(report.rows)
    assert f"{HERE}:{line}" in page
    assert "->" not in page.partition("</style>")[2]  # the arrow is escaped


def test_the_table_is_sorted_by_time() -> None:
    x = y = ngd.placeholder("x", (6, 6))
    for _ in range(60):
        y = y @ x
    step = ngd.compile([x], [y])
    with ngd.profile():
        step(np.eye(6, dtype=np.float32))
    lines = str(step.report()).splitlines()
    times = [float(line.split()[3]) for line in lines[4:-1]]
    assert times == sorted(times, reverse=True)
    assert len(times) == 40
    assert lines[-1].startswith("and 20 more")


def events(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["traceEvents"])


def test_a_timeline_has_each_instruction_of_each_run(tmp_path: Path) -> None:
    step, line = a_step()
    with ngd.timeline(tmp_path / "trace.json"):
        for _ in range(3):
            step(batch_of_ones())
    found = events(tmp_path / "trace.json")
    slices = [event for event in found if event["ph"] == "X"]
    whole = sorted([e for e in slices if e["cat"] == "step"], key=lambda e: e["ts"])
    parts = sorted([e for e in slices if e["cat"] == "run"], key=lambda e: e["ts"])
    assert len(whole) == 3
    assert len(parts) == 3 * len(step.report().rows)
    each = len(parts) // 3
    for number, run in enumerate(whole):
        inside = parts[number * each : (number + 1) * each]
        assert [e["args"]["instruction"] for e in inside] == list(range(each))
        assert inside[0]["ts"] == pytest.approx(run["ts"], abs=1e-3)
        assert sum(e["dur"] for e in inside) == pytest.approx(run["dur"], rel=0.03, abs=0.01)
    assert min(e["ts"] for e in slices) == 0
    assert any(e["args"]["site"].endswith(f"{HERE}:{line}") for e in parts)
    assert step.report().runs == 3


def test_a_timeline_keeps_a_limited_number_of_events(tmp_path: Path) -> None:
    step, _ = a_step()
    with ngd.timeline(tmp_path / "trace.json", most_events=7):
        for _ in range(10):
            step(batch_of_ones())
    found = events(tmp_path / "trace.json")
    assert sum(event["ph"] == "X" for event in found) == 7
    dropped = 10 * (len(step.report().rows) + 1) - 7
    assert f"{dropped} events dropped" in found[0]["args"]["name"]
    with pytest.raises(ValueError, match=r"timeline: most_events: expected at least 1; got 0"):
        ngd.timeline(tmp_path / "other.json", most_events=0).__enter__()


def test_a_timeline_is_written_even_if_the_block_fails(tmp_path: Path) -> None:
    step, _ = a_step()
    with pytest.raises(TypeError), ngd.timeline(tmp_path / "trace.json"):
        step(batch_of_ones()) and step()
    assert len([e for e in events(tmp_path / "trace.json") if e.get("cat") == "step"]) == 1


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    world = ngd.init()
    (tmp_path / "trace.json").mkdir()
    with pytest.raises(OSError, match=r"trace\.json"), ngd.timeline(tmp_path / "trace.json"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    world.check_open("barrier")
    with ngd.profile():
        pass


def test_a_failed_write_does_not_hide_the_error_of_the_block(tmp_path: Path) -> None:
    said = r"ngd\.timeline: the file was not written: .*trace\.json"
    file = tmp_path / "nowhere" / "trace.json"
    with pytest.warns(UserWarning, match=said), pytest.raises(TypeError), ngd.timeline(file):
        raise TypeError


def test_a_relative_path_is_resolved_at_the_start_of_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.json").symlink_to("trace.json")
    with ngd.timeline("link.json"):
        monkeypatch.chdir("there")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert (tmp_path / "link.json").is_symlink()


def test_a_timeline_can_be_written_to_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with ngd.timeline(pipe):
        pass
    assert json.loads(os.read(reader, 100_000))["traceEvents"]
    os.close(reader)
    assert pipe.is_fifo()


def test_a_block_without_steps_writes_an_empty_timeline(tmp_path: Path) -> None:
    with ngd.timeline(tmp_path / "trace.json"):
        pass
    assert {event["ph"] for event in events(tmp_path / "trace.json")} == {"M"}


def test_a_step_without_instructions_has_a_report() -> None:
    x = ngd.placeholder("x", (3,))
    step = ngd.compile([x], [])
    with ngd.profile():
        step(np.zeros(3, np.float32))
    assert "; 1 run" in str(step.report())
    assert step.report().to_html().startswith("<!doctype html>")
