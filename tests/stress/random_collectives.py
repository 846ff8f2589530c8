# SPDX-License-Identifier: Apache-2.0
"""Compares random collectives between hosts with NumPy, while ranks and links fail.

    python -m tests.stress.random_collectives --hosts 2,2 --calls 20000
    python -m tests.stress.random_collectives --hosts 1,2,3 --kills 70 --stops 17 --cuts 7

A job makes hosts of network namespaces and starts the given number of ranks on each. The ranks make
collectives of random kinds, lengths, dtypes, groups and roots, some of them asynchronous or in
place, and wait for them in random orders. NumPy computes every result from the same seed, and each
result must be equal to it bit for bit.

One fault of the system happens in a job at a random moment: a rank is killed, a rank is stopped for
some seconds, or the link of a host is cut. Every other rank must then end, or get an error of ngd,
within the deadline (NGD_TIMEOUT) and `SLACK_SECONDS`, without a wrong result.

Prints the seed first. The last line is JSON. The exit code is 0 if there is no finding. Needs root
and mode OMPI.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from tests.stress.random_calls import Counts, make_calls
from tests.stress.started_ranks import START_SECONDS, last_words, meet, start

TIMEOUT_SECONDS = 8.0
"""The NGD_TIMEOUT of the ranks."""

SLACK_SECONDS = 4.0
"""Additional seconds in which ranks must end, because two cores run all of them."""

CALLS_PER_JOB = 1000
JOB_SECONDS = 300.0
"""The seconds in which a job without failures must end."""

STOPPED_SECONDS = (0.5, 2.0, TIMEOUT_SECONDS + 3)


@dataclass(frozen=True)
class Job:
    """The ranks of one start of mpirun."""

    per_host: tuple[int, ...]
    seed: int
    calls: int
    most_bytes: int
    fault: str
    victim: int
    """The rank that fails, or the host whose link is cut."""

    seconds: float
    """The seconds from the start of the calls to the fault."""

    stopped: float
    rate: str
    folder: str

    @property
    def fails(self) -> bool:
        """Return if calls of the other ranks must fail."""
        return self.fault in ("kill", "cut") or (
            self.fault == "stop" and self.stopped > TIMEOUT_SECONDS
        )


def draw(
    random_: random.Random, per_host: tuple[int, ...], fault: str, calls: int, folder: str
) -> Job:
    """Draw a job with a fault."""
    rate = random_.choice(("", "", "1gbit", "400mbit"))
    return Job(
        per_host,
        random_.randrange(1 << 30),
        calls,
        random_.choice((1 << 12, 1 << 17, 1 << 17 if rate else 4 << 20)),
        fault,
        random_.randrange(len(per_host) if fault == "cut" else sum(per_host)),
        random_.uniform(0.0, 3.0),
        random_.choice(STOPPED_SECONDS),
        rate,
        folder,
    )


# ---- one rank


def rank_main(job: Job) -> None:
    """Make the calls of a job as one rank, and write a report."""
    import ngd

    folder = Path(job.folder)
    meet(folder, sum(job.per_host))
    world = ngd.init()
    counts = Counts(folder / f"{world.rank}.wrong")

    def write(kind: str, text: str) -> None:
        part = folder / f"{world.rank}.part"
        part.write_text(text)
        part.rename(folder / f"{world.rank}.{kind}")

    report: dict[str, Any] = {"error": None, "message": ""}
    try:
        make_calls(job, world, counts, lambda: write("pid", str(os.getpid())))
    except ngd.errors.Error as error:
        report = {"error": type(error).__name__, "message": str(error)[:500]}
    except Exception as error:  # not an error of ngd, so a finding under every fault
        counts.note(f"{type(error).__name__}: {error}".replace("\n", " ")[:500])
    write("json", json.dumps(report | {"calls": counts.calls}))
    limit = time.monotonic() + START_SECONDS
    while not (folder / "end").exists() and time.monotonic() < limit:
        time.sleep(0.02)  # mpirun ends the other ranks when one exits without MPI_Finalize
    os._exit(0)  # Open MPI's finalization would wait for dead ranks


# ---- the jobs


def run(job: Job) -> tuple[list[str], int]:
    """Run a job; return the findings, and the smallest number of calls that a rank has made."""
    from namespaces import Hosts, command

    folder, ranks = Path(job.folder), sum(job.per_host)
    words = ["env", f"NGD_TIMEOUT={TIMEOUT_SECONDS}", "OMP_NUM_THREADS=1", sys.executable]
    words += [str(Path(__file__).resolve()), "--rank", json.dumps(asdict(job))]
    with Hosts(len(job.per_host)) as hosts:
        if job.rate:
            hosts.slow_down(job.rate)
        process = start(hosts, job.per_host, words, folder, ["--enable-recovery"])
        try:
            pids = wait_for_pids(process, folder, ranks)
            if pids is None:
                return [f"the ranks did not start: {last_words(folder)}"], 0
            time.sleep(job.seconds if job.fault != "none" else 0)
            if job.fault == "cut":
                command("ip", "link", "set", hosts.port(job.victim), "down")
            late = strike_and_wait(job, pids)
        finally:
            (folder / "end").touch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return findings_of(job, late)


def wait_for_pids(process: Any, folder: Path, ranks: int) -> list[int] | None:
    """Wait until all ranks are ready for their first call, and return their process IDs."""
    limit = time.monotonic() + START_SECONDS
    while len(list(folder.glob("*.pid"))) < ranks:
        if process.poll() is not None or time.monotonic() > limit:
            return None
        time.sleep(0.02)
    return [int((folder / f"{rank}.pid").read_text()) for rank in range(ranks)]


def strike_and_wait(job: Job, pids: list[int]) -> list[int]:
    """Kill or stop a rank, and wait for the others to end; return those that are late."""
    folder, struck = Path(job.folder), time.monotonic()
    allowed = TIMEOUT_SECONDS + SLACK_SECONDS
    if job.fault in ("kill", "stop"):
        number = signal.SIGKILL if job.fault == "kill" else signal.SIGSTOP
        send(pids[job.victim], number)
    if not job.fails:
        allowed = JOB_SECONDS  # the ranks make all calls
    resumed = job.fault != "stop"
    while True:
        waiting = [
            rank for rank, pid in enumerate(pids)
            if is_alive(pid) and not (folder / f"{rank}.json").exists()
        ]  # fmt: skip
        elapsed = time.monotonic() - struck
        if not resumed and elapsed > job.stopped:
            send(pids[job.victim], signal.SIGCONT)
            resumed = True
        if resumed and not waiting:
            return []
        late_by = (job.stopped if job.fault == "stop" else 0) + allowed
        if elapsed > late_by:
            return waiting
        time.sleep(0.02)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, which may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Return if a process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"


def findings_of(job: Job, late: list[int]) -> tuple[list[str], int]:
    """Read the reports of the ranks; return the findings and the smallest number of calls."""
    folder, ranks = Path(job.folder), sum(job.per_host)
    findings = [f"rank {rank} had not ended in time" for rank in late]
    reports = {
        int(path.stem): json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))
    }
    for path in sorted(folder.glob("*.wrong")):
        findings += [f"rank {path.stem}: {line}" for line in path.read_text().splitlines()]
    for rank in range(ranks):
        report = reports.get(rank)
        if report is None:
            # Open MPI ends a rank that reads from the socket of a dead rank or of a lost host.
            if rank not in late and job.fault not in ("kill", "cut"):
                findings.append(f"rank {rank} ended without a report: {last_words(folder)}")
            continue
        if report["error"] and not job.fails:
            findings.append(f"rank {rank}: {report['error']}: {report['message']}")
    return findings, min((report["calls"] for report in reports.values()), default=0)


def main() -> int:
    """Run jobs, and print the findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="2,2", help="the ranks of each host")
    parser.add_argument("--calls", type=int, default=0, help="collectives in jobs without faults")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--stops", type=int, default=0)
    parser.add_argument("--cuts", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--first", type=int, default=0, help="skip the jobs before this one")
    parser.add_argument("--rank", help="for the ranks")
    args = parser.parse_args()
    if args.rank:
        fields = json.loads(args.rank)
        rank_main(Job(**{**fields, "per_host": tuple(fields["per_host"])}))
    from namespaces import why_not

    if reason := why_not():
        print(f"random_collectives.py: {reason}")
        return 2
    print(f"seed {args.seed}", flush=True)
    per_host = tuple(int(ranks) for ranks in args.hosts.split(","))
    faults = chain(
        repeat("none", -(-args.calls // CALLS_PER_JOB)),
        repeat("kill", args.kills),
        repeat("stop", args.stops),
        repeat("cut", args.cuts),
    )
    num_calls, failed, num_started = 0, 0, 0
    for number, fault in enumerate(faults):
        if number < args.first:
            continue
        calls = min(CALLS_PER_JOB, args.calls) if fault == "none" else 1 << 30
        if fault == "stop":
            calls = CALLS_PER_JOB
        folder = tempfile.mkdtemp(prefix="ngd-random-collectives-")
        job = draw(random.Random(f"{args.seed} {number}"), per_host, fault, calls, folder)
        findings, calls = run(job)
        num_calls, num_started = num_calls + calls, num_started + 1
        if findings:
            failed += 1
            print(f"job {number}: {job}", *findings, sep="\n  ", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    print(
        json.dumps({"seed": args.seed, "jobs": num_started, "calls": num_calls, "failed": failed})
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
