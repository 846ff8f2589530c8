# SPDX-License-Identifier: Apache-2.0
"""Injects faults into large collectives between hosts, and checks the user's memory.

    python -m tests.stress.hosts --seconds 60     # stops after 60 seconds
    python -m tests.stress.hosts --runs 500       # the long form
    python -m tests.stress.hosts --seed 7 --first 12 --runs 1

Every run makes hosts of network namespaces with a slow link, and starts ranks on them. The ranks
fill arrays with a pattern and check a small collective. Then one rank is interrupted, comes too
late, forks, or leaves, in the middle of a large transfer. Every rank drops its arrays, makes new
ones, and calls its groups and `ngd.init()`. The new arrays must keep their pattern, every returned
result must be right, every error must be one of ngd's, and every rank must meet its deadlines.

Under AddressSanitizer (LD_PRELOAD is passed to the ranks), a write into freed memory ends the rank
with a report, which is a finding.

Prints the seed first. The last line is JSON. The exit code is 0 if there is no finding. Needs root
and mode OMPI.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.stress.started_ranks import last_words, meet, start

TIMEOUT_SECONDS = 4.0
"""The NGD_TIMEOUT of the ranks."""

RUN_SECONDS = 60.0
"""A run that takes longer counts as hung."""

SHAPES = ((2, 2), (1, 1), (1, 2), (2, 1, 2))
KINDS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "all_to_all",
    "gather",
    "scatter",
    "reduce",
    "sendrecv",
)
MODES = ("plain", "async", "in place")
FAULTS = ("interrupt", "interrupt", "late", "fork", "leave", "none")
PATTERN = 7.0
SANITIZER_EXIT = 66


@dataclass(frozen=True)
class Scenario:
    """One run."""

    per_host: tuple[int, ...]
    kind: str
    mode: str
    fault: str
    rank: int
    """The rank in which the fault is injected."""

    elements: int
    """The number of float64 elements per rank."""

    seconds: float
    """The seconds from the start of the collective to the fault."""

    rate: str
    folder: str


def draw(random_: random.Random) -> Scenario:
    """Draw a scenario."""
    per_host = random_.choice(SHAPES)
    ranks = sum(per_host)
    return Scenario(
        per_host,
        random_.choice(KINDS),
        random_.choice(MODES),
        random_.choice(FAULTS),
        random_.randrange(ranks),
        random_.choice((1, 3, 6)) * (1 << 17) // ranks * ranks,
        random_.uniform(0.02, 0.5),
        random_.choice(("200mbit", "400mbit", "1gbit")),
        "",
    )


# ---- one rank


class StoppedError(Exception):
    """An exception that the handler of a signal raises."""


class Call:
    """One collective with its arrays and its expected result."""

    def __init__(self, kind: str, mode: str, elements: int, rank: int, size: int) -> None:
        self.kind, self.mode, self.rank, self.size = kind, mode, rank, size
        block = elements // size
        self.source = np.arange(elements, dtype=np.float64) + rank
        total = sum(np.arange(elements, dtype=np.float64) + r for r in range(size))
        mine = slice(rank * block, (rank + 1) * block)
        first = np.arange(block, dtype=np.float64)
        self.small = self.source[:block].copy()
        expected: Any = {
            "all_reduce": total,
            "reduce_scatter": total[mine],
            "all_gather": np.concatenate([first + r for r in range(size)]),
            "broadcast": np.arange(elements, dtype=np.float64),
            "all_to_all": np.concatenate([first + rank * block + r for r in range(size)]),
            "gather": np.concatenate([first + r for r in range(size)]) if rank == 0 else None,
            "scatter": first + rank * block,
            "reduce": total if rank == 0 else None,
            "sendrecv": np.arange(elements, dtype=np.float64) + (rank - 1) % size,
        }[kind]
        self.expected = expected
        in_place = mode == "in place" and kind in ("all_reduce", "broadcast", "all_to_all")
        self.out = None
        if expected is not None:
            self.out = self.source if in_place else np.full(expected.shape, -5.0)

    def run(self, ngd: Any) -> None:
        """Make the call, and check its result."""
        flags = {"async_op": True} if self.mode == "async" else {}
        works: list[Any] = []
        if self.kind == "sendrecv":
            to, source = (self.rank + 1) % self.size, (self.rank - 1) % self.size
            works.append(ngd.send(self.source, to=to, async_op=True))
            works.append(
                ngd.recv(
                    source, shape=self.source.shape, dtype=np.float64, out=self.out, async_op=True
                )
            )
        else:
            works.append(self._collective(ngd, flags))
        for work in works:
            if hasattr(work, "wait"):
                work.wait()
        if self.expected is not None:
            np.testing.assert_array_equal(self.out, self.expected)

    def _collective(self, ngd: Any, flags: dict[str, Any]) -> Any:
        out, source = self.out, self.source
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: ngd.all_reduce(source, op="sum", out=out, **flags),
            "reduce_scatter": lambda: ngd.reduce_scatter(source, op="sum", out=out, **flags),
            "all_gather": lambda: ngd.all_gather(self.small, out=out, **flags),
            "broadcast": lambda: ngd.broadcast(source, 0, out=out, **flags),
            "all_to_all": lambda: ngd.all_to_all(source, out=out, **flags),
            "gather": lambda: ngd.gather(self.small, 0, out=out, **flags),
            "scatter": lambda: ngd.scatter(source if self.rank == 0 else None, 0, out=out, **flags),
            "reduce": lambda: ngd.reduce(source, 0, op="sum", out=out, **flags),
        }
        return calls[self.kind]()


def inject(scenario: Scenario, ngd: Any) -> None:
    """Start the fault of this rank."""

    def interrupt(number: int, frame: Any) -> None:
        if scenario.fault == "fork":
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            return
        raise StoppedError

    if scenario.fault in ("interrupt", "fork"):
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, scenario.seconds)
    if scenario.fault == "late":
        time.sleep(TIMEOUT_SECONDS + 1.5)
    if scenario.fault == "leave":
        ngd.shutdown()


def rank_report(scenario: Scenario) -> dict[str, Any]:
    """Run a scenario as one rank, and return a report."""
    import ngd

    meet(Path(scenario.folder), sum(scenario.per_host))
    world = ngd.init()
    rank, size = world.rank, world.size
    ends = np.cumsum(scenario.per_host)
    host = world.split(int(np.searchsorted(ends, rank, side="right")), rank)
    report: dict[str, Any] = {"rank": rank, "wrong": [], "errors": []}

    def attempt(name: str, call: Callable[[], Any]) -> None:
        start = time.monotonic()
        try:
            call()
        except StoppedError:
            report["errors"].append([name, "StoppedError", "", []])
        except AssertionError as error:
            report["wrong"].append(f"{name}: {str(error)[:300]}")
        except (ngd.errors.Error, KeyboardInterrupt) as error:
            ranks = list(getattr(error, "ranks", ()))
            report["errors"].append([name, type(error).__name__, str(error)[:300], ranks])
        if time.monotonic() - start > 3 * TIMEOUT_SECONDS + 10:
            report["wrong"].append(f"{name} took {time.monotonic() - start:.1f} s")

    call: Call | None = Call(scenario.kind, scenario.mode, 4096 // size * size, rank, size)
    assert call is not None
    attempt("small", lambda: call.run(ngd))
    call = Call(scenario.kind, scenario.mode, scenario.elements, rank, size)
    attempt("barrier", ngd.barrier)
    if rank == scenario.rank:
        inject(scenario, ngd)
    if not (rank == scenario.rank and scenario.fault == "leave"):
        attempt("large", lambda: call.run(ngd))
    signal.setitimer(signal.ITIMER_REAL, 0)
    nbytes = call.source.nbytes
    call = None
    gc.collect()
    fresh = [np.full(nbytes // 8, PATTERN) for _ in range(6)]
    failed = bool(report["errors"])
    attempt("world", ngd.barrier) if scenario.fault != "leave" else None
    attempt("host", lambda: host.all_reduce(np.ones(50_000), op="sum"))
    ngd.shutdown()
    if failed and size > 1:
        attempt("init", ngd.init)
    time.sleep(0.3)
    for number, array in enumerate(fresh):
        changed = np.flatnonzero(array != PATTERN)
        if changed.size:
            values = sorted(set(array[changed].tolist()))[:3]
            report["wrong"].append(
                f"{changed.size} elements of new array {number} overwritten by {values}"
            )
    return report


def rank_main(scenario: Scenario) -> None:
    """Run as a rank, write the report, and exit when all ranks have written theirs."""
    report = rank_report(scenario)
    folder = Path(scenario.folder)
    (folder / f"{report['rank']}.part").write_text(json.dumps(report))
    (folder / f"{report['rank']}.part").rename(folder / f"{report['rank']}.json")
    limit = time.monotonic() + RUN_SECONDS / 2
    while len(list(folder.glob("*.json"))) < sum(scenario.per_host) and time.monotonic() < limit:
        time.sleep(0.05)
    os._exit(0)


# ---- the runs


def run(scenario: Scenario) -> list[str]:
    """Start the ranks of a scenario, and return the findings."""
    from namespaces import Hosts

    import ngd

    folder = Path(scenario.folder)
    preload = os.environ.get("LD_PRELOAD", "")
    settings = f"detect_leaks=0:exitcode={SANITIZER_EXIT}:log_path={folder / 'sanitizer'}"
    words = ["env", f"NGD_TIMEOUT={TIMEOUT_SECONDS}", "OMP_NUM_THREADS=1"]
    if preload:
        # The sanitizer intercepts dlopen, which then ignores the RUNPATH of ngd's extension module.
        libraries = Path(ngd.__file__).parent / "_core"
        words += [f"LD_PRELOAD={preload}", f"ASAN_OPTIONS={settings}"]
        words += [f"LD_LIBRARY_PATH={libraries}", "UBSAN_OPTIONS=halt_on_error=1"]
    words += [sys.executable, str(Path(__file__).resolve()), "--rank", json.dumps(asdict(scenario))]
    with Hosts(len(scenario.per_host)) as hosts:
        hosts.slow_down(scenario.rate)
        job = start(hosts, scenario.per_host, words, folder)
        ranks = sum(scenario.per_host)
        limit = time.monotonic() + RUN_SECONDS * (3 if preload else 1)
        while job.poll() is None and len(list(folder.glob("*.json"))) < ranks:
            if time.monotonic() > limit or list(folder.glob("sanitizer.*")):
                break
            time.sleep(0.1)
        # A rank writes its report before it ends.
        time.sleep(1.0 if preload else 0.2)
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    return findings_of(scenario)


def findings_of(scenario: Scenario) -> list[str]:
    """Read the reports of the ranks and of the sanitizer, and return the findings."""
    folder, ranks = Path(scenario.folder), sum(scenario.per_host)
    findings = []
    for path in sorted(folder.glob("sanitizer.*")):
        findings.append(path.read_text(errors="replace")[:3000])
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if len(reports) < ranks and not findings:
        output = last_words(folder)
        findings.append(f"only {len(reports)} of {ranks} ranks came to the end: {output}")
    findings += [f"rank {each['rank']}: {wrong}" for each in reports for wrong in each["wrong"]]
    errors = [error for each in reports for error in each["errors"]]
    failed = [e for e in errors if e[0] in ("small", "barrier", "large") and e[1] != "StoppedError"]
    if scenario.fault != "leave" and failed:
        found_before = len(findings)
        # If only the handler's exception was raised, the collective was complete before.
        for each in reports:
            works = {"world", "host"} - {name for name, *_ in each["errors"]}
            findings += [f"rank {each['rank']}: {name} works after a failure" for name in works]
        findings += [f"the failure: {failed[0]}"] if len(findings) > found_before else []
    return findings


def main() -> int:
    """Run scenarios, and print the findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--runs", type=int, help="instead of --seconds")
    parser.add_argument("--first", type=int, default=0, help="skip the runs before this one")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--rank", help="for the ranks")
    args = parser.parse_args()
    if args.rank:
        fields = json.loads(args.rank)
        rank_main(Scenario(**{**fields, "per_host": tuple(fields["per_host"])}))
    from namespaces import why_not

    if reason := why_not():
        print(f"hosts.py: {reason}")
        return 2
    print(f"seed {args.seed}", flush=True)
    end = time.monotonic() + args.seconds
    number, failed = args.first, 0
    while number < args.first + args.runs if args.runs else time.monotonic() < end:
        folder = tempfile.mkdtemp(prefix="ngd-stress-hosts-")
        drawn = draw(random.Random(f"{args.seed} {number}"))
        scenario = Scenario(**{**asdict(drawn), "folder": folder})
        findings = run(scenario)
        shutil.rmtree(folder, ignore_errors=True)
        if findings:
            failed += 1
            print(f"run {number}: {scenario}", *findings, sep="\n  ", flush=True)
        number += 1
    print(json.dumps({"seed": args.seed, "runs": number - args.first, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
