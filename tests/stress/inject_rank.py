# SPDX-License-Identifier: Apache-2.0
"""One rank of a run of inject.py. It is a forked process."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

from tests.stress.inject_hook import Fault, Hook
from tests.stress.inject_judge import reports_too_little_memory

SECONDS = 40.0
"""A run that takes more seconds counts as hung."""


def held_resources() -> dict[str, Any]:
    """Return the open files, mapped segments, threads and children of this process."""
    files: list[str] = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{entry}")
            files.append(name.split(":")[0] if not name.startswith("/") else name)
    maps = Path("/proc/self/maps").read_text().count("memfd:ngd")
    tasks = len(os.listdir("/proc/self/task"))
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    names = [name for name in sorted(files) if not name.startswith("/proc/")]
    return {"files": names, "segments": maps, "threads": tasks, "children": children}


class Rank:
    """One rank that runs a scenario and reports errors and leaks."""

    def __init__(self, hook: Hook, fault: Fault, rank: int, peer: socket.socket) -> None:
        from tests.stress.inject_scenarios import SCENARIOS

        self.hook, self.fault, self.rank, self.peer = hook, fault, rank, peer
        self.scenario = SCENARIOS[fault.scenario]
        self.has_fault = fault.rank == rank
        self.errors: list[dict[str, Any]] = []
        self.fired = 0
        self.calls: list[Any] = []

    def record(self, step: str, error: BaseException, expected: bool) -> None:
        """Record an error."""
        kinds = [kind.__name__ for kind in type(error).__mro__]
        text = {"step": step, "kind": kinds[0], "kinds": kinds, "message": str(error)[:300]}
        self.errors.append({**text, "expected": expected})

    def join(self, seconds: float) -> None:
        """Join the world, and retry after an error. The other rank retries, too."""
        import ngd

        end = time.monotonic() + seconds
        while True:
            try:
                ngd.init()
            except (ngd.errors.Error, MemoryError, OSError) as error:
                self.record("init", error, False)
                self.fired = max(self.fired, self.hook.disarm())
                if time.monotonic() > end or self.other_is_done():
                    raise
                time.sleep(0.02)
            else:
                return

    def other_is_done(self) -> bool:
        """Return if the other rank waits in meet()."""
        return select.select([self.peer], [], [], 0)[0] != []

    def retry(self, step: Any) -> bool:
        """Call a step again after its error, and return if it works."""
        from ngd.errors import GroupClosedError

        self.fired = max(self.fired, self.hook.disarm())
        last = self.errors[-1]
        concerned = self.has_fault or reports_too_little_memory(last["message"])
        if last["expected"] or not concerned or not self.scenario.again:
            return False
        try:
            step.call()
        except GroupClosedError:
            last["closed"] = True
            return False
        except BaseException as error:
            self.record(f"{step.name}, again", error, isinstance(error, step.expects))
            return False
        return True

    def run_steps(self) -> None:
        """Run the steps with the fault, until one closes the group."""
        steps = self.scenario.steps(self.rank)
        self.hook.count(self.rank)
        if self.has_fault:
            self.hook.arm(self.fault)
        for number, step in enumerate(steps):
            if self.scenario.independent and self.fault.step not in (-1, number):
                continue
            try:
                making = self.scenario.name.startswith("making")
                self.join(8) if making and step.name == "init" else step.call()
                if step.expects and self.scenario.independent and not self.has_fault:
                    self.record(step.name, AssertionError("no error"), False)
            except BaseException as error:
                self.record(step.name, error, isinstance(error, step.expects))
                error.__traceback__ = None
                del error
                if not self.retry(step) and not self.scenario.independent:
                    return
            if self.scenario.independent and self.fault.step == -1:
                self.calls.append([[*k, n] for k, n in self.hook.calls(self.rank).items()])
                self.hook.forget_calls()

    def meet(self) -> None:
        """Wait until the other rank has arrived here, too."""
        if self.scenario.ranks == 1:
            return
        self.peer.settimeout(SECONDS)
        self.peer.send(b"x")
        if self.peer.recv(1) != b"x":
            raise ConnectionError("the other rank has died")

    def leave(self) -> dict[str, Any]:
        """End the world, and return the resources that are still held."""
        import ngd

        ngd.shutdown()
        gc.collect()
        return held_resources()

    def run(self) -> dict[str, Any]:
        """Run the scenario, and return the report."""
        import ngd

        hook, two = self.hook, self.scenario.ranks == 2
        hook.library.inject_follow()
        before = held_resources()
        if self.scenario.joins:
            ngd.init()
        self.run_steps()
        self.fired = max(self.fired, hook.disarm())
        hook.count(-1)
        self.meet()
        report: dict[str, Any] = {"errors": self.errors, "fired": self.fired, "calls": self.calls}
        report["leaks"] = [] if (after := self.leave()) == before else [before, after]
        report["blocks"] = hook.blocks()
        self.meet()
        if two:
            self.errors, first = [], self.errors
            self.join(8)
            ngd.barrier()
            report["again"], report["errors"] = self.errors, first
            if (after := self.leave()) != before:
                report["leaks"] = [before, after]
        return report


def environment(rank: int, ranks: int, job: str) -> dict[str, str]:
    """Return the environment variables that a launcher would set."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "NGD_JOB": job,
        "NGD_COMM": "auto",
    }


def rank_main(
    hook: Hook, fault: Fault, rank: int, peer: socket.socket, folder: Path, seconds: float
) -> None:
    """Run a forked rank. This function does not return."""
    from tests.stress.inject_scenarios import SCENARIOS

    code = 1
    try:
        log = os.open(folder / f"{rank}.err", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 2)
        os.dup2(log, 1)
        os.close(log)
        faulthandler.enable()
        faulthandler.dump_traceback_later(seconds - 3, exit=False)
        scenario = SCENARIOS[fault.scenario]
        os.environ["NGD_TIMEOUT"] = "8"
        os.environ.update(environment(rank, scenario.ranks, folder.name))
        os.environ.update(scenario.env)
        report = Rank(hook, fault, rank, peer).run()
        (folder / f"{rank}.json").write_text(json.dumps(report))
        code = 0
    except BaseException as error:
        import traceback

        traceback.print_exception(error)
    finally:
        sys.stderr.flush()
        os._exit(code)
