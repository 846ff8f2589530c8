# SPDX-License-Identifier: Apache-2.0
"""Makes single allocations and system calls of ngd's C++ code fail, and checks the result.

    python -m tests.stress.inject --seconds 60        # some, at random; the seed is printed
    python -m tests.stress.inject --all               # every site in every scenario

ngd is built with line numbers, into build/inject. Every run has two new processes, which are ranks
of one world and run a scenario (inject_scenarios.py). In one of them, one call of one site
(inject_sites.py) fails (inject.cpp). The following must then hold:

- that rank raises an error with a message, or works without the call
- the other rank raises an error, too, or gets right results
- a step that has not closed the group works when it is called again
- nothing stays open, mapped, running or allocated
- a new world works

The last line is JSON: the runs, the number of sites that were reached, the other sites with the
reasons (inject_unreached.py), and the findings. The exit code is 0 if there is no finding and 95 %
of the reachable sites were reached.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import faulthandler
import gc
import glob
import importlib.util
import itertools
import json
import math
import os
import pickle
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.stress.inject_sites import FUNCTIONS, Sites, find
from tests.stress.inject_unreached import CALLED_BY_OTHERS, CANNOT_FAIL, UNREACHED, reasons

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "inject"
PACKAGE, HOOK = BUILD / "package", BUILD / "inject-hook.so"
WANTED_SHARE = 0.95
SECONDS = 40.0
"""A run that takes more seconds counts as hung."""

MOST_SITES = 4096
LOST, TRUNCATED = -2, -3  # as in inject.cpp
ALL_LATER = "every later allocation, too"

E = errno
HOW: dict[str, tuple[int, ...]] = {
    "allocate": (E.ENOMEM,),
    "aligned_alloc": (E.ENOMEM,),
    "mmap": (E.ENOMEM,),
    "madvise": (E.EINVAL,),
    "memfd_create": (E.EMFILE,),
    "ftruncate": (E.ENOSPC, E.EINTR),
    "fallocate": (E.ENOSPC, E.EINTR),
    "fcntl": (E.EPERM,),
    "fstat": (E.ENOMEM,),
    "socket": (E.EMFILE,),
    "bind": (E.ENOMEM,),
    "listen": (E.EADDRINUSE,),
    "accept4": (E.EMFILE, E.EINTR, E.ECONNABORTED),
    "connect": (E.EACCES, E.EINTR, E.EAGAIN),
    "sendmsg": (E.EPIPE, E.EINTR, E.ENOBUFS),
    "recvmsg": (E.ECONNRESET, E.EINTR, TRUNCATED),
    "poll": (E.EINTR, E.ENOMEM),
    "getsockopt": (E.ENOBUFS,),
    "setsockopt": (E.ENOBUFS,),
    "getrlimit": (E.EINVAL,),
    "getrusage": (E.EINVAL,),
    "opendir": (E.EMFILE,),
    "sched_getaffinity": (E.EINVAL,),
    "sched_setaffinity": (E.EINVAL,),
    "sysconf": (E.EINVAL,),
    "futex_wait": (E.EINTR, E.EAGAIN),
    "futex_wake": (LOST,),
    "pidfd_open": (E.ENOSYS,),
    "getrandom": (E.EINTR,),
    "pthread_create": (E.EAGAIN,),
    "open": (E.EMFILE, E.EINTR),
    "read": (E.EIO, E.EINTR),
    "send": (E.ENOBUFS,),
    "recv": (E.ENOBUFS, E.EINTR),
}
assert set(HOW) == set(FUNCTIONS)

HARMLESS = {E.EINTR, E.EAGAIN, E.ECONNABORTED, LOST}
"""The faults that no rank may notice, except that EAGAIN of pthread_create is an error."""

MAY_LEAVE = {
    # It is unknown if the descriptor is still ngd's; another one must not be closed.
    "src/cpp/comm/shm/system.cpp fstat",
}
"""Sites whose failure may leave something open."""

ALLOWED = ("MemoryError", "OSError", "InitError", "RankLostError", "RemoteRankError")
NOTIFIED = ("RemoteRankError", "RankLostError", "InitError", "GroupClosedError")


@dataclass(frozen=True)
class Fault:
    """Call number `number` of `function` from one site fails, in one rank of a scenario."""

    scenario: str
    rank: int
    site: int
    function: str
    number: int
    kind: int
    goes_on: bool = False
    step: int = -1
    """The index of the step, if the steps of the scenario are independent."""


class Hook:
    """The library inject.cpp in this process."""

    def __init__(self, sites: Sites) -> None:
        self.library = ctypes.CDLL(str(HOOK))
        n = len(sites.ends)
        ends, begins = (ctypes.c_uint64 * n)(*sites.ends), (ctypes.c_uint64 * n)(*sites.begins)
        numbers = (ctypes.c_int32 * n)(*sites.numbers)
        size = ctypes.c_size_t(n)
        assert len(sites.names) <= MOST_SITES
        built = str(module()).encode()
        if self.library.inject_install(built, ends, begins, numbers, size) != 0:
            from ngd import _core

            raise SystemExit(
                f"inject: expected ngd to be loaded from {module()}, which has the breakpoints' "
                f"addresses; got {_core.__file__}. Uninstall the editable ngd of this environment."
            )
        self.sites = sites
        for name in ("inject_reached", "inject_failed"):
            getattr(self.library, name).restype = ctypes.POINTER(ctypes.c_uint8)
        self.library.inject_calls.restype = ctypes.POINTER(ctypes.c_uint32)
        self.set_breakpoints()

    def set_breakpoints(self) -> None:
        """Set a breakpoint at every site that was not reached so far."""
        assert self.library.inject_break() == 0

    def arm(self, fault: Fault) -> None:
        """Start to count calls, and let the call fail that the fault selects."""
        function = FUNCTIONS.index(fault.function)
        self.library.inject_arm(fault.site, function, fault.number, fault.kind, fault.goes_on)

    def disarm(self) -> int:
        """Let no further calls fail, and return the number of failures."""
        return int(self.library.inject_disarm())

    def count(self, rank: int) -> None:
        """Count the calls of this rank; with -1, count none."""
        self.library.inject_count(rank)

    def calls(self, rank: int) -> dict[tuple[int, str], int]:
        """Return the number of calls per site and function in a rank."""
        import numpy as np

        n = MOST_SITES * len(FUNCTIONS)
        counts = np.ctypeslib.as_array(self.library.inject_calls(rank), (n,))
        return {
            (int(index) // len(FUNCTIONS), FUNCTIONS[int(index) % len(FUNCTIONS)]): int(
                counts[index]
            )
            for index in np.flatnonzero(counts)
        }

    def forget_calls(self) -> None:
        """Restart the count of calls at 0."""
        self.library.inject_forget_calls()

    def flags(self, which: str) -> set[int]:
        """Return the sites that were "reached", or that have "failed"."""
        flags = getattr(self.library, f"inject_{which}")()
        return {site for site in range(len(self.sites.names)) if flags[site]}

    def blocks(self) -> dict[str, int]:
        """Return the number of allocated blocks per site."""
        counts = (ctypes.c_uint32 * MOST_SITES)()
        self.library.inject_blocks(counts)
        names = self.sites.names
        return {names[site]: counts[site] for site in range(len(names)) if counts[site]}


# ---- one rank


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
        concerned = self.has_fault or is_for_want_of_memory(last["message"])
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


# ---- a run


@dataclass
class Run:
    """The processes of a run."""

    fault: Fault
    folder: Path
    pids: dict[int, int]
    end: float


def start(hook: Hook, fault: Fault, seconds: float) -> Run:
    """Fork the ranks."""
    from tests.stress.inject_scenarios import SCENARIOS

    folder = Path(tempfile.mkdtemp(prefix="ngd-inject-"))
    pair = socket.socketpair()
    pids: dict[int, int] = {}
    sys.stdout.flush()
    for rank in range(SCENARIOS[fault.scenario].ranks):
        pids[rank] = os.fork()
        if pids[rank] == 0:
            pair[1 - rank].close()
            os.environ["NGD_INJECT_FIRST"] = str(pids[0])
            rank_main(hook, fault, rank, pair[rank], folder, seconds)
    for each in pair:
        each.close()
    return Run(fault, folder, pids, time.monotonic() + seconds)


def reports_of(run: Run) -> dict[int, Any] | None:
    """Return the reports of the ranks, or None while the run continues.

    A rank without a report has a text instead.
    """
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    alive = [pid for pid in run.pids.values() if os.waitid(os.P_PID, pid, flags) is None]
    is_late = time.monotonic() > run.end
    if alive and not is_late:
        return None
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    reports: dict[int, Any] = {}
    for rank, pid in run.pids.items():
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        file = run.folder / f"{rank}.json"
        if file.exists():
            reports[rank] = json.loads(file.read_text())
            continue
        output = (run.folder / f"{rank}.err").read_text(errors="replace")
        reports[rank] = f"{'hung' if pid in alive else f'ended with {status}'}: {output[-6000:]}"
    shutil.rmtree(run.folder, ignore_errors=True)
    return reports


def run_all(
    hook: Hook,
    faults: Sequence[Fault],
    jobs: int,
    seconds: float = SECONDS,
    end: float = math.inf,
) -> Iterator[tuple[Fault, Any]]:
    """Run the faults, some at a time, and yield each with its reports.

    No run starts after `end`.
    """
    pending, running = list(reversed(faults)), []
    while pending or running:
        if time.monotonic() > end:
            pending.clear()
        while pending and len(running) < jobs:
            hook.set_breakpoints()
            running.append(start(hook, pending.pop(), seconds))
        for run in list(running):
            if (reports := reports_of(run)) is not None:
                running.remove(run)
                yield run.fault, reports
        time.sleep(0.002)


def is_for_want_of_memory(message: str) -> bool:
    """Return if an error says that one of the ranks has too little memory."""
    return "has no memory" in message or "expected memory for" in message


def place_of(site: str) -> str:
    """Return a site without its line number, which changes often."""
    return re.sub(r":\d+", "", site)


def waits_with_reason(error: dict[str, Any], report: dict[str, Any], failed: list[Any]) -> bool:
    """Return if a rank waits in init() for the other rank with good reason.

    The other rank had left init() and failed later. This rank got that error in init().
    """
    heard = any(e["step"] == "init" and e["kind"] == "RemoteRankError" for e in report["errors"])
    later = all(e["step"] != "init" for e in failed)
    return error["step"] == "init" and heard and later


def waited_alone(error: dict[str, Any], fault: Fault, reports: dict[int, Any]) -> bool:
    """Return if a rank failed in init(), and waited when the other rank had left init()."""
    others = [e for rank, r in reports.items() if rank != fault.rank for e in r["errors"]]
    through = any(e["step"] != "init" and e["kind"] == "RemoteRankError" for e in others)
    return (
        through and error["step"].startswith("init") and error["kind"] == "CollectiveTimeoutError"
    )


def judge(hook: Hook, fault: Fault, reports: dict[int, Any], quiet: Any) -> list[str]:
    """Return the findings of a run."""
    from tests.stress.inject_scenarios import SCENARIOS

    findings: list[str] = []
    again, site = SCENARIOS[fault.scenario].again, place_of(hook.sites.names[fault.site])
    for rank, report in reports.items():
        if isinstance(report, str):
            findings.append(f"rank {rank} {report}")
    if findings:
        return findings
    own_report = reports[fault.rank]
    failed = [
        e for e in own_report["errors"] if not e["expected"] and not waited_alone(e, fault, reports)
    ]
    is_harmless = fault.kind in HARMLESS and fault.function != "pthread_create"
    for error in failed:
        has_message = error["message"].strip() != ""
        if not set(error["kinds"]) & set(ALLOWED) or not has_message or is_harmless:
            findings.append(f"{error['step']}: {error['kind']}: {error['message']!r}")
    failed_again = any(error["step"].endswith(", again") for error in failed)
    if failed_again:
        findings.append("called again it did not work")
    for rank, report in reports.items():
        if rank != fault.rank:
            for error in report["errors"]:
                if error["expected"]:
                    continue
                is_notified = bool(set(error["kinds"]) & set(NOTIFIED)) and bool(
                    failed or error["step"] == "init"
                )
                is_notified |= is_for_want_of_memory(error["message"])
                is_notified |= not again and error["kind"] == "CollectiveTimeoutError"
                is_notified |= waits_with_reason(error, report, failed)
                if not is_notified or is_harmless:
                    findings.append(
                        f"rank {rank}: {error['step']}: {error['kind']}: {error['message']!r}"
                    )
        if report["leaks"] and site not in MAY_LEAVE:
            findings.append(
                f"rank {rank} still holds {report['leaks'][1]}, not {report['leaks'][0]}"
            )
        for error in report.get("again", []):
            if not set(error["kinds"]) & {"InitError", "RankLostError"}:
                findings.append(f"rank {rank}, afterwards: {error['kind']}: {error['message']!r}")
        for where, count in report["blocks"].items():
            may_stay = where.startswith("call_site.pxi")  # the texts of call sites
            if count > quiet[rank].get(where, 0) + 1 and not may_stay:
                findings.append(f"rank {rank} has left {count} blocks of {where}")
    return findings


# ---- what to run


def survey(hook: Hook) -> tuple[list[Fault], dict[str, dict[int, dict[str, int]]], list[str]]:
    """Run each scenario without a fault.

    Return the possible faults, the blocks that stay allocated, and the findings.
    """
    from tests.stress.inject_scenarios import SCENARIOS

    faults: list[Fault] = []
    quiet: dict[str, dict[int, dict[str, int]]] = {}
    findings: list[str] = []
    for name, scenario in SCENARIOS.items():
        nothing = Fault(name, -1, -1, "allocate", 0, 0)
        hook.forget_calls()
        begin = time.monotonic()
        ((_, reports),) = run_all(hook, [nothing], 1, 300)
        for rank, report in reports.items():
            good = not isinstance(report, str)
            wrong = report if not good else [e for e in report["errors"] if not e["expected"]]
            if wrong or report["leaks"]:
                findings.append(f"{name}, without a fault: rank {rank}: {wrong or report['leaks']}")
        if any(isinstance(report, str) for report in reports.values()):
            continue
        quiet[name] = {rank: report["blocks"] for rank, report in reports.items()}
        before = len(faults)
        if scenario.independent:
            counts: Counter[tuple[int, str]] = Counter()
            for step, calls in enumerate(reports[0]["calls"]):
                for site, function, count in calls:
                    if counts[site, function] < 2:
                        counts[site, function] += 1
                        faults += faults_of(name, 0, site, function, count, step)
        else:
            for rank in range(scenario.ranks):
                for (site, function), count in hook.calls(rank).items():
                    faults += faults_of(name, rank, site, function, count, -1)
        seconds = time.monotonic() - begin
        print(
            f"{name}: {len(faults) - before} faults, {seconds:.2f} s", file=sys.stderr, flush=True
        )
    return faults, quiet, findings


def faults_of(
    scenario: str, rank: int, site: int, function: str, count: int, step: int
) -> Iterator[Fault]:
    """Yield the faults of the first, a middle and the last call, in each kind of failure."""
    numbers = sorted({1, (count + 1) // 2, count})
    for number, kind in itertools.product(numbers, HOW[function]):
        yield Fault(scenario, rank, site, function, number, kind, False, step)
    if function in ("allocate", "aligned_alloc"):
        yield Fault(scenario, rank, site, function, 1, E.ENOMEM, True, step)


def spread(faults: list[Fault], runs: int, seed: int) -> list[Fault]:
    """Return `runs` random faults that cover the largest possible number of sites."""
    rng = random.Random(seed)
    by_site: dict[tuple[int, str], list[Fault]] = defaultdict(list)
    for fault in rng.sample(faults, len(faults)):
        by_site[fault.site, fault.function].append(fault)
    order = rng.sample(sorted(by_site), len(by_site))
    rounds = itertools.zip_longest(*(by_site[key] for key in order))
    return [fault for each in rounds for fault in each if fault is not None][:runs]


# ---- building


def build() -> Path:
    """Build ngd with line numbers, and the hook; return the extension module."""
    flags = "-g1 -O1 -fno-optimize-sibling-calls -fno-ipa-icf -fno-reorder-blocks-and-partition"
    command = [sys.executable, "-m", "pip", "install", str(ROOT), "--quiet", "--upgrade"]
    command += ["--no-deps", "--no-warn-script-location"]
    if all(importlib.util.find_spec(name) for name in ("scikit_build_core", "Cython")):
        command += ["--no-build-isolation"]
    command += ["--target", str(PACKAGE), "--config-settings=cmake.build-type=None"]
    command += [f"--config-settings=build-dir={BUILD / 'objects'}"]
    env = {**os.environ, "CXXFLAGS": flags}
    env.pop("SKBUILD_CMAKE_DEFINE", None)  # other flags cause other warnings
    subprocess.run(command, check=True, env=env)
    source = Path(__file__).with_name("inject.cpp")
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-g", "-fPIC", "-shared"]
    subprocess.run([*compiler, str(source), "-o", str(HOOK), "-ldl"], check=True)
    return module()


def module() -> Path:
    """Return the path of the extension module."""
    (path,) = glob.glob(str(PACKAGE / "ngd" / "_core" / "_core.*.so"))
    return Path(path)


class BuiltPackage(MetaPathFinder):
    """A finder of ngd in the folder of the build. It runs before that of an editable install."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of ngd or of one of its modules, or None."""
        if fullname.partition(".")[0] != "ngd":
            return None
        return PathFinder.find_spec(fullname, [str(PACKAGE)] if path is None else path)


def load_sites() -> Sites:
    """Return the sites of the disassembly, which is read once per build."""
    cache, built = BUILD / "sites.pickle", module().stat().st_mtime
    if not cache.exists() or cache.stat().st_mtime < built:
        cache.write_bytes(pickle.dumps(find(module(), ROOT)))
    sites: Sites = pickle.loads(cache.read_bytes())
    return sites


def main() -> int:
    """Build, restart with the hook preloaded, run, and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0, help="runs begin in so many")
    parser.add_argument("--all", action="store_true", help="every fault instead of some")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--only", default="", help="faults whose description holds this")
    parser.add_argument("--no-build", action="store_true")
    options = parser.parse_args()
    if "NGD_INJECT" not in os.environ:
        if not options.no_build:
            build()
        libraries = f"{sysconfig.get_config_var('prefix')}/lib:{sys.prefix}/lib"
        path = f"{PACKAGE}:{ROOT}"
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        env = {**os.environ, **one, "NGD_INJECT": "1", "LD_PRELOAD": str(HOOK)}
        # Bind threads to all cores: a rank then checks which cores the other ranks use.
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        env |= {"OMP_PROC_BIND": "true", "OMP_PLACES": f"{{{cores}}}"}
        env |= {"LD_LIBRARY_PATH": libraries, "PYTHONPATH": path}
        os.execve(sys.executable, [sys.executable, *sys.argv], env)
    del os.environ["LD_PRELOAD"]
    sys.meta_path.insert(0, BuiltPackage())
    from tests.stress import inject_scenarios  # noqa: F401  (with all that a rank needs, before the first fork)

    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    return inject(Hook(load_sites()), options, seed)


def describe(hook: Hook, fault: Fault) -> str:
    """Describe a fault in words."""
    how = {LOST: "lost", TRUNCATED: "truncated"}.get(fault.kind) or errno.errorcode[fault.kind]
    on = f", {ALL_LATER}" if fault.goes_on else ""
    step = f", step {fault.step}" if fault.step >= 0 else ""
    return (
        f"{fault.scenario}{step}, rank {fault.rank}: {fault.function} {fault.number} of "
        f"{hook.sites.names[fault.site]}: {how}{on}"
    )


def inject(hook: Hook, options: argparse.Namespace, seed: int) -> int:
    """Run the faults that the options select, and report."""
    begin = time.monotonic()
    faults, quiet, findings_of_survey = survey(hook)
    findings = [{"fault": "none", "found": [text]} for text in findings_of_survey]
    for text in findings_of_survey:
        print(text, flush=True)
    if options.only:
        faults = [fault for fault in faults if options.only in describe(hook, fault)]
    if not options.all:
        runs = len(faults) if options.seconds else options.runs
        faults = spread(faults, runs, seed)
    end = time.monotonic() + options.seconds if options.seconds else math.inf
    runs = fired = 0
    for fault, reports in run_all(hook, faults, options.jobs, end=end):
        runs += 1
        if not isinstance(reports.get(fault.rank), str):
            fired += reports[fault.rank]["fired"] > 0
        if wrong := judge(hook, fault, reports, quiet[fault.scenario]):
            findings.append({"fault": describe(hook, fault), **asdict(fault), "found": wrong})
            print(describe(hook, fault), *wrong, sep="\n    ", flush=True)
    counts, wrong = coverage(hook)
    findings += [{"fault": "none", "found": [text]} for text in wrong]
    for text in wrong:
        print(text, flush=True)
    result = {
        "seed": seed,
        "runs": runs,
        "faults": fired,
        **counts,
        "failed": len(hook.flags("failed")),
        "seconds": round(time.monotonic() - begin),
        "findings": len(findings),
    }
    (BUILD / "findings.json").write_text(json.dumps(findings, indent=1))
    print(json.dumps(result))
    return 1 if findings else 0


def coverage(hook: Hook) -> tuple[dict[str, Any], list[str]]:
    """Return the numbers of reached sites, the reasons of the others, and the findings."""
    names = {site: hook.sites.names[site] for site in hook.sites.listed}
    cannot_fail, wrong = reasons(names, CANNOT_FAIL, ROOT)
    others, absent = reasons(names, CALLED_BY_OTHERS, ROOT)
    known, stale = reasons(names, UNREACHED, ROOT)
    flags = hook.flags("reached")
    wrong += absent + stale
    wrong += [
        f"{names[site]} was reached: {why}?" for site, why in cannot_fail.items() if site in flags
    ]
    sites = names.keys() - cannot_fail.keys() - others.keys()
    within_reach = sites - (known.keys() - flags)
    share = len(within_reach & flags) / len(within_reach)
    if share < WANTED_SHARE and os.geteuid() == 0:  # root can be another user
        wrong.append(f"of the sites within reach {share:.1%} were reached, not {WANTED_SHARE:.0%}")
    missing = {names[site]: known.get(site, "?") for site in sorted(sites - flags)}
    counts = {"sites": len(sites), "reached": len(sites & flags), "unreached": missing}
    return {**counts, "cannot_fail": len(cannot_fail), "of_others": len(others)}, wrong


if __name__ == "__main__":
    sys.exit(main())
