# SPDX-License-Identifier: Apache-2.0
"""The `ngd` command: its parser and its subcommands."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import Final

from .._util.links import page_url
from ..comm.calls import build_info
from . import doctor, examples, profile, run

DESCRIPTION: Final = "Start, check and profile training jobs that run on CPU processes."
EPILOG: Final = f"""\
examples:
  ngd run -n 2 train.py             start 2 ranks of a script on this host
  ngd doctor                        check this installation and this machine
  ngd profile train.py              show the time of each instruction of a step
  ngd examples                      list the example programs
  ngd run --help                    show the options of one command

documentation: {page_url("cli")}
"""
COMMANDS: Final = {"run": run, "doctor": doctor, "profile": profile, "examples": examples}
"""The module of each subcommand: it has the help texts, `add_arguments()` and `run()`."""

STDOUT: Final = 1
"""The file descriptor of the standard output."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    If the reader of the output closes the pipe, as in `ngd examples | head -1`, the command ends
    without a traceback. Its exit status is that of a program that SIGPIPE has killed.
    """
    try:
        return run_command(argv)
    except BrokenPipeError:
        if not is_output_closed():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # Python flushes once more when it exits
        return 128 + signal.SIGPIPE


def run_command(argv: Sequence[str] | None) -> int:
    """Run a subcommand, write its output, and return its exit status."""
    try:
        args = make_parser().parse_args(argv)
        return int(args.action(args))
    finally:
        sys.stdout.flush()  # a closed pipe raises here, and not when Python exits


def is_output_closed() -> bool:
    """Return True if the standard output is a pipe without a reader."""
    poll = select.poll()
    poll.register(STDOUT, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `ngd` with all subcommands."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="ngd", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw
    )
    parser.add_argument(
        "--version",
        action="version",
        version=version_line(),
        help="print the versions of ngd and oneDNN and the build mode, and exit",
    )
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
            formatter_class=raw,
        )
        module.add_arguments(command)
        command.set_defaults(action=module.run)
    return parser


def version_line() -> str:
    """Return the version, the build mode and oneDNN's version in one line."""
    info = build_info()
    onednn = f"oneDNN {info['onednn']}" if info["onednn"] else "without oneDNN"
    return f"ngd {info['version']}, mode {info['mode']}, {onednn}"
