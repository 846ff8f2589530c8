# SPDX-License-Identifier: Apache-2.0
"""Tests of steps that share an arena: correct results, and the memory of the largest step."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np

import ngd
from ngd import _core, ops
from ngd.compiler.driver import compile_in
from ngd.errors import BusyError

PROGRAM = """
import resource
import sys
import numpy as np
import ngd
from ngd import _core, ops
from ngd.compiler.driver import compile_in

def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * resource.getpagesize()

arena = _core.Arena() if sys.argv[1] == "shared" else None
steps, begin = [], resident()
for rows in range(100_000, 900_000, 100_000):
    x = ngd.placeholder("x", (rows, 8), "float32")
    y = ops.exp(x)
    step = compile_in(arena, x, ops.sum(ops.cumsum(y, axis=0) * y))
    steps.append((step, np.zeros((rows, 8), np.float32)))
    step(steps[-1][1])
arrays = sum(x.nbytes for _, x in steps)
print(resident() - begin - arrays, steps[-1][0].memory()["private"])
"""


def make_step(arena: Any, rows: int) -> Any:
    """Return a step with intermediate values, for a matrix of `rows` rows."""
    x = ngd.placeholder("x", (rows, 5), "float64")
    y = ops.exp(x) @ ngd.constant(np.ones((5, 5)))
    return compile_in(arena, x, ops.sum(ops.cumsum(y, axis=0) * y))


def expected(x: Any) -> Any:
    y = np.exp(x) @ np.ones((5, 5))
    return (np.cumsum(y, axis=0) * y).sum()


def test_steps_of_several_sizes_compute_their_own_results() -> None:
    arena = _core.Arena()
    rng = np.random.default_rng(0)
    steps = [(rows, make_step(arena, rows)) for rows in (3, 4000, 1, 200)]
    for _ in range(2):
        for rows, step in steps:
            x = rng.normal(size=(rows, 5))
            np.testing.assert_allclose(step(x), expected(x), 1e-12)
    del steps[1]
    x = rng.normal(size=(3, 5))
    np.testing.assert_allclose(steps[0][1](x), expected(x), 1e-12)


def test_steps_of_one_arena_cannot_run_at_the_same_time() -> None:
    arena = _core.Arena()
    inner = make_step(arena, 3)
    errors = []

    def call_inner(x: Any) -> Any:
        try:
            inner(x)
        except BusyError as error:
            errors.append(str(error))
        return x

    x = ngd.placeholder("x", (3, 5), "float64")
    outer = compile_in(arena, x, ngd.call_host(call_inner, x, x * 2) + 1)
    np.testing.assert_array_equal(outer(np.ones((3, 5))), np.full((3, 5), 3.0))
    assert len(errors) == 1
    assert "a second call while one runs" in errors[0]
    np.testing.assert_allclose(inner(np.ones((3, 5))), expected(np.ones((3, 5))), 1e-12)


def growth(kind: str, limit: int | None = None) -> list[int]:
    """Return the resident bytes that eight steps need, and the bytes of the largest step."""
    command = [sys.executable, "-c", PROGRAM, kind]
    if limit is not None:
        command = ["prlimit", f"--as={limit}", *command]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # each thread reserves address space
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=120, env=environment
    )
    return [int(word) for word in done.stdout.split()]


def test_steps_of_one_arena_need_the_memory_of_the_largest() -> None:
    (shared, largest), (own, _) = growth("shared"), growth("own")
    assert shared < 1.2 * largest
    assert own > 2 * largest


def test_under_an_address_space_limit_each_step_has_its_own_memory() -> None:
    own, largest = growth("shared", limit=4 << 30)
    assert own > 2 * largest
