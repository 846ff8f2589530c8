# SPDX-License-Identifier: Apache-2.0
"""Draw the results of bench.py: latency and bandwidth of ngd and its peers over the size.

python benchmarks/comm/chart.py all_reduce.jsonl all_reduce.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLORS = {"ngd": "#c1272d", "Open MPI": "#0000a7", "MPICH": "#008176", "gloo": "#b3741b"}
MARKERS = {"ngd": "o", "Open MPI": "s", "MPICH": "^", "gloo": "D"}
LEAST_OF_BANDWIDTH = 16 << 10
"""The smallest size for which bandwidth is drawn. Smaller sizes are dominated by latency."""
UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def size_text(nbytes: int) -> str:
    unit, name = next(each for each in UNITS if nbytes >= each[0])
    return f"{nbytes // unit} {name}"


def series_of(lines: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Return microseconds by series and bytes. For ngd, the first value of each size is used."""
    series: dict[str, dict[int, float]] = {}
    for way, words in (("graph", "in the graph"), ("array", "from arrays")):
        for line in lines:
            if line["from"] == way and line["ngd_us"] > 0:
                series.setdefault(f"ngd, {words}", {}).setdefault(line["bytes"], line["ngd_us"])
    for line in lines:
        if "peer" in line:
            series.setdefault(line["peer"], {})[line["bytes"]] = line["peer_us"]
    return series


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Write the chart of one kind and one number of ranks."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "ngd"  # equal results give equal bytes
    import matplotlib.pyplot as plt

    figure, (latency, bandwidth) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    for name, points in series_of(lines).items():
        who = next(known for known in COLORS if name.startswith(known))
        sizes = sorted(points)
        style = {
            "label": name,
            "color": COLORS[who],
            "marker": MARKERS[who],
            "linestyle": "--" if name.endswith("arrays") else "-",
            "linewidth": 2.2 if who == "ngd" else 1.4,
            "markersize": 5,
        }
        latency.plot(sizes, [points[size] for size in sizes], **style)
        sizes = [size for size in sizes if size >= LEAST_OF_BANDWIDTH]
        bandwidth.plot(sizes, [size / points[size] / 1e3 for size in sizes], **style)
    every = sorted({line["bytes"] for line in lines})
    large = [size for size in every if size >= LEAST_OF_BANDWIDTH]
    panels = ((latency, "time, us", every), (bandwidth, "bytes / time, GB/s", large))
    for axes, label, ticks in panels:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(ticks, [size_text(tick) for tick in ticks], rotation=40, fontsize=8)
        axes.minorticks_off()
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    latency.legend(frameon=False, fontsize=9)
    case = "{kind} of float32, {ranks} ranks, {cores} cores of {cpu}".format(**lines[0])
    figure.suptitle(case, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


if __name__ == "__main__":
    printed = Path(sys.argv[1]).read_text().splitlines()
    draw([json.loads(line) for line in printed], Path(sys.argv[2]))
