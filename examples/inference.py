# SPDX-License-Identifier: Apache-2.0
"""Load a checkpoint and predict in batches, on all ranks.

    ngd run -n 2 inference.py --checkpoint model --data inputs.npy --output classes.npy

The rows of inputs.npy are divided among the ranks, and rank 0 writes the classes in the order of
the rows. If there is no checkpoint, the program first trains the model and saves it. A checkpoint
can be loaded by any number of ranks.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

import ngd
from ngd import data, nn, ops, optim

INPUTS, CLASSES = 16, 4


def make_model() -> nn.Module:
    """Return the model, which training and inference build in the same way."""
    return nn.Sequential(nn.Linear(INPUTS, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, CLASSES))


def make_rows(seed: int, count: int) -> tuple:
    """Return rows, and the class that a fixed random matrix gives to each of them."""
    x = np.random.default_rng(seed).normal(size=(count, INPUTS)).astype(np.float32)
    return x, (x @ np.random.default_rng(0).normal(size=(INPUTS, CLASSES))).argmax(1)


def train(folder: Path, epochs: int) -> None:
    """Train a model, and save its variables."""
    model, optimizer, random = make_model(), optim.AdamW(1e-2), nn.Random(0)

    @ngd.function(updates=True)
    def train_step(x: ngd.Node, labels: ngd.Node, weight: ngd.Node) -> tuple:
        with nn.training(random) as state:
            loss = ops.mean(ops.softmax_cross_entropy(model(x), labels))
        updates = optimizer.minimize(loss, model.parameters(), weight=weight)
        return ops.all_reduce(loss, op="mean", weight=weight), [updates, state.updates]

    source = data.Arrays(*make_rows(1, 4096))
    loader = data.Loader(source, data.Sampler(len(source), batch_size=64))
    for _ in range(epochs):
        for batch in loader:
            train_step(*batch, batch.weight)
    ngd.checkpoint.save(folder, model.variables(), private={})


def predict(folder: Path, x: np.ndarray, batch_size: int) -> np.ndarray:
    """Load the checkpoint, and return the classes of all rows on all ranks."""
    model = make_model()
    ngd.checkpoint.load(folder, model.variables())

    @ngd.function  # outside of nn.training there is no dropout
    def classify(x: ngd.Node) -> ngd.Node:
        return ops.argmax(model(x), axis=1)

    shards = np.array_split(x, ngd.world_size())
    shard_of_rank = shards[ngd.rank()]
    batches = np.split(shard_of_rank, range(batch_size, len(shard_of_rank), batch_size))
    classes = np.concatenate([classify(batch) for batch in batches])
    return ngd.all_gather_v(classes, counts=[len(shard) for shard in shards])


def main() -> None:
    """Predict, and report as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, default="checkpoint", help="a folder")
    parser.add_argument("--data", type=Path, help=f"a .npy file, float32 [rows, {INPUTS}]")
    parser.add_argument("--output", type=Path, help="the .npy file of the classes, int64 [rows]")
    parser.add_argument("--batch", type=int, default=256, help="rows per batch of one rank")
    parser.add_argument("--epochs", type=int, default=10, help="of the training")
    parser.add_argument("--smoke", action="store_true", help="one epoch, 200 rows")
    args = parser.parse_args()
    with ngd.raise_together():
        x, labels = make_rows(seed=2, count=200 if args.smoke else 20_000)
        if args.data:
            x, labels = np.load(args.data), None
        if x.ndim != 2 or x.shape[1] != INPUTS or x.dtype != np.float32:
            got = f"{x.dtype}{list(x.shape)}"
            raise ValueError(f"--data: expected an array float32[rows, {INPUTS}]; got {got}")
        exists = ngd.checkpoint.exists(args.checkpoint)
    if not exists:
        train(args.checkpoint, 1 if args.smoke else args.epochs)
        ngd.barrier()  # rank 0 has written the files
    start = time.perf_counter()
    classes = predict(args.checkpoint, x, args.batch)
    seconds = time.perf_counter() - start
    report = {"ranks": ngd.world_size(), "rows": len(x), "rows_per_s": len(x) / seconds}
    report |= {"accuracy": None if labels is None else float(np.mean(classes == labels))}
    if ngd.rank() == 0:
        if args.output:
            np.save(args.output, classes)
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
