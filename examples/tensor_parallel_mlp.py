# SPDX-License-Identifier: Apache-2.0
"""Train a network with tensor parallelism: its hidden layer is divided among the ranks.

    ngd run -n 4 tensor_parallel_mlp.py --model 2

The ranks form a mesh with the axes "data" and "model". Along "model" each rank has some columns of
the first layer and the same rows of the second. One all-reduce sums the logits (Shoeybi et al.,
2019, arXiv:1909.08053, section 3). Along "data" each rank has its shard of the batch, and an
all-reduce averages the gradients. Any mesh takes the steps of one rank.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

import ngd
from ngd import ops


def read_digits(folder: Path | None) -> Any:
    """Return the images and labels of MNIST in a folder, or those of scikit-learn."""
    if folder is not None:
        return ngd.data.mnist(folder)[0].columns
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.data / 16, digits.target


def make_network(features: int, mesh: Any, args: argparse.Namespace) -> list[Any]:
    """Return this rank's shards of the variables, which together do not depend on the mesh."""
    random, model = np.random.default_rng(args.seed), mesh["model"]
    W0 = random.standard_normal((features, args.hidden)) * math.sqrt(2 / features)
    W1 = random.standard_normal((args.hidden, 10)) * math.sqrt(2 / args.hidden)
    columns = np.split(W0, model.size, axis=1)[model.rank]
    rows = np.split(W1, model.size, axis=0)[model.rank]
    initial = {"W0": columns, "b0": np.zeros(len(rows)), "W1": rows, "b1": np.zeros(10)}
    return [ngd.variable(name, value.astype(args.dtype)) for name, value in initial.items()]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train, and return the report."""
    mesh = ngd.make_mesh((ngd.world_size() // args.model, args.model), ("data", "model"))
    data, model = mesh["data"], mesh["model"]
    with ngd.raise_together():  # one rank may fail to read a file
        images, labels = read_digits(args.data)
    images = images.reshape(len(images), -1).astype(args.dtype)
    network = make_network(images.shape[1], mesh, args)

    @ngd.function(updates=True)
    def step(x: Any, y: Any) -> Any:
        W0, b0, W1, b1 = network
        hidden = ops.relu(x @ W0 + b0)  # the columns of this rank
        logits = ops.all_reduce(hidden @ W1, op="sum", group=model) + b1
        loss = ops.mean(ops.softmax_cross_entropy(logits, y))
        # ngd.grad differentiates the sum of the losses of all ranks. Along "model" the ranks have
        # the same loss, so it is divided by their number. Each rank has a copy of b1. The gradient
        # of b1 is the sum of the gradients of the copies.
        *gradients, gradient_of_copy = ngd.grad(loss / model.size, network)
        gradients.append(ops.all_reduce(gradient_of_copy, op="sum", group=model))
        means = [ops.all_reduce(g, op="mean", group=data) for g in gradients]
        updates = {v: v - args.lr * g for v, g in zip(network, means, strict=True)}
        return ops.all_reduce(loss, op="mean", group=data), updates

    random, losses = np.random.default_rng(args.seed + 1), []
    for _ in range(args.steps):
        batch = random.integers(0, len(labels), args.batch)  # the same on all ranks
        shard = np.split(batch, data.size)[data.rank]
        losses.append(float(step(images[shard], labels[shard])))
    return {"ranks": ngd.world_size(), "model": args.model, "losses": losses}


def parse_arguments() -> argparse.Namespace:
    """Read the command line. Settings without an option are here too."""
    parser = argparse.ArgumentParser(description="Train a network with tensor parallelism.")
    parser.set_defaults(lr=0.3, seed=0, dtype="float32")
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="the files of MNIST (default: scikit-learn's)")
    add("--model", type=int, help="ranks that share one network (default: all)")
    add("--hidden", type=int, default=256, help="a multiple of --model")
    add("--batch", type=int, default=96, help="images per step, of all ranks together")
    add("--steps", type=int, default=50)
    add("--smoke", action="store_true", help="make 5 steps")
    args = parser.parse_args()
    if args.smoke:
        args.steps = 5
    size = ngd.world_size()
    args.model = args.model or size
    for name, value, divisor in (
        ("the number of ranks", size, args.model),
        ("--hidden", args.hidden, args.model),
        ("--batch", args.batch, size // args.model),
    ):
        if value < 1 or divisor < 1 or value % divisor:
            parser.error(f"{name}: expected a positive multiple of {divisor}; got {value}")
    return args


if __name__ == "__main__":
    report = run(parse_arguments())
    if ngd.rank() == 0:
        print(json.dumps(report), flush=True)
