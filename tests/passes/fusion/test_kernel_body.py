# SPDX-License-Identifier: Apache-2.0
"""Tests of kernel bodies: the edits of passes, compared with texts written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ngd.dtypes import bfloat16
from ngd.passes.fusion.kernel_body import (
    Input,
    KernelBody,
    Literal,
    Products,
    Reductions,
    Statement,
    Value,
    kernel_name,
)

SUM_OF_PRODUCT = KernelBody(
    (
        Statement("multiply", "f32", (Input(0), Literal(0.5))),
        Statement("add", "f32", (Value(0), Input(1))),
        Statement("exp", "f32", (Value(0),)),
    ),
    stored=(1, 2),
    input_strides=(1, 1),
)


def test_a_body_is_printed_as_the_kernel_parses_it() -> None:
    assert SUM_OF_PRODUCT.text == "multiply:f32 i0 #0.5;add:f32 t0 i1;exp:f32 t0"
    assert Statement("where", "i64", (Input(0), Literal(3), Value(12))).__str__() == (
        "where:i64 i0 #3 t12"
    )


def test_statements_can_be_added_before_a_body() -> None:
    body = SUM_OF_PRODUCT.prepend([Statement("copy", "f32", (Input(1),))], {Input(1): Value(0)})
    assert body.text == "copy:f32 i1;multiply:f32 i0 #0.5;add:f32 t1 t0;exp:f32 t1"
    assert body.stored == (2, 3)


def test_16_bit_inputs_are_converted_first() -> None:
    body = SUM_OF_PRODUCT.cast_inputs([1, 0], bfloat16)
    assert body.text == (
        "cast:bf16>f32 i1;cast:bf16>f32 i0;multiply:f32 t1 #0.5;add:f32 t2 t0;exp:f32 t2"
    )
    assert body.stored == (3, 4)


@pytest.mark.parametrize(("keeps_wide", "stored"), [(False, (3, 2)), (True, (1, 2, 3))])
def test_a_result_can_be_stored_in_16_bits(keeps_wide: bool, stored: tuple[int, ...]) -> None:
    body = SUM_OF_PRODUCT.cast_result(0, bfloat16, keeps_wide=keeps_wide)
    assert body.text == SUM_OF_PRODUCT.text + ";cast:f32>bf16 t1"
    assert body.stored == stored


def test_statements_that_are_not_read_are_removed() -> None:
    body = SUM_OF_PRODUCT.keep_results([1])
    assert body.text == "multiply:f32 i0 #0.5;exp:f32 t0"
    assert body.stored == (1,)


def test_reduced_statements_are_kept_and_renumbered() -> None:
    reductions = Reductions((4, 8), (1,), (2,), ("sum",))
    body = replace(SUM_OF_PRODUCT, reductions=reductions).keep_results([])
    assert body.text == "multiply:f32 i0 #0.5;exp:f32 t0"
    assert (body.stored, body.reduced) == ((), (1,))
    moved = body.prepend([Statement("copy", "f32", (Input(0),))])
    assert moved.reduced == (2,)
    assert moved.lowered == {
        "program": "copy:f32 i0;multiply:f32 i0 #0.5;exp:f32 t1",
        "results": (),
        "input_strides": (1, 1),
        "shape": (4, 8),
        "axes": (1,),
        "reduced": (2,),
        "reductions": ("sum",),
    }


def test_the_body_decides_the_name_of_the_kernel() -> None:
    reductions = Reductions((4, 8), (1,), (2,), ("sum",))
    products = Products((1,), (4, 8), (("transpose_a", True),))
    assert kernel_name(SUM_OF_PRODUCT) == "elementwise"
    assert kernel_name(replace(SUM_OF_PRODUCT, reductions=reductions)) == "elementwise_reduce"
    with_product = replace(SUM_OF_PRODUCT, products=products)
    assert kernel_name(with_product) == "elementwise_product"
    assert with_product.lowered["transpose_a"] is True
    assert with_product.lowered["products"] == (1,)


def test_an_input_and_a_value_with_the_same_number_differ() -> None:
    one = Statement("exp", "f32", (Input(0),))
    assert one != Statement("exp", "f32", (Value(0),))
