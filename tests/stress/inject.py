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
import errno
import importlib.util
import itertools
import json
import math
import os
import pickle
import random
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

from tests.stress.inject_hook import (
    ALL_LATER,
    BUILD,
    HOOK,
    HOW,
    LOST,
    PACKAGE,
    ROOT,
    TRUNCATED,
    E,
    Fault,
    Hook,
    module,
)
from tests.stress.inject_judge import judge
from tests.stress.inject_rank import SECONDS, rank_main
from tests.stress.inject_sites import Sites, find
from tests.stress.inject_unreached import CALLED_BY_OTHERS, CANNOT_FAIL, UNREACHED, reasons

WANTED_SHARE = 0.95


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
