# SPDX-License-Identifier: Apache-2.0
"""A test of `ngd.call_host` in a step with collectives: an exception reaches the other ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

import ngd
from ngd import ops
from tests.support import harness


def raises_on_rank_1() -> list[str]:
    """Run a step whose Python function raises on rank 1 in the second call."""
    world = ngd.init()
    x = ngd.placeholder("x", (2,), "float64")

    def checked(values: Any) -> Any:
        if values[0] > 1 and world.rank == 1:
            raise ArithmeticError("too large")
        return values

    total = ops.all_reduce(ngd.call_host(checked, x, x), op="sum")
    step = ngd.compile(x, total)
    said = [str(step(np.ones(2)).tolist())]
    try:
        step(np.full(2, 2.0))
    except (ArithmeticError, ngd.errors.RemoteRankError) as error:
        said.append(f"{type(error).__name__}: {error}".partition("\n")[0])
    return said


@harness.needs_ranks
def test_an_exception_on_one_rank_is_raised_on_the_other() -> None:
    rank_0, rank_1 = harness.run(raises_on_rank_1, 2)
    assert rank_0.value[0] == rank_1.value[0] == "[2.0, 2.0]"
    assert rank_1.value[1] == "ArithmeticError: too large"
    assert rank_0.value[1].startswith("RemoteRankError: rank 1 ")
