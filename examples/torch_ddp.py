# SPDX-License-Identifier: Apache-2.0
"""Train with PyTorch's DistributedDataParallel on handwritten digits, over ngd.

    torchrun --nproc-per-node 2 torch_ddp.py
    ngd run -n 2 torch_ddp.py --backend gloo     # for comparison

The example uses ngd in two lines: in the import, and in the name of the backend.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import ngd.torch  # noqa: F401


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="ngd", help='"ngd", or another backend')
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--smoke", action="store_true", help="train for one epoch")
    args = parser.parse_args(argv)
    if args.smoke:
        args.epochs = 1
    return args


def load_images() -> tuple[Tensor, Tensor]:
    """Return 1797 images of 8 x 8 and their labels, in the same random order on all ranks."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    inputs = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return inputs[order], torch.tensor(labels)[order]


def main(argv: Sequence[str] | None = None) -> None:
    """Train, test, and print the accuracy."""
    args = parse(argv)
    distributed.init_process_group(args.backend)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    inputs, labels = load_images()
    train = len(labels) * 5 // 6 // (size * args.batch) * (size * args.batch)
    torch.manual_seed(rank)
    convolution = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    model = DistributedDataParallel(nn.Sequential(*convolution, nn.Linear(16 * 9, 10)))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    start = time.perf_counter()
    for epoch in range(args.epochs):
        order = torch.randperm(train, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(size * args.batch):
            indices = batch[rank::size]
            loss = nn.functional.cross_entropy(model(inputs[indices]), labels[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    seconds = time.perf_counter() - start
    # Each rank tests its shard. The all-reduce adds the counts.
    with torch.no_grad():
        is_correct = model(inputs[train + rank :: size]).argmax(1) == labels[train + rank :: size]
    total = torch.tensor([is_correct.sum().item(), is_correct.numel()])
    distributed.all_reduce(total)
    if rank == 0:
        accuracy = round((total[0] / total[1]).item(), 4)
        report = {"backend": args.backend, "ranks": size, "epochs": args.epochs}
        print(json.dumps({**report, "test_accuracy": accuracy, "seconds": round(seconds, 2)}))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
