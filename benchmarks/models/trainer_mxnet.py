# SPDX-License-Identifier: Apache-2.0
"""Compare MXNet's Trainer over ngd's store with its own dist_sync: an MLP, in turns.

    python benchmarks/models/trainer_mxnet.py --hidden 1024 1024 1024

MXNet's own way has a scheduler, which rank 0 starts, and one server per rank, which each rank
starts, all on this host. The program needs MXNet 1.9.1 and NumPy 1.26 (docs/mxnet.md).
"""

from __future__ import annotations

import argparse
import atexit
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ways

SERVE = "import ngd.kvstore.mxnet"  # MXNet serves on import if DMLC_ROLE is set


def begin_servers() -> None:
    """Start MXNet's servers. Call it before MXNet is imported."""
    workers = os.environ["WORKERS"].split(",")
    host, port = workers[0].split(":")
    os.environ |= {"DMLC_PS_ROOT_URI": host, "DMLC_PS_ROOT_PORT": port}
    os.environ |= {"DMLC_NUM_SERVER": str(len(workers)), "DMLC_NUM_WORKER": str(len(workers))}
    roles = ["server", "scheduler"] if os.environ["RANK"] == "0" else ["server"]
    servers = [
        subprocess.Popen([sys.executable, "-c", SERVE], env={**os.environ, "DMLC_ROLE": role})
        for role in roles
    ]

    def end() -> None:
        for server in servers:
            server.kill()
        os._exit(0)  # with large arrays, MXNet's exit waits for its servers forever

    atexit.register(end)
    os.environ["DMLC_ROLE"] = "worker"


def step_of(args: argparse.Namespace) -> Callable[[], Callable[[], Any]]:
    """Return a step on this rank's batch."""
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    if args.way == "dist_sync":
        begin_servers()
    import ngd.kvstore.mxnet  # noqa: F401 I001  # before mxnet, which it makes importable
    import mxnet as mx

    mx.random.seed(0)
    net = mx.gluon.nn.HybridSequential()
    for width in args.hidden:
        net.add(mx.gluon.nn.Dense(width, activation="relu"))
    net.add(mx.gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    store = mx.kv.create(args.way)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, kvstore=store)
    images = mx.nd.random.uniform(shape=(args.batch, 784))
    labels = mx.nd.random.randint(0, 10, (args.batch,)).astype("float32")

    def once() -> Callable[[], Any]:
        with mx.autograd.record():
            loss = loss_of(net(images), labels)
        loss.backward()
        trainer.step(args.batch * store.num_workers)
        return mx.nd.waitall

    return once


if __name__ == "__main__":
    ways.main(__file__, __doc__, ("ngd", "dist_sync"), step_of)
