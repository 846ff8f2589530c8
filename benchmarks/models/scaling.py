# SPDX-License-Identifier: Apache-2.0
"""Samples a second over the number of ranks of one host, a thread each: ngd beside its peers.

python benchmarks/models/scaling.py --network resnet50 --batch 8 --ranks 1 2 4 --peers torch \
    --peer-python PATH --chart docs/images/scaling.svg

One JSON line a number of ranks: the medians of the turns. Where ranks outnumber cores, they share.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from timing import cpu_name, last_line  # noqa: E402
from turns import command_of, parser_of  # noqa: E402

COLORS = {"ngd": "#c1272d", "torch": "#0000a7", "jax": "#008176"}


def measured(args: Any, programs: list[str], ranks: int) -> dict[str, Any]:
    """Samples a second of every program, with so many ranks."""
    case = argparse.Namespace(**{**vars(args), "ranks": ranks})
    if args.network == "mlp":
        script, options = "mlp", ["--hidden", *map(str, args.hidden)]
    else:
        script, options = "network", ["--network", args.network, "--warm-up", "3"]
    rates: dict[str, list[float]] = {program: [] for program in programs}
    for _ in range(args.turns):
        for program, found in rates.items():
            line = last_line(command_of(program, script, options, case), program)
            found.append(1e6 * args.batch * ranks / line["us_per_step"])
    medians = {program: round(statistics.median(found), 2) for program, found in rates.items()}
    return {
        "network": args.network,
        "batch": args.batch,
        "ranks": ranks,
        "precision": args.precision,
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "samples_per_s": medians,
    }


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Write the chart: what is measured, and dashed what the first number of ranks promises."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "ngd"  # the same bytes for the same figures
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4.2), layout="constrained")
    ranks = [line["ranks"] for line in lines]
    for program in lines[0]["samples_per_s"]:
        rates = [line["samples_per_s"][program] for line in lines]
        color = COLORS[program.partition("-")[0]]
        axes.plot(ranks, rates, color=color, marker="o", label=program)
        ideal = [rates[0] / ranks[0] * n for n in ranks if n <= lines[0]["cores"]]
        axes.plot(ranks[: len(ideal)], ideal, color=color, linestyle="--", linewidth=1, alpha=0.6)
    axes.set_xticks(ranks, list(map(str, ranks)))
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
    parser.add_argument("--chart", type=Path)
    args = parser.parse_args()
    lines = []
    for ranks in args.ranks:
        lines.append(measured(args, ["ngd", *filter(None, args.peers.split(","))], ranks))
        print(json.dumps(lines[-1]), flush=True)
    if args.chart:
        draw(lines, args.chart)


if __name__ == "__main__":
    main()
