# SPDX-License-Identifier: Apache-2.0
"""Compare PyTorch's DistributedDataParallel over ngd with the same over gloo, in turns.

    python benchmarks/models/ddp_torch.py --hidden 100 --turns 5          # both, in turns
    torchrun --nproc-per-node 2 benchmarks/models/ddp_torch.py --backend ngd

"horovod" is the optimizer of ngd.horovod.torch. Without a launcher, the program starts the ranks
of each backend, in turns, with this Python. It prints one line of JSON per backend and turn, and
one line with the medians of the times per step and of the paired ratios.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__)
sys.path.insert(0, str(HERE.parents[1]))
from timing import cpu_name, last_line  # noqa: E402

BACKENDS = ("ngd", "horovod", "gloo")
"""The backends. The last one is the peer. "horovod" uses ngd.horovod.torch's optimizer."""
ROUNDS = 5
WARM_UP_STEPS = 20


def train(args: argparse.Namespace) -> list[float]:
    """Return the seconds per step of each round."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    sizes = [784, *args.hidden]
    layers = [module for i, o in pairwise(sizes) for module in (nn.Linear(i, o), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(sizes[-1], 10))
    by_horovod = args.backend == "horovod"
    model = net if by_horovod else nn.parallel.DistributedDataParallel(net)
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.01)
    if by_horovod:
        import ngd.horovod.torch as hvd

        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer)
    images, labels = torch.rand(args.batch, 784), torch.randint(0, 10, (args.batch,))

    def step() -> None:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    for _ in range(WARM_UP_STEPS):
        step()
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(args.steps):
            step()
        rounds.append((time.perf_counter() - begin) / args.steps)
    return rounds


def run_rank(args: argparse.Namespace) -> None:
    """Run one rank, and print the median of the rounds on rank 0."""
    import torch

    import ngd.horovod.torch as hvd
    import ngd.torch  # noqa: F401

    by_horovod = args.backend == "horovod"
    if by_horovod:
        hvd.init()
    else:
        torch.distributed.init_process_group(args.backend)
    rounds = train(args)
    gc.collect()  # gloo aborts if a model still refers to the destroyed group
    if int(os.environ["RANK"]) == 0:
        result = {
            "backend": args.backend,
            "torch": torch.__version__,
            "hidden": args.hidden,
            "batch": args.batch,
            "ranks": int(os.environ["WORLD_SIZE"]),
            "threads": args.threads,
            "us_per_step": round(statistics.median(rounds) * 1e6, 1),
        }
        print(json.dumps(result), flush=True)
    if not by_horovod:
        torch.distributed.destroy_process_group()


def measure(backend: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one backend once, in separate processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks)]
    case = ["--hidden", *map(str, args.hidden), "--batch", str(args.batch)]
    case += ["--steps", str(args.steps), "--threads", str(args.threads), "--backend", backend]
    env = {"OMP_NUM_THREADS": str(args.threads), **os.environ}
    return last_line([sys.executable, *launcher, str(HERE), *case], backend, env)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, nargs="+", default=[100])
    parser.add_argument("--batch", type=int, default=128, help="images a rank and step")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="cores a rank")
    parser.add_argument("--steps", type=int, default=200, help="steps a round; 5 rounds a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--backend", choices=BACKENDS, help="under a launcher: the one to measure")
    args = parser.parse_args(argv)
    if "RANK" in os.environ:
        run_rank(args)
        return
    turns: list[dict[str, float]] = []
    for turn in range(args.turns):
        turns.append({})
        for backend in BACKENDS:
            result = measure(backend, args)
            turns[-1][backend] = result["us_per_step"]
            print(json.dumps({"turn": turn, **result}), flush=True)
    summary = {
        "case": "-".join(map(str, [784, *args.hidden, 10])),
        "batch": args.batch,
        "ranks": args.ranks,
        "threads": args.threads,
        "cpu": cpu_name(),
        "us_per_step": {b: round(statistics.median(t[b] for t in turns), 1) for b in BACKENDS},
        "over_gloo": {
            b: round(statistics.median(t[b] / t["gloo"] for t in turns), 3) for b in BACKENDS[:-1]
        },
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
