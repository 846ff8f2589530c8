# SPDX-License-Identifier: Apache-2.0
"""TensorFlow over ngd.horovod beside its MultiWorkerMirroredStrategy over gRPC: an MLP, in turns.

    python benchmarks/models/tape_tensorflow.py --hidden 1024 1024 1024 --turns 5

Both run their step in a tf.function: ours with a DistributedGradientTape, TensorFlow's own with
`strategy.run`. One JSON line a way and turn, then one with the medians: of the times a step, and
of the turns' ratios. It needs TensorFlow 2.16 or newer.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__)
sys.path.insert(0, str(HERE.parents[1]))
from timing import cpu_name  # noqa: E402

WAYS = ("horovod", "mirrored")
ROUNDS, WARM_UP_STEPS, DEADLINE_SECONDS = 5, 20, 600


def step_of(args: argparse.Namespace) -> Any:
    """A step over this rank's batch, compiled."""
    import tensorflow as tf

    import ngd.horovod.tensorflow as hvd

    strategy = tf.distribute.get_strategy()
    if args.way == "mirrored":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        hvd.init()
    shapes = list(zip([784, *args.hidden], [*args.hidden, 10], strict=True))
    with strategy.scope():
        make = tf.keras.initializers.GlorotUniform(0)
        weights = [tf.Variable(make(shape)) for shape in shapes]
        biases = [tf.Variable(tf.zeros(width)) for _, width in shapes]
    variables = [*weights, *biases]
    cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images = tf.random.uniform((args.batch, 784))
    labels = tf.random.uniform((args.batch,), 0, 10, tf.int64)

    def replica() -> Any:
        with tf.GradientTape() as tape:
            h = images
            for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
                h = tf.matmul(h, w) + b
                h = tf.nn.relu(h) if i < len(weights) - 1 else h
            loss = cross_entropy(labels, h)
        if args.way == "mirrored":
            context = tf.distribute.get_replica_context()
            mean = tf.distribute.ReduceOp.MEAN
            gradients = context.all_reduce(mean, tape.gradient(loss, variables))
        else:
            gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        for w, g in zip(variables, gradients, strict=True):
            w.assign_sub(0.01 * g)
        return loss

    return tf.function(lambda: strategy.run(replica) if args.way == "mirrored" else replica())


def run_rank(args: argparse.Namespace) -> None:
    """One rank: the median of the rounds."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    step = step_of(args)

    def seconds(steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            last = step()
        tf.nest.map_structure(lambda t: t.numpy() if hasattr(t, "numpy") else t, last)
        return (time.perf_counter() - begin) / steps

    seconds(WARM_UP_STEPS)
    median = statistics.median(seconds(args.steps) for _ in range(ROUNDS))
    print(json.dumps({"way": args.way, "us_per_step": round(median * 1e6, 1)}), flush=True)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def measure(way: str, args: argparse.Namespace) -> dict[str, Any]:
    """One turn of one way, in processes of its own."""
    case = ["--hidden", *map(str, args.hidden), "--batch", str(args.batch)]
    case += ["--steps", str(args.steps), "--threads", str(args.threads), "--way", way]
    workers = [f"127.0.0.1:{port}" for port in free_ports(args.ranks)]
    ranks = []
    for rank in range(args.ranks):
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        env |= {"RANK": str(rank), "WORLD_SIZE": str(args.ranks), "LOCAL_RANK": str(rank)}
        env |= {"LOCAL_WORLD_SIZE": str(args.ranks), "NGD_JOB": workers[0]}
        if way == "mirrored":
            task = {"type": "worker", "index": rank}
            env["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        command = [sys.executable, str(HERE), *case]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    said = [rank.communicate(timeout=DEADLINE_SECONDS)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{way}: the ranks returned {[rank.returncode for rank in ranks]}")
    return dict(json.loads(said[0].splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--hidden", type=int, nargs="+", default=[1024, 1024, 1024])
    parser.add_argument("--batch", type=int, default=128, help="images a rank and step")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="cores a rank")
    parser.add_argument("--steps", type=int, default=30, help="steps a round; 5 rounds a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--way", choices=WAYS, help="in a rank: the one to measure")
    args = parser.parse_args()
    if args.way is not None:
        run_rank(args)
        return
    turns: list[dict[str, float]] = []
    for turn in range(args.turns):
        turns.append({})
        for way in WAYS:
            result = measure(way, args)
            turns[-1][way] = result["us_per_step"]
            print(json.dumps({"turn": turn, **result}), flush=True)
    summary = {
        "case": "-".join(map(str, [784, *args.hidden, 10])),
        "batch": args.batch,
        "ranks": args.ranks,
        "threads": args.threads,
        "cpu": cpu_name(),
        "us_per_step": {way: round(statistics.median(t[way] for t in turns), 1) for way in WAYS},
        "over_mirrored": round(statistics.median(t["horovod"] / t["mirrored"] for t in turns), 3),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
