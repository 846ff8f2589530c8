# SPDX-License-Identifier: Apache-2.0
"""Tests that attributes reach the C++ core without loss, or raise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ngd import _core
from ngd.devices.cpu import target as cpu
from ngd.devices.native import native_attrs
from ngd.dtypes import float16


def printed_attributes(**attrs: Any) -> str:
    """Return attributes as a C++ program prints them."""
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
def test_attributes_reach_the_core(value: Any, text: str) -> None:
    assert printed_attributes(value=value) == f"value={text}"


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
def test_attributes_that_would_lose_information_raise(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        printed_attributes(value=value)


def test_none_is_omitted() -> None:
    assert printed_attributes(a=None, b=1) == "b=1"


@pytest.mark.parametrize(("name", "known"), [("relu", True), ("selu", False)])
def test_a_kernel_reads_a_list_of_texts(name: str, known: bool) -> None:
    x = ("float32", (2, 2))
    attrs = {"post": (name,)}
    row, reasons, *_ = cpu.DEVICE.query_kernel("matmul", [x, x], [x], attrs)
    assert (row is not None) == known
    assert known or "there is no post-operation selu" in reasons
