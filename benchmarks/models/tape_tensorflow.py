# SPDX-License-Identifier: Apache-2.0
"""Compare TensorFlow over ngd.horovod with MultiWorkerMirroredStrategy over gRPC, in turns.

    python benchmarks/models/tape_tensorflow.py --hidden 1024 1024 1024

The network is an MLP, and both steps are a tf.function. The step of ngd uses a
DistributedGradientTape, and TensorFlow's own uses `strategy.run`. The program needs TensorFlow
2.16 or newer.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

import ways


def step_of(args: argparse.Namespace) -> Callable[[], Callable[[], Any]]:
    """Return a step on this rank's batch, in a tf.function."""
    workers = os.environ["WORKERS"].split(",")
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    if args.way == "mirrored":
        task = {"type": "worker", "index": int(os.environ["RANK"])}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import tensorflow as tf

    import ngd.horovod.tensorflow as hvd

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    strategy = tf.distribute.get_strategy()
    if args.way == "mirrored":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        hvd.init()
    shapes = list(zip([784, *args.hidden], [*args.hidden, 10], strict=True))
    with strategy.scope():
        make = tf.keras.initializers.GlorotUniform(0)
        weights = [tf.Variable(make(shape)) for shape in shapes]
        biases = [tf.Variable(tf.zeros(width)) for _, width in shapes]
    variables = [*weights, *biases]
    cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images = tf.random.uniform((args.batch, 784))
    labels = tf.random.uniform((args.batch,), 0, 10, tf.int64)

    def replica() -> Any:
        with tf.GradientTape() as tape:
            h = images
            for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
                h = tf.matmul(h, w) + b
                h = tf.nn.relu(h) if i < len(weights) - 1 else h
            loss = cross_entropy(labels, h)
        if args.way == "mirrored":
            context = tf.distribute.get_replica_context()
            mean = tf.distribute.ReduceOp.MEAN
            gradients = context.all_reduce(mean, tape.gradient(loss, variables))
        else:
            gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        for w, g in zip(variables, gradients, strict=True):
            w.assign_sub(0.01 * g)
        return loss

    step = tf.function(lambda: strategy.run(replica) if args.way == "mirrored" else replica())

    def once() -> Callable[[], Any]:
        loss = step()
        return lambda: tf.nest.map_structure(lambda t: t.numpy(), tf.nest.flatten(loss)[:1])

    return once


if __name__ == "__main__":
    ways.main(__file__, __doc__, ("horovod", "mirrored"), step_of)
