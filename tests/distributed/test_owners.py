# SPDX-License-Identifier: Apache-2.0
"""What updates need of whole gradients: one rank of a host computes it for the others."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import harness
import numpy as np
import pytest
from standing import run_in_world
from test_sharding_hosts import on_hosts, run

import ngd
from ngd import ops, optim

pytestmark = harness.needs_ranks
several = pytest.mark.parametrize("ranks", [2, 3, 4])

SIZES = (48, 80, 112, 96, 64)
"""Of layers: four matrices, whose products take 13 to 80 million operations."""


def trained(
    sizes: tuple[int, ...] = SIZES,
    rule: Any = optim.SGD,
    dtype: str = "float32",
    **how: Any,
) -> tuple[dict[str, Any], Counter[str], int]:
    """All variables after some steps; how often a step starts which collective; its products."""
    random = np.random.default_rng(3)
    x, t = (ngd.placeholder(n, (4, m), dtype) for n, m in (("x", sizes[0]), ("t", sizes[-1])))
    parameters, y = [], x
    for i, (m, n) in enumerate(pairwise(sizes)):
        weights = random.normal(size=(m, n)) / m**0.5
        parameters.append(ngd.variable(f"w{i}", weights.astype(dtype)))
        y = ops.tanh(y @ parameters[-1])
    updates = rule(0.1).update(ops.mean((y - t) ** 2), parameters)
    step = ngd.compile([x, t], [], updates, **how)
    own = np.random.default_rng(ngd.init().rank)
    for _ in range(4):
        step(*(own.normal(size=n.shape).astype(dtype) for n in (x, t)))
    started = Counter(re.findall(r"= start (\w+)\(", str(step)))
    return {v.name: v.numpy() for v in updates}, started, len(re.findall(r"= matmul", str(step)))


def same_bits(how: dict[str, Any]) -> None:
    """Beside a step in which every rank computes all."""
    _, _, forward_and_backward = trained(**how)
    wanted, _, alone = trained(rule=optim.Muon, **how)
    found, started, mine = trained(rule=optim.Muon, shard="host", **how)
    assert started["broadcast"] == 4, started
    owned = int(ngd.all_reduce(np.array(mine - forward_and_backward), op="sum"))
    assert owned == alone - forward_and_backward  # each product on one rank
    assert mine < alone
    for name, value in wanted.items():
        assert found[name].tobytes() == value.tobytes(), name


@several
@pytest.mark.parametrize(
    "how",
    [{}, {"dtype": "float64"}, {"precision": "bfloat16"}],
    ids=["float32", "float64", "bfloat16"],
)
def test_the_bits_are_those_of_all_on_every_rank(ranks: int, how: dict[str, Any]) -> None:
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
def test_owners_on_two_hosts(shard: str) -> None:
    run(on_two_hosts, 2, 2, shard=shard)


def norms() -> None:
    """Gradients are clipped by the norm of all, which their slices make."""

    def clipped(rate: float) -> optim.Muon:
        return optim.Muon(rate, clip_norm=1e-3)

    wanted, _, _ = trained(rule=clipped, dtype="float64")
    found, started, _ = trained(rule=clipped, dtype="float64", shard="host")
    assert started["broadcast"] == 4, started
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9)


@several
def test_clipped_gradients(ranks: int) -> None:
    run_in_world(norms, "shm", ranks)


def little_work() -> None:
    """What takes less time than a broadcast is computed by all."""
    sizes = (32, 32, 40)
    wanted, _, _ = trained(sizes, optim.Muon)
    found, started, _ = trained(sizes, optim.Muon, shard="host")
    assert started["broadcast"] == 0, started
    for name, value in wanted.items():
        assert found[name].tobytes() == value.tobytes(), name


def test_small_matrices() -> None:
    run_in_world(little_work, "shm", 2)


def other_readers() -> None:
    """A chain ends behind all that reads its products, and before what the ranks reduce."""
    size = (128, 128)
    random = np.random.default_rng(5)
    starts = [random.normal(size=size).astype(np.float32) for _ in range(2)]
    x = ngd.placeholder("x", size)
    given = np.random.default_rng(ngd.init().rank).normal(size=size).astype(np.float32)

    def norm(*nodes: Any) -> Any:
        return ops.sqrt(sum(ops.sum(node**2) for node in nodes) + 1e-3)

    def trained(shape: str, shard: str) -> tuple[list[Any], Counter[str]]:
        w, v = (ngd.variable(name, start) for name, start in zip("wv", starts, strict=True))
        g, h = ngd.grad(ops.sum(ops.tanh(x * w + x * x * v) ** 2), [w, v])
        g, h = (ops.all_reduce(each, op="mean") for each in (g, h))
        square = g @ g.T / 16
        cube = square @ (g @ g.T / 16 + square) / 16
        later, outputs = h, []
        match shape:
            case "square":
                outputs = [square]
            case "cube":
                outputs = [cube]
            case "product":
                outputs = [x @ cube]
            case "norm":
                cube = (g + cube) / norm(g + cube)
            case "norm of the new":
                outputs = [norm(w - 0.1 * cube)]
            case "two norms":
                cube = cube / norm(g + cube, h)
            case "norm of both":
                cube = cube / norm(g * h + cube)
            case "two kinds":
                cube = square / (1 + ops.max(h)) @ g
                later = h / norm(h) - h / (1 + ops.max(h))
            case "two levels":
                scaled = h / norm(h)
                cube = square / norm(scaled) @ g
                later = h / norm(scaled) - h / (1 + ops.max(abs(h)))
            case "reduced again":
                cube = ops.all_reduce(cube, op="max")
            case "sent by hand":
                cube = ops.broadcast(cube, root=1)
        step = ngd.compile([x], outputs, {w: w - cube, v: v - 0.1 * later}, shard=shard)
        values = [step(given) for _ in range(3)][-1]
        started = Counter(re.findall(r"= start (\w+)\(", str(step)))
        assert np.abs(w.numpy() - starts[0]).max() > 1e-3, shape
        return [w.numpy(), v.numpy(), *values], started

    broadcasts = {
        "square": 0,
        "cube": 1,
        "product": 0,
        "norm": 1,
        "norm of the new": 1,
        "two norms": 1,
        "norm of both": 0,
        "two kinds": 1,
        "two levels": 1,
        "reduced again": 0,
        "sent by hand": 1,
    }
    for shape, wanted in broadcasts.items():
        alone, _ = trained(shape, "none")
        shared, started = trained(shape, "host")
        assert started["broadcast"] == wanted, (shape, started)
        for a, b in zip(alone, shared, strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5, err_msg=shape)


@several
def test_what_else_reads_a_chain(ranks: int) -> None:
    run_in_world(other_readers, "shm", ranks)
