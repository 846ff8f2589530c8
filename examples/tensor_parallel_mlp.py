# SPDX-License-Identifier: Apache-2.0
"""Train a network too wide for one rank: its hidden layer is divided between the ranks of a group.

    ngd run -n 4 examples/tensor_parallel_mlp.py --model 2

The ranks form a grid of (data, model). Along "model" each has some columns of the first layer and
the rows of the second that belong to them; one all-reduce sums what they make of a batch (Shoeybi
et al. 2019, arXiv:1909.08053, section 3). Along "data" each has its part of the batch, and an
all-reduce averages gradients. Any grid takes the steps that one rank would take alone.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import digits
import numpy as np

import ngd
from ngd import ops


def loss_of(pixels: Any, labels: Any, network: Sequence[Any], model: Any) -> Any:
    """Build the loss of a batch; the same value on all ranks of `model`."""
    W0, b0, W1, b1 = network
    hidden = ops.relu(pixels @ W0 + b0)  # my columns
    scores = ops.all_reduce(hidden @ W1, op="sum", group=model) + b1  # of everybody's rows
    return ops.mean(ops.softmax_cross_entropy(scores, labels))


def gradients_of(loss: Any, network: Sequence[Any], mesh: Any) -> list[Any]:
    """Build the gradients of the mean loss of the whole batch.

    ngd.grad differentiates the sum of all ranks' losses. Along "model" that is one loss as many
    times as there are ranks, hence the division. b1 is one value in a copy a rank: each rank gets
    the derivative by its own copy, and the derivative by the value is their sum.
    """
    model, data = mesh["model"], mesh["data"]
    *mine, of_my_copy = ngd.grad(loss / model.size, network)
    gradients = [*mine, ops.all_reduce(of_my_copy, op="sum", group=model)]
    return [ops.all_reduce(g, op="mean", group=data) for g in gradients]


def make_network(features: int, classes: int, mesh: Any, args: argparse.Namespace) -> list[Any]:
    """Make this rank's part of the variables, cut out of what the seed gives one rank alone."""
    random = np.random.default_rng(args.seed)
    model = mesh["model"]
    W0 = random.standard_normal((features, args.hidden)) * math.sqrt(2 / features)
    W1 = random.standard_normal((args.hidden, classes)) * math.sqrt(2 / args.hidden)
    columns = np.split(W0, model.size, axis=1)[model.rank]
    rows = np.split(W1, model.size, axis=0)[model.rank]
    initial = {"W0": columns, "b0": np.zeros(len(rows)), "W1": rows, "b1": np.zeros(classes)}
    return [ngd.variable(name, value.astype(args.dtype)) for name, value in initial.items()]


def compile_step(images: int, network: Sequence[Any], mesh: Any, args: argparse.Namespace) -> Any:
    """Build the training step of a rank that has this many images of the batch."""
    pixels = ngd.placeholder("pixels", (images, network[0].shape[0]), args.dtype)
    labels = ngd.placeholder("labels", (images,), "int64")
    loss = loss_of(pixels, labels, network, mesh["model"])
    gradients = gradients_of(loss, network, mesh)
    updates = {v: v - args.lr * g for v, g in zip(network, gradients, strict=True)}
    whole = ops.all_reduce(loss, op="mean", group=mesh["data"])
    return ngd.compile([pixels, labels], [whole], updates=updates, device=args.device)


def parse_arguments(world: Any) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="MNIST's four IDX files (default: sklearn's)")
    add("--model", type=int, help="ranks that share a network (default: all)")
    add("--hidden", type=int, default=256, help="a multiple of --model")
    add("--batch", type=int, default=96, help="images a step, a multiple of the parts of a batch")
    add("--steps", type=int, default=50)
    add("--lr", type=float, default=0.3)
    add("--seed", type=int, default=0)
    add("--dtype", choices=["float32", "float64"], default="float32")
    add("--device", choices=["CPU", "INTERPRETER"], default="CPU")
    args = parser.parse_args()
    args.model = args.model or world.size
    for name, value, divisor in (
        ("the number of ranks", world.size, args.model),
        ("--hidden", args.hidden, args.model),
        ("--batch", args.batch, world.size // args.model or 1),
    ):
        if divisor < 1 or value < 1 or value % divisor:
            parser.error(f"{name}: {value} is no positive multiple of {divisor}")
    return args


def main() -> None:
    """Train, and report the losses as one line of JSON."""
    world = ngd.init()
    args = parse_arguments(world)
    mesh = ngd.make_mesh((world.size // args.model, args.model), ("data", "model"))
    training, _ = digits.load(args.data, args.dtype)
    network = make_network(training.pixels.shape[1], int(training.labels.max()) + 1, mesh, args)
    data = mesh["data"]
    step = compile_step(args.batch // data.size, network, mesh, args)
    random = np.random.default_rng(args.seed + 1)
    losses = []
    for _ in range(args.steps):
        batch = random.integers(0, len(training.labels), args.batch)
        mine = np.split(batch, data.size)[data.rank]
        (loss,) = step(training.pixels[mine], training.labels[mine])
        losses.append(float(loss))
    if world.rank == 0:
        print(json.dumps({"ranks": world.size, "model": args.model, "losses": losses}))


if __name__ == "__main__":
    main()
