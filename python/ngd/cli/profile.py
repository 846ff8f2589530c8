# SPDX-License-Identifier: Apache-2.0
"""`ngd profile train.py`: run a Python script and report the time of its compiled steps."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from .._util.links import page_url
from ..comm.launchers.detect import detect
from ..errors import Error, InitError
from ..profiling import Recording, Report, profile, timeline
from ..profiling.recording import leave_out_first_runs
from .run import check_module, check_script

SUMMARY: Final = "run a script and report the time of its steps"
DESCRIPTION: Final = "Run a Python script, then report the time of each instruction of its steps."
EPILOG: Final = f"""\
examples:
  ngd profile train.py --epochs 1             a table per step, longest first
  ngd profile --html report.html train.py     a page to open in a browser
  ngd run -n 2 ngd profile --timeline t.json train.py
                                              a timeline of 2 ranks for Perfetto

output:
  The reports go to standard error. The times leave out the first run of each step, which
  includes the warm-up. A step that ran once is reported with that run.

exit status:
  that of the script, or 127 if the script or module does not exist

documentation: {page_url("profiling")}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ngd profile`."""
    parser.usage = "%(prog)s [options] SCRIPT [ARGS ...]"
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="write the reports of all steps as JSON"
    )
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write the report of the longest step as HTML"
    )
    parser.add_argument(
        "--timeline", metavar="FILE", type=Path, help="write a timeline of all ranks for Perfetto"
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is the name of a Python module"
    )
    parser.add_argument("script", metavar="SCRIPT", help="a Python script")
    rest = parser.add_argument(
        "args", metavar="ARGS", nargs=argparse.REMAINDER, help="the arguments of the script"
    )
    rest.required = False  # argparse names it as missing otherwise


def run(args: argparse.Namespace) -> int:
    """Run the script, report the time per compiled step, and return the script's exit status.

    In a job, each rank calls this function. Rank 0 prints and writes the reports.
    """
    try:
        check_module(args.script) if args.module else check_script(args.script)
    except FileNotFoundError as error:
        print(f"ngd profile: {error}", file=sys.stderr)
        return 127
    sys.argv = [args.script, *args.args]
    sys.path[0] = os.getcwd() if args.module else os.path.dirname(os.path.realpath(args.script))
    recording: Recording | None = None
    exit_request: SystemExit | None = None
    try:
        with timeline(args.timeline) if args.timeline else profile() as recording:
            leave_out_first_runs()
            try:
                if args.module:
                    runpy.run_module(args.script, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(args.script, run_name="__main__")
            except (
                SystemExit
            ) as error:  # the timeline needs all ranks, and other ranks may end in another way
                exit_request = error
    finally:  # the script may end with an exception
        if recording is not None:
            write_reports(args, recording)
    if exit_request is not None:
        raise exit_request
    return 0


def write_reports(args: argparse.Namespace, recording: Recording) -> None:
    """Print one time report per compiled step, and write the files of --json and --html.

    The step that took the longest time comes first. Only rank 0 prints and writes.
    """
    if rank() != 0:
        return
    reports = sorted(reports_of(recording.steps), key=lambda report: -report.seconds)
    print("\n\n".join(map(str, reports)) or "ngd profile: no step was run", file=sys.stderr)
    if args.json:
        args.json.write_text("[" + ",\n".join(report.to_json() for report in reports) + "]\n")
    if args.html and reports:
        args.html.write_text(reports[0].to_html())


def reports_of(steps: Sequence[Any]) -> list[Report]:
    """Return the time report of each compiled step that has run at least once.

    A step that was compiled for the device INTERPRETER is left out: that device has no instructions
    to time.
    """
    reports = []
    for step in steps:
        try:
            report = step.report()
        except Error:  # the device has no instructions to report
            continue
        if report.runs:
            reports.append(report)
    return reports


def rank() -> int:
    """Return the rank of this process, or 0 if the launcher's variables are invalid."""
    try:
        return detect().rank
    except InitError:
        return 0
