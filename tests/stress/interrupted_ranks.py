# SPDX-License-Identifier: Apache-2.0
"""A rank of interrupts.py: it makes calls, some with an interrupt, and checks the state."""

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
"""Functions in which no interrupt is raised; it is raised in the next function.

They hold a lock by `with`, and Python itself checks for no signal between the end of that block and
the release.
"""


class Tracer:
    """A tracer that raises KeyboardInterrupt before bytecode `at` of ngd; 0 only counts."""

    def __init__(self, at: int) -> None:
        self.at, self.count, self.where = at, 0, ""

    def enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Trace a new frame, as the function of sys.settrace."""
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Handle an event in a frame of ngd."""
        if event == "opcode":
            self.count += 1
            code = frame.f_code
            if self.at and self.count >= self.at and code.co_name not in SPARED:
                file = code.co_filename.removeprefix(PACKAGE + "/")
                self.where = f"{file}:{frame.f_lineno} {code.co_name}+{frame.f_lasti}"
                raise KeyboardInterrupt(self.where)
        return self.step


class Timer:
    """A timer that sends a signal `first` seconds after arm(), and further ones after the gaps."""

    def __init__(self, first: float, gaps: list[float]) -> None:
        self.times, self.came = [first, *gaps], 0
        self.armed_code: CodeType | None = None
        signal.signal(signal.SIGALRM, self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise if the armed function runs, and nowhere else."""
        while frame is not None and frame.f_code is not self.armed_code:
            frame = frame.f_back
        if frame is not None:
            self.came += 1
            if self.came < len(self.times):
                signal.setitimer(signal.ITIMER_REAL, self.times[self.came])
            raise KeyboardInterrupt

    def arm(self, armed_code: CodeType) -> None:
        """Start the timer for a function and its callees."""
        self.armed_code = armed_code
        signal.setitimer(signal.ITIMER_REAL, self.times[0])

    def disarm(self) -> None:
        """Stop the timer."""
        self.armed_code = None
        signal.setitimer(signal.ITIMER_REAL, 0)


@dataclass
class Reply:
    """The report of a rank about a run."""

    outcome: str = "value"
    """"value", "interrupt" or "error"."""
    error: list[str] | None = None
    wrong: list[str] = field(default_factory=list)
    probes: list[Any] = field(default_factory=list)
    """The result of each probe: "right", or an error."""
    works: list[list[str]] = field(default_factory=list)
    """The errors of works that were waited for again."""
    state: str = "nothing"
    bytecodes: int = 0
    where: str = ""
    came: int = 0


def is_equal(got: Any, want: Any) -> bool:
    """Return if a result equals the expected one exactly."""
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(map(is_equal, got, want))
    if isinstance(want, np.ndarray):
        return got.dtype == want.dtype and np.array_equal(got, want)
    return bool(got == want)


def describe_error(error: BaseException) -> list[str]:
    """Return an error in the form that the parent judges."""
    return [type(error).__name__, str(error)[-600:]]


def make(call: Callable[[], Any], reply: Reply) -> Any:
    """Make a call, and record its outcome in the reply."""
    try:
        return call()
    except KeyboardInterrupt:
        reply.outcome = "interrupt"
    except Exception as error:
        reply.outcome, reply.error = "error", describe_error(error)
        if not isinstance(error, ngd.errors.Error):
            reply.error[1] = "".join(traceback.format_exception(error))[-2000:]
    return None


def call_with_tracer(call: Callable[[], Any], reply: Reply, at: int) -> Any:
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


def call_with_signals(
    call: Callable[[], Any], reply: Reply, first: float, gaps: list[float]
) -> Any:
    """Make a call during which signals arrive."""
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


def reuse_freed_memory(count: int) -> list[Any]:
    """Allocate arrays of the operands' sizes, which may reuse memory that the call has freed."""
    gc.collect()
    sizes = {8 * count, 4 * count, 2 * count, 16 * count, 24 * count, 8, 16, 320, 160}
    return [np.full(size, POISON, np.uint8) for size in sizes for _ in range(4)]


def probe(group: ngd.Group | None, run: interrupted_calls.Run, number: int) -> Any:
    """Check collectives of a small and a large array; return "right" or an error."""
    elements = (5, 40_001)[number]
    parts = [np.arange(elements) * (r + 1) + run.number for r in range(run.size)]
    order = [group.rank if group else run.rank]
    try:
        order = ngd.all_gather(np.array(order), group=group, out=np.empty(run.size, np.int64))
        got = ngd.all_gather(parts[run.rank], group=group)
        total = ngd.all_reduce(parts[run.rank], op="sum", group=group)
    except ngd.errors.Error as error:
        return describe_error(error)
    if not np.array_equal(np.sort(order), np.arange(run.size)):
        return "wrong ranks"
    order_of_parts = parts[::-1] if group is not None and group.name == "turned" else parts
    right = np.array_equal(got, np.concatenate(order_of_parts)) and np.array_equal(
        total, sum(parts)
    )
    return "right" if right else f"wrong: {got[:4]}, {total[:4]}"


class Rank:
    """A server of the parent's orders."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.unraisable: list[str] = []
        sys.unraisablehook = self.note

    def note(self, what: Any) -> None:
        """Record an exception that cannot be raised, such as the report of a dropped work."""
        if not isinstance(what.exc_value, (KeyboardInterrupt, RuntimeError)):
            self.unraisable.append(f"{what.exc_value!r} in {what.object!r}")

    def start(self) -> dict[str, Any]:
        """Join a new world."""
        self.kept.clear()
        gc.collect()
        ngd.shutdown()
        return {"size": ngd.init().size}

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Make one run, and return the reply."""
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
            value = call_with_tracer(case.call, reply, order["at"])
        else:
            value = call_with_signals(case.call, reply, order["first"], order["gaps"])
        blocks = reuse_freed_memory(count)
        if reply.outcome == "value" and not is_equal(value, case.want):
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
        """Wait again for works whose wait() was interrupted."""
        for i, work in enumerate(case.works):
            try:
                value = work.wait()
            except ngd.errors.Error as error:
                reply.works.append(describe_error(error))
            except BaseException as error:
                reply.wrong.append(f"work {i}: {error!r}")
            else:
                if not is_equal(value, case.want[i]):
                    reply.wrong.append(f"work {i}: got {value}, want {case.want[i]}")


def serve(folder: str) -> None:
    """Answer each line of one pipe by a line in another pipe."""
    faulthandler.register(signal.SIGUSR1)
    np.set_printoptions(threshold=6)
    gc.freeze()  # imported objects need no collection after each run
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
