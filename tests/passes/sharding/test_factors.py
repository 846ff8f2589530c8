# SPDX-License-Identifier: Apache-2.0
"""Tests of gradient factors, which the ranks of a host exchange instead of gradients."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops, optim
from tests.support import harness
from tests.support.standing import run_in_world

pytestmark = harness.needs_ranks
several = pytest.mark.parametrize("ranks", [2, 3, 4])

SIZES = (96, 384, 192, 72)
"""The widths of layers. The shards of each matrix are whole rows for 2, 3 and 4 ranks."""

LARGE_BIASES = {"float32": 0, "float64": 1}
"""The number of biases that are sharded. They have no gradient factors."""

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda clip: optim.SGD(0.1, clip_norm=clip),
    "momentum": lambda clip: optim.SGD(0.1, momentum=0.9, weight_decay=0.01, clip_norm=clip),
    "adamw": lambda clip: optim.AdamW(1e-2, clip_norm=clip),
    "lars": lambda clip: optim.LARS(1e-2, clip_norm=clip),
}


def trained(
    rule: str, samples: int, dtype: str, shard: str, clip: float | None = None
) -> tuple[dict[str, Any], Counter[str]]:
    """Return all variables after some steps, and the number of starts per kind of collective."""
    random = np.random.default_rng(3)
    x, t = (ngd.placeholder(n, (samples, m), dtype) for n, m in (("x", SIZES[0]), ("t", SIZES[-1])))
    parameters, y = [], x
    for i, (m, n) in enumerate(pairwise(SIZES)):
        parameters.append(
            ngd.variable(f"w{i}", (random.normal(size=(m, n)) / m**0.5).astype(dtype))
        )
        parameters.append(ngd.variable(f"b{i}", np.zeros(n, dtype)))
        y = ops.tanh(y @ parameters[-2] + parameters[-1])
    loss = ops.mean((y - t) ** 2)
    updates = OPTIMIZERS[rule](clip).minimize(loss, parameters)
    step = ngd.compile([x, t], [loss], updates, shard=shard)
    own = np.random.default_rng(ngd.init().rank)
    for _ in range(6):
        step(*(own.normal(size=n.shape).astype(dtype) for n in (x, t)))
    started = Counter(re.findall(r"= start (\w+)\(", str(step)))
    return {v.name: v.numpy() for v in updates}, started


def same_bits(dtype: str) -> None:
    for rule in ("sgd", "momentum", "adamw"):
        wanted, _ = trained(rule, 4, dtype, "none")
        found, started = trained(rule, 4, dtype, "host")
        assert started["all_to_all"] == started["all_gather"] == 3, (rule, started)
        assert started["reduce_scatter"] == LARGE_BIASES[dtype]
        for name, value in wanted.items():
            assert found[name].tobytes() == value.tobytes(), (rule, name)


@several
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradient_factors_give_the_bits_of_reduced_gradients(ranks: int, dtype: str) -> None:
    run_in_world(same_bits, "shm", ranks, dtype=dtype)


def norms() -> None:
    """Compute norms of the gradients too. They need stored gradients, and have equal values."""
    for rule, clip in (("sgd", 0.1), ("lars", None)):
        wanted, _ = trained(rule, 4, "float64", "none", clip)
        found, started = trained(rule, 4, "float64", "host", clip)
        assert started["all_to_all"] == 3
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12)


@several
def test_norms_of_gradients_that_are_exchanged_as_factors(ranks: int) -> None:
    run_in_world(norms, "shm", ranks)


def samples_differ() -> None:
    """Give one rank fewer samples. Then all ranks reduce the gradients."""
    rank = ngd.init().rank
    wanted, _ = trained("sgd", 4 + rank, "float64", "none")
    found, started = trained("sgd", 4 + rank, "float64", "host")
    assert started["all_to_all"] == 0
    assert started["reduce_scatter"] == 3 + LARGE_BIASES["float64"]
    for name, value in wanted.items():
        assert found[name].tobytes() == value.tobytes(), name


@several
def test_gradients_of_uneven_shards_are_reduced(ranks: int) -> None:
    run_in_world(samples_differ, "shm", ranks)


def samples_of_constants() -> None:
    """Use samples that are constants, and that differ between the ranks."""
    rank = ngd.init().rank
    x = ngd.constant(np.random.default_rng(rank).normal(size=(4 + 4 * rank, 96)))
    results = []
    for shard in ("none", "host"):
        w = ngd.variable("w", np.ones((96, 384)))
        updates = optim.SGD(0.1).minimize(ops.mean((x @ w) ** 2), [w])
        step = ngd.compile([], [], updates, shard=shard)
        step()
        results.append(w.numpy())
        assert "all_to_all" not in str(step)
    assert results[0].tobytes() == results[1].tobytes()


def test_samples_may_be_constants() -> None:
    run_in_world(samples_of_constants, "shm", 2)


def a_step_that_fails() -> None:
    """Build a step that fails. Its exchange of facts must not affect later steps."""
    rank = ngd.init().rank
    for samples, limit in ((4, 16), (4 + rank, None)):
        w, x = ngd.variable("w", np.ones((96, 384))), ngd.placeholder("x", (samples, 96), "float64")
        updates = optim.SGD(0.1).minimize(ops.mean((x @ w) ** 2), [w])
        try:
            step = ngd.compile([x], [], updates, shard="host", memory_limit=limit)
        except ngd.errors.CompileError:
            assert limit is not None
    step(np.ones((samples, 96)))
    assert "all_to_all" not in str(step)


def test_a_step_that_fails_does_not_affect_the_next_one() -> None:
    run_in_world(a_step_that_fails, "shm", 2)


def where_it_pays() -> None:
    """Check that factors are not exchanged if they have more bytes than the shard."""
    for samples, exchanged in ((8, 1), (64, 0)):
        w, x = (
            ngd.variable("w", np.ones((512, 512), np.float32)),
            ngd.placeholder("x", (samples, 512)),
        )
        updates = optim.SGD(0.1).minimize(ops.mean((x @ w) ** 2), [w])
        program = str(ngd.compile([x], [], updates, shard="host"))
        assert program.count("= start all_to_all(") == exchanged
        assert program.count("elementwise_product(") == exchanged


def test_kernels_read_the_exchanged_factors() -> None:
    run_in_world(where_it_pays, "shm", 4)


def many_samples() -> None:
    _, started = trained("sgd", 200, "float32", "host")
    assert started["all_to_all"] == 0


def test_gradients_of_many_samples_are_reduced() -> None:
    run_in_world(many_samples, "shm", 2)


def two_bytes() -> None:
    """16-bit floats have no kernel that multiplies inside the update."""
    x = ngd.placeholder("x", (4, 96))
    w = ngd.variable("w", np.ones((96, 384), np.float32))
    updates = optim.SGD(0.1).minimize(ops.mean((x @ w) ** 2), [w])
    step = ngd.compile([x], [], updates, shard="host", precision="bfloat16")
    assert "all_to_all" not in str(step)


def test_gradients_in_16_bits_are_reduced() -> None:
    run_in_world(two_bytes, "shm", 2)
