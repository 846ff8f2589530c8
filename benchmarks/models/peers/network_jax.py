# SPDX-License-Identifier: Apache-2.0
"""One turn of JAX in one process with all cores, for ../turns.py. It has only the transformer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))
from networks import CASES, CONTEXT, HEADS, LAYERS, VOCABULARY, WIDTH
from timing import read_case, report

case = read_case()
if case.network != "transformer" or case.precision != "float32":
    raise SystemExit("network_jax.py: the transformer in float32 alone")
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=true"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

RATE, BETA1, BETA2, EPSILON, DECAY = 3e-4, 0.9, 0.999, 1e-8, 0.01
random = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(random.standard_normal(shape) * 0.02, jnp.float32)


def block_of():
    norms = {f"norm{n}": (jnp.ones(WIDTH), jnp.zeros(WIDTH)) for n in (1, 2)}
    shapes = {"qkv": 3 * WIDTH, "out": WIDTH, "up": 4 * WIDTH}
    layers = {
        name: (normal(WIDTH, columns), jnp.zeros(columns)) for name, columns in shapes.items()
    }
    return {**norms, **layers, "down": (normal(4 * WIDTH, WIDTH), jnp.zeros(WIDTH))}


parameters = {
    "tokens": normal(VOCABULARY, WIDTH),
    "places": normal(CONTEXT, WIDTH),
    "blocks": [block_of() for _ in range(LAYERS)],
    "norm": (jnp.ones(WIDTH), jnp.zeros(WIDTH)),
    "head": normal(WIDTH, VOCABULARY),
}


def norm(x, weight, bias):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight + bias


def linear(x, weight, bias):
    return x @ weight + bias


def block(x, p):
    parts = linear(norm(x, *p["norm1"]), *p["qkv"])
    q, k, v = jnp.moveaxis(parts.reshape(*x.shape[:2], 3, HEADS, WIDTH // HEADS), 2, 0)
    seen = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + linear(seen.reshape(x.shape), *p["out"])
    return x + linear(jax.nn.gelu(linear(norm(x, *p["norm2"]), *p["up"])), *p["down"])


def loss_of(p, x, t):
    y = p["tokens"][x] + p["places"]
    for each in p["blocks"]:
        y = block(y, each)
    scores = jax.nn.log_softmax(norm(y, *p["norm"]) @ p["head"])
    return -jnp.mean(jnp.take_along_axis(scores, t[..., None], axis=-1))


def descend(p, moments, count, x, t):
    """Return the result of a step of AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101)."""
    loss, slopes = jax.value_and_grad(loss_of)(p, x, t)
    first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, moments[0], slopes)
    second = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, moments[1], slopes)

    def updated(w, m, v):
        near = m / (1 - BETA1**count)
        return w - RATE * (near / (jnp.sqrt(v / (1 - BETA2**count)) + EPSILON) + DECAY * w)

    return jax.tree.map(updated, p, first, second), (first, second), loss


step = jax.jit(descend, donate_argnums=(0, 1))
zeros = jax.tree.map(jnp.zeros_like, parameters)
moments = (zeros, jax.tree.map(jnp.zeros_like, parameters))
x = random.integers(VOCABULARY, size=(case.batch, *CASES[case.network].sample))
t = random.integers(VOCABULARY, size=(case.batch, CONTEXT))
done = 0


def steps(count: int) -> None:
    global parameters, moments, done
    for _ in range(count):
        done += 1
        parameters, moments, loss = step(parameters, moments, float(done), x, t)
        loss.block_until_ready()


report(f"jax {jax.__version__}", case, steps)
