# SPDX-License-Identifier: Apache-2.0
"""Train a small convolutional network on digits, with ngd.train.Trainer.

    ngd run -n 2 mnist_cnn.py --data DIR --save checkpoint

DIR has MNIST's four files. Without --data, the images are the digits of scikit-learn. With --save,
SIGTERM and SIGUSR1 end the training with a checkpoint and exit code 75. --resume continues it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import ngd
from ngd import data, nn, ops, optim, train


def make_model(side: int) -> nn.Module:
    """Return a network from images [N, 1, side, side] to the logits of ten classes."""
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


def read_digits(folder: Path | None) -> tuple[data.Arrays, data.Arrays]:
    """Return the images and labels for training, and those for the test."""
    if folder is not None:
        return data.mnist(folder)
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images[:, None].astype(np.float32) / 16, digits.target.astype(np.int64)
    is_test = np.random.default_rng(0).permutation(len(labels)) % 5 == 0
    training, test = (data.Arrays(images[i], labels[i]) for i in (~is_test, is_test))
    return training, test


def shift(columns: Any, generators: Any) -> Any:
    """Shift each image by up to 1/14 of its side, vertically and horizontally."""
    images, labels = columns
    max_shift = images.shape[-1] // 14
    shifts = [generator.integers(-max_shift, max_shift + 1, 2) for generator in generators]
    return np.stack(
        [np.roll(x, offset, (1, 2)) for x, offset in zip(images, shifts, strict=True)]
    ), labels


def make_trainer(args: argparse.Namespace) -> train.Trainer:
    """Return the trainer, which may continue from a checkpoint."""
    with ngd.raise_together():  # one rank may fail to read a file
        training, test = read_digits(args.data)
    model, random = make_model(training.columns[0].shape[-1]), nn.Random()
    sampler = data.Sampler(len(training), args.batch, drop_last=True)
    steps = max(args.epochs * len(sampler), 1)
    rate = optim.warm_up(optim.cosine(args.lr, steps), steps // 20 + 1)
    optimizer = optim.AdamW(rate, weight_decay=0.05)

    @ngd.function(updates=True)
    def step(images: Any, labels: Any) -> Any:
        weight = ngd.constant(np.float32(len(labels)))  # the ranks may have different numbers
        with nn.training(random) as state:
            loss = ops.mean(ops.softmax_cross_entropy(model(images), labels))
        updates = optimizer.minimize(loss, model.parameters(), weight=weight)
        return [ops.all_reduce(loss, op="mean", weight=weight)], [updates, state.updates]

    @ngd.function
    def accuracy(images: Any, labels: Any) -> Any:
        return [ops.mean(ops.cast(ops.argmax(model(images), axis=1) == labels, "float32"))]

    test_loader = data.Loader(test, data.Sampler(len(test), args.batch, shuffle=False))
    return train.Trainer(
        step,
        data.Loader(training, sampler, shift),
        [model.variables(), optimizer.state, random.state],
        epochs=args.epochs,
        evaluate=lambda: {"accuracy": train.evaluate(accuracy, test_loader)[0]},
        save=args.save,
        resume=args.resume,
        stop_at=[signal.SIGTERM, signal.SIGUSR1] if args.save else [],
    )


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a convolutional network on digits.")
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="the files of MNIST (default: scikit-learn's)")
    add("--epochs", type=int, default=10)
    add("--batch", type=int, default=64, help="images per step, of all ranks together")
    add("--lr", type=float, default=2e-3)
    add("--save", type=Path, metavar="DIR", help="write a checkpoint after each epoch")
    add("--resume", action="store_true", help="continue from the checkpoint in --save")
    add("--smoke", action="store_true", help="train for one epoch")
    args = parser.parse_args()
    if args.smoke:
        args.epochs = min(args.epochs, 1)
    return args


if __name__ == "__main__":
    trainer = make_trainer(parse_arguments())
    report = trainer.run()
    if ngd.rank() == 0:
        device = os.environ.get("NGD_DEVICE", "CPU")
        print(json.dumps({"ranks": ngd.world_size(), "device": device, **report}), flush=True)
    if trainer.stopped:
        sys.exit(os.EX_TEMPFAIL)  # the batch script requeues the job
