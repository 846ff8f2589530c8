# SPDX-License-Identifier: Apache-2.0
"""Tests of all kinds of collectives as ops: results as in NumPy, gradients as differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.dtypes import ALL
from tests.support import harness
from tests.support.standing import run_in_world

over = pytest.mark.parametrize("communicator", harness.communicators())
everywhere = pytest.mark.parametrize(("communicator", "ranks"), harness.worlds())
DEVICES = ("CPU", "INTERPRETER")

Arrays = list[Any]


@dataclass
class Kind:
    """A collective of an operand, its result in NumPy, and the shape of the operand."""

    op: Callable[[Any], Any]
    expected: Callable[[Arrays, int], Any]
    shape: Callable[[int], tuple[int, ...]]
    linear: bool = True


def split(a: Any, size: int, axis: int = 0) -> Arrays:
    return np.split(a, size, axis)


def only(rank: int, root: int, value: Any) -> Any:
    return value if rank == root else np.zeros_like(value)


def reductions(n: int, last: int) -> dict[str, Kind]:
    """Return the collectives that reduce."""
    kinds = {
        f"reduce {name}": Kind(
            lambda x, name=name: ops.reduce(x, op=name, root=last),
            lambda g, r, f=f: only(r, last, f(g)),
            lambda rank: (2, 3),
            name in ("sum", "mean"),
        )
        for name, f in COMBINE.items()
    }
    for name, f in COMBINE.items():
        kinds[f"reduce_scatter {name}"] = Kind(
            lambda x, name=name: ops.reduce_scatter(x, op=name),
            lambda g, r, f=f: split(f(g), n)[r],
            lambda rank: (2 * n, 3),
            name in ("sum", "mean"),
        )
    kinds["reduce_scatter axis"] = Kind(
        lambda x: ops.reduce_scatter(x, op="mean", axis=1),
        lambda g, r: split(np.mean(g, axis=0), n, 1)[r],
        lambda rank: (2, 2 * n, 2),
    )
    rows = [r % 3 for r in range(n)]  # some ranks have no rows
    ends = np.cumsum(rows)
    kinds["reduce_scatter counts"] = Kind(
        lambda x: ops.reduce_scatter(x, op="sum", counts=rows, axis=-1),
        lambda g, r: np.sum(g, axis=0)[:, ends[r] - rows[r] : ends[r]],
        lambda rank: (2, sum(rows)),
    )
    return kinds


def gathers(n: int, last: int) -> dict[str, Kind]:
    """Return the collectives that concatenate."""
    rows = [(r + 2) % 3 for r in range(n)]
    return {
        "broadcast": Kind(
            lambda x: ops.broadcast(x, root=last), lambda g, r: g[last], lambda rank: (2, 3)
        ),
        "all_gather": Kind(ops.all_gather, lambda g, r: np.concatenate(g), lambda rank: (2, 3)),
        "all_gather axis": Kind(
            lambda x: ops.all_gather(x, axis=1),
            lambda g, r: np.concatenate(g, 1),
            lambda rank: (2, 3, 2),
        ),
        "all_gather_v": Kind(
            lambda x: ops.all_gather_v(x, counts=rows),
            lambda g, r: np.concatenate(g),
            lambda rank: (rows[rank], 3),
        ),
        "all_gather_v axis": Kind(
            lambda x: ops.all_gather_v(x, counts=rows, axis=1),
            lambda g, r: np.concatenate(g, 1),
            lambda rank: (3, rows[rank]),
        ),
        "gather": Kind(
            lambda x: ops.gather(x, root=last),
            lambda g, r: only(r, last, np.concatenate(g)),
            lambda rank: (2, 3),
        ),
        "gather axis": Kind(
            lambda x: ops.gather(x, axis=1),
            lambda g, r: only(r, 0, np.concatenate(g, 1)),
            lambda rank: (2, 3),
        ),
    }


def exchanges(n: int, last: int) -> dict[str, Kind]:
    """Return the collectives that exchange blocks."""
    sends = [[(r + 2 * s) % 3 for s in range(n)] for r in range(n)]  # rows from rank r to rank s
    me = ngd.init().rank

    def mine(given: Arrays, r: int) -> Any:
        cuts = [np.split(a, np.cumsum(sends[s])[:-1]) for s, a in enumerate(given)]
        return np.concatenate([cuts[s][r] for s in range(n)])

    return {
        "all_to_all": Kind(
            ops.all_to_all,
            lambda g, r: np.concatenate([split(a, n)[r] for a in g]),
            lambda rank: (2 * n, 3),
        ),
        "all_to_all axes": Kind(
            lambda x: ops.all_to_all(x, split_axis=1, concat_axis=0),
            lambda g, r: np.concatenate([split(a, n, 1)[r] for a in g], 0),
            lambda rank: (2, 3 * n, 2),
        ),
        "all_to_all other axes": Kind(
            lambda x: ops.all_to_all(x, split_axis=0, concat_axis=2),
            lambda g, r: np.concatenate([split(a, n, 0)[r] for a in g], 2),
            lambda rank: (n, 2, 3),
        ),
        "all_to_all_v": Kind(
            lambda x: ops.all_to_all_v(x, sends[me], [sends[s][me] for s in range(n)]),
            mine,
            lambda rank: (sum(sends[rank]), 2),
        ),
        "scatter": Kind(
            lambda x: ops.scatter(x, root=last),
            lambda g, r: split(g[last], n)[r],
            lambda rank: (2 * n, 3),
        ),
        "scatter axis": Kind(
            lambda x: ops.scatter(x, axis=1),
            lambda g, r: split(g[0], n, 1)[r],
            lambda rank: (2, 3 * n),
        ),
    }


COMBINE: dict[str, Callable[[Any], Any]] = {
    "sum": lambda g: np.sum(g, axis=0),
    "mean": lambda g: np.mean(g, axis=0),
    "min": lambda g: np.min(g, axis=0),
    "max": lambda g: np.max(g, axis=0),
    "prod": lambda g: np.prod(g, axis=0),
}


def every_kind() -> dict[str, Kind]:
    size = ngd.init().size
    return {**reductions(size, size - 1), **gathers(size, size - 1), **exchanges(size, size - 1)}


def operand(kind: Kind, rank: int, dtype: Any) -> Any:
    values = np.random.default_rng(rank).integers(-4, 5, kind.shape(rank))
    return np.asarray(values).astype(dtype)


def results() -> None:
    world = ngd.init()
    for device in DEVICES:
        for dtype in (np.float64, np.float32, np.int32):
            kinds = every_kind()
            if dtype is np.int32:
                kinds = {k: v for k, v in kinds.items() if "mean" not in k and "axis" not in k}
            mine = [operand(kind, world.rank, dtype) for kind in kinds.values()]
            inputs = [ngd.placeholder(f"x{i}", a.shape, dtype) for i, a in enumerate(mine)]
            outputs = [k.op(x) for k, x in zip(kinds.values(), inputs, strict=True)]
            # The same collectives again, on a computed value, so that two of each are pending.
            outputs += [k.op(x * 3) for k, x in zip(kinds.values(), inputs, strict=True)]
            step = ngd.compile(inputs, outputs, device=device)
            for _ in range(2):
                got = step(*mine)
                for factor in (1, 3):
                    for name, kind in kinds.items():
                        given = [
                            (operand(kind, r, dtype) * factor).astype(dtype)
                            for r in range(world.size)
                        ]
                        want = kind.expected(given, world.rank)
                        found = got.pop(0)
                        assert found.dtype == dtype, name
                        assert found.shape == want.shape, (name, found.shape, want.shape)
                        assert np.allclose(found, want, rtol=1e-6), (name, device, found, want)


@everywhere
def test_results_of_all_kinds_equal_numpy(communicator: str, ranks: int) -> None:
    run_in_world(results, communicator, ranks)


def in_place_or_copied() -> None:
    """Use operands whose last use is the collective on all ranks, on one, or on none."""
    world = ngd.init()
    n, me = world.size, world.rank
    kinds: dict[str, Callable[[Any], Any]] = {
        "broadcast": lambda x: ops.broadcast(x, root=n - 1),
        "all_to_all": ops.all_to_all,
    }
    cases = [(dtype, rows) for dtype in ALL for rows in (0, 1, 701)]
    cases.append((np.dtype(np.int16), 2_200_001 // n))  # so large that all ranks copy together
    for dtype, rows in cases:
        given = [
            np.random.default_rng(r).integers(0, 120, (2, rows * n)).astype(dtype) for r in range(n)
        ]
        x = ngd.placeholder("x", given[me].shape, dtype)
        for kept_by in (range(0), range(1), range(n)):
            for name, call in kinds.items():
                y = ops.transpose(x)
                step = ngd.compile([x], [call(y), *([y] if me in kept_by else [])], device="CPU")
                want = given[n - 1].T
                if name == "all_to_all":
                    want = np.concatenate([split(a.T, n)[me] for a in given])
                for _ in range(2):
                    got, *kept = step(given[me])
                    assert np.array_equal(got, want), (name, dtype, rows, kept_by)
                    assert all(np.array_equal(k, given[me].T) for k in kept), (name, dtype, rows)


@everywhere
def test_in_place_collectives_and_copies_have_equal_results(communicator: str, ranks: int) -> None:
    run_in_world(in_place_or_copied, communicator, ranks)


def differences(step: Callable[..., Any], given: Sequence[Any], which: int) -> Any:
    """Return the slope of the sum over ranks of a step's first output, by this rank's operand.

    `which` is the number of the operand. The ranks change their elements in turn.
    """
    world = ngd.init()
    at = np.asarray(given[which], np.float64)
    sizes = ngd.all_reduce(np.eye(world.size, dtype=np.int64)[world.rank] * at.size, op="sum")
    slopes = np.zeros(at.size)
    for rank, count in enumerate(sizes):
        for i in range(count):
            totals = []
            for change in (1e-5, -1e-5):
                in_place_or_copied = at.copy()
                if rank == world.rank:
                    in_place_or_copied.reshape(-1)[i] += change
                arguments = [*given[:which], in_place_or_copied, *given[which + 1 :]]
                totals.append(float(ngd.all_reduce(step(*arguments)[0], op="sum")))
            if rank == world.rank:
                slopes[i] = (totals[0] - totals[1]) / 2e-5
    return slopes.reshape(at.shape)


def gradients(second: bool) -> None:
    world = ngd.init()
    random = np.random.default_rng(world.rank)
    for device in DEVICES:
        for name, kind in every_kind().items():
            if not kind.linear:
                continue
            x = ngd.placeholder("x", kind.shape(world.rank), np.float64)
            y = kind.op(ops.sin(x))
            c = ngd.placeholder("c", y.shape, np.float64)
            loss, wrt = ops.sum(ops.tanh(y) * c), [x]
            if second:
                first = ngd.grad(loss, x)
                factors = ngd.constant(random.uniform(-1, 1, x.shape))
                loss, wrt = ops.sum(first * factors), [x, c]
            step = ngd.compile([x, c], [loss, *ngd.grad(loss, wrt)], device=device)
            given = [random.uniform(-1, 1, n.shape) for n in (x, c)]
            _, *found = step(*given)
            for which, gradient in enumerate(found):
                slopes = differences(step, given, which)
                assert np.allclose(gradient, slopes, rtol=2e-5, atol=1e-7), (name, device, which)


@pytest.mark.parametrize(("communicator", "ranks"), harness.worlds(2, 3))
@pytest.mark.parametrize(
    "second", [False, pytest.param(True, marks=pytest.mark.long)], ids=["first", "second"]
)
def test_gradients_of_all_kinds_equal_finite_differences(
    communicator: str, ranks: int, second: bool
) -> None:
    run_in_world(gradients, communicator, ranks, second=second)
