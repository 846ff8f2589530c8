# SPDX-License-Identifier: Apache-2.0
"""A wrong argument of a collective raises one class of error on arrays, in a graph, in a bridge.

tests/jax and tests/paddle have the cases of the bridges that need these packages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
import ngd.horovod.numpy as hvd
from ngd import ops
from ngd.errors import DTypeError, ShapeError

FLOATS = np.ones((4, 3), np.float32)
DOUBLES = np.ones((4, 3))
INTEGERS = np.ones((4, 3), np.int32)
BOOLS = np.ones((4, 3), np.bool_)

CASES: dict[str, tuple[type[Exception], Any, Callable[..., Any]]] = {
    "unknown op": (ValueError, FLOATS, lambda m, x, g: m.all_reduce(x, op="avg", group=g)),
    "unknown op of reduce_scatter": (
        *(ValueError, FLOATS),
        lambda m, x, g: m.reduce_scatter(x, op="avg", group=g),
    ),
    "mean of integers": (DTypeError, INTEGERS, lambda m, x, g: m.all_reduce(x, op="mean", group=g)),
    "scattered mean of integers": (
        *(DTypeError, INTEGERS),
        lambda m, x, g: m.reduce_scatter(x, op="mean", group=g),
    ),
    "sum of bools": (DTypeError, BOOLS, lambda m, x, g: m.all_reduce(x, op="sum", group=g)),
    "unknown algorithm": (
        *(ValueError, FLOATS),
        lambda m, x, g: m.all_reduce(x, op="sum", algorithm="tree", group=g),
    ),
    "bfloat16 of doubles": (
        *(DTypeError, DOUBLES),
        lambda m, x, g: m.all_reduce(x, op="sum", compression="bf16", group=g),
    ),
    "unknown compression": (
        *(ValueError, FLOATS),
        lambda m, x, g: m.all_reduce(x, op="sum", compression="zip", group=g),
    ),
    "weighted sum": (
        *(ValueError, FLOATS),
        lambda m, x, g: m.all_reduce(x, op="sum", weight=1.0, group=g),
    ),
    "weighted integers": (
        *(DTypeError, INTEGERS),
        lambda m, x, g: m.all_reduce(x, op="mean", weight=1.0, group=g),
    ),
    "weight and compression": (
        *(ValueError, FLOATS),
        lambda m, x, g: m.all_reduce(x, op="mean", weight=1.0, compression="bf16", group=g),
    ),
    "root beyond the group": (ValueError, FLOATS, lambda m, x, g: m.broadcast(x, 5, group=g)),
    "negative root": (ValueError, FLOATS, lambda m, x, g: m.broadcast(x, -1, group=g)),
    "fractional root": (TypeError, FLOATS, lambda m, x, g: m.broadcast(x, 1.5, group=g)),
    "root of reduce": (ValueError, FLOATS, lambda m, x, g: m.reduce(x, 5, op="sum", group=g)),
    "root of gather": (ValueError, FLOATS, lambda m, x, g: m.gather(x, 5, group=g)),
    "root of scatter": (ValueError, FLOATS, lambda m, x, g: m.scatter(x, 5, group=g)),
    "receiver beyond the group": (ValueError, FLOATS, lambda m, x, g: m.send(x, 5, group=g)),
    "receiver is the sender": (ValueError, FLOATS, lambda m, x, g: m.send(x, 0, group=g)),
    "axis": (ShapeError, FLOATS, lambda m, x, g: m.all_gather(x, axis=7, group=g)),
    "numbers of rows": (
        *(ShapeError, FLOATS),
        lambda m, x, g: m.all_gather_v(x, counts=[1, 2], group=g),
    ),
    "rows of this rank": (
        *(ShapeError, FLOATS),
        lambda m, x, g: m.all_gather_v(x, counts=[3], group=g),
    ),
    "numbers of rows to send": (
        *(ShapeError, FLOATS),
        lambda m, x, g: m.all_to_all_v(x, [1, 2], [4], group=g),
    ),
    "sum of rows to send": (
        *(ShapeError, FLOATS),
        lambda m, x, g: m.all_to_all_v(x, [3], [3], group=g),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_argument_has_one_class_of_error(case: str) -> None:
    expected, array, call = CASES[case]
    group = ngd.init()
    node = ngd.placeholder("x", array.shape, array.dtype)
    for module, x in ((ngd, array), (ops, node)):
        with pytest.raises(expected) as raised:
            call(module, x, group)
        assert raised.type is expected, module


HOROVOD: dict[str, Callable[[Any], Any]] = {
    "unknown op": lambda x: hvd.allreduce(x, op=17),
    "unknown op of reduce_scatter": lambda x: hvd.reducescatter(x, op=hvd.Max),
    "mean of integers": lambda x: hvd.allreduce(x, op=hvd.Adasum),
    "sum of bools": lambda x: hvd.allreduce(x, op=hvd.Sum),
    "root beyond the group": lambda x: hvd.broadcast(x, 5),
    "negative root": lambda x: hvd.broadcast(x, -1),
    "fractional root": lambda x: hvd.broadcast(x, 1.5),  # type: ignore[arg-type]
    "numbers of rows to send": lambda x: hvd.alltoall(x, [1, 2]),
    "sum of rows to send": lambda x: hvd.alltoall(x, [3]),
}
"""Calls of ngd.horovod with the same mistakes, except a mean of integers, which is valid there."""


@pytest.mark.parametrize("case", HOROVOD)
def test_a_wrong_argument_has_the_same_class_in_horovod(case: str) -> None:
    expected, array, _ = CASES[case]
    hvd.init()
    with pytest.raises(expected) as raised:
        HOROVOD[case](array)
    assert raised.type is expected
