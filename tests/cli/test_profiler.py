# SPDX-License-Identifier: Apache-2.0
"""Tests of `ngd profile`: the script runs unchanged, and then its steps are reported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ngd

SCRIPT = """
import sys
import numpy as np
import ngd
from ngd import ops
import beside  # next to the script

world = ngd.init()
x = ngd.placeholder("x", (64,))
once = ngd.compile([x], [ops.exp(x)])
never = ngd.compile([x], [ops.tanh(x)])
often = ngd.compile([x], [ops.all_reduce(ops.sin(x), op="sum")])
batch = np.ones(64, np.float32)
once(batch)
for _ in range(5):
    often(batch)
print("arguments", sys.argv[1:], __name__, beside.WHO)
"""


def profile(folder: Path, *options: str, ranks: int = 0, script: str = SCRIPT, **how: str) -> str:
    """Run `ngd profile`, and return its output, followed by its exit code."""
    (folder / "train.py").write_text(script + how.get("end", ""))
    (folder / "beside.py").write_text("WHO = 'beside'\n")
    command = [sys.executable, "-m", "ngd"]
    if ranks:
        command += ["run", "-n", str(ranks), "-m", "ngd"]
    command += ["profile", *options, how.get("what", str(folder / "train.py")), "--epochs", "3"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=how.get("cwd", folder)
    )
    return f"{done.stdout}\n{done.stderr}\nexit {done.returncode}"


def test_a_script_is_reported(tmp_path: Path) -> None:
    output = profile(tmp_path, "--json", "report.json", "--html", "report.html")
    assert "arguments ['--epochs', '3'] __main__ beside" in output
    assert output.endswith("exit 0")
    assert output.count("step compiled at train.py") == 2  # one step never ran
    reports = json.loads((tmp_path / "report.json").read_text())
    assert sorted(report["runs"] for report in reports) == [1, 4]
    assert [r["seconds"] for r in reports] == sorted([r["seconds"] for r in reports], reverse=True)
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


WARM_UP = """
import json
import numpy as np
import ngd
from ngd import ops

x = ngd.placeholder("x", (64,))
once = ngd.compile([x], [ops.exp(x)])
twice = ngd.compile([x], [ops.sin(x)])
often = ngd.compile([x], [ops.scan(lambda c, v: (c + v, c * v), ops.sum(x), x)[1]])
fails = ngd.compile([x], [np.take(x, ops.cast(x, np.int64), 0)])
batch = np.ones(64, np.float32)
for step, runs in ((once, 1), (twice, 2), (often, 5)):
    for _ in range(runs):
        step(batch)
(runs, ns, *_), *_ = often.native.record()
try:
    fails(batch * 100)
except ValueError:
    print(json.dumps([runs, ns / 1e9]))
"""


def test_the_first_run_of_a_step_is_left_out(tmp_path: Path) -> None:
    output = profile(tmp_path, "--json", "report.json", script=WARM_UP)
    assert output.endswith("exit 0")
    reports = json.loads((tmp_path / "report.json").read_text())
    once, twice, often, fails = sorted(reports, key=lambda r: int(r["site"].split(":")[-1]))
    assert [r["runs"] for r in (once, twice, often, fails)] == [1, 1, 4, 1]
    assert [r["has_first_run"] for r in (once, twice, often, fails)] == [True, False, False, True]
    for report in (once, twice, often):
        top = [row for row in report["rows"] if "." not in row["number"]]
        assert all(row["calls"] == report["runs"] for row in top)
        assert sum(row["seconds"] for row in top) == pytest.approx(report["seconds"], rel=0.1)
        assert all(0 <= row["least"] <= row["mean"] for row in report["rows"])
    inside = [row for row in often["rows"] if "." in row["number"]]
    assert inside
    assert all(row["calls"] == 4 * 64 for row in inside)
    assert once["first_run_seconds"] == once["seconds"]
    all_runs, all_seconds = json.loads(output.partition("\n")[0])
    assert all_runs == 5
    assert often["first_run_seconds"] + often["seconds"] == pytest.approx(all_seconds)
    first = often["first_run_seconds"]
    assert output.count("first run") == 4
    assert "4 runs of" in output
    duration = f"{1e6 * first:.1f}" if first < 1e-4 else f"{1e6 * first:.0f}"
    assert f"without the first run of {duration} us" in output
    assert "1 run of" in output
    assert "the first run, which includes the warm-up" in output


def test_the_help_explains_where_reports_are_written() -> None:
    command = [sys.executable, "-m", "ngd", "profile", "--help"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert "The reports go to standard error." in " ".join(output.split())
    assert "first run of each step" in " ".join(output.split())


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("sys.exit(3)", 3, ""),
        ("raise KeyError('lost')", 1, "KeyError: 'lost'"),
        ("sys.exit('bad luck')", 1, "bad luck"),
    ],
)
def test_a_failing_script_is_reported_too(tmp_path: Path, end: str, code: int, words: str) -> None:
    output = profile(tmp_path, end=end)
    assert output.count("step compiled at train.py") == 2
    assert words in output
    assert output.endswith(f"exit {code}")


def test_a_module_is_run_by_its_name(tmp_path: Path) -> None:
    output = profile(tmp_path, "-m", what="train")
    assert "arguments ['--epochs', '3'] __main__ beside" in output
    assert output.count("step compiled at train.py") == 2


def test_a_script_without_steps_has_an_empty_report(tmp_path: Path) -> None:
    output = profile(tmp_path, script="print('nothing')\n")
    assert "ngd profile: no step was run" in output
    assert output.endswith("exit 0")


def test_a_missing_script_is_an_error(tmp_path: Path) -> None:
    output = profile(tmp_path, what="other.py")
    assert f"ngd profile: cannot start other.py: there is no such file in {tmp_path}" in output
    assert "Traceback" not in output
    assert output.endswith("exit 127")


@pytest.mark.skipif(ngd.build_info()["mode"] == "OFF", reason="built without collectives")
@pytest.mark.parametrize("end", ["", "ngd.shutdown()"])
def test_ranks_are_profiled_together(tmp_path: Path, end: str) -> None:
    output = profile(tmp_path, "--timeline", "trace.json", ranks=2, end=end)
    assert output.count("step compiled at train.py") == 2  # only of rank 0
    assert "4 runs of" in output
    assert output.count("first run") == 2
    assert output.endswith("exit 0")
    names = sorted(path.name for path in tmp_path.glob("*.json"))
    # Without a world at the end, each rank writes its own report.
    assert names == (["trace.rank0.json", "trace.rank1.json"] if end else ["trace.json"])
    events = [
        event
        for name in names
        for event in json.loads((tmp_path / name).read_text())["traceEvents"]
    ]
    assert {event["pid"] for event in events} == {0, 1}
