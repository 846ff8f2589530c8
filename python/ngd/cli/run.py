# SPDX-License-Identifier: Apache-2.0
"""`ngd run`: start the ranks of a job on this host, show what they print, and end them together.

The first rank that fails ends the others: they have a moment to say what they saw, then come
SIGTERM and, after a grace, SIGKILL. Who was first is not always who ended first: a rank that leaves
tells its peers, and they may be quicker at ending; so it tells the launcher before them.

With --min-ranks the others go on, and ranks are members of a job that makes one world after the
other (ngd.comm.membership).

Every rank leads a process group of its own, so that whatever it has started goes with it. Should
the launcher itself be killed, the kernel kills the ranks, and a guard, a process that does nothing
else, what they have started.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import functools
import logging
import os
import secrets
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType
from typing import IO, Any, Final, TextIO

from .. import logs
from .._util import config
from .._util.links import page_url
from ..comm.calls import build_info
from ..comm.communicator import timeout_seconds
from ..comm.cores import available_cores
from ..comm.launchers.job_names import label_of
from ..comm.launchers.launcher_pipe import address_of_launcher
from ..comm.launchers.registry import surroundings
from ..comm.membership import WAITS, Board, World
from ..errors import InitError
from . import binding

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

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LAST_WORDS_SECONDS: Final = 1.0
"""Ranks see within this time that one of them is lost, and then end by themselves."""
LONGEST_LINE: Final = 1 << 16
"""Bytes of a line that are held back until its end comes; longer ones are passed on in pieces."""
BOTH_SIGNALS: Final = 2
"""On the agenda while no rank was signalled, and every one ends by itself."""
PLACE: Final = ("NGD_JOB", "NGD_WORLD", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""What ngd.init() tells a member, world by world."""

GUARD: Final = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""
"""Reads which groups live, until the launcher ends the stream, as it does however it dies."""


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
    """Declare the options of the launcher itself."""
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

    It is 0 if all ranks return 0, else that of the rank that failed first (128 + N for signal N);
    2 for a wrong command line; 126 or 127 if the program cannot be started.
    """
    command = command_of(args)
    if args.hosts is not None:
        return _explain_mpirun(args.hosts, args.ranks, command)
    try:
        config.log_as_json()
    except InitError as error:
        print(f"ngd run: {error}", file=sys.stderr)
        return 2
    try:
        args.ranks = ranks_of_torchrun(os.environ, args.ranks)
        check_numbers(args)
    except ValueError as error:
        _say(str(error))
        return 2
    try:
        if args.module:
            check_module(args.script)
        elif args.script.endswith(".py"):
            check_script(args.script)
    except FileNotFoundError as error:
        _say(str(error))
        return 127
    return _Job(args).run(command)


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
    """Raise FileNotFoundError if there is no such file."""
    try:
        os.stat(script)
    except (FileNotFoundError, NotADirectoryError):
        where = "" if os.path.isabs(script) else f" in {os.getcwd()}"
        raise FileNotFoundError(f"cannot start {script}: there is no such file{where}") from None
    except OSError:  # the interpreter reports it
        pass


def check_module(name: str) -> None:
    """Raise FileNotFoundError if `python -m` would not find the module or the package's __main__.

    Nothing is imported: a package may start threads or take seconds.
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
    """Return the spec of a module, from a path or from the finders of this interpreter."""
    found = PathFinder.find_spec(name, path)
    finders = iter(sys.meta_path)
    while found is None and (finder := next(finders, None)) is not None:
        found = finder.find_spec(name, path)
    return found


def rank_environment(
    rank: int,
    size: int,
    job: str,
    port: int,
    restarts: int,
    environ: Mapping[str, str],
    launcher: str = "",
    folder: str | None = None,
) -> dict[str, str]:
    """Return the environment of a rank (see comm/launchers). The folder outlives restarts."""
    # A job that a member starts has ranks of its own.
    outside = {k: v for k, v in environ.items() if k not in ("NGD_MEMBER", "NGD_WORLD")}
    return {
        "PYTHONUNBUFFERED": "1",
        **({} if folder is None else {"NGD_ELASTIC_DIR": folder}),
        **outside,
        "NGD_JOB": job,
        "NGD_LAUNCHER": launcher,
        "NGD_SURROUNDINGS": surroundings(environ),
        "NGD_RESTART_COUNT": str(restarts),
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def ranks_of_torchrun(environ: Mapping[str, str], asked: int | None) -> int | None:
    """How many ranks -n asks for, or else PET_NPROC_PER_NODE, a variable of torchrun; or None.

    ValueError where its value makes no sense, or PET_NNODES tells of several nodes: the ranks of
    each would be a job of their own.
    """
    nodes, ranks = environ.get("PET_NNODES") or "1", environ.get("PET_NPROC_PER_NODE") or None
    if nodes not in ("1", "1:1"):
        raise ValueError(
            f"PET_NNODES={nodes}: expected 1, for `ngd run` starts the ranks of one node; on "
            "several, Open MPI's mpirun starts them, with an ngd of mode OMPI (on Kubernetes: "
            "an MPIJob)"
        )
    if asked is not None:
        return asked
    if ranks in ("auto", "cpu"):
        return available_cores()
    if ranks is not None and not (ranks.isascii() and ranks.isdecimal()):
        raise ValueError(f"PET_NPROC_PER_NODE={ranks!r}: expected a number, cpu or auto")
    return None if ranks is None else int(ranks)


def hosts_in(path: str) -> str:
    """Hosts as "a:2,b:1", of a file with a line for each rank; ValueError where it has none."""
    try:
        with open(path, encoding="utf-8") as file:
            names = file.read().split()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    if not names:
        raise ValueError(f"expected a host's name on each line of {path}; it is empty")
    return ",".join(f"{name}:{count}" for name, count in collections.Counter(names).items())


def member_environment(member: int, folder: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The same of a member, from that of a rank; the folder is where the launcher answers."""
    kept = {name: value for name, value in environ.items() if name not in PLACE}
    return {**kept, "NGD_MEMBER": str(member), "NGD_ELASTIC_DIR": folder}


PASSED: Final = tuple(name for name in config.VARIABLES if name != "NGD_HOST")
"""The variables that mpirun passes to other hosts; NGD_HOST differs between hosts."""


def mpirun_command(hosts: str, command: Sequence[str]) -> list[str]:
    """The command that starts the ranks of "a:2,b:2" with Open MPI; ValueError if it is no such."""
    places = []
    for part in hosts.split(","):
        name, colon, slots = part.strip().partition(":")
        if not name or (colon and not (slots.isdecimal() and int(slots) > 0)):
            raise ValueError(f"expected HOST:RANKS,HOST:RANKS...; got {part!r} in {hosts!r}")
        places.append((name, int(slots or 1)))
    ranks = sum(slots for _, slots in places)
    listed = ",".join(f"{name}:{slots}" for name, slots in places)
    passed = [f"{name}={os.environ[name]}" for name in PASSED if name in os.environ]
    options = ["--bind-to", "none", *(word for each in passed for word in ("-x", each))]
    return ["mpirun", "-np", str(ranks), "--host", listed, *options, *command]


class _Stream:
    """One output of a rank: whole lines go on to the launcher's own, behind the rank's number.

    Bytes stay what they are, whatever they encode; or each line goes through `rewrite` instead.
    """

    def __init__(
        self,
        source: IO[bytes],
        target: TextIO,
        prefix: str,
        rewrite: Callable[[bytes], bytes] | None = None,
    ) -> None:
        os.set_blocking(source.fileno(), False)
        self.source = source
        self.target = target.buffer
        self.prefix = prefix.encode()
        self.rewrite = rewrite
        self.rest = b""
        self.ending = b"\n"
        """The last byte that was passed on."""

    def forward(self, last: bool = False) -> bool:
        """Pass on what has come, an unended line only at last; return whether more may come."""
        try:
            data = os.read(self.source.fileno(), 1 << 20)  # all that a pipe may hold
        except BlockingIOError:
            data = b""
            more = True
        else:
            more = bool(data)
        # A progress bar ends its lines with a carriage return.
        lines = (self.rest + data).splitlines(keepends=True)
        keep = more and not last and bool(lines) and not lines[-1].endswith((b"\n", b"\r"))
        keep = keep and len(lines[-1]) < LONGEST_LINE
        self.rest = lines.pop() if keep else b""
        if self.rewrite is not None:
            self.target.writelines(map(self.rewrite, lines))
            lines = []
        for line in lines:
            begins = self.ending == b"\n" or (self.ending == b"\r" and line != b"\n")
            self.target.write(self.prefix + line if begins else line)
            self.ending = line[-1:]
        self.target.flush()
        return more


class _Job:
    """The ranks that run, and how the job is going to end."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.size: int = args.ranks
        self.grace: float = args.grace
        self.prefix = not args.no_prefix
        self.place: dict[str, Any] = {}
        self.restarts_left: int = args.max_restarts
        self.restarts = 0
        timeout = timeout_seconds() if args.min_ranks else 0.0
        kept = args.max_restarts or args.min_ranks
        self.folder = tempfile.mkdtemp(prefix="ngd-run-") if kept else None
        self.least: int = args.min_ranks or 0
        self.board: Board | None = None
        if self.least and self.folder is not None:
            self.board = Board(self.folder, args.ranks, timeout)
        self.done = 0  # ranks that returned 0
        self.cores = _bind(args.bind, args.ranks)
        self.places = list(range(args.ranks))  # by rank: whose cores it has
        self.exit_code: int | None = None  # once it is known that the job ends before its time
        self.agenda: list[tuple[float, int]] = []  # when the ranks are going to get which signal
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}
        self.streams: dict[int, list[_Stream]] = {}
        self.selector = selectors.DefaultSelector()
        self.signals: list[int] = []
        self.command: Sequence[str] = ()
        self.job, self.port, self.listening = "", 0, ""
        self.guard: subprocess.Popen[bytes] | None = None
        self.news = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # of ranks about to end
        self.leaving: list[int] = []  # ranks in the order in which they began to end
        self.first: int | None = None  # the rank whose failure ends the job
        self.codes: set[int] = set()  # what ranks have returned; -N: killed by signal N
        self.was_signalled = False

    def run(self, command: Sequence[str]) -> int:
        """Start, watch, start again, and clean up whatever happens."""
        signals_read, signals_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        old_wakeup = signal.set_wakeup_fd(signals_write, warn_on_full_buffer=False)
        heeded = [s for s in ENDING_SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]  # nohup
        handlers = {s: signal.signal(s, self._remember_signal) for s in heeded}
        self._on_event(signals_read, lambda: self._interrupted(signals_read))
        self._on_event(self.news[0], self._note_who_leaves)
        try:
            self.guard = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", GUARD],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            self._start(command)
            while self.ranks:
                self._watch()
                if not self.ranks and self.exit_code and self.restarts_left > 0:
                    self._start_again(command)
            if self.was_signalled and len(self.codes) == 1 and min(self.codes) >= 0:
                self.exit_code = min(self.codes)  # they know the signal, and say what it led to
        except BrokenPipeError:  # nobody reads what the ranks print: end as a pipeline does
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
            self.exit_code = 128 + signal.SIGPIPE
        finally:
            self._signal_ranks(signal.SIGKILL)
            for process in self.ranks.values():
                process.wait()
            if self.guard is not None:
                self.guard.kill()
                self.guard.communicate()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_wakeup)
            self.selector.close()
            for end in self.news:
                os.close(end)
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
            os.close(signals_read)
            os.close(signals_write)
        return self.exit_code or 0

    def _start_again(self, command: Sequence[str]) -> None:
        self.restarts_left -= 1
        self.restarts += 1
        self.exit_code = self.first = None
        self.agenda, self.codes = [], set()
        self._say(f"restart {self.restarts} of {self.restarts + self.restarts_left}")
        self._start(command)

    def _start(self, command: Sequence[str]) -> None:
        self.command = command
        self.job, self.port = secrets.token_hex(16), _free_port()
        self.place = logs.place_of(None, self.size, label_of(f"ngd:{self.job}"))
        self.listening = address_of_launcher(self.news[0])
        self._note_who_leaves()  # of the start before
        self.leaving = []
        for rank in range(self.size):
            if not self._start_rank(rank):
                return

    def _start_rank(self, rank: int) -> bool:
        """Start one; False, and the end of the job, where that is impossible."""
        env = rank_environment(
            rank,
            self.size,
            self.job,
            self.port,
            self.restarts,
            os.environ,
            self.listening,
            self.folder,
        )
        if self.board is not None:
            env = member_environment(rank, self.board.folder, env)
        command = self.command
        try:
            process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                preexec_fn=_before_a_rank(self.cores[self.places[rank]] if self.cores else None),
            )
        except OSError as error:
            self._say(f"cannot start {command[0]}: {error.strerror}")
            self.restarts_left = 0
            self._end(126 if isinstance(error, PermissionError) else 127, signal.SIGTERM)
            return False
        self._tell_guard("+", process.pid)
        self.ranks[rank] = process
        pidfd = os.pidfd_open(process.pid)
        self._on_event(pidfd, functools.partial(self._exited, rank, pidfd))
        prefix = f"[{rank}] " if self.prefix else ""
        self.streams[rank] = []
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            assert source is not None
            stream = _Stream(source, target, prefix, self._rewriting(rank, target))
            self.streams[rank].append(stream)
            self._on_event(source.fileno(), functools.partial(self._printed, stream))
        return True

    def _rewriting(self, rank: int, target: TextIO) -> Callable[[bytes], bytes] | None:
        """What makes JSON of a rank's lines, where NGD_LOG asks for it."""
        if not self.prefix or not config.log_as_json():
            return None
        stream = "stdout" if target is sys.stdout else "stderr"
        return functools.partial(logs.as_json, stream=stream, place=self.place | {"rank": rank})

    def _say(self, line: str) -> None:
        _say(line, self.place)

    def _note_who_leaves(self) -> None:
        """Bring the order up to date: who is dead by now and said nothing went before the others.

        A rank that ends because another one is dead says so after that death.
        """
        said: list[int] = []
        with contextlib.suppress(BlockingIOError):  # a pipe holds less than this
            words = os.read(self.news[0], 1 << 20).decode(errors="replace").split()
            said = [int(word) for word in words if word.isdecimal()]
            self._note_who_waits([word[1:] for word in words if word.startswith(WAITS)])
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        for rank, process in self.ranks.items():
            silent = rank not in self.leaving and rank not in said
            if silent and os.waitid(os.P_PID, process.pid, flags) is not None:
                self.leaving.append(rank)
        self.leaving += [rank for rank in dict.fromkeys(said) if rank not in self.leaving]

    def _note_who_waits(self, members: Sequence[str]) -> None:
        """Members wait for a world."""
        living = [int(m) for m in members if m.isdecimal() and int(m) in self.ranks]
        for member in living if self.board is not None and self.exit_code is None else ():
            assert self.board is not None
            self._tell_world(self.board.waits(member))
            if member in self.board.world.newcomers:
                self._say(f"member {member} waits for the others")

    def _tell_world(self, world: World | None) -> None:
        if world is not None:
            self._say(f"world {world.number} has the members {', '.join(map(str, world.members))}")

    def _end_the_late(self) -> None:
        """Kill members that the others have waited for in vain."""
        for member in self.board.late() if self.board is not None else ():
            assert self.board is not None
            if self.exit_code is not None or member not in self.ranks:
                continue
            self._say(f"member {member} did not come in {self.board.timeout:g} s, and is killed")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.ranks[member].pid, signal.SIGKILL)

    def _tell_guard(self, sign: str, group: int) -> None:
        assert self.guard is not None
        assert self.guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: the ranks run on
            self.guard.stdin.write(f"{sign}{group}\n".encode())
            self.guard.stdin.flush()

    def _on_event(self, descriptor: int, action: Callable[[], None]) -> None:
        self.selector.register(descriptor, selectors.EVENT_READ, action)

    def _watch(self) -> None:
        times = [self.agenda[0][0]] if self.agenda else []  # when there is something to do
        if self.board is not None and self.board.deadline is not None:
            times.append(min(self.board.deadline, time.monotonic() + 3600))  # it may be infinite
        left = max(0.0, min(times) - time.monotonic()) if times else None
        for key, _ in self.selector.select(left):
            key.data()
        if self.agenda and time.monotonic() >= self.agenda[0][0]:
            self._signal_ranks(self.agenda.pop(0)[1])
        self._end_the_late()

    def _printed(self, stream: _Stream, last: bool = False) -> None:
        if stream.source.closed:
            return
        if not stream.forward(last) or last:
            self.selector.unregister(stream.source)
            stream.source.close()

    def _exited(self, rank: int, pidfd: int) -> None:
        self._note_who_leaves()
        process = self.ranks[rank]
        # What the rank has started goes with it. The zombie still holds the number of the group.
        os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        self._tell_guard("-", process.pid)
        del self.ranks[rank]
        for stream in self.streams[rank]:  # its last words come before ours
            self._printed(stream, last=True)
        self.selector.unregister(pidfd)
        os.close(pidfd)
        self.codes.add(code)
        if self.board is not None and self.exit_code is None:
            self._one_less(self.board, rank, code)
        elif code != 0:
            self._failed(rank, code)

    def _one_less(self, board: Board, member: int, code: int) -> None:
        """Go on without a member, with a new one in its place if there may be one."""
        board.forget(member)
        self.done += code == 0
        if code != 0:
            if not self.done and self.restarts_left > 0:
                self._replace(member, code)
            elif len(self.ranks) + self.done >= self.least:
                self._say(f"member {member} {_how(code)}; {len(self.ranks)} others go on")
        if self.exit_code is not None:
            return
        if code != 0 and (
            len(self.ranks) + self.done < self.least or not (board.veterans or self.done)
        ):
            self.restarts_left = 0
            self._failed(member, code)
            return
        if self.ranks and not board.veterans:
            self._say(f"the training has ended before {', '.join(map(str, self.ranks))} came")
            self._end(0, signal.SIGTERM)
            return
        self._tell_world(board.settle())

    def _replace(self, member: int, code: int) -> None:
        """Start a new member, on the cores of the lost one."""
        new = len(self.places)
        self.places.append(self.places[member])
        self.restarts_left -= 1
        self.restarts += 1
        self._say(f"member {member} {_how(code)}; member {new} starts in its place")
        self._start_rank(new)

    def _failed(self, rank: int, code: int) -> None:
        """End the job, or see that this rank was the first to fail although others ended before."""
        how = _how(code)
        exit_code = 128 - code if code < 0 else code
        if self.exit_code is None:
            self._say(f"rank {rank} {how}" + ("; ending the others" if self.ranks else ""))
            self._end(exit_code, signal.SIGTERM, LAST_WORDS_SECONDS)
            self.first = rank
            return
        by_itself = len(self.agenda) == BOTH_SIGNALS
        order = self.leaving.index
        if self.first is not None and by_itself and order(rank) < order(self.first):
            self._say(f"rank {rank}, which had left before, {how}")
            self.exit_code, self.first = exit_code, rank

    def _remember_signal(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)

    def _interrupted(self, descriptor: int) -> None:
        os.read(descriptor, 1 << 10)
        for number in self.signals:
            self.restarts_left, self.was_signalled = 0, True
            if self.exit_code is None:
                self._end(128 + number, number)
            else:  # who asks twice does not want to wait
                self.agenda = [(0.0, signal.SIGKILL)]
        self.signals.clear()

    def _end(self, exit_code: int, number: int, after: float = 0.0) -> None:
        self.exit_code = exit_code
        begin = time.monotonic() + after
        self.agenda = [(begin, number), (begin + self.grace, signal.SIGKILL)]

    def _signal_ranks(self, number: int) -> None:
        for process in self.ranks.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def _how(code: int) -> str:
    """How a process ended, in words."""
    return f"was killed by {_signal_name(-code)}" if code < 0 else f"returned {code}"


def _signal_name(number: int) -> str:
    """SIGKILL, say; most real-time signals have a number only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _bind(how: str, ranks: int) -> list[list[int]] | None:
    """The cores of each rank, with a warning where ranks share them; None where all have all."""
    if how == "none":
        return None
    allowed = os.sched_getaffinity(0)
    cores = binding.cores_of_ranks(how, ranks, allowed, available_cores())
    if how == "core" and ranks > len({cpu for each in cores for cpu in each}):
        _say(f"--bind core: {ranks} ranks share {min(available_cores(), len(allowed))} cores")
    return cores


def _before_a_rank(cores: list[int] | None) -> Callable[[], None]:
    """Make what a child runs before its program.

    It is bound, dies with the launcher, and leads a group of processes, but no session: where Linux
    gives each session the same share of the cores (autogroup), ranks of one session each would
    yield to nobody, and a program of low priority would have as large a share as a rank.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    launcher = os.getpid()

    def prepare() -> None:
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it died before the line above
            os._exit(1)
        if cores is not None:
            os.sched_setaffinity(0, cores)

    return prepare


def _free_port() -> int:
    """A port for whatever else the ranks want to meet at; torch.distributed does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _explain_mpirun(hosts: str, ranks: int | None, command: Sequence[str]) -> int:
    try:
        line = mpirun_command(hosts_in(hosts) if os.sep in hosts else hosts, command)
    except ValueError as error:
        _say(f"--hosts: {error}")
        return 2
    if ranks is not None and line[2] != str(ranks):
        _say(f"--hosts {hosts}: places for {line[2]} ranks; got -n {ranks}")
        return 2
    print(shlex.join(line))
    _say("nothing was started: between hosts Open MPI's mpirun starts the ranks, as above")
    _say("every host needs the same Python, ngd and script under the same paths, and ssh to it")
    mode = build_info()["mode"]
    if mode != "OMPI":
        _say(
            f"this ngd was built in mode {mode}, which is one host's; install it with pip "
            "--config-settings=cmake.define.NGD_DISTRIBUTED_ENABLE=OMPI"
        )
        return 1
    return 0


def _say(line: str, place: Mapping[str, Any] | None = None) -> None:
    """Tell the user, who gets JSON where NGD_LOG asks for it; `place` tells of the job."""
    text = f"ngd run: {line}"
    if config.log_as_json():
        told = place or logs.place_of(None, None, None)
        text = logs.line_of(line, logging.WARNING, "ngd.run", told)
    print(text, file=sys.stderr, flush=True)
