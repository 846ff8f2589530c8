# SPDX-License-Identifier: Apache-2.0
"""Train a two-layer network to read digits, data-parallel, on any number of ranks.

    mpirun -np 2 python examples/dist_mnist_mlp.py --data DIR

DIR has MNIST's four IDX files. Without --data, the images are the 1,797 digits of scikit-learn.
Any number of ranks takes the same steps, because means are weighted by the numbers of images.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

import ngd
from ngd import data, nn, ops, optim, train


def load_digits(folder):
    """Return the training and the test set: images with pixels in [0, 1], and their classes."""
    if folder:
        return data.mnist(folder)
    from sklearn import datasets  # pip install scikit-learn

    images, labels = datasets.load_digits(return_X_y=True)
    source = data.Arrays((images / 16).astype(np.float32), labels)
    order = np.random.default_rng(0).permutation(len(source))
    return data.Arrays(*source[order[360:]]), data.Arrays(*source[order[:360]])


def parse_arguments():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="folder of MNIST's four files")
    add("--epochs", type=int, default=10)
    add("--batch", type=int, default=128, help="images per step, of all ranks together")
    add("--lr", type=float, default=0.1, help="learning rate")
    add("--seed", type=int, default=0)
    add("--device", choices=["CPU", "INTERPRETER"], default="CPU")
    add("--save", type=Path, metavar="DIR", help="save a checkpoint here after each epoch")
    add("--resume", action="store_true", help="continue from the checkpoint in --save, if any")
    add("--smoke", action="store_true", help="run a few steps only")
    args = parser.parse_args()
    if args.resume and not args.save:
        parser.error("--resume: expected --save DIR too; got none. Give the checkpoint's folder.")
    return args


def main():
    """Train, evaluate, and print a report as one line of JSON."""
    args = parse_arguments()
    training, test = load_digits(args.data)
    if args.smoke:
        args.epochs, training = 1, data.Arrays(*training[: 4 * args.batch])
    sampler = data.Sampler(len(training), args.batch, seed=args.seed)
    loader = data.Loader(training, sampler)
    test_loader = data.Loader(test, data.Sampler(len(test), args.batch, shuffle=False))

    features = training.columns[0][0].size
    model = nn.Sequential(nn.Flatten(), nn.Linear(features, 600), nn.ReLU(), nn.Linear(600, 10))
    model.initialize(args.seed)
    optimizer = optim.SGD(args.lr, momentum=0.9)
    saved = [model.variables(), optimizer.state]

    @ngd.function(updates=True, device=args.device)
    def train_step(images, labels, weight):
        loss = ops.mean(ops.softmax_cross_entropy(model(images), labels))
        updates = optimizer.minimize(loss, model.parameters(), weight=weight)  # a mean over ranks
        return ops.all_reduce(loss, op="mean", weight=weight), updates

    @ngd.function(device=args.device)
    def accuracy(images, labels):
        return [ops.mean(ops.cast(ops.argmax(model(images), axis=1) == labels, "float32"))]

    if args.resume and ngd.checkpoint.exists(args.save):
        sampler.load_state(ngd.checkpoint.load(args.save, saved))
    loss = images_per_s = None
    while sampler.epoch < args.epochs:
        start, total = time.perf_counter(), 0.0
        for batch in loader:
            total += float(train_step(*batch, batch.weight)) * batch.total
        loss, images_per_s = total / len(training), len(training) / (time.perf_counter() - start)
        if ngd.rank() == 0:
            print(f"epoch {sampler.epoch}: loss {loss:.4f}", flush=True)
            if args.save:
                ngd.checkpoint.save(args.save, saved, position=sampler.state())

    (test_accuracy,) = train.evaluate(accuracy, test_loader)
    if ngd.rank() == 0:
        report = {"ranks": ngd.world_size(), "device": args.device}
        report |= {"mode": ngd.build_info()["mode"], "steps": sampler.done, "loss": loss}
        report |= {"test_accuracy": round(test_accuracy, 4), "images_per_s": images_per_s}
        print(json.dumps(report))


if __name__ == "__main__":
    main()
