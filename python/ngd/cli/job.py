# SPDX-License-Identifier: Apache-2.0
"""The supervision of the ranks of a job on this host: start, failure, restart and end.

`Job.run` starts the ranks and waits for events: a signal, a line of output, a message of a rank,
the end of a rank. While a job ends, an `Ending` holds its exit status and the signals to send.

If `ngd run` gets SIGINT, SIGTERM or SIGHUP:

1. The job is not restarted. Its exit status is 128 + N, where N is the number of the signal.
2. The ranks get the same signal at once, and SIGKILL after --grace seconds.
3. After a second signal, the ranks get SIGKILL at once. They also get SIGKILL at once after the
   first signal if the job was ending for another reason.
4. If the ranks handle the signal and all end with the same exit code, the exit status is this code
   instead of 128 + N.

A signal that was ignored when `ngd run` started, as SIGHUP under nohup, stays ignored.

At the failure of a rank:

1. The exit status is the code of the rank that failed first (128 + N for signal N).
2. The other ranks notice the failure, print their errors, and end by themselves. Those that still
   run after `LAST_WORDS_SECONDS` get SIGTERM, and SIGKILL after --grace seconds.
3. When no rank is left, the job is restarted if --max-restarts allows it.

The rank that failed first is not always the rank that ended first. A rank that ends because of an
error first notifies the launcher, through the pipe NGD_LAUNCHER. Then it notifies the other ranks,
which may end before it. So the launcher takes the order of failures from the messages in the pipe.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import FrameType
from typing import Any, Final

from .. import logs
from ..comm.launchers.job_names import label_of
from ..comm.launchers.launcher_pipe import address_of_launcher
from ..comm.membership import WAITS
from .environment import rank_environment
from .processes import Guard, RankProcess, describe_end, start_process
from .streams import OutputStream, print_message, streams_of

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LAST_WORDS_SECONDS: Final = 1.0
"""The time, in seconds, for ranks to notice that a rank is lost and to end by themselves."""


@dataclass(frozen=True)
class Options:
    """The command of a job, and the options of `ngd run` that do not change during the job."""

    command: Sequence[str]
    num_ranks: int
    cores: Sequence[list[int] | None]
    """The list of cores of each rank, or None for a rank that may use all cores."""
    grace_seconds: float
    has_prefix: bool
    folder: str | None
    """The folder for files of the job, such as the list of its processes with --min-ranks.

    It is removed when the job ends. None if neither --min-ranks nor --max-restarts is given,
    because such a job needs no files.
    """


@dataclass
class Restarts:
    """The number of restarts that a job has used, and the number that is left."""

    left: int
    used: int = 0

    def use(self) -> None:
        """Count one restart."""
        self.left -= 1
        self.used += 1

    def forbid(self) -> None:
        """Allow no restart from now on."""
        self.left = 0


class Phase(Enum):
    """The phase of a job that ends.

    In LAST_WORDS, the ranks have got no signal yet. In SIGNALLED, the ranks have got a signal that
    they can handle, such as SIGTERM. In KILLED, the ranks have got SIGKILL. The values, such as
    "SIGKILL", are only texts for readers of this code: they describe the signal.
    """

    LAST_WORDS = "none: ranks that have noticed the failure end by themselves"
    SIGNALLED = "a signal that they can handle"
    KILLED = "SIGKILL"


@dataclass
class Ending:
    """The end of a job: its exit status, and the signals to send to the ranks that still run."""

    exit_code: int
    number: int
    """The number of the signal, such as SIGTERM, that ranks get before SIGKILL.

    It is sent at the end of the phase LAST_WORDS, in which ranks may end by themselves.
    """
    grace_seconds: float
    """The time, in seconds, from the signal that `number` gives until SIGKILL."""
    deadline: float | None
    """The time at which the next signal is sent to the ranks; None after SIGKILL."""
    phase: Phase = Phase.LAST_WORDS
    first: int | None = None
    """The rank whose failure ends the job; None if the job ends for another reason."""
    is_interrupted: bool = False
    """True if the launcher got SIGINT, SIGTERM or SIGHUP."""

    def next_signal(self) -> int | None:
        """Return the signal to send to the ranks now, or None.

        If the time `deadline` has come, enter the next `Phase` of the job's end and return its
        signal, for example SIGKILL for the phase KILLED. Before this time, or in the last phase,
        return None.
        """
        if self.deadline is None or time.monotonic() < self.deadline:
            return None
        if self.phase is Phase.LAST_WORDS:
            self.phase = Phase.SIGNALLED
            self.deadline += self.grace_seconds
            return self.number
        self.phase, self.deadline = Phase.KILLED, None
        return signal.SIGKILL

    def hurry(self) -> None:
        """Make the next call of `next_signal` return SIGKILL at once."""
        self.phase, self.deadline = Phase.SIGNALLED, 0.0


class Attempt:
    """One start of all ranks. A restart is a new attempt.

    Each attempt has a new random `key`, by which its ranks find each other.
    """

    def __init__(self, num_ranks: int) -> None:
        self.key = secrets.token_hex(16)
        self.port = free_port()
        self.log_fields = logs.log_fields_of(None, num_ranks, label_of(f"ngd:{self.key}"))
        """The fields rank, size, job and host of the launcher's own lines with NGD_LOG=json.

        The field rank is None, because these lines are not from a rank.
        """
        self.leaving: list[int] = []
        """The ranks that are ending or have ended, in the order in which they began to end.

        A rank begins to end when it notifies the launcher through the pipe (`Messages`), or when
        it ends without this message.
        """
        self.codes: set[int] = set()
        """The exit codes of the ranks that have ended; -N for a rank that signal N killed."""
        self.ending: Ending | None = None
        """The exit status, and the signals to send, if the job is ending; None while it runs."""


class Messages:
    """The pipe by which ranks notify the launcher. The variable NGD_LAUNCHER has its address."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def address(self) -> str:
        """The value of NGD_LAUNCHER: path and inode of the pipe, such as "/proc/12/fd/5 678"."""
        return address_of_launcher(self.reader)

    def read(self) -> list[str]:
        """Return the messages in the pipe.

        "3" means that rank 3 begins to end. With `ngd run --min-ranks`, the number is a member
        number, which a process keeps while its rank changes. "+3" means that member 3 waits in
        ngd.init() for the next world, the next group of all ranks.
        """
        try:
            return os.read(self.reader, 1 << 20).decode(errors="replace").split()
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.reader)
        os.close(self._writer)


class EndingSignals:
    """A pipe, and the handlers of SIGINT, SIGTERM and SIGHUP, the signals that end a job.

    Python writes to the pipe at each signal. The launcher waits in `select` for this pipe and for
    other events, so it handles a signal at once.
    """

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._received: list[int] = []
        self._old_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        handled = [s for s in ENDING_SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]  # nohup
        self._old_handlers = {s: signal.signal(s, self._remember) for s in handled}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT, SIGTERM or SIGHUP: store its number, which `read` returns."""
        self._received.append(number)

    def read(self) -> list[int]:
        """Return the numbers of the signals that the launcher got since the last call."""
        os.read(self.reader, 1 << 10)
        received, self._received = self._received, []
        return received

    def close(self) -> None:
        """Restore the signal handlers that were set before."""
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self.reader)
        os.close(self._writer)


class Job:
    """The ranks of a job, and the pipes and signal handlers of the launcher.

    The failure of one rank ends this job. ElasticJob, which continues, overrides `handle_end` and
    `handle_waiting`.
    """

    def __init__(self, options: Options, restarts: Restarts) -> None:
        self.options = options
        self.restarts = restarts
        with contextlib.ExitStack() as opened:  # closes the earlier ones if one cannot be opened
            self.signals = opened.enter_context(contextlib.closing(EndingSignals()))
            self.messages = opened.enter_context(contextlib.closing(Messages()))
            self.selector = opened.enter_context(selectors.DefaultSelector())
            """The descriptors to watch, each with the function to call when it is readable."""
            self.guard = opened.enter_context(contextlib.closing(Guard()))
            self.attempt = Attempt(options.num_ranks)
            opened.pop_all()
        self.ranks: dict[int, RankProcess] = {}
        """The processes of the ranks. An ended rank is removed when its end is handled."""
        self.cores = list(options.cores)
        """The cores of each rank. ElasticJob appends those of a rank that replaces a failed one."""

    def run(self) -> int:
        """Start the ranks, wait for the last one, and return the exit status of the job."""
        self._watch(self.signals.reader, self._read_signals)
        self._watch(self.messages.reader, self._read_messages)
        try:
            self._start_ranks()
            while self.ranks:
                self.wait_for_events()
                if not self.ranks and self._can_restart():
                    self._restart()
            return self._exit_status()
        except BrokenPipeError:  # the reader has closed the output: end as SIGPIPE would
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        finally:
            self._close()

    def _exit_status(self) -> int:
        """Return the exit status of a job whose ranks have all ended.

        It is 0 if no failure and no signal ended the job. If the launcher got a signal and all
        ranks ended by themselves with the same exit code, it is this code. Otherwise it is
        `Ending.exit_code`, for example the code of the rank that failed first.
        """
        ending, codes = self.attempt.ending, self.attempt.codes
        if ending is None:
            return 0
        if ending.is_interrupted and len(codes) == 1 and min(codes) >= 0:
            return min(codes)  # the ranks handled the signal
        return ending.exit_code

    def _close(self) -> None:
        """Kill the ranks that an error left running, close the pipes, restore signal handlers."""
        self._signal_ranks(signal.SIGKILL)
        for rank in self.ranks.values():
            rank.process.wait()
        self.guard.close()
        self.signals.close()
        self.selector.close()
        self.messages.close()

    def _can_restart(self) -> bool:
        """Return True if the job has failed and may start again."""
        ending = self.attempt.ending
        return ending is not None and ending.exit_code != 0 and self.restarts.left > 0

    def _restart(self) -> None:
        """Start all ranks again, as a new attempt."""
        self.restarts.use()
        total = self.restarts.used + self.restarts.left
        self.say(f"restart {self.restarts.used} of {total}")
        self.attempt = Attempt(self.options.num_ranks)
        self.messages.read()  # drop the messages of the previous attempt
        self._start_ranks()

    def _start_ranks(self) -> None:
        """Start all ranks. If one cannot be started, start no more ranks; the job then ends."""
        for rank in range(self.options.num_ranks):
            if not self.start_rank(rank):
                return

    def start_rank(self, rank: int) -> bool:
        """Start a rank; end the job and return False if that is impossible."""
        command = self.options.command
        try:
            process = start_process(command, self.environment_of(rank), self.cores[rank])
        except OSError as error:
            self.say(f"cannot start {command[0]}: {error.strerror}")
            self.restarts.forbid()
            self.end(126 if isinstance(error, PermissionError) else 127, signal.SIGTERM)
            return False
        self.guard.add(process.pid)
        started = self.ranks[rank] = RankProcess(process)
        pidfd = os.pidfd_open(process.pid)
        self._watch(pidfd, self._rank_ended, rank, pidfd)
        streams = streams_of(rank, process, self.options.has_prefix, self.attempt.log_fields)
        for stream in streams:
            started.streams.append(stream)
            self._watch(stream.source.fileno(), self._forward, stream)
        return True

    def environment_of(self, rank: int) -> dict[str, str]:
        """Return the environment of a rank."""
        return rank_environment(
            rank,
            self.options.num_ranks,
            self.attempt.key,
            self.attempt.port,
            self.restarts.used,
            os.environ,
            self.messages.address,
            self.options.folder,
        )

    def _watch(self, descriptor: int, function: Callable[..., None], *args: Any) -> None:
        """Make `wait_for_events` call `function(*args)` if a file descriptor is readable."""
        self.selector.register(descriptor, selectors.EVENT_READ, functools.partial(function, *args))

    def wait_for_events(self) -> None:
        """Wait for events of the ranks or the next deadline, and handle them.

        At a deadline, a job that is being ended sends its ranks the next signal, such as SIGKILL
        after SIGTERM.
        """
        deadline = min(self.deadlines(), default=None)
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        for key, _ in self.selector.select(timeout):
            key.data()
        ending = self.attempt.ending
        if ending is not None and (number := ending.next_signal()) is not None:
            self._signal_ranks(number)

    def deadlines(self) -> list[float]:
        """Return the times at which `wait_for_events` stops waiting even if no event occurs.

        If the job is ending and will send the ranks another signal, this is the time of the signal.
        Otherwise the list is empty.
        """
        ending = self.attempt.ending
        return [] if ending is None or ending.deadline is None else [ending.deadline]

    def _read_signals(self) -> None:
        """End the job if the launcher got SIGINT, SIGTERM or SIGHUP.

        The ranks get the same signal. If the job is ending already, they get SIGKILL instead.
        """
        for number in self.signals.read():
            self.restarts.forbid()
            ending = self.attempt.ending
            if ending is None:
                ending = self.end(128 + number, number)
            else:
                ending.hurry()
            ending.is_interrupted = True

    def _read_messages(self) -> None:
        """Handle the messages of ranks.

        A rank sends a message when it is about to end. With `ngd run --min-ranks`, it also sends
        one when it waits in ngd.init() for the next group of all ranks (the next world).
        """
        messages = self.messages.read()
        waiting = [message[len(WAITS) :] for message in messages if message.startswith(WAITS)]
        self.handle_waiting([int(number) for number in waiting if number.isdecimal()])
        self._note_leaving([int(message) for message in messages if message.isdecimal()])

    def _note_leaving(self, notified: Sequence[int]) -> None:
        """Append ranks to `leaving`, the list of ranks in the order in which they began to end.

        First append the ranks that have ended without a message. Then append `notified`, the ranks
        that have just sent the message that they begin to end. They may end because they noticed
        the failure of a rank that was killed, and a killed rank sends no message.
        """
        leaving = self.attempt.leaving
        for number, rank in self.ranks.items():
            is_silent = number not in leaving and number not in notified
            if is_silent and rank.has_ended():
                leaving.append(number)
        leaving += [number for number in dict.fromkeys(notified) if number not in leaving]

    def _forward(self, stream: OutputStream, is_last: bool = False) -> None:
        """Print the new lines in a rank's output stream.

        Close the stream if the rank has closed its end of the pipe, or if `is_last` is True because
        the rank has ended.
        """
        if stream.source.closed:
            return
        if not stream.forward(is_last) or is_last:
            self.selector.unregister(stream.source)
            stream.source.close()

    def _rank_ended(self, number: int, pidfd: int) -> None:
        """Remove a rank that has ended, print its last lines, and handle its exit code."""
        self._read_messages()
        rank = self.ranks[number]
        code = rank.reap()
        self.guard.remove(rank.process.pid)
        del self.ranks[number]
        for stream in rank.streams:  # before the launcher's message about the end
            self._forward(stream, is_last=True)
        self.selector.unregister(pidfd)
        os.close(pidfd)
        self.attempt.codes.add(code)
        self.handle_end(number, code)

    def handle_waiting(self, members: Sequence[int]) -> None:
        """Do nothing. Only an `ElasticJob`, which overrides this method, regroups running ranks."""

    def handle_end(self, rank: int, code: int) -> None:
        """End the job unless `code` is 0. A rank has returned `code`, or signal -code killed it."""
        if code != 0:
            self.fail(rank, code)

    def fail(self, rank: int, code: int) -> None:
        """End the job because a rank failed.

        The job may already be ending because another rank failed. If this rank began to end before
        that rank (`Attempt.leaving`), this rank is the cause, although it took longer to end. Then
        use this rank's exit code instead, unless the ranks have already got a signal.
        """
        how = describe_end(code)
        exit_code = 128 - code if code < 0 else code
        ending, order = self.attempt.ending, self.attempt.leaving.index
        if ending is None:
            self.say(f"rank {rank} {how}" + ("; ending the other ranks" if self.ranks else ""))
            ending = self.end(exit_code, signal.SIGTERM, LAST_WORDS_SECONDS)
            ending.first = rank
            return
        is_unsignalled = ending.phase is Phase.LAST_WORDS
        if ending.first is not None and is_unsignalled and order(rank) < order(ending.first):
            self.say(f"rank {rank}, which had ended before, {how}")
            ending.exit_code, ending.first = exit_code, rank

    def end(self, exit_code: int, number: int, delay_seconds: float = 0.0) -> Ending:
        """End the job with an exit status.

        After `delay_seconds`, the ranks get the signal `number`, and --grace seconds later SIGKILL.
        """
        deadline = time.monotonic() + delay_seconds
        ending = Ending(exit_code, number, self.options.grace_seconds, deadline)
        self.attempt.ending = ending
        return ending

    def _signal_ranks(self, number: int) -> None:
        """Send a signal to the process groups of all ranks."""
        for rank in self.ranks.values():
            rank.send_signal(number)

    def say(self, line: str) -> None:
        """Print a message about the job."""
        print_message(line, self.attempt.log_fields)


def free_port() -> int:
    """Return a free port, which the ranks get as MASTER_PORT, for example for torch.distributed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
