# SPDX-License-Identifier: Apache-2.0
"""Makes each allocation and each system call of ngd's C++ side fail once, and looks what happens.

    python -m tests.stress.inject --seconds 60        # some, at random; the seed is printed
    python -m tests.stress.inject --all               # every site in every scenario

ngd is built once more, with line numbers (into build/inject). Every run has two fresh processes,
which are ranks of a world and go through a scenario (inject_scenarios.py); in one of them one call
of one site (inject_sites.py) fails (inject.cpp). Then that rank must raise an error that says
something, or do without; the other one must hear of it or get right results; a step that has not
closed the group works when it is called again; nothing is left open, mapped, running or allocated;
and a new world works. The last line is JSON: what was run, how many sites were reached, the others
with the reasons (inject_unreached.py), and what was found. The exit code is 0 where nothing was
found and 95 % of the sites that can be reached were reached.
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
"""After so many a run hangs."""

MOST_SITES = 4096
LOST, TRUNCATED = -2, -3  # as in inject.cpp
GOES_ON = "every later allocation, too"

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
"""Nobody may notice these (EAGAIN of a thread that cannot start is none of them)."""

MAY_LEAVE = {
    # Whether the descriptor is still ours cannot be known: another's must not be closed.
    "src/cpp/comm/shm/system.cpp fstat",
}
"""Where a call fails in these, something may stay open."""

ALLOWED = ("MemoryError", "OSError", "InitError", "RankLostError", "RemoteRankError")
TOLD = ("RemoteRankError", "RankLostError", "InitError", "GroupClosedError")


@dataclass(frozen=True)
class Fault:
    """The number-th call of `function` that comes from a site fails, in a rank of a scenario."""

    scenario: str
    rank: int
    site: int
    function: str
    number: int
    kind: int
    goes_on: bool = False
    step: int = -1
    """Where steps stand for themselves: which."""


class Hook:
    """inject.cpp in this process."""

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
        """At every site that was not reached so far."""
        assert self.library.inject_break() == 0

    def arm(self, fault: Fault) -> None:
        """Count from here on, and fail as the fault says."""
        function = FUNCTIONS.index(fault.function)
        self.library.inject_arm(fault.site, function, fault.number, fault.kind, fault.goes_on)

    def disarm(self) -> int:
        """Fail no more; how often it did."""
        return int(self.library.inject_disarm())

    def count(self, rank: int) -> None:
        """Count the calls of this rank; -1: none."""
        self.library.inject_count(rank)

    def calls(self, rank: int) -> dict[tuple[int, str], int]:
        """How often each site has called what may fail, in that rank."""
        import numpy as np

        n = MOST_SITES * len(FUNCTIONS)
        counts = np.ctypeslib.as_array(self.library.inject_calls(rank), (n,))
        return {
            (int(place) // len(FUNCTIONS), FUNCTIONS[int(place) % len(FUNCTIONS)]): int(
                counts[place]
            )
            for place in np.flatnonzero(counts)
        }

    def forget_calls(self) -> None:
        """Count from 0 again."""
        self.library.inject_forget_calls()

    def flags(self, which: str) -> set[int]:
        """The sites that were "reached", or have "failed"."""
        flags = getattr(self.library, f"inject_{which}")()
        return {site for site in range(len(self.sites.names)) if flags[site]}

    def blocks(self) -> dict[str, int]:
        """How many blocks of each site are allocated."""
        counts = (ctypes.c_uint32 * MOST_SITES)()
        self.library.inject_blocks(counts)
        names = self.sites.names
        return {names[site]: counts[site] for site in range(len(names)) if counts[site]}


# ---- one rank


def held() -> dict[str, Any]:
    """What this process has open, mapped and running."""
    files: list[str] = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{entry}")
            files.append(name.split(":")[0] if not name.startswith("/") else name)
    maps = Path("/proc/self/maps").read_text().count("memfd:ngd")
    tasks = len(os.listdir("/proc/self/task"))
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    left = [name for name in sorted(files) if not name.startswith("/proc/")]
    return {"files": left, "segments": maps, "threads": tasks, "children": children}


class Rank:
    """Goes through a scenario, and tells what it saw."""

    def __init__(self, hook: Hook, fault: Fault, rank: int, peer: socket.socket) -> None:
        from tests.stress.inject_scenarios import SCENARIOS

        self.hook, self.fault, self.rank, self.peer = hook, fault, rank, peer
        self.scenario = SCENARIOS[fault.scenario]
        self.mine = fault.rank == rank
        self.errors: list[dict[str, Any]] = []
        self.fired = 0
        self.calls: list[Any] = []

    def note(self, step: str, error: BaseException, expected: bool) -> None:
        """Remember an error."""
        kinds = [kind.__name__ for kind in type(error).__mro__]
        text = {"step": step, "kind": kinds[0], "kinds": kinds, "message": str(error)[:300]}
        self.errors.append({**text, "expected": expected})

    def join(self, seconds: float) -> None:
        """Make the world, again and again where that fails: the other rank does so, too."""
        import ngd

        end = time.monotonic() + seconds
        while True:
            try:
                ngd.init()
            except (ngd.errors.Error, MemoryError, OSError) as error:
                self.note("init", error, False)
                self.fired = max(self.fired, self.hook.disarm())
                if time.monotonic() > end or self.other_is_done():
                    raise
                time.sleep(0.02)
            else:
                return

    def other_is_done(self) -> bool:
        """Whether the other rank waits in meet()."""
        return select.select([self.peer], [], [], 0)[0] != []

    def go_on(self, step: Any) -> bool:
        """After an error in a step: whether it works when it is called again."""
        from ngd.errors import GroupClosedError

        self.fired = max(self.fired, self.hook.disarm())
        last = self.errors[-1]
        concerned = self.mine or "has no memory" in last["message"]
        if last["expected"] or not concerned or not self.scenario.again:
            return False
        try:
            step.call()
        except GroupClosedError:
            last["closed"] = True
            return False
        except BaseException as error:
            self.note(f"{step.name}, again", error, isinstance(error, step.expects))
            return False
        return True

    def steps(self) -> None:
        """Go through them until one closes the group."""
        steps = self.scenario.steps(self.rank)
        for number, step in enumerate(steps):
            if self.scenario.independent and self.fault.step not in (-1, number):
                continue
            try:
                making = self.scenario.name.startswith("making")
                self.join(8) if making and step.name == "init" else step.call()
                if step.expects and self.scenario.independent and not self.mine:
                    self.note(step.name, AssertionError("no error"), False)
            except BaseException as error:
                self.note(step.name, error, isinstance(error, step.expects))
                error.__traceback__ = None
                del error
                if not self.go_on(step) and not self.scenario.independent:
                    return
            if self.scenario.independent and self.fault.step == -1:
                self.calls.append([[*k, n] for k, n in self.hook.calls(self.rank).items()])
                self.hook.forget_calls()

    def meet(self) -> None:
        """Return when the other rank has come here, too."""
        if self.scenario.ranks == 1:
            return
        self.peer.settimeout(SECONDS)
        self.peer.send(b"x")
        if self.peer.recv(1) != b"x":
            raise ConnectionError("the other rank has died")

    def leave(self) -> dict[str, Any]:
        """End the world; what is held then."""
        import ngd

        ngd.shutdown()
        gc.collect()
        return held()

    def run(self) -> dict[str, Any]:
        """All of it."""
        import ngd

        hook, two = self.hook, self.scenario.ranks == 2
        hook.library.inject_follow()
        before = held()
        if self.scenario.joins:
            ngd.init()
        hook.count(self.rank)
        if self.mine:
            hook.arm(self.fault)
        self.steps()
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
    """As a launcher would set it."""
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
    """What a forked process runs; it does not return."""
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


def ended(run: Run) -> dict[int, Any] | None:
    """The reports of the ranks, a text where there is none; None while the run goes on."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    alive = [pid for pid in run.pids.values() if os.waitid(os.P_PID, pid, flags) is None]
    late = time.monotonic() > run.end
    if alive and not late:
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
        said = (run.folder / f"{rank}.err").read_text(errors="replace")
        reports[rank] = f"{'hung' if pid in alive else f'ended with {status}'}: {said[-6000:]}"
    shutil.rmtree(run.folder, ignore_errors=True)
    return reports


def run_all(
    hook: Hook,
    faults: Sequence[Fault],
    jobs: int,
    seconds: float = SECONDS,
    end: float = math.inf,
) -> Iterator[tuple[Fault, Any]]:
    """Each fault with its reports, some runs at a time; none begins after the end."""
    waiting, running = list(reversed(faults)), []
    while waiting or running:
        if time.monotonic() > end:
            waiting.clear()
        while waiting and len(running) < jobs:
            hook.set_breakpoints()
            running.append(start(hook, waiting.pop(), seconds))
        for run in list(running):
            if (reports := ended(run)) is not None:
                running.remove(run)
                yield run.fault, reports
        time.sleep(0.002)


def place_of(site: str) -> str:
    """A site without its line, which moves."""
    return re.sub(r":\d+", "", site)


def waits_in_vain(error: dict[str, Any], report: dict[str, Any], failed: list[Any]) -> bool:
    """Whether a rank came to init() again, and the other one did not, with good reason.

    That one had come through, and failed later; this one heard of it before it was through.
    """
    heard = any(e["step"] == "init" and e["kind"] == "RemoteRankError" for e in report["errors"])
    later = all(e["step"] != "init" for e in failed)
    return error["step"] == "init" and heard and later


def nobody_came(error: dict[str, Any], fault: Fault, reports: dict[int, Any]) -> bool:
    """Whether a rank that failed in init() came again in vain: the other one was through."""
    others = [e for rank, r in reports.items() if rank != fault.rank for e in r["errors"]]
    through = any(e["step"] != "init" and e["kind"] == "RemoteRankError" for e in others)
    return (
        through and error["step"].startswith("init") and error["kind"] == "CollectiveTimeoutError"
    )


def judge(hook: Hook, fault: Fault, reports: dict[int, Any], quiet: Any) -> list[str]:
    """What is wrong with a run."""
    from tests.stress.inject_scenarios import SCENARIOS

    found: list[str] = []
    again, site = SCENARIOS[fault.scenario].again, place_of(hook.sites.names[fault.site])
    for rank, report in reports.items():
        if isinstance(report, str):
            found.append(f"rank {rank} {report}")
    if found:
        return found
    mine = reports[fault.rank]
    failed = [e for e in mine["errors"] if not e["expected"] and not nobody_came(e, fault, reports)]
    interrupted = fault.kind in HARMLESS and fault.function != "pthread_create"
    for error in failed:
        says = error["message"].strip() != ""
        if not set(error["kinds"]) & set(ALLOWED) or not says or interrupted:
            found.append(f"{error['step']}: {error['kind']}: {error['message']!r}")
    by_itself = any(error["step"].endswith(", again") for error in failed)
    if by_itself:
        found.append("called again it did not work")
    for rank, report in reports.items():
        if rank != fault.rank:
            for error in report["errors"]:
                if error["expected"]:
                    continue
                told = bool(set(error["kinds"]) & set(TOLD)) and bool(
                    failed or error["step"] == "init"
                )
                told |= "has no memory" in error["message"]
                told |= not again and error["kind"] == "CollectiveTimeoutError"
                told |= waits_in_vain(error, report, failed)
                if not told or interrupted:
                    found.append(
                        f"rank {rank}: {error['step']}: {error['kind']}: {error['message']!r}"
                    )
        if report["leaks"] and site not in MAY_LEAVE:
            found.append(f"rank {rank} still holds {report['leaks'][1]}, not {report['leaks'][0]}")
        for error in report.get("again", []):
            if not set(error["kinds"]) & {"InitError", "RankLostError"}:
                found.append(f"rank {rank}, afterwards: {error['kind']}: {error['message']!r}")
        for where, count in report["blocks"].items():
            stays = where.startswith("call_site.pxi")  # the texts of call sites
            if count > quiet[rank].get(where, 0) + 1 and not stays:
                found.append(f"rank {rank} has left {count} blocks of {where}")
    return found


# ---- what to run


def survey(hook: Hook) -> tuple[list[Fault], dict[str, dict[int, dict[str, int]]], list[str]]:
    """Run each scenario without a fault: which calls may fail, and what stays allocated."""
    from tests.stress.inject_scenarios import SCENARIOS

    faults: list[Fault] = []
    quiet: dict[str, dict[int, dict[str, int]]] = {}
    found: list[str] = []
    for name, scenario in SCENARIOS.items():
        nothing = Fault(name, -1, -1, "allocate", 0, 0)
        hook.forget_calls()
        begin = time.monotonic()
        ((_, reports),) = run_all(hook, [nothing], 1, 300)
        for rank, report in reports.items():
            good = not isinstance(report, str)
            wrong = report if not good else [e for e in report["errors"] if not e["expected"]]
            if wrong or report["leaks"]:
                found.append(f"{name}, without a fault: rank {rank}: {wrong or report['leaks']}")
        if any(isinstance(report, str) for report in reports.values()):
            continue
        quiet[name] = {rank: report["blocks"] for rank, report in reports.items()}
        before = len(faults)
        if scenario.independent:
            taken: Counter[tuple[int, str]] = Counter()
            for step, calls in enumerate(reports[0]["calls"]):
                for site, function, count in calls:
                    if taken[site, function] < 2:
                        taken[site, function] += 1
                        faults += faults_of(name, 0, site, function, count, step)
        else:
            for rank in range(scenario.ranks):
                for (site, function), count in hook.calls(rank).items():
                    faults += faults_of(name, rank, site, function, count, -1)
        seconds = time.monotonic() - begin
        print(
            f"{name}: {len(faults) - before} faults, {seconds:.2f} s", file=sys.stderr, flush=True
        )
    return faults, quiet, found


def faults_of(
    scenario: str, rank: int, site: int, function: str, count: int, step: int
) -> Iterator[Fault]:
    """The first and the last of so many calls, and one in the middle, in each way."""
    numbers = sorted({1, (count + 1) // 2, count})
    for number, kind in itertools.product(numbers, HOW[function]):
        yield Fault(scenario, rank, site, function, number, kind, False, step)
    if function in ("allocate", "aligned_alloc"):
        yield Fault(scenario, rank, site, function, 1, E.ENOMEM, True, step)


def spread(faults: list[Fault], runs: int, seed: int) -> list[Fault]:
    """So many of them, at random, as many sites as can be."""
    rng = random.Random(seed)
    by_site: dict[tuple[int, str], list[Fault]] = defaultdict(list)
    for fault in rng.sample(faults, len(faults)):
        by_site[fault.site, fault.function].append(fault)
    order = rng.sample(sorted(by_site), len(by_site))
    rounds = itertools.zip_longest(*(by_site[key] for key in order))
    return [fault for each in rounds for fault in each if fault is not None][:runs]


# ---- building


def build() -> Path:
    """ngd with line numbers, and the hook; the extension module."""
    flags = "-g1 -O1 -fno-optimize-sibling-calls -fno-ipa-icf -fno-reorder-blocks-and-partition"
    command = [sys.executable, "-m", "pip", "install", str(ROOT), "--quiet", "--upgrade"]
    command += ["--no-deps", "--no-warn-script-location"]
    if all(importlib.util.find_spec(name) for name in ("scikit_build_core", "Cython")):
        command += ["--no-build-isolation"]
    command += ["--target", str(PACKAGE), "--config-settings=cmake.build-type=None"]
    command += [f"--config-settings=build-dir={BUILD / 'objects'}"]
    env = {**os.environ, "CXXFLAGS": flags}
    env.pop("SKBUILD_CMAKE_DEFINE", None)  # other flags, other warnings
    subprocess.run(command, check=True, env=env)
    source = Path(__file__).with_name("inject.cpp")
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-g", "-fPIC", "-shared"]
    subprocess.run([*compiler, str(source), "-o", str(HOOK), "-ldl"], check=True)
    return module()


def module() -> Path:
    """The extension module."""
    (found,) = glob.glob(str(PACKAGE / "ngd" / "_core" / "_core.*.so"))
    return Path(found)


class BuiltPackage(MetaPathFinder):
    """Finds ngd in the folder of the build, before the finder of an editable install does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of ngd or of one of its modules, else None."""
        if fullname.partition(".")[0] != "ngd":
            return None
        return PathFinder.find_spec(fullname, [str(PACKAGE)] if path is None else path)


def known_sites() -> Sites:
    """From the disassembly, once for each build."""
    kept, built = BUILD / "sites.pickle", module().stat().st_mtime
    if not kept.exists() or kept.stat().st_mtime < built:
        kept.write_bytes(pickle.dumps(find(module(), ROOT)))
    sites: Sites = pickle.loads(kept.read_bytes())
    return sites


def main() -> int:
    """Build, start again with the hook preloaded, run, and count."""
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
        # Bound threads, to all cores: then a rank looks which of them the others have left.
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        env |= {"OMP_PROC_BIND": "true", "OMP_PLACES": f"{{{cores}}}"}
        env |= {"LD_LIBRARY_PATH": libraries, "PYTHONPATH": path}
        os.execve(sys.executable, [sys.executable, *sys.argv], env)
    del os.environ["LD_PRELOAD"]
    sys.meta_path.insert(0, BuiltPackage())
    from tests.stress import inject_scenarios  # noqa: F401  (with all that a rank needs, before the first fork)

    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    return inject(Hook(known_sites()), options, seed)


def told(hook: Hook, fault: Fault) -> str:
    """A fault in words."""
    how = {LOST: "lost", TRUNCATED: "truncated"}.get(fault.kind) or errno.errorcode[fault.kind]
    on = f", {GOES_ON}" if fault.goes_on else ""
    step = f", step {fault.step}" if fault.step >= 0 else ""
    return (
        f"{fault.scenario}{step}, rank {fault.rank}: {fault.function} {fault.number} of "
        f"{hook.sites.names[fault.site]}: {how}{on}"
    )


def inject(hook: Hook, options: argparse.Namespace, seed: int) -> int:
    """Run what the options ask for."""
    begin = time.monotonic()
    faults, quiet, found = survey(hook)
    findings = [{"fault": "none", "found": [text]} for text in found]
    for text in found:
        print(text, flush=True)
    if options.only:
        faults = [fault for fault in faults if options.only in told(hook, fault)]
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
            findings.append({"fault": told(hook, fault), **asdict(fault), "found": wrong})
            print(told(hook, fault), *wrong, sep="\n    ", flush=True)
    counted, wrong = reached(hook)
    findings += [{"fault": "none", "found": [text]} for text in wrong]
    for text in wrong:
        print(text, flush=True)
    result = {
        "seed": seed,
        "runs": runs,
        "faults": fired,
        **counted,
        "failed": len(hook.flags("failed")),
        "seconds": round(time.monotonic() - begin),
        "findings": len(findings),
    }
    (BUILD / "findings.json").write_text(json.dumps(findings, indent=1))
    print(json.dumps(result))
    return 1 if findings else 0


def reached(hook: Hook) -> tuple[dict[str, Any], list[str]]:
    """How many sites were reached, and why the others were not; what is wrong with that."""
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
    if share < WANTED_SHARE and os.geteuid() == 0:  # nobody else can be another user, too
        wrong.append(f"of the sites within reach {share:.1%} were reached, not {WANTED_SHARE:.0%}")
    missing = {names[site]: known.get(site, "?") for site in sorted(sites - flags)}
    counted = {"sites": len(sites), "reached": len(sites & flags), "unreached": missing}
    return {**counted, "cannot_fail": len(cannot_fail), "of_others": len(others)}, wrong


if __name__ == "__main__":
    sys.exit(main())
