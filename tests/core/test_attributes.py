# SPDX-License-Identifier: Apache-2.0
"""Attributes reach the compiled part as they are, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ngd import _core
from ngd.devices.cpu import target as cpu
from ngd.devices.native import native_attrs
from ngd.dtypes import float16


def crossed(**attrs: Any) -> str:
    """Attributes as a program prints them, after the crossing."""
    builder = _core.ProgramBuilder()
    builder.add_instruction("run", "x", [], [], native_attrs(attrs), -1, 0, "here", [])
    line = str(builder).splitlines()[-1]
    assert line.startswith("  0: x()")
    return line.removeprefix("  0: x()").strip()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (-(2**63), str(-(2**63))),
        (True, "1"),
        (np.int32(7), "7"),
        (0.1, "0.1"),
        (np.float32(0.25), "0.25"),
        (np.float32(0.1), repr(float(np.float32(0.1)))),
        (float("inf"), "inf"),
        ("a b", '"a b"'),
        ((), "()"),
        ((1, 2), "(1,2)"),
        ([np.int64(5)], "(5)"),
        ((0.5, 1.75), "(0.5,1.75)"),
        ((1, 2.5), "(1,2.5)"),
        (np.array([0.5, 3.0]), "(0.5,3)"),
        (("relu", "a b"), '("relu","a b")'),
        (float16, '"float16"'),
    ],
    ids=repr,
)
def test_what_crosses(value: Any, text: str) -> None:
    assert crossed(value=value) == f"value={text}"


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (2**63, OverflowError),
        ((2**63,), OverflowError),
        ((0.5, 2**53 + 1), ValueError),
        (("a", 1), TypeError),
        ((1, "a"), TypeError),
        (((1,), (2,)), TypeError),
        (object(), TypeError),
    ],
    ids=repr,
)
def test_what_would_lose_something_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        crossed(value=value)


def test_none_is_left_out() -> None:
    assert crossed(a=None, b=1) == "b=1"


@pytest.mark.parametrize(("name", "known"), [("relu", True), ("selu", False)])
def test_a_kernel_reads_a_list_of_texts(name: str, known: bool) -> None:
    x = ("float32", (2, 2))
    attrs = {"post": (name,)}
    row, reasons, *_ = cpu.DEVICE.query_kernel("matmul", [x, x], [x], attrs)
    assert (row is not None) == known
    assert known or "no post-operation is called selu" in reasons
