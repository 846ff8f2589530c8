# SPDX-License-Identifier: Apache-2.0
"""Compare JAX with ngd.jax and jax.distributed over gloo: an MLP, in turns.

    python benchmarks/models/step_jax.py --hidden 100 --steps 200

The step of ngd is jitted, with an all_reduce of the gradients. JAX's own step shards the batch
over the devices of all processes, and the compiler inserts the reduction. Both donate the memory
of the weights.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import ways


def step_of(args: argparse.Namespace) -> Callable[[], Callable[[], Any]]:
    """Return a jitted step on this rank's batch."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    cores, rank = sorted(os.sched_getaffinity(0)), int(os.environ["RANK"])
    os.sched_setaffinity(0, cores[rank * args.threads :][: args.threads] or cores)
    import jax
    import jax.numpy as jnp
    import numpy as np

    import ngd.jax

    random = np.random.default_rng(0)
    shapes = zip([784, *args.hidden], [*args.hidden, 10], strict=True)
    ws = [(random.normal(0, i**-0.5, (i, o)).astype("f4"), np.zeros(o, "f4")) for i, o in shapes]
    images = random.random((args.batch, 784), np.float32)
    labels = random.integers(0, 10, args.batch)

    def loss(ws: Any, x: Any, t: Any) -> Any:
        for w, b in ws[:-1]:
            x = jax.nn.relu(x @ w + b)
        scores = jax.nn.log_softmax(x @ ws[-1][0] + ws[-1][1])
        return -jnp.take_along_axis(scores, t[:, None], 1).mean()

    def step(ws: Any, x: Any, t: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(ws, x, t)
        if args.way == "ngd":
            gradients = ngd.jax.all_reduce(gradients, op="mean")
        return jax.tree.map(lambda w, g: w - 0.01 * g, ws, gradients), value

    if args.way == "gloo":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        size = int(os.environ["WORLD_SIZE"])
        jax.distributed.initialize(os.environ["WORKERS"].split(",")[0], size, rank)
        mesh = jax.make_mesh((size,), ("data",))
        here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        images = jax.make_array_from_process_local_data(here, images)
        labels = jax.make_array_from_process_local_data(here, labels)
        ws = jax.tree.map(lambda w: jax.make_array_from_process_local_data(everywhere, w), ws)
    compiled = jax.jit(step, donate_argnums=0)
    held = [jax.tree.map(jnp.asarray, ws)]

    def once() -> Callable[[], Any]:
        held[0], value = compiled(held[0], images, labels)
        return lambda: (
            jax.block_until_ready(held[0]),
            float(np.asarray(value.addressable_data(0))),
        )

    return once


if __name__ == "__main__":
    ways.main(__file__, __doc__, ("ngd", "gloo"), step_of)
