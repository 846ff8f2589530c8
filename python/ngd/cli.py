# SPDX-License-Identifier: Apache-2.0
"""The `ngd` command: `ngd run` starts a job, `ngd doctor` says what ngd sees here."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from . import build_info, environment, errors, launch


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="ngd", description=__doc__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="start N ranks of a program on this host")
    launch.add_arguments(run)
    run.set_defaults(action=launch.run)
    doctor = commands.add_parser("doctor", help="print the build, the host and the launcher")
    doctor.set_defaults(action=_doctor)
    args = parser.parse_args(argv)
    return int(args.action(args))


def _doctor(args: argparse.Namespace) -> int:
    facts: dict[str, object] = dict(build_info())
    facts["cores"] = len(os.sched_getaffinity(0))
    facts.update({k: v for k, v in sorted(os.environ.items()) if k.startswith("NGD_")})
    problem = None
    try:
        seen = environment.detect()
        facts["launcher"] = f"{seen.launcher}: rank {seen.rank} of {seen.size}"
    except errors.InitError as error:
        problem = str(error)
        facts["launcher"] = problem
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:{width}}  {value}")
    return 1 if problem else 0
