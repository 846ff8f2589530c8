# SPDX-License-Identifier: Apache-2.0
"""Calls of one step with invalid arrays: each raises one clear line and changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import ngd
from ngd import ops
from ngd.errors import BusyError, CompileError, DTypeError, Error, ShapeError

ONES = np.ones((2, 3), np.float32)
INTS = np.arange(2)
READ_ONLY = np.ones((2, 3), np.float32)
READ_ONLY.flags.writeable = False


class ArrayOnGpu:
    """An array on a device whose memory the host cannot read, in DLPack's form."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, **how: Any) -> Any:
        raise BufferError("the memory is a GPU's")


def build(device: str = "CPU") -> SimpleNamespace:
    """Return a step of x f32[2, 3] and n i64[2] with the outputs x * w and n.

    The update adds the sum of the rows of x to w f32[3].
    """
    x, n = ngd.placeholder("x", (2, 3)), ngd.placeholder("n", (2,), "int64")
    w = ngd.variable("w", np.ones(3, np.float32))
    step = ngd.compile([x, n], [x * w, n], {w: w + ops.sum(x, 0)}, device=device)
    twice = ngd.compile([x], [x + 1, x + 2], device=device)
    return SimpleNamespace(x=x, n=n, w=w, step=step, twice=twice)


def out_arrays(first: Any, second: Any = None) -> list[Any]:
    """Return arrays for the results. The first one is invalid."""
    return [first, np.empty(2, np.int64) if second is None else second]


Call = Callable[[SimpleNamespace], Any]

X = r"^step compiled at .*\.py:\d+: input 0 \('x'\): "
OUT = (
    r"^step compiled at .*\.py:\d+: out\[0\]: "
    r"expected a contiguous, writable float32 array of shape \(2, 3\); got a "
)

WRONG: dict[str, tuple[type[Exception], str, Call]] = {
    # ---- dtypes
    "float64": (TypeError, X + ".*got float64", lambda p: p.step(ONES.astype("f8"), INTS)),
    "complex": (TypeError, X + ".*got complex64", lambda p: p.step(ONES.astype("c8"), INTS)),
    "int64 for float32": (TypeError, X + ".*got int64", lambda p: p.step(ONES.astype(int), INTS)),
    "float for int": (
        TypeError,
        r"input 1 \('n'\).*got float64",
        lambda p: p.step(ONES, np.ones(2)),
    ),
    "uint64 for int64": (
        TypeError,
        r"input 1 \('n'\).*got uint64.*astype\(np.int64\)",
        lambda p: p.step(ONES, INTS.astype("u8")),
    ),
    "text": (TypeError, X + ".*got text", lambda p: p.step(ONES.astype(str), INTS)),
    "dates": (TypeError, X + ".*got datetime64", lambda p: p.step(np.zeros((2, 3), "M8[s]"), INTS)),
    "records": (TypeError, X + ".*<f4", lambda p: p.step(np.zeros((2, 3), [("a", "f4")]), INTS)),
    "objects": (TypeError, X + ".*Python's objects", lambda p: p.step(ONES.astype(object), INTS)),
    "a list of text": (TypeError, X + ".*got text", lambda p: p.step([["a"] * 3] * 2, INTS)),
    "a large integer": (TypeError, "input 1.*int64", lambda p: p.step(ONES, [2**63, 0])),
    # ---- shapes
    "another extent": (ShapeError, X + ".*got \\(2, 4\\)", lambda p: p.step(np.ones((2, 4)), INTS)),
    "transposed": (ShapeError, X + ".*got \\(3, 2\\)", lambda p: p.step(ONES.T, INTS)),
    "one more axis": (ShapeError, X + ".*got \\(1, 2, 3\\)", lambda p: p.step(ONES[None], INTS)),
    "flat": (ShapeError, X + ".*got \\(6,\\)", lambda p: p.step(ONES.ravel(), INTS)),
    "a scalar": (ShapeError, X + ".*got \\(\\)", lambda p: p.step(1.0, INTS)),
    "empty": (ShapeError, X + ".*got \\(0, 3\\)", lambda p: p.step(ONES[:0], INTS)),
    "uneven lists": (
        ShapeError,
        X + ".*different lengths",
        lambda p: p.step([[1, 2, 3], [4]], INTS),
    ),
    # ---- values that are not arrays, or that are other arrays
    "None": (TypeError, X + "expected an array float32.*got None", lambda p: p.step(None, INTS)),
    "a dict": (TypeError, X + ".*got dict", lambda p: p.step({"x": ONES}, INTS)),
    "a node": (TypeError, X + ".*got <ngd.Node", lambda p: p.step(p.x, INTS)),
    "a variable": (TypeError, X + ".*got <ngd.Node variable 'w'", lambda p: p.step(p.w, INTS)),
    "a mask": (
        TypeError,
        X + r".*without a mask.*filled\(value\)",
        lambda p: p.step(np.ma.masked_array(ONES, ONES > 0), INTS),
    ),
    "in the other order": (ShapeError, X + ".*got \\(2,\\)", lambda p: p.step(INTS, ONES)),
    "too few": (TypeError, r"expected 2 arrays \(x, n\); got 1", lambda p: p.step(ONES)),
    "too many": (TypeError, r"expected 2 .*; got 3", lambda p: p.step(ONES, INTS, INTS)),
    "an unknown name": (
        TypeError,
        r"by name among \(x, n\); got 'm'",
        lambda p: p.step(ONES, m=INTS),
    ),
    "twice": (TypeError, "'x' once; got it by", lambda p: p.step(ONES, INTS, x=ONES)),
    # ---- other devices
    "a GPU's": (TypeError, X + ".*CPU's memory.*a GPU's", lambda p: p.step(ArrayOnGpu(), INTS)),
    "out on a GPU": (
        TypeError,
        r"out\[0\]: .*CPU's memory",
        lambda p: p.step(ONES, INTS, out=out_arrays(ArrayOnGpu())),
    ),
    "a GPU's, to assign": (TypeError, "CPU's memory", lambda p: p.w.assign(ArrayOnGpu())),
    # ---- arrays for the results
    "out read-only": (
        ShapeError,
        OUT + "contiguous, read-only float32",
        lambda p: p.step(ONES, INTS, out=out_arrays(READ_ONLY)),
    ),
    "out float64": (
        ShapeError,
        OUT + "contiguous float64",
        lambda p: p.step(ONES, INTS, out=out_arrays(np.empty((2, 3)))),
    ),
    "out in Fortran's order": (
        ShapeError,
        OUT + "strided float32",
        lambda p: p.step(ONES, INTS, out=out_arrays(np.empty((3, 2), "f").T)),
    ),
    "out of another shape": (
        ShapeError,
        OUT + r".*one of \(3, 2\)",
        lambda p: p.step(ONES, INTS, out=out_arrays(np.empty((3, 2), "f"))),
    ),
    "out a list": (
        TypeError,
        "got list",
        lambda p: p.step(ONES, INTS, out=out_arrays([[0.0] * 3] * 2)),
    ),
    "out None": (
        TypeError,
        r"out\[0\].*got None",
        lambda p: p.step(ONES, INTS, out=out_arrays(None)),
    ),
    "too few out": (
        TypeError,
        "expected 2 arrays in out; got 1",
        lambda p: p.step(ONES, INTS, out=[1]),
    ),
    # ---- overlapping memory
    "out is the input": (
        ValueError,
        r"out\[0\]: .*overlaps an input",
        lambda p: p.step(given := ONES.copy(), INTS, out=out_arrays(given)),
    ),
    "out twice": (
        ValueError,
        r"out\[1\]: .*overlaps an input or another output",
        lambda p: p.twice(ONES, out=[same := np.empty((2, 3), "f"), same]),
    ),
    "outs that overlap": (
        ValueError,
        r"out\[1\]: .*overlaps",
        lambda p: p.twice(ONES, out=[(a := np.empty((3, 3), "f"))[:2], a[1:]]),
    ),
    "out that overlaps itself": (
        ShapeError,
        OUT + "strided",
        lambda p: p.step(ONES, INTS, out=out_arrays(as_strided(np.zeros(9, "f"), (2, 3), (0, 4)))),
    ),
    # ---- variables
    "assign another shape": (
        ShapeError,
        r"'w': assign: expected shape \(3,\); got \(4,\)",
        lambda p: p.w.assign(np.ones(4)),
    ),
    "assign None": (DTypeError, r"'w': assign: ", lambda p: p.w.assign(None)),
    "assign a node": (TypeError, "got a Node without a value", lambda p: p.w.assign(p.x)),
    "update of another shape": (
        CompileError,
        r"expected float32\[3\] as .* 'w'; got float32\[2, 3\]",
        lambda p: ngd.compile([p.x], [], {p.w: p.x}),
    ),
    "a node as an array": (TypeError, "got a Node without a value", lambda p: np.asarray(p.x)),
    "a node as a condition": (TypeError, "no truth value", lambda p: bool(p.x > 0)),
}


@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
@pytest.mark.parametrize("how", WRONG)
def test_each_invalid_array_raises_one_line_and_changes_nothing(how: str, device: str) -> None:
    kind, says, call = WRONG[how]
    program = build(device)
    with pytest.raises(kind, match=says) as caught:
        call(program)
    assert isinstance(caught.value, (Error, TypeError, ValueError))
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(program.w.numpy(), [1, 1, 1])
    scaled, same = program.step(2 * ONES, INTS)  # the step can still be called
    np.testing.assert_array_equal(scaled, 2 * ONES)
    np.testing.assert_array_equal(same, INTS)
    np.testing.assert_array_equal(program.w.numpy(), [5, 5, 5])


def test_the_table_has_at_least_forty_cases() -> None:
    assert len(WRONG) >= 40


def test_a_second_thread_gets_busy_error_during_a_call() -> None:
    x = ngd.placeholder("x", (700, 700))
    y = x
    for _ in range(40):
        y = y @ x
    step = ngd.compile([x], [y])
    zeros = np.zeros((700, 700), np.float32)
    messages: list[str] = []
    limit = time.monotonic() + 60

    def call() -> None:
        while not messages and time.monotonic() < limit:
            try:
                step(zeros)
            except BusyError as error:
                messages.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    call()
    thread.join()
    assert messages, "both calls never met"
    assert messages[0] == "Executable: a second call while one runs in another thread"
    np.testing.assert_array_equal(step(zeros)[0], zeros)
