# SPDX-License-Identifier: Apache-2.0
"""What a rank of interrupts.py does: it makes a call, is interrupted in it or not, and looks."""

from __future__ import annotations

import faulthandler
import gc
import json
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import ngd
from tests.stress import interrupted_calls
from tests.support import harness

PACKAGE = str(Path(ngd.__file__).parent)
POISON = 0xA5

SPARED = ("alone",)
"""Functions that are spared, the next one is not: they hold a lock by `with`, and Python itself
looks for no signal between the end of that block and the release."""


class Tracer:
    """Raises KeyboardInterrupt before the n-th bytecode of ngd's own Python; 0 only counts."""

    def __init__(self, at: int) -> None:
        self.at, self.count, self.where = at, 0, ""

    def enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        """For sys.settrace."""
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame: FrameType, event: str, arg: Any) -> Any:
        """For every event in a frame of ngd's."""
        if event == "opcode":
            self.count += 1
            code = frame.f_code
            if self.at and self.count >= self.at and code.co_name not in SPARED:
                file = code.co_filename.removeprefix(PACKAGE + "/")
                self.where = f"{file}:{frame.f_lineno} {code.co_name}+{frame.f_lasti}"
                raise KeyboardInterrupt(self.where)
        return self.step


class Timer:
    """Lets a signal come so many seconds after arm(), and more of them in a row."""

    def __init__(self, first: float, gaps: list[float]) -> None:
        self.times, self.came = [first, *gaps], 0
        self.within: CodeType | None = None
        signal.signal(signal.SIGALRM, self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise where the call is, and nowhere else."""
        while frame is not None and frame.f_code is not self.within:
            frame = frame.f_back
        if frame is not None:
            self.came += 1
            if self.came < len(self.times):
                signal.setitimer(signal.ITIMER_REAL, self.times[self.came])
            raise KeyboardInterrupt

    def arm(self, within: CodeType) -> None:
        """From here on, in a function and what it calls."""
        self.within = within
        signal.setitimer(signal.ITIMER_REAL, self.times[0])

    def disarm(self) -> None:
        """Up to here."""
        self.within = None
        signal.setitimer(signal.ITIMER_REAL, 0)


@dataclass
class Reply:
    """What a rank tells of a run."""

    outcome: str = "value"
    """Or "interrupt", or "error"."""
    error: list[str] | None = None
    wrong: list[str] = field(default_factory=list)
    probes: list[Any] = field(default_factory=list)
    """Of each: "right", or the error."""
    works: list[list[str]] = field(default_factory=list)
    """The errors of those that were waited for again."""
    state: str = "nothing"
    bytecodes: int = 0
    where: str = ""
    came: int = 0


def same(got: Any, want: Any) -> bool:
    """Whether a result is exactly what was wanted."""
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, np.ndarray):
        return got.dtype == want.dtype and np.array_equal(got, want)
    return bool(got == want)


def told(error: BaseException) -> list[str]:
    """An error as the parent judges it."""
    return [type(error).__name__, str(error)[-600:]]


def make(call: Callable[[], Any], reply: Reply) -> Any:
    """Make a call; what becomes of it."""
    try:
        return call()
    except KeyboardInterrupt:
        reply.outcome = "interrupt"
    except Exception as error:
        reply.outcome, reply.error = "error", told(error)
        if not isinstance(error, ngd.errors.Error):
            reply.error[1] = "".join(traceback.format_exception(error))[-2000:]
    return None


def traced(call: Callable[[], Any], reply: Reply, at: int) -> Any:
    """Make a call that is interrupted at a bytecode."""
    tracer = Tracer(at)

    def traced_call() -> Any:
        sys.settrace(tracer.enter)
        try:
            return call()
        finally:
            sys.settrace(None)

    value = make(traced_call, reply)
    reply.bytecodes, reply.where = tracer.count, tracer.where
    return value


def signalled(call: Callable[[], Any], reply: Reply, first: float, gaps: list[float]) -> Any:
    """Make a call into which signals come."""
    timer = Timer(first, gaps)

    def armed_call() -> Any:
        timer.arm(armed_call.__code__)
        value = call()
        timer.disarm()
        return value

    value = make(armed_call, reply)
    timer.disarm()
    reply.came = timer.came
    return value


def fill_what_was_freed(count: int) -> list[Any]:
    """Take memory of the operands' sizes, which may be what the call has let go of."""
    gc.collect()
    sizes = {8 * count, 4 * count, 2 * count, 16 * count, 24 * count, 8, 16, 320, 160}
    return [np.full(size, POISON, np.uint8) for size in sizes for _ in range(4)]


def probe(group: ngd.Group | None, run: interrupted_calls.Run, number: int) -> Any:
    """Whether collectives give what they must: one beside the flag, and one in many pieces."""
    elements = (5, 40_001)[number]
    parts = [np.arange(elements) * (r + 1) + run.number for r in range(run.size)]
    order = [group.rank if group else run.rank]
    try:
        order = ngd.all_gather(np.array(order), group=group, out=np.empty(run.size, np.int64))
        got = ngd.all_gather(parts[run.rank], group=group)
        total = ngd.all_reduce(parts[run.rank], op="sum", group=group)
    except ngd.errors.Error as error:
        return told(error)
    if not np.array_equal(np.sort(order), np.arange(run.size)):
        return "wrong ranks"
    turned = parts[::-1] if group is not None and group.name == "turned" else parts
    right = np.array_equal(got, np.concatenate(turned)) and np.array_equal(total, sum(parts))
    return "right" if right else f"wrong: {got[:4]}, {total[:4]}"


class Rank:
    """Serves the parent's orders."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.unraisable: list[str] = []
        sys.unraisablehook = self.note

    def note(self, what: Any) -> None:
        """Where what went wrong cannot be raised: a dropped work says so here."""
        if not isinstance(what.exc_value, (KeyboardInterrupt, RuntimeError)):
            self.unraisable.append(f"{what.exc_value!r} in {what.object!r}")

    def start(self) -> dict[str, Any]:
        """Come to a new world."""
        self.kept.clear()
        gc.collect()
        ngd.shutdown()
        return {"size": ngd.init().size}

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """One run."""
        world = ngd.init()
        number, count = order["number"], order["count"]
        run = interrupted_calls.Run(number, count, world.rank, world.size, self.kept)
        case = interrupted_calls.CASES[order["case"]](run)
        reply = Reply()
        if order["case"] != "init":
            ngd.barrier()
        time.sleep(order["late"][run.rank])
        if run.rank not in order["victims"]:
            value = make(case.call, reply)
        elif order["mode"] == "tracer":
            value = traced(case.call, reply, order["at"])
        else:
            value = signalled(case.call, reply, order["first"], order["gaps"])
        blocks = fill_what_was_freed(count)
        if reply.outcome == "value" and not same(value, case.want):
            reply.wrong.append(f"got {value}, want {case.want}")
        self.look_at_works(case, reply)
        reply.probes = [probe(case.group, run, 0), probe(None, run, 1)]
        if not all((block == POISON).all() for block in blocks):
            reply.wrong.append("memory that was let go of was written to")
        reply.state = case.state()
        if reply.state not in ("nothing", "before", "after", "poisoned"):
            reply.wrong.append(reply.state)
        reply.wrong += self.unraisable
        self.unraisable.clear()
        return vars(reply)

    def look_at_works(self, case: interrupted_calls.Case, reply: Reply) -> None:
        """What was interrupted in wait() is waited for again."""
        for i, work in enumerate(case.works):
            try:
                value = work.wait()
            except ngd.errors.Error as error:
                reply.works.append(told(error))
            except BaseException as error:
                reply.wrong.append(f"work {i}: {error!r}")
            else:
                if not same(value, case.want[i]):
                    reply.wrong.append(f"work {i}: got {value}, want {case.want[i]}")


def serve(folder: str) -> None:
    """Answer every line of one pipe by a line of another."""
    faulthandler.register(signal.SIGUSR1)
    np.set_printoptions(threshold=6)
    gc.freeze()  # what was imported need not be looked through after every run
    name, rank = Path(folder, harness.own_rank()), Rank()
    with (
        name.with_suffix(".orders").open() as orders,
        name.with_suffix(".replies").open("w") as out,
    ):
        for line in orders:
            order = json.loads(line)
            try:
                reply = rank.start() if order["do"] == "start" else rank.run(order)
            except BaseException:
                reply = {"broken": traceback.format_exc()[-3000:]}
            out.write(json.dumps(reply) + "\n")
            out.flush()
