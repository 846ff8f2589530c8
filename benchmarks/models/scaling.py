# SPDX-License-Identifier: Apache-2.0
r"""Measure samples per second over the number of ranks, on one host or several.

python benchmarks/models/scaling.py --network resnet50 --batch 8 --ranks 1 2 4 --peers torch \
    --peer-python PATH --chart docs/images/scaling.svg
python benchmarks/models/scaling.py --batch 2 --ranks 1 2 4 --peers tensorflow,mxnet \
    --python tensorflow=PATH mxnet=PATH --chart docs/images/bridges.svg

The program prints one line of JSON per number of hosts and of ranks, with the medians of the
turns. Each rank has one thread. If there are more ranks than cores, ranks share cores. With
--hosts 1 2, the ranks are also divided among two hosts, which are network namespaces
(namespaces.py: root, mode OMPI, Open MPI). Only the even numbers of --ranks are used for them.
Open MPI's mpirun then starts the ranks of all programs, and PyTorch communicates over gloo.

"tensorflow" and "mxnet" train the same network in these frameworks, through ngd's bridges. Each
needs a Python with the framework and ngd.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import namespaces  # noqa: E402
from timing import CLASSES, FEATURES, cpu_name, last_line  # noqa: E402
from turns import command_of, parser_of, program_of  # noqa: E402

COLORS = {
    "ngd": "#c1272d",
    "torch": "#0000a7",
    "jax": "#008176",
    "tensorflow": "#b3741b",
    "mxnet": "#5c3d99",
}
MARKERS = "os^Dv"
RENDEZVOUS = {"MASTER_ADDR": namespaces.address(0), "MASTER_PORT": "29500"}
RENDEZVOUS |= {"GLOO_SOCKET_IFNAME": "eth0"}
"""The rendezvous of PyTorch's ranks, on the first host."""
AS_RANK = (
    "export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE "
    'LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK; exec "$@"'
)
"""A shell command that sets the variables of torchrun from those of mpirun."""


@contextlib.contextmanager
def create_hosts(count: int, rate: str | None) -> Iterator[namespaces.Hosts | None]:
    """Create hosts for the duration of the block. One host is this host."""
    if count == 1:
        yield None
        return
    with namespaces.Hosts(count) as hosts:
        if rate:
            hosts.slow_down(rate)
        yield hosts


def turn(
    hosts: namespaces.Hosts | None, program: str, script: str, options: list[str], case: Any
) -> dict[str, Any]:
    """Run one turn of a program, and return its report."""
    if hosts is None:
        return last_line(command_of(program, script, options, case), program)
    names = [*RENDEZVOUS, *(name for name in os.environ if name.startswith("NGD_"))]
    line = [*hosts.mpirun(case.ranks // hosts.count, names), "/bin/sh", "-c", AS_RANK, program]
    line += program_of(program, script, options, case)
    return last_line(line, program, {**os.environ, **namespaces.OPEN_MPI, **RENDEZVOUS})


def reason_against_hosts(args: Any, programs: list[str]) -> str | None:
    """Return the reason why several hosts cannot be used, or None."""
    if others := [p for p in programs if p.partition("-")[0] not in ("ngd", "torch")]:
        return f"{', '.join(others)}: one process has all ranks' work"
    if any(all(ranks % hosts for ranks in args.ranks) for hosts in args.hosts):
        return "no number of ranks is a multiple of it"
    return namespaces.why_not()


def measure(
    args: Any, programs: list[str], hosts: namespaces.Hosts | None, ranks: int
) -> dict[str, Any]:
    """Return the samples per second of every program with a number of ranks."""
    pythons = dict(pair.split("=", 1) for pair in args.python)
    if args.network == "mlp":
        script, options = "mlp", ["--hidden", *map(str, args.hidden)]
        name = "-".join(map(str, (FEATURES, *args.hidden, CLASSES)))
    else:
        name = args.network
        script, options = "network", ["--network", args.network, "--warm-up", "3"]
    rates: dict[str, list[float]] = {program: [] for program in programs}
    for _ in range(args.turns):
        for program, found in rates.items():
            python = pythons.get(program, args.peer_python)
            case = argparse.Namespace(**{**vars(args), "ranks": ranks, "peer_python": python})
            line = turn(hosts, program, script, options, case)
            found.append(1e6 * args.batch * ranks / line["us_per_step"])
    medians = {program: round(statistics.median(found), 2) for program, found in rates.items()}
    return {
        "network": name,
        "batch": args.batch,
        "hosts": hosts.count if hosts else 1,
        "ranks": ranks,
        "precision": args.precision,
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "samples_per_s": medians,
    }


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Write the chart. Dashed lines are linear speedups from the first number of ranks."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "ngd"  # equal results give equal bytes
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4.2), layout="constrained")
    for index, hosts in enumerate(dict.fromkeys(line["hosts"] for line in lines)):
        lines_of_hosts = [line for line in lines if line["hosts"] == hosts]
        ranks = [line["ranks"] for line in lines_of_hosts]
        for program in lines[0]["samples_per_s"]:
            rates = [line["samples_per_s"][program] for line in lines_of_hosts]
            how = {"color": COLORS[program.partition("-")[0]], "marker": MARKERS[index]}
            label = f"{program}, {hosts} hosts" if hosts > 1 else program
            axes.plot(ranks, rates, label=label, alpha=1 if index == 0 else 0.6, **how)
            if index == 0:
                ideal = [rates[0] / ranks[0] * n for n in ranks if n <= lines[0]["cores"]]
                dashed = {"color": how["color"], "linestyle": "--", "linewidth": 1, "alpha": 0.6}
                axes.plot(ranks[: len(ideal)], ideal, **dashed)
    ticks = sorted({line["ranks"] for line in lines})
    axes.set_xticks(ticks, list(map(str, ticks)))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ranks")
    axes.set_ylabel("samples / s")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    title = "{network}, {batch} samples a rank, {precision}, {cores} cores of {cpu}"
    figure.suptitle(title.format(**lines[0]), fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def main() -> None:
    parser = parser_of(__doc__, batch=8, steps=1, ranks=[1, 2, 4, 8])
    parser.add_argument("--network", default="resnet50", help='of networks.py, or "mlp"')
    parser.add_argument("--hidden", type=int, nargs="+", default=[1024, 1024, 1024])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1], help="to divide ranks among")
    parser.add_argument("--rate", help="of each host's link, as tc writes it: 1gbit")
    parser.add_argument(
        "--python", nargs="+", default=[], metavar="PEER=PATH", help="instead of --peer-python"
    )
    parser.add_argument("--chart", type=Path)
    args = parser.parse_args()
    programs = ["ngd", *filter(None, args.peers.split(","))]
    if min(args.hosts) < 1:
        parser.error(f"--hosts: expected 1 or more; got {min(args.hosts)}")
    if max(args.hosts) > 1 and (reason := reason_against_hosts(args, programs)):
        parser.error(f"--hosts: {reason}")
    lines = []
    for count in args.hosts:
        with create_hosts(count, args.rate) as hosts:
            for ranks in (n for n in args.ranks if n % count == 0):
                lines.append(measure(args, programs, hosts, ranks))
                print(json.dumps(lines[-1]), flush=True)
    if args.chart:
        draw(lines, args.chart)


if __name__ == "__main__":
    main()
