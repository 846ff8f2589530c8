# SPDX-License-Identifier: Apache-2.0
"""Train a small convolutional network on digits, data-parallel, on any number of ranks.

    mpirun -np 2 python examples/mnist_cnn.py --data DIR --save DIR

It is what dist_mnist_mlp.py writes out, by the training library: ngd.nn, ngd.optim, ngd.data and
ngd.train. DIR holds MNIST's four IDX files; without it the digits of scikit-learn are used. With
--save, SIGTERM and SIGUSR1 make it save and end with exit code 75, so that --resume goes on there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import digits
import numpy as np
from low_level_mnist import all_or_none

import ngd
from ngd import data, nn, ops, optim, train


def make_model(side: int) -> nn.Module:
    """Two convolutions, a pool and two layers: [N, 1, side, side] to the scores of ten classes."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(64 * (side // 2) ** 2, 128),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(128, 10),
    )


def as_images(rows: digits.Digits) -> data.Arrays:
    """Images [N, 1, side, side] and their classes."""
    side = math.isqrt(rows.pixels.shape[1])
    return data.Arrays(rows.pixels.reshape(-1, 1, side, side), rows.labels.astype(np.int64))


def moved(columns: Any, random: Any) -> Any:
    """Each image, by up to a fourteenth of its side up or down, and left or right."""
    images, labels = columns
    most = images.shape[-1] // 14
    moves = (generator.integers(-most, most + 1, 2) for generator in random)
    pairs = zip(images, moves, strict=True)
    return np.stack([np.roll(image, move, (1, 2)) for image, move in pairs]), labels


def make_trainer(args: argparse.Namespace, world: Any) -> train.Trainer:
    """Compile the two programs, which share the model's variables, and what runs them."""
    sets = [as_images(rows) for rows in digits.load(args.data, "float32")]
    side = sets[0].columns[0].shape[-1]
    sampler = data.Sampler(len(sets[0]), batch_size=args.batch, seed=args.seed, drop_last=True)
    model = make_model(side)
    model.initialize(args.seed)
    steps = max(args.epochs * len(sampler), 1)
    rate = optim.warm_up(optim.cosine(args.lr, steps), steps // 20 + 1)
    optimizer, random = optim.AdamW(rate, weight_decay=0.05), nn.Random(args.seed)

    images = ngd.placeholder("images", (args.batch // world.size, 1, side, side))
    labels = ngd.placeholder("labels", images.shape[:1], "int64")
    with nn.training(random) as state:
        loss = ops.mean(ops.softmax_cross_entropy(model(images), labels))
    updates = [optimizer.minimize(loss, model.parameters()), state.updates]
    mean = ops.all_reduce(loss, op="mean")
    step = ngd.compile([images, labels], [mean], updates, device=args.device)

    @ngd.function(device=args.device)
    def judge(images: Any, labels: Any) -> Any:
        right = ops.argmax(model(images), axis=1) == labels
        return [ops.mean(ops.cast(right, "float32"))]

    test = data.Sampler(len(sets[1]), batch_size=args.batch, shuffle=False)
    test_loader = data.Loader(sets[1], test)
    return train.Trainer(
        step,
        data.Loader(sets[0], sampler, moved),
        [model.variables(), optimizer.state, random.state],
        epochs=args.epochs,
        evaluate=lambda: {"accuracy": train.evaluate(judge, test_loader)[0]},
        save=args.save,
        resume=args.resume,
        stop_at=[signal.SIGTERM, signal.SIGUSR1] if args.save else [],
    )


def check(args: argparse.Namespace, world: Any) -> None:
    """Refuse what cannot work, before anything is loaded."""
    for name, least in (("epochs", 0), ("seed", 0), ("batch", 1)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name} {getattr(args, name)}: at least {least} is needed")
    if args.batch % world.size:
        raise ValueError(f"--batch {args.batch} is no multiple of the {world.size} ranks")
    if not 0 < args.lr < math.inf:
        raise ValueError(f"--lr {args.lr} is not a positive number")
    if args.resume and not args.save:
        raise ValueError("--resume goes on from --save DIR")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="MNIST's four IDX files (default: sklearn's)")
    add("--epochs", type=int, default=10)
    add("--batch", type=int, default=64, help="images a step, of all ranks together")
    add("--lr", type=float, default=2e-3)
    add("--seed", type=int, default=0)
    add("--device", choices=["CPU", "INTERPRETER"], default="CPU")
    add("--save", type=Path, metavar="DIR", help="where a checkpoint goes after each epoch")
    add("--resume", action="store_true", help="go on from the checkpoint in --save")
    add("--smoke", action="store_true", help="one epoch: does it run?")
    args = parser.parse_args()
    if args.smoke:
        args.epochs = min(args.epochs, 1)
    return args


def main() -> None:
    """Train, evaluate after each epoch, and report as one line of JSON."""
    args = parse_arguments()
    world = ngd.init()
    with all_or_none(world):
        check(args, world)
        trainer = make_trainer(args, world)
    report = trainer.run()
    if world.rank == 0:
        print(json.dumps({"ranks": world.size, "device": args.device, **report}), flush=True)
    ngd.barrier()
    if trainer.stopped:
        sys.exit(os.EX_TEMPFAIL)  # for the batch script: start the job again


if __name__ == "__main__":
    main()
