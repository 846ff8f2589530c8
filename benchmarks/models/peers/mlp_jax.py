# SPDX-License-Identifier: Apache-2.0
"""One turn of JAX. One process has the cores and the work of all ranks."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from timing import LEARNING_RATE, read_case, report

case = read_case()
if case.precision != "float32":
    raise SystemExit("mlp_jax.py: float32 alone")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

keys = jax.random.split(jax.random.PRNGKey(0), len(case.sizes) + 1)
parameters = [
    (0.05 * jax.random.normal(key, (rows, columns)), jnp.zeros(columns))
    for key, (rows, columns) in zip(keys, pairwise(case.sizes), strict=False)
]
x = jax.random.uniform(keys[-1], (case.batch, case.sizes[0]))
t = jax.random.randint(keys[-2], (case.batch,), 0, case.sizes[-1])


def loss_of(parameters, x, t):
    for weights, bias in parameters[:-1]:
        x = jax.nn.relu(x @ weights + bias)
    weights, bias = parameters[-1]
    scores = jax.nn.log_softmax(x @ weights + bias)
    return -jnp.mean(jnp.take_along_axis(scores, t[:, None], axis=1))


def descend(parameters, x, t):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, x, t)
    moved = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, parameters, gradients)
    return moved, loss


step = jax.jit(descend, donate_argnums=0)


def steps(count: int) -> None:
    global parameters
    for _ in range(count):
        parameters, loss = step(parameters, x, t)
    loss.block_until_ready()


report(f"jax {jax.__version__}", case, steps)
