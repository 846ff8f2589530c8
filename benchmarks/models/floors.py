# SPDX-License-Identifier: Apache-2.0
"""Compare training steps with their floor: the oneDNN primitives of the step, in turns.

    cmake --preset release && cmake --build --preset release --target floors_bench
    python benchmarks/models/floors.py --network resnet50 --batch 16 --threads 2
    python benchmarks/models/floors.py --hidden 100 --batch 128 --threads 1

The floor contains the matmuls, convolutions, gradients of convolutions, and batch norms (with ReLU,
forward and backward) of the step, with its shapes and dtypes, each in its fastest layout. The floor
does not contain reorders into that layout, biases and other post-operations, attention, softmax,
pooling, layer norm, elementwise ops, sums, and updates of optimizers.

The last line has `floor_over_ngd`, the floor as a share of the step's time: the median of the
turns. One turn is not reliable: two turns of ResNet-50 in bfloat16 gave 1.08 and 0.72. On the
shared machine of that measurement a process sometimes ran at half its speed, for an unknown reason.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from timing import DEADLINE_SECONDS, cpu_name, last_line  # noqa: E402

BENCH = HERE.parents[1] / "build" / "release" / "benchmarks" / "models" / "floors_bench"
MAX_BYTES = 64 << 20
"""The size of all copies of a primitive's operands, larger than the caches of a processor."""


def primitives(row: dict[str, Any]) -> Iterator[str]:
    """Yield the lines for floors_bench of a row of Executable.report().to_dict()."""
    operands = [each["shape"] for each in row["operands"]]
    results, attrs = [each["shape"] for each in row["results"]], row["attrs"]
    if row["op"] in ("matmul", "elementwise_product"):
        head = ["matmul", row["operands"][0]["dtype"], row["results"][0]["dtype"]]
        yield " ".join(map(str, [*head, *product(operands, results[0], attrs)]))
    elif row["op"] in ("conv", "conv_data_grad", "conv_weight_grad"):
        data = results[0] if row["op"] == "conv_data_grad" else operands[0]
        weights = results[0] if row["op"] == "conv_weight_grad" else operands[1]
        yield " ".join(map(str, [*dtypes(row), *convolution(data, weights, attrs)]))
    elif row["op"] == "moments" and len(operands[0]) > 2:
        kept = [axis for axis, n in enumerate(results[0]) if n != 1]
        if len(kept) == 1 and 0 in attrs["axes"]:  # the statistics of a batch norm
            extents = [n for axis, n in enumerate(operands[0]) if axis not in (0, kept[0])]
            dtype = row["operands"][0]["dtype"]
            head = [operands[0][0], operands[0][kept[0]], len(extents)]
            yield " ".join(map(str, ["norm", dtype, dtype, *head, *extents]))


def dtypes(row: dict[str, Any]) -> list[str]:
    """Return the start of a line: the op, the dtype of its operands, and that of its result."""
    return [row["op"], row["operands"][0]["dtype"], row["results"][0]["dtype"]]


def product(
    operands: Sequence[Sequence[int]], result: Sequence[int], attrs: dict[str, Any]
) -> list[int]:
    """Return BATCH M K N. A batch with one right matrix is a single matrix with more rows."""
    *batch, rows, columns = result
    transposed = attrs.get("transpose_a")
    depth = operands[0][-2 if transposed else -1]
    count = math.prod(batch)
    if math.prod(operands[1][:-2]) == 1 and not transposed:
        return [1, count * rows, depth, columns]
    return [count, rows, depth, columns]


def convolution(data: Sequence[int], weights: Sequence[int], attrs: dict[str, Any]) -> list[int]:
    """Return N GROUPS IN OUT AXES, and the numbers of each axis."""
    batch, channels, *extents = data
    if attrs.get("channels_last"):
        batch, *extents, channels = data
    groups, padding = attrs["groups"], attrs["padding"]
    head = [batch, groups, channels // groups, weights[0] // groups, len(extents)]
    strides, dilations = attrs["strides"], attrs["dilations"]
    axes = zip(extents, weights[2:], strides, dilations, padding[::2], padding[1::2], strict=True)
    return [*head, *(n for axis in axes for n in axis)]


def profile_primitives(script: str, case: Sequence[str]) -> tuple[Counter[str], int]:
    """Return how often a step runs each primitive, and the memory of the step in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        profile = [sys.executable, "-m", "ngd", "profile", "--json", str(file)]
        run([*profile, script, *case, "--steps", "1", "--warm-up", "0"])
        (report,) = json.loads(file.read_text())
    found: Counter[str] = Counter()
    for row in report["rows"]:
        for line in primitives(row):
            found[line] += row["calls"] // report["runs"]
    return found, sum(report["memory"][kind] for kind in ("variables", "private", "shared"))


def run(command: Sequence[str], **how: Any) -> str:
    """Return the output of a program."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, **how)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} returned {done.returncode}:\n{done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--hidden", type=int, nargs="+", default=[100])
    parser.add_argument(
        "--network",
        default="",
        choices=("resnet50", "transformer", "lstm"),
        help="instead of an MLP",
    )
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="steps a sample; 5 samples a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--bench", type=Path, default=BENCH, help="the program floors_bench")
    args = parser.parse_args()
    if not args.bench.exists():
        parser.error(f"--bench: expected the program floors_bench; there is no {args.bench}")
    cores = len(os.sched_getaffinity(0))
    if not 1 <= args.threads <= cores:
        parser.error(f"--threads: expected 1 to {cores}, the cores; got {args.threads}")
    if args.turns < 1:
        parser.error(f"--turns: expected at least 1; got {args.turns}")
    case = ["--network", args.network] if args.network else ["--hidden", *map(str, args.hidden)]
    case += ["--batch", str(args.batch), "--threads", str(args.threads)]
    case += ["--precision", args.precision]
    case += ["--steps", str(args.steps or (1 if args.network else 200))]
    case += ["--warm-up", "3"] if args.network else []
    script = str(HERE / ("network_ngd.py" if args.network else "mlp_ngd.py"))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    counts, bytes_of_step = profile_primitives(script, case)
    bench = [str(args.bench), str(min(bytes_of_step, MAX_BYTES))]
    if not counts:
        raise SystemExit("floors: the step has no product, convolution or norm of oneDNN's")
    lines = "".join(f"{line}\n" for line in counts)
    env = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
    turns = []
    for turn in range(args.turns):
        ours = last_line([sys.executable, script, *case], "ngd")["us_per_step"]
        each = map(float, run(bench, input=lines, env=env).split())
        floor = sum(n * us for n, us in zip(counts.values(), each, strict=True))
        turns.append((ours, floor))
        print(json.dumps({"turn": turn, "ngd_us": ours, "floor_us": round(floor, 1)}), flush=True)
    summary = {
        "case": args.network or "-".join(map(str, [784, *args.hidden, 10])),
        "batch": args.batch,
        "threads": args.threads,
        "precision": args.precision,
        "cpu": cpu_name(),
        "primitives": counts.total(),
        "ngd_us": round(statistics.median(ours for ours, _ in turns), 1),
        "floor_us": round(statistics.median(floor for _, floor in turns), 1),
        "floor_over_ngd": round(statistics.median(floor / ours for ours, floor in turns), 3),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
