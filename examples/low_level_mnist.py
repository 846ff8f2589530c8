# SPDX-License-Identifier: Apache-2.0
"""Train a two-layer network on digits with placeholders, variables and ngd.compile.

    mpirun -np 2 python examples/low_level_mnist.py --data DIR

It writes out the graph that `@ngd.function`, ngd.nn and ngd.optim build in dist_mnist_mlp.py. Every
rank has the whole network and computes the gradients of its shard of each batch. An all-reduce in
the graph averages the gradients. The mean is weighted by the number of images that each rank has,
so any number of ranks takes the steps of one rank.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ngd
from ngd import data, ops

HIDDEN = 600


class Digits(NamedTuple):
    """A set of images, one per row, with pixels in [0, 1], and their classes."""

    pixels: Any
    labels: Any


def load_digits(directory: Path | None, dtype: str) -> tuple[Digits, Digits]:
    """Return the training and the test set. Raise OSError or ValueError with a one-line message."""
    if directory is None:
        return load_bundled(dtype)
    train, test = data.mnist(directory, dtype=dtype)
    return flatten_images(train), flatten_images(test)


def flatten_images(images: data.Arrays) -> Digits:
    """Return a set with one row per image."""
    pixels, labels = images.columns
    return Digits(pixels.reshape(len(pixels), -1), labels)


def load_bundled(dtype: str) -> tuple[Digits, Digits]:
    """Return the 1,797 images of scikit-learn in a random order; every fifth is a test image."""
    try:
        from sklearn import datasets
    except ImportError:
        raise ValueError(
            "without --data this needs scikit-learn: pip install 'ngd-runtime[examples]'"
        ) from None
    bundled = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(bundled.target))
    pixels = (bundled.data[order] / 16).astype(dtype)
    labels = bundled.target[order].astype(np.int64)
    test = np.arange(len(order)) % 5 == 0
    return Digits(pixels[~test], labels[~test]), Digits(pixels[test], labels[test])


def logits_of(pixels: Any, W0: Any, b0: Any, W1: Any, b1: Any) -> Any:
    """Return the graph of the network: one logit per class."""
    return ops.relu(pixels @ W0 + b0) @ W1 + b1


def compile_step(images: int, network: Sequence[Any], args: argparse.Namespace) -> Any:
    """Compile the training step of a rank that has this many images of the batch."""
    pixels = ngd.placeholder("pixels", (images, network[0].shape[0]), args.dtype)
    labels = ngd.placeholder("labels", (images,), "int64")
    weight = ngd.placeholder("weight", (), args.dtype)

    loss = ops.mean(ops.softmax_cross_entropy(logits_of(pixels, *network), labels))
    gradients = ngd.grad(loss, network)
    averaged = [ops.all_reduce(g, op="mean", weight=weight) for g in gradients]
    updates = {v: v - args.lr * g for v, g in zip(network, averaged, strict=True)}
    global_loss = ops.all_reduce(loss, op="mean", weight=weight)

    inputs = [pixels, labels, weight]
    return ngd.compile(inputs, [global_loss], updates=updates, device=args.device)


def compile_prediction(images: int, network: Sequence[Any], args: argparse.Namespace) -> Any:
    """Compile a step that returns the most likely class of each image."""
    pixels = ngd.placeholder("pixels", (images, network[0].shape[0]), args.dtype)
    classes = ops.argmax(logits_of(pixels, *network), axis=1)
    return ngd.compile([pixels], [classes], device=args.device)


def make_network(features: int, classes: int, args: argparse.Namespace) -> list[Any]:
    """Create the variables. The same seed gives equal values on all ranks (He et al., 2015)."""
    random = np.random.default_rng(args.seed)
    network = []
    for layer, (rows, columns) in enumerate([(features, HIDDEN), (HIDDEN, classes)]):
        initial = random.standard_normal((rows, columns)) * math.sqrt(2 / rows)
        network.append(ngd.variable(f"W{layer}", initial.astype(args.dtype)))
        network.append(ngd.variable(f"b{layer}", np.zeros(columns, args.dtype)))
    return network


def train(
    images: Digits, network: Sequence[Any], world: Any, args: argparse.Namespace
) -> tuple[int, float | None, float | None]:
    """Train. Return the number of steps, the last epoch's loss, and images per second."""
    from tqdm import tqdm

    step = functools.cache(lambda count: compile_step(count, network, args))
    count = len(images.labels)
    shards = data.Sampler(count, batch_size=args.batch, seed=args.seed)
    for number in range(shards.steps):
        step(len(shards.shard(number).indices))
    writer = None
    if args.log_dir and world.rank == 0:
        from tensorboardX import SummaryWriter

        writer = SummaryWriter(str(args.log_dir))
    steps, loss = 0, None
    ngd.barrier()
    start = time.perf_counter()
    for epoch in range(args.epochs):
        total = 0.0
        with tqdm(shards, f"epoch {epoch + 1}", disable=world.rank != 0) as bar:
            for shard in bar:
                indices, weight = shard.indices, np.array(shard.weight, args.dtype)
                (step_loss,) = step(len(indices))(
                    images.pixels[indices], images.labels[indices], weight
                )
                total += float(step_loss) * shard.total
                steps += 1
                if writer:
                    writer.add_scalar("loss", float(step_loss), steps)
        loss = total / count
    seconds = time.perf_counter() - start
    if writer:
        writer.close()
    return steps, loss, args.epochs * count / seconds if steps else None


def evaluate(images: Digits, network: Sequence[Any], world: Any, args: argparse.Namespace) -> float:
    """Return the accuracy. Rank r of n evaluates every n-th block of images, from block r."""
    predict = functools.cache(lambda count: compile_prediction(count, network, args))
    correct = 0
    for start in range(world.rank * args.batch, len(images.labels), world.size * args.batch):
        block = slice(start, start + args.batch)
        (classes,) = predict(len(images.labels[block]))(images.pixels[block])
        correct += int(np.sum(classes == images.labels[block]))
    return float(ngd.all_reduce(np.array(correct), op="sum")) / len(images.labels)


def check(args: argparse.Namespace, world: Any) -> None:
    """Check the options before any data is loaded."""
    if args.epochs < 0:
        raise ValueError(f"--epochs {args.epochs} is negative")
    if args.batch < world.size:
        raise ValueError(f"--batch {args.batch} is smaller than the number of ranks, {world.size}")
    if not 0 < args.lr < math.inf:
        raise ValueError(f"--lr {args.lr} is not a positive number")
    if args.seed < 0:
        raise ValueError(f"--seed {args.seed} is negative")
    if args.save and (args.save.is_dir() or not args.save.parent.is_dir()):
        raise ValueError(f"--save: {args.save} cannot be made: a file in a directory is needed")
    if args.log_dir and args.log_dir.exists() and not args.log_dir.is_dir():
        raise ValueError(f"--log-dir: {args.log_dir} is not a directory")


def load_checkpoint(path: Path, network: Sequence[Any]) -> None:
    """Assign the values of an earlier run to the variables."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        saved: Mapping[str, Any] = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"--load: {path} is not a safetensors file ({error})") from error
    for variable in network:
        value = saved.get(variable.name)
        if value is None or value.shape != variable.shape:
            has = "nothing" if value is None else f"shape {value.shape}"
            raise ValueError(
                f"--load: {path} holds {has} for {variable.name}, needed is {variable.shape}"
            )
    for variable in network:
        variable.assign(saved[variable.name].astype(variable.dtype))


@contextmanager
def exit_together(world: Any) -> Iterator[None]:
    """Exit on all ranks if the block fails on any. The first such rank prints the reason."""
    problem = ""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        problem = str(error)
    first = int(ngd.all_reduce(np.array(world.rank if problem else world.size), op="min"))
    if first == world.rank:
        print(f"{Path(sys.argv[0]).name}: {problem}", file=sys.stderr, flush=True)
    if first < world.size:
        ngd.barrier()  # print the line before the launcher notices that a rank exits
        sys.exit(1)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="MNIST's four IDX files (default: sklearn's)")
    add("--epochs", type=int, default=10)
    add("--batch", type=int, default=128, help="images per step, of all ranks together")
    add("--lr", type=float, default=0.3)
    add("--seed", type=int, default=0)
    add("--dtype", choices=["float32", "float64"], default="float32")
    add("--device", choices=["CPU", "INTERPRETER"], default="CPU")
    add("--save", type=Path, metavar="FILE", help="where rank 0 writes the weights (safetensors)")
    add("--load", type=Path, metavar="FILE", help="weights to begin with (safetensors)")
    add("--log-dir", type=Path, metavar="DIR", help="every step's loss, for TensorBoard")
    add("--smoke", action="store_true", help="run one epoch only")
    args = parser.parse_args()
    if args.smoke:
        args.epochs = min(args.epochs, 1)
    return args


def main() -> None:
    """Train, evaluate, and report as one line of JSON."""
    args = parse_arguments()
    world = ngd.init()
    with exit_together(world):
        check(args, world)
        training, test = load_digits(args.data, args.dtype)
        if len(training.labels) < world.size:
            raise ValueError(f"{len(training.labels)} training images for {world.size} ranks")
        classes = int(max(training.labels.max(), test.labels.max())) + 1
        network = make_network(training.pixels.shape[1], classes, args)
        if args.load and world.rank == 0:
            load_checkpoint(args.load, network)
    ngd.broadcast_variables(network, root=0)

    steps, loss, images_per_s = train(training, network, world, args)
    accuracy = evaluate(test, network, world, args)
    if world.rank == 0:
        if args.save:
            from safetensors.numpy import save_file

            save_file({v.name: v.numpy() for v in network}, args.save)
        report = {
            "ranks": world.size,
            "device": args.device,
            "mode": ngd.build_info()["mode"],
            "steps": steps,
            "loss": loss,
            "test_accuracy": accuracy,
            "images_per_s": images_per_s,
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
