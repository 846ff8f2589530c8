# SPDX-License-Identifier: Apache-2.0
"""Tests of dtypes: names, lookup and promotion."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ngd.dtypes import (
    ALL,
    FLOATS,
    INTEGERS,
    NUMBERS,
    SHORT_NAMES,
    DType,
    as_dtype,
    bfloat16,
    bool_,
    describe_dtypes,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    is_float,
    promote,
    uint8,
    uint64,
)
from ngd.errors import DTypeError

NUMPYS = tuple(d for d in ALL if d != bfloat16)


def test_all_dtypes_have_names() -> None:
    assert set(SHORT_NAMES) == set(ALL)
    assert len(set(SHORT_NAMES.values())) == 13


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_a_dtype_is_found_by_its_names(dtype: np.dtype[Any]) -> None:
    assert as_dtype(dtype, "call") is dtype
    assert as_dtype(dtype.name, "call") == dtype
    assert as_dtype(dtype.type, "call") == dtype
    assert is_float(dtype) == (dtype in FLOATS)


def test_python_types_are_dtypes() -> None:
    assert as_dtype(float, "call") == float64
    assert as_dtype(bool, "call") == bool_
    assert as_dtype(ml_dtypes.bfloat16, "call") == bfloat16


@pytest.mark.parametrize("bad", ["complex64", "nonsense", "S3", object, complex, "float128"])
def test_an_unknown_dtype_raises(bad: Any) -> None:
    with pytest.raises(
        DTypeError, match=r"^call: expected a dtype among bool, int8 to int64, .*; got "
    ):
        as_dtype(bad, "call")


@pytest.mark.parametrize(("a", "b"), list(itertools.product(NUMPYS, NUMPYS)), ids=str)
def test_promotion_equals_numpy(a: np.dtype[Any], b: np.dtype[Any]) -> None:
    assert promote(a, b) == promote(b, a) == np.result_type(a, b)


@pytest.mark.parametrize("dtype", NUMPYS, ids=str)
@pytest.mark.parametrize("scalar", [True, 1, 1.5])
def test_python_scalars_are_weak(dtype: np.dtype[Any], scalar: Any) -> None:
    assert promote(dtype, scalar) == np.result_type(dtype, scalar)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_promotion_of_bfloat16(dtype: np.dtype[Any]) -> None:
    exact = (bool_, int8, uint8, bfloat16)  # dtypes whose values bfloat16 represents exactly
    larger = float64 if dtype == float64 else float32
    assert promote(bfloat16, dtype) == promote(dtype, bfloat16)
    assert promote(bfloat16, dtype) == (bfloat16 if dtype in exact else larger)


def test_bfloat16_and_a_scalar_are_bfloat16() -> None:
    assert promote(bfloat16, 1, 2.5, True) == bfloat16
    assert promote(2.5, bfloat16, float32) == float32


def test_scalars_have_the_default_dtypes_of_numpy() -> None:
    assert promote(1, 2) == int64
    assert promote(1, 2.0) == float64
    assert promote(True, False) == bool_


def test_no_common_type_is_float32() -> None:
    assert promote(float16, bfloat16) == float32
    assert promote(int32, bfloat16) == float32


def test_complex_dtypes_raise() -> None:
    with pytest.raises(DTypeError, match="promote: expected dtypes that ngd has"):
        promote(float32, np.dtype(np.complex64))


@pytest.mark.parametrize(
    ("allowed", "words"),
    [
        (ALL, "any dtype"),
        (NUMBERS, "numbers"),
        (FLOATS, "floats"),
        ((bool_, *INTEGERS), "bools or integers"),
        ((int64, uint64, *FLOATS), "int64, uint64 or floats"),
        ((float32, float64), "float32 or float64"),
        ((bool_,), "bool"),
    ],
)
def test_messages_name_families_of_dtypes(allowed: tuple[DType, ...], words: str) -> None:
    assert describe_dtypes(allowed) == words
