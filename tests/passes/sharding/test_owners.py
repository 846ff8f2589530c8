# SPDX-License-Identifier: Apache-2.0
"""Tests of Muon's matmuls, which one rank per host computes for the other ranks."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops, optim
from tests.passes.sharding.test_sharding_hosts import on_hosts, run
from tests.support import harness
from tests.support.standing import run_in_world

pytestmark = harness.needs_ranks
several = pytest.mark.parametrize("ranks", [2, 3, 4])

SIZES = (48, 80, 112, 96, 64)
"""The widths of layers: four matrices, whose matmuls take 13 to 80 million operations."""


def trained(
    sizes: tuple[int, ...] = SIZES,
    rule: Any = optim.SGD,
    dtype: str = "float32",
    **how: Any,
) -> tuple[dict[str, Any], Counter[str], int]:
    """Return the variables after some steps, the starts per collective, and the matmuls."""
    random = np.random.default_rng(3)
    x, t = (ngd.placeholder(n, (4, m), dtype) for n, m in (("x", sizes[0]), ("t", sizes[-1])))
    parameters, y = [], x
    for i, (m, n) in enumerate(pairwise(sizes)):
        weights = random.normal(size=(m, n)) / m**0.5
        parameters.append(ngd.variable(f"w{i}", weights.astype(dtype)))
        y = ops.tanh(y @ parameters[-1])
    updates = rule(0.1).minimize(ops.mean((y - t) ** 2), parameters)
    step = ngd.compile([x, t], [], updates, **how)
    own = np.random.default_rng(ngd.init().rank)
    for _ in range(4):
        step(*(own.normal(size=n.shape).astype(dtype) for n in (x, t)))
    started = Counter(re.findall(r"= start (\w+)\(", str(step)))
    return {v.name: v.numpy() for v in updates}, started, len(re.findall(r"= matmul", str(step)))


def same_bits(how: dict[str, Any]) -> None:
    """Compare with a step in which every rank computes everything."""
    _, _, forward_and_backward = trained(**how)
    wanted, _, alone = trained(rule=optim.Muon, **how)
    found, started, mine = trained(rule=optim.Muon, shard="host", **how)
    assert started["broadcast"] == 4, started
    owned = int(ngd.all_reduce(np.array(mine - forward_and_backward), op="sum"))
    assert owned == alone - forward_and_backward  # each matmul on one rank
    assert mine < alone
    for name, value in wanted.items():
        assert found[name].tobytes() == value.tobytes(), name


@several
@pytest.mark.parametrize(
    "how",
    [{}, {"dtype": "float64"}, {"precision": "bfloat16"}],
    ids=["float32", "float64", "bfloat16"],
)
def test_owners_give_the_bits_of_a_step_without_owners(ranks: int, how: dict[str, Any]) -> None:
    run_in_world(same_bits, "shm", ranks, how=how)


def on_two_hosts(per_host: int, shard: str) -> None:
    on_hosts(per_host)
    wanted, _, _ = trained(rule=optim.Muon)
    found, started, _ = trained(rule=optim.Muon, shard=shard)
    assert started["broadcast"] == 4, started
    for name, value in wanted.items():
        assert found[name].tobytes() == value.tobytes(), name


@harness.needs_mpi
@pytest.mark.parametrize("shard", ["host", "world"])
def test_owners_on_two_hosts_give_the_same_bits(shard: str) -> None:
    run(on_two_hosts, 2, 2, shard=shard)


def norms() -> None:
    """Clip the gradients by the global norm, which is computed from shards."""

    def clipped(rate: float) -> optim.Muon:
        return optim.Muon(rate, clip_norm=1e-3)

    wanted, _, _ = trained(rule=clipped, dtype="float64")
    found, started, _ = trained(rule=clipped, dtype="float64", shard="host")
    assert started["broadcast"] == 4, started
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9)


@several
def test_clipped_gradients_give_the_same_bits(ranks: int) -> None:
    run_in_world(norms, "shm", ranks)


def little_work() -> None:
    """Matmuls that take less time than a broadcast are computed on all ranks."""
    sizes = (32, 32, 40)
    wanted, _, _ = trained(sizes, optim.Muon)
    found, started, _ = trained(sizes, optim.Muon, shard="host")
    assert started["broadcast"] == 0, started
    for name, value in wanted.items():
        assert found[name].tobytes() == value.tobytes(), name


def test_small_matrices_are_computed_on_all_ranks() -> None:
    run_in_world(little_work, "shm", 2)


def norm(*nodes: Any) -> Any:
    return ops.sqrt(sum(ops.sum(node**2) for node in nodes) + 1e-3)


def what_else_reads(shape: str, w: Any, x: Any, g: Any, h: Any) -> tuple[Any, Any, list[Any]]:
    """Return the updates of w and v, and outputs. g and h are their gradients."""
    square = g @ g.T / 16
    cube = square @ (g @ g.T / 16 + square) / 16
    scaled = h / norm(h)
    of_max = 1 + ops.max(h)
    return {
        "square": (cube, h, [square]),
        "cube": (cube, h, [cube]),
        "product": (cube, h, [x @ cube]),
        "norm": ((g + cube) / norm(g + cube), h, []),
        "norm of the new": (cube, h, [norm(w - 0.1 * cube)]),
        "two norms": (cube / norm(g + cube, h), h, []),
        "norm of both": (cube / norm(g * h + cube), h, []),
        "two kinds": (square / of_max @ g, scaled - h / of_max, []),
        "two levels": (square / norm(scaled) @ g, h / norm(scaled) - h / of_max, []),
        "reduced again": (ops.all_reduce(cube, op="max"), h, []),
        "sent by hand": (ops.broadcast(cube, root=1), h, []),
    }[shape]


def step_of(shape: str, shard: str) -> tuple[list[Any], Counter[str]]:
    """Return both weights and the outputs after some steps, and the starts per collective."""
    random, own = (np.random.default_rng(seed) for seed in (5, 6 + ngd.init().rank))
    w, v = (ngd.variable(n, random.normal(size=(128, 128)).astype(np.float32)) for n in "wv")
    start, x = w.numpy(), ngd.placeholder("x", (128, 128))
    gradients = ngd.grad(ops.sum(ops.tanh(x * w + x * x * v) ** 2), [w, v])
    g, h = (ops.all_reduce(each, op="mean") for each in gradients)
    down, other, outputs = what_else_reads(shape, w, x, g, h)
    step = ngd.compile([x], outputs, {w: w - down, v: v - 0.1 * other}, shard=shard)
    given = own.normal(size=(128, 128)).astype(np.float32)
    values = [step(given) for _ in range(3)][-1]
    assert np.abs(w.numpy() - start).max() > 1e-3, shape
    return [w.numpy(), v.numpy(), *values], Counter(re.findall(r"= start (\w+)\(", str(step)))


def other_readers(shape: str, broadcasts: int) -> None:
    """A chain ends after all readers of its matmuls, and before collectives that read it."""
    alone, _ = step_of(shape, "none")
    shared, started = step_of(shape, "host")
    assert started["broadcast"] == broadcasts, started
    for a, b in zip(alone, shared, strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


@several
@pytest.mark.parametrize(
    ("shape", "broadcasts"),
    [
        ("square", 0),
        ("cube", 1),
        ("product", 0),
        ("norm", 1),
        ("norm of the new", 1),
        ("two norms", 1),
        ("norm of both", 0),
        ("two kinds", 1),
        ("two levels", 1),
        ("reduced again", 0),
        ("sent by hand", 1),
    ],
)
def test_other_readers_of_a_chain_get_the_same_values(
    ranks: int, shape: str, broadcasts: int
) -> None:
    run_in_world(other_readers, "shm", ranks, shape=shape, broadcasts=broadcasts)
