# SPDX-License-Identifier: Apache-2.0
"""Weights once a host, and moments once in all, on several hosts: the training stays the same."""

from __future__ import annotations

import os
from typing import Any

import harness
import numpy as np
import pytest
from hosts import Hosts, permitted
from test_sharding import ELEMENTWISE, OPTIMIZERS, trained

import ngd
from ngd.passes.slices import SMALL

__all__ = ["permitted"]

pytestmark = harness.needs_mpi
both = pytest.mark.parametrize("shard", ["host", "world"])


def on_hosts(per_host: int) -> ngd.Group:
    """The world, of so many ranks a host: by NGD_HOST."""
    os.environ["NGD_HOST"] = f"host-{int(os.environ['OMPI_COMM_WORLD_RANK']) // per_host}"
    return ngd.init()


def run(program: Any, hosts: int, per_host: int, **arguments: Any) -> list[harness.Outcome]:
    """A program that is told how many ranks a host has."""
    arguments |= {"per_host": per_host}
    return harness.run(program, hosts * per_host, arguments=arguments, launcher="mpirun")


def same_training(
    per_host: int, shard: str, rules: list[str], clip: float | None, dtype: str
) -> None:
    """Against a copy a rank: the same bits, but for those of a norm."""
    world = on_hosts(per_host)
    compare(world, shard, rules, clip, dtype)


def compare(world: ngd.Group, shard: str, rules: list[str], clip: float | None, dtype: str) -> None:
    per_host = world.local_size
    sizes = [np.dtype(dtype).itemsize * n for n in (61 * 301, 301, 301 * 33, 33)]
    large = sum(n for n in sizes if n > SMALL)
    for rule in rules:
        plain, variables, _ = trained(rule, clip, "none", np.dtype(dtype))
        losses, shared, memory = trained(rule, clip, shard, np.dtype(dtype))
        moments = {"sgd": 0, "momentum": 1, "lars": 1}.get(rule, 2)
        once = large * (1 if shard == "world" else 1 + moments) if per_host > 1 else 0
        assert memory["sharded"] == once, rule
        assert memory["apart"] == (large * moments if shard == "world" else 0), rule
        tolerance = 0.0
        if clip is not None or rule not in ELEMENTWISE:
            tolerance = 1e-5 if dtype == "float32" else 1e-13
        for name, value in variables.items():
            np.testing.assert_allclose(
                shared[name], value, rtol=tolerance, atol=tolerance, err_msg=f"{rule} {name}"
            )
        np.testing.assert_allclose(losses, plain, rtol=tolerance * 10)


@both
@pytest.mark.parametrize("per_host", [1, 2])
@pytest.mark.parametrize(
    ("clip", "dtype"), [(None, "float32"), (None, "float64"), (0.5, "float32")]
)
def test_the_training_is_the_same(
    per_host: int, shard: str, clip: float | None, dtype: str
) -> None:
    run(same_training, 2, per_host, shard=shard, rules=list(OPTIMIZERS), clip=clip, dtype=dtype)
