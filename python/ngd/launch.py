# SPDX-License-Identifier: Apache-2.0
"""`ngd run`: start the ranks of a job on this host, show what they print, and end them together.

The first rank that fails ends the others: SIGTERM, then SIGKILL after a grace. Every rank leads a
process group of its own, so that whatever it has started goes with it, and is killed by the kernel
should the launcher itself be killed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import math
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import IO, Final, TextIO

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(argv: Sequence[str] | None = None, prog: str = "python -m ngd.launch") -> int:
    """Run the command line and return the job's exit code."""
    parser = argparse.ArgumentParser(prog=prog, description="Start N ranks on this host.")
    add_arguments(parser)
    return run(parser.parse_args(argv))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `run` reads."""
    parser.add_argument("-n", "--ranks", type=int, required=True, metavar="N")
    parser.add_argument(
        "--grace",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="between SIGTERM and SIGKILL when the job has failed or is interrupted (default: 5)",
    )
    parser.add_argument(
        "--no-prefix", action="store_true", help="do not begin lines with the rank's number"
    )
    parser.add_argument("script", help="a Python script, if it ends in .py, or any program")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="what the script is given")


def run(args: argparse.Namespace) -> int:
    """Start the ranks and stay until the last one has gone; the exit code is the job's.

    It is 0 if all ranks return 0; else that of the rank that failed first, where death by a signal
    counts as 128 plus its number.
    """
    if args.ranks < 1:
        _say(f"-n {args.ranks}: at least one rank is needed")
        return 2
    command = [args.script, *args.args]
    if args.script.endswith(".py"):
        command.insert(0, sys.executable)
    return _Job(args.ranks, args.grace, prefix=not args.no_prefix).run(command)


def rank_environment(rank: int, size: int, job: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a rank: see ngd.environment."""
    inherited = {k: v for k, v in environ.items() if k not in ("MASTER_ADDR", "MASTER_PORT")}
    return {
        "PYTHONUNBUFFERED": "1",
        **inherited,
        "NGD_JOB": job,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
    }


class _Stream:
    """One output of a rank: whole lines go on to the launcher's own, behind the rank's number."""

    def __init__(self, source: IO[bytes], target: TextIO, prefix: str) -> None:
        os.set_blocking(source.fileno(), False)
        self.source = source
        self.target = target
        self.prefix = prefix
        self.rest = b""

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
        self.rest = lines.pop() if keep else b""
        self.target.write("".join(self.prefix + line.decode(errors="replace") for line in lines))
        self.target.flush()
        return more


class _Job:
    """The ranks that run, and how the job is going to end."""

    def __init__(self, size: int, grace: float, prefix: bool) -> None:
        self.size = size
        self.grace = grace
        self.prefix = prefix
        self.exit_code: int | None = None  # once it is known that the job ends before its time
        self.kill_at = math.inf
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}
        self.streams: dict[int, list[_Stream]] = {}
        self.selector = selectors.DefaultSelector()
        self.signals: list[int] = []

    def run(self, command: Sequence[str]) -> int:
        """Start, watch, and clean up whatever happens."""
        signals_read, signals_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        old_wakeup = signal.set_wakeup_fd(signals_write, warn_on_full_buffer=False)
        handlers = {s: signal.signal(s, self._remember_signal) for s in ENDING_SIGNALS}
        self._on_event(signals_read, lambda: self._interrupted(signals_read))
        try:
            self._start(command)
            while self.ranks:
                self._watch()
        finally:
            self._signal_ranks(signal.SIGKILL)
            for process in self.ranks.values():
                process.wait()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_wakeup)
            self.selector.close()
            os.close(signals_read)
            os.close(signals_write)
        return self.exit_code or 0

    def _start(self, command: Sequence[str]) -> None:
        job = secrets.token_hex(16)
        die_with_launcher = _death_signal_setter()
        for rank in range(self.size):
            try:
                process = subprocess.Popen(
                    command,
                    env=rank_environment(rank, self.size, job, os.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    preexec_fn=die_with_launcher,
                )
            except OSError as error:
                _say(f"cannot start {command[0]}: {error.strerror}")
                self._end(126 if isinstance(error, PermissionError) else 127, signal.SIGTERM)
                return
            self.ranks[rank] = process
            pidfd = os.pidfd_open(process.pid)
            self._on_event(pidfd, functools.partial(self._exited, rank, pidfd))
            prefix = f"[{rank}] " if self.prefix else ""
            self.streams[rank] = []
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                assert source is not None
                stream = _Stream(source, target, prefix)
                self.streams[rank].append(stream)
                self._on_event(source.fileno(), functools.partial(self._printed, stream))

    def _on_event(self, descriptor: int, action: Callable[[], None]) -> None:
        self.selector.register(descriptor, selectors.EVENT_READ, action)

    def _watch(self) -> None:
        left = None if self.kill_at == math.inf else max(0.0, self.kill_at - time.monotonic())
        for key, _ in self.selector.select(left):
            key.data()
        if time.monotonic() >= self.kill_at:
            self.kill_at = math.inf
            self._signal_ranks(signal.SIGKILL)

    def _printed(self, stream: _Stream, last: bool = False) -> None:
        if stream.source.closed:
            return
        if not stream.forward(last) or last:
            self.selector.unregister(stream.source)
            stream.source.close()

    def _exited(self, rank: int, pidfd: int) -> None:
        process = self.ranks[rank]
        # What the rank has started goes with it. The zombie still holds the number of the group.
        os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        del self.ranks[rank]
        for stream in self.streams[rank]:  # its last words come before ours
            self._printed(stream, last=True)
        self.selector.unregister(pidfd)
        os.close(pidfd)
        if code != 0 and self.exit_code is None:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"returned {code}"
            _say(f"rank {rank} {how}" + ("; ending the others" if self.ranks else ""))
            self._end(128 - code if code < 0 else code, signal.SIGTERM)

    def _remember_signal(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)

    def _interrupted(self, descriptor: int) -> None:
        os.read(descriptor, 1 << 10)
        for number in self.signals:
            if self.exit_code is None:
                self._end(128 + number, number)
            elif self.kill_at < math.inf:  # a second one does not want to wait
                self.kill_at = 0.0
        self.signals.clear()

    def _end(self, exit_code: int, number: int) -> None:
        self.exit_code = exit_code
        self.kill_at = time.monotonic() + self.grace
        self._signal_ranks(number)

    def _signal_ranks(self, number: int) -> None:
        for process in self.ranks.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def _death_signal_setter() -> Callable[[], None]:
    """Make what a child runs before its program: have it killed when the launcher dies."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    launcher = os.getpid()

    def die_with_launcher() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it died before the line above
            os._exit(1)

    return die_with_launcher


def _say(line: str) -> None:
    print(f"ngd run: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
