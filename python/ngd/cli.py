# SPDX-License-Identifier: Apache-2.0
"""The `ngd` command: `ngd run` starts a job, `ngd profile` times one, `ngd doctor` looks around."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import doctor, launch, profiler


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="ngd", description=__doc__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="start N ranks of a program on this host")
    launch.add_arguments(run)
    run.set_defaults(action=launch.run)
    examine = commands.add_parser("doctor", help="say what is wrong here, and what would mend it")
    doctor.add_arguments(examine)
    timed = commands.add_parser("profile", help="run a program, and say what its steps take")
    profiler.add_arguments(timed)
    timed.set_defaults(action=profiler.run)
    args = parser.parse_args(argv)
    return int(args.action(args))


if __name__ == "__main__":
    raise SystemExit(main())
