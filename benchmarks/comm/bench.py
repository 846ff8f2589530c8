# SPDX-License-Identifier: Apache-2.0
r"""Measure collectives of float32 in ngd and in its peers, in turns.

    python benchmarks/comm/bench.py --kind all_reduce broadcast --ranks 2 4 \
        --peers openmpi,mpich,gloo --openmpi-python PATH --mpich-python PATH --gloo-python PATH \
        --chart all_reduce.svg

A turn is a fresh run of ngd and a fresh run of one peer. Each rank is bound to a core if there are
enough cores, except for gloo, whose threads are not bound. method.py describes the measurement.
The program prints one line of JSON per size, form ("array" or "graph") and peer. A line has the
medians over the turns: the times in microseconds, bytes / time in GB/s, and the speedup, which is
the peer's time divided by ngd's. Each peer has its own virtual environment, with PyTorch, or with
mpi4py and an MPI whose mpirun is in the same folder as its Python.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from chart import draw
from method import KINDS
from timing import cpu_name

HERE = Path(__file__).parent
SIZES = [8, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
PEERS = ("openmpi", "mpich", "gloo")
RUN_SECONDS = 600

Times = dict[tuple[str, int], float]
"""Microseconds by form and bytes."""


def main() -> None:
    args = read_options()
    cases = [(kind, ranks) for kind in args.kind for ranks in args.ranks]
    for kind, ranks in cases:
        lines: list[dict[str, Any]] = []
        for peer in args.peers or [""]:
            for line in compare(kind, ranks, peer, args):
                print(json.dumps(line), flush=True)
                lines.append(line)
        if args.chart and (kind, ranks) == cases[0]:
            draw(lines, args.chart)


def compare(kind: str, ranks: int, peer: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the lines of one kind and number of ranks, compared with a peer unless it is ""."""
    names: dict[str, str] = {}
    ours: list[Times] = []
    theirs: list[Times] = []
    for _ in range(args.turns):
        ours.append(run("ngd", kind, ranks, args, names))
        theirs.append(run(peer, kind, ranks, args, names) if peer else {})
    for way, nbytes in ours[0]:
        line: dict[str, Any] = {"kind": kind, "from": way, "bytes": nbytes, "ranks": ranks}
        line |= {"ngd": names["ngd"]} | time_and_bandwidth(
            "ngd", nbytes, [t[way, nbytes] for t in ours]
        )
        if peer:
            their_times = [times["array", nbytes] for times in theirs]
            line |= {"peer": names[peer]} | time_and_bandwidth("peer", nbytes, their_times)
            pairs = zip(ours, theirs, strict=True)
            # The difference of two step times may be zero or negative.
            ratios = [t["array", nbytes] / max(o[way, nbytes], 1e-3) for o, t in pairs]
            line["speedup"] = round(statistics.median(ratios), 2)
            line["speedups"] = [round(ratio, 2) for ratio in ratios]
        yield line | {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0))}


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Collectives by ngd, in turns with its peers.")
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=["all_reduce"])
    parser.add_argument("--from", dest="origin", choices=("array", "graph", "both"), default="both")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--bytes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--peers", default="", help=f"some of {','.join(PEERS)}")
    for peer in PEERS:
        parser.add_argument(f"--{peer}-python", metavar="PATH", default=sys.executable)
    parser.add_argument("--chart", type=Path, help="of the first kind and ranks: FILE.svg or .png")
    args = parser.parse_args()
    args.peers = [peer for peer in args.peers.split(",") if peer]
    for peer in args.peers:
        if peer not in PEERS:
            parser.error(f"--peers: expected some of {', '.join(PEERS)}; got {peer!r}")
    return args


def time_and_bandwidth(who: str, nbytes: int, times: Sequence[float]) -> dict[str, float | None]:
    """Return the median time and the bandwidth, with the name as a prefix."""
    us = statistics.median(times)
    gbytes_per_s = round(nbytes / us / 1e3, 3) if us > 0 else None
    return {f"{who}_us": round(us, 2), f"{who}_gbs": gbytes_per_s}


def run(
    program: str, kind: str, ranks: int, args: argparse.Namespace, names: dict[str, str]
) -> Times:
    """Run a program once, and store its name and version in `names`."""
    arguments = ["--kind", kind, "--bytes", *map(str, args.bytes)]
    if program == "ngd":
        arguments += ["--from", *(("array", "graph") if args.origin == "both" else [args.origin])]
    lines = lines_of(program, ranks, args, arguments)
    names[program] = lines[0]["program"]
    return {(line["from"], line["bytes"]): line["us"] for line in lines}


def lines_of(
    program: str, ranks: int, args: argparse.Namespace, arguments: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the lines that a fresh run of a program prints."""
    done = subprocess.run(
        [*command(program, ranks, args), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment(program, ranks),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    if done.returncode != 0:
        sys.exit(f"{program} failed:\n{done.stdout}{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def enough_cores(ranks: int) -> bool:
    return ranks <= len(os.sched_getaffinity(0))


def command(program: str, ranks: int, args: argparse.Namespace) -> list[str]:
    """Return the command that starts the ranks of a program."""
    number, bind = str(ranks), "core" if enough_cores(ranks) else "none"
    ngd_run = [sys.executable, "-m", "ngd.launch", "-n", number, "--no-prefix"]
    if program == "ngd":
        return [*ngd_run, "--bind", bind, str(HERE / "ngd_ranks.py")]
    python = getattr(args, f"{program}_python")
    if program == "gloo":  # its threads are not bound
        return [*ngd_run, python, str(HERE / "peers" / "gloo.py")]
    mpirun = str(Path(python).parent / "mpirun")
    options = ["--oversubscribe", "--bind-to", bind] if program == "openmpi" else ["-bind-to", bind]
    return [mpirun, "-n", number, *options, python, str(HERE / "peers" / "mpi.py")]


def environment(program: str, ranks: int) -> dict[str, str]:
    """Return the environment variables that the peer's documentation recommends."""
    if program != "openmpi":
        return {}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return root | ({} if enough_cores(ranks) else {"OMPI_MCA_mpi_yield_when_idle": "1"})


if __name__ == "__main__":
    main()
