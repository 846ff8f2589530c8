# SPDX-License-Identifier: Apache-2.0
"""`ngd profile train.py`: run a Python program, and say what its steps take."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import environment
from .errors import Error, InitError
from .profiling import Recording, Report, profile, timeline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `run` reads."""
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the reports, as JSON")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write the report of the longest step, as a page"
    )
    parser.add_argument(
        "--trace", metavar="FILE", type=Path, help="write when each instruction ran (ngd.timeline)"
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the script is the name of a Python module"
    )
    parser.add_argument("script", help="a Python script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="what the script is given")


def run(args: argparse.Namespace) -> int:
    """Run the script, then print what its steps took; the exit code is the script's.

    In a job each rank runs this; rank 0 prints, and writes.
    """
    sys.argv = [args.script, *args.args]
    sys.path[0] = os.getcwd() if args.module else os.path.dirname(os.path.realpath(args.script))
    recording: Recording | None = None
    left: SystemExit | None = None
    try:
        with timeline(args.trace) if args.trace else profile() as recording:
            try:
                if args.module:
                    runpy.run_module(args.script, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(args.script, run_name="__main__")
            except (
                SystemExit
            ) as error:  # the other ranks may end otherwise: the trace is theirs too
                left = error
    finally:  # the script may end by an exception
        if recording is not None:
            tell(args, recording)
    if left is not None:
        raise left
    return 0


def tell(args: argparse.Namespace, recording: Recording) -> None:
    """Print the reports, the longest step first, and write them where that is asked for."""
    if rank() != 0:
        return
    reports = sorted(reports_of(recording.steps), key=lambda report: -report.seconds)
    print("\n\n".join(map(str, reports)) or "ngd profile: no step was run", file=sys.stderr)
    if args.json:
        args.json.write_text("[" + ",\n".join(report.to_json() for report in reports) + "]\n")
    if args.html and reports:
        args.html.write_text(reports[0].to_html())


def reports_of(steps: Sequence[Any]) -> list[Report]:
    """The reports of the steps that were run, and can tell."""
    found = []
    for step in steps:
        try:
            report = step.report()
        except Error:  # of a device without instructions
            continue
        if report.runs:
            found.append(report)
    return found


def rank() -> int:
    """Which rank of the job this is."""
    try:
        return environment.detect().rank
    except InitError:
        return 0
