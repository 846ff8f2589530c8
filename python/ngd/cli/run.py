# SPDX-License-Identifier: Apache-2.0
"""`ngd run`: its command line, help texts and checks.

job.py supervises the ranks, and describes the reactions to failures and signals. elastic.py has the
job that continues when ranks fail (--min-ranks).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import Final

from .._util import config
from .._util.links import page_url
from ..comm.communicator import timeout_seconds
from ..comm.cores import available_cores
from ..comm.membership import Board
from ..errors import InitError
from . import binding
from .elastic import ElasticJob
from .job import Job, Options, Restarts
from .mpirun import explain_mpirun
from .streams import print_message

SUMMARY: Final = "start N ranks of a program on this host"
DESCRIPTION: Final = "Start N ranks of a Python script on this host, and wait for them."
EPILOG: Final = f"""\
examples:
  ngd run -n 4 train.py --epochs 3            4 ranks of a script and its options
  ngd run -n 4 --bind numa train.py           one NUMA node per rank
  ngd run -n 4 -m package.train               a module
  ngd run -n 4 --max-restarts 3 train.py      up to 3 restarts after failures
  ngd run --hosts a:2,b:2 train.py            print the mpirun command for 2 hosts

exit status:
  0        all ranks returned 0
  N        the rank that failed first returned N
  128+N    the rank that failed first was killed by signal N, or ngd run was
  2        the command line is wrong
  126      the program cannot be executed
  127      the script, module or program does not exist

documentation: {page_url("cli")}
elastic scripts: {page_url("elastic")}
"""


def main(argv: Sequence[str] | None = None, prog: str = "python -m ngd.launch") -> int:
    """Run the command line and return the job's exit status."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    return run(parser.parse_args(argv))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ngd run`."""
    add_options(parser)
    add_script(parser)
    parser.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is the name of a Python module"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `ngd run` itself, such as -n; `add_script` declares the script."""
    parser.add_argument(
        "-n",
        "--ranks",
        type=int,
        metavar="N",
        help="the number of ranks (default: the variable PET_NPROC_PER_NODE, as for torchrun)",
    )
    parser.add_argument(
        "--bind",
        choices=binding.CHOICES,
        default="none",
        help="the cores of a rank: all (none), cores of its own (core), or those of one NUMA node "
        "(numa); default: none",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="restart the job up to N times after a failure (default: 0); with --min-ranks, start "
        "up to N new ranks to replace lost ones",
    )
    parser.add_argument(
        "--min-ranks",
        type=int,
        metavar="N",
        help="after a failure, continue while at least N ranks are left; for elastic scripts",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="the time between SIGTERM and SIGKILL when a job fails or is interrupted (default: 5)",
    )
    parser.add_argument(
        "--no-prefix", action="store_true", help="do not print the rank before each line"
    )
    parser.add_argument(
        "--hosts",
        metavar="HOST:RANKS,...",
        help="start nothing; print the mpirun command that runs the job on these hosts. A value "
        "with a slash is the path of a file with one line per rank, such as $PBS_NODEFILE",
    )


def add_script(parser: argparse.ArgumentParser) -> None:
    """Declare the script and its own arguments."""
    parser.usage = "%(prog)s [options] SCRIPT [ARGS ...]"
    parser.add_argument(
        "script", metavar="SCRIPT", help="a Python script, if the name ends in .py; else a program"
    )
    rest = parser.add_argument(
        "args", metavar="ARGS", nargs=argparse.REMAINDER, help="the arguments of the script"
    )
    rest.required = False  # argparse names it as missing otherwise


def run(args: argparse.Namespace) -> int:
    """Start the ranks, wait for the last one, and return the exit status of the job.

    The status is 0 if all ranks return 0. Otherwise it is the exit code of the rank that failed
    first, or 128 + N if signal N killed this rank. It is 2 for a wrong command line, and 126 or 127
    if the program cannot be started.
    """
    command = command_of(args)
    if args.hosts is not None:
        return explain_mpirun(args.hosts, args.ranks, command)
    try:
        config.log_as_json()
    except InitError as error:
        print(f"ngd run: {error}", file=sys.stderr)
        return 2
    try:
        args.ranks = ranks_of_torchrun(os.environ, args.ranks)
        check_numbers(args)
    except ValueError as error:
        print_message(str(error))
        return 2
    try:
        if args.module:
            check_module(args.script)
        elif args.script.endswith(".py"):
            check_script(args.script)
    except FileNotFoundError as error:
        print_message(str(error))
        return 127
    return run_job(args, command)


def run_job(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Run the job of a checked command line, and return its exit status."""
    timeout = timeout_seconds() if args.min_ranks else 0.0
    cores = assign_cores(args.bind, args.ranks)
    restarts = Restarts(args.max_restarts)
    with make_folder(args) as folder:
        options = Options(command, args.ranks, cores, args.grace, not args.no_prefix, folder)
        if args.min_ranks and folder is not None:
            board = Board(folder, args.ranks, timeout)
            return ElasticJob(options, restarts, board, args.min_ranks).run()
        return Job(options, restarts).run()


def make_folder(args: argparse.Namespace) -> contextlib.AbstractContextManager[str | None]:
    """Return a context manager that yields a folder, and removes it after the job.

    The folder is for the job's files, such as the list of its processes with --min-ranks. The
    context manager yields None if neither --min-ranks nor --max-restarts is given, because such a
    job needs no files.
    """
    if not args.max_restarts and not args.min_ranks:
        return contextlib.nullcontext()
    return tempfile.TemporaryDirectory(prefix="ngd-run-", ignore_cleanup_errors=True)


def assign_cores(how: str, ranks: int) -> Sequence[list[int] | None]:
    """Return the cores of each rank; print a warning if ranks share cores.

    The entry of a rank is None if the rank is not bound to cores.
    """
    if how == "none":
        return [None] * ranks
    allowed = os.sched_getaffinity(0)
    cores = binding.cores_of_ranks(how, ranks, allowed, available_cores())
    if how == "core" and ranks > len({cpu for each in cores for cpu in each}):
        shared = min(available_cores(), len(allowed))
        print_message(f"--bind core: {ranks} ranks share {shared} cores")
    return cores


def command_of(args: argparse.Namespace) -> list[str]:
    """Return the command of a rank."""
    command = [args.script, *args.args]
    if args.module:
        return [sys.executable, "-m", *command]
    return [sys.executable, *command] if args.script.endswith(".py") else command


def check_numbers(args: argparse.Namespace) -> None:
    """Raise ValueError if a number on the command line is out of its range."""
    if args.ranks is None or args.ranks < 1:
        which = "is missing" if args.ranks is None else args.ranks
        raise ValueError(f"-n {which}: at least one rank is needed")
    if args.max_restarts < 0 or args.grace < 0:
        raise ValueError("--max-restarts and --grace: at least 0 is needed")
    if args.min_ranks is not None and not 1 <= args.min_ranks <= args.ranks:
        raise ValueError(
            f"--min-ranks {args.min_ranks}: expected a number from 1 to {args.ranks}, the number "
            "of ranks"
        )


def check_script(script: str) -> None:
    """Raise FileNotFoundError if the script does not exist."""
    try:
        os.stat(script)
    except (FileNotFoundError, NotADirectoryError):
        where = "" if os.path.isabs(script) else f" in {os.getcwd()}"
        raise FileNotFoundError(f"cannot start {script}: there is no such file{where}") from None
    except OSError:  # the interpreter reports it
        pass


def check_module(name: str) -> None:
    """Raise FileNotFoundError if `python -m` would not find the module or the package's __main__.

    Nothing is imported, because the import of a package may start threads or take seconds.
    """
    package: list[str] | None = None
    path = [os.getcwd(), *sys.path]
    parts = name.split(".")
    for count, part in enumerate([*parts, "__main__"], 1):
        full_name = ".".join([*parts[: count - 1], part])
        spec = find_spec(full_name, path if package is None else package)
        if spec is None:
            raise FileNotFoundError(
                f"cannot start -m {name}: there is no module {full_name} in {os.getcwd()} or on "
                f"the path of {sys.executable}"
            )
        try:
            package = list(spec.submodule_search_locations or ())
        except KeyError:  # a namespace package in a package that is not imported
            return
        if not package and count >= len(parts):
            return


def find_spec(name: str, path: list[str]) -> ModuleSpec | None:
    """Return the import spec of a module, or None if it is not found.

    Search the folders of `path` first. Then ask the finders in `sys.meta_path`.
    """
    spec = PathFinder.find_spec(name, path)
    finders = iter(sys.meta_path)
    while spec is None and (finder := next(finders, None)) is not None:
        spec = finder.find_spec(name, path)
    return spec


def ranks_of_torchrun(environ: Mapping[str, str], requested: int | None) -> int | None:
    """Return the number of ranks to start.

    It is `requested`, the value of -n, or without -n the value of torchrun's variable
    PET_NPROC_PER_NODE. Return None if neither is set.

    Raise ValueError if the variable is invalid, or if PET_NNODES, the number of nodes, is set and
    not 1. `ngd run` starts only the ranks of its own node, so the ranks of several nodes would
    not form one job.
    """
    nodes, ranks = environ.get("PET_NNODES") or "1", environ.get("PET_NPROC_PER_NODE") or None
    if nodes not in ("1", "1:1"):
        raise ValueError(
            f"PET_NNODES={nodes}: expected 1, because `ngd run` starts the ranks of one node; on "
            "several nodes, use Open MPI's mpirun (on Kubernetes: an MPIJob) and an ngd of mode "
            "OMPI"
        )
    if requested is not None:
        return requested
    if ranks in ("auto", "cpu"):
        return available_cores()
    if ranks is not None and not (ranks.isascii() and ranks.isdecimal()):
        raise ValueError(f"PET_NPROC_PER_NODE={ranks!r}: expected a number, cpu or auto")
    return None if ranks is None else int(ranks)
