# SPDX-License-Identifier: Apache-2.0
"""Compare PaddlePaddle's DataParallel over ngd.paddle with its own over gloo: an MLP, in turns.

    python benchmarks/models/parallel_paddle.py --hidden 1024 1024 1024

It needs PaddlePaddle, and a build of ngd that is compatible with it (docs/paddle.md).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import ways


def step_of(args: argparse.Namespace) -> Callable[[], Callable[[], Any]]:
    """Return a step on this rank's batch."""
    rank, workers = os.environ["RANK"], os.environ["WORKERS"].split(",")
    os.environ |= {"OMP_NUM_THREADS": str(args.threads), "MKL_NUM_THREADS": str(args.threads)}
    if args.way == "gloo":
        host, _, port = workers[0].rpartition(":")
        os.environ |= {
            "PADDLE_TRAINER_ID": rank,
            "PADDLE_TRAINERS_NUM": str(len(workers)),
            "PADDLE_TRAINER_ENDPOINTS": ",".join(workers),
            "PADDLE_CURRENT_ENDPOINT": workers[int(rank)],
            "PADDLE_DISTRI_BACKEND": "gloo",
            "PADDLE_MASTER": f"{host}:{port}",
        }
    import paddle

    import ngd.paddle

    paddle.set_device("cpu")
    distributed: Any = ngd.paddle if args.way == "ngd" else paddle.distributed
    distributed.init_parallel_env()
    expected = {"ngd": "ngd", "gloo": "GLOO"}[args.way]
    assert distributed.get_backend() == expected, "this is not the way that was asked for"
    paddle.seed(0)
    sizes, layers = [784, *args.hidden], []
    for before, after in pairwise(sizes):
        layers += [paddle.nn.Linear(before, after), paddle.nn.ReLU()]
    net = paddle.nn.Sequential(*layers, paddle.nn.Linear(sizes[-1], 10))
    model = (ngd.paddle if args.way == "ngd" else paddle).DataParallel(net)
    optimizer = paddle.optimizer.SGD(0.01, net.parameters())
    images = paddle.rand([args.batch, 784])
    labels = paddle.randint(0, 10, [args.batch])

    def once() -> Callable[[], Any]:
        loss = paddle.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return lambda: float(loss)

    return once


if __name__ == "__main__":
    ways.main(__file__, __doc__, ("ngd", "gloo"), step_of)
