# SPDX-License-Identifier: Apache-2.0
"""Tests of `ngd.vmap` of every op against a loop over the examples, generated from the samples."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.dtypes import Array, Type, float32, is_float
from ngd.graph.node import Node
from ngd.ops.collectives.reductions import Collective
from tests.ops.cases import Case, all_cases, assert_close, draw, placeholders, run_reference
from tests.ops.test_blocks import has_gradient, total

SIZE = 3


def is_traced(case: Case) -> bool:
    """Return True if a function can build the case. A bias in a matmul is built by passes only."""
    with_bias = case.op is ops.matmul and len(case.types) > 2
    return bool(case.types) and not with_bias and not isinstance(case.op, Collective)


def chosen_cases() -> list[Case]:
    """Return each sample of each op in one dtype."""
    found: dict[tuple[str, int], Case] = {}
    for case in all_cases():
        if is_traced(case):
            key = (case.op.name, case.number)
            if key not in found or case.dtype == float32:
                found[key] = case
    return list(found.values())


CASES = chosen_cases()
GRADIENTS = [case for case in all_cases() if is_traced(case) and has_gradient(case)]

Subset = tuple[int, ...]
"""Numbers of mapped operands."""


def subsets(case: Case) -> list[Subset]:
    """Return choices of mapped operands: one, all except one, and all."""
    numbers = range(len(case.types))
    counts = sorted({1, len(numbers) - 1, len(numbers)} - {0})
    return [s for n in counts for s in itertools.combinations(numbers, n)]


def in_axes(case: Case, mapped: Subset) -> tuple[int | None, ...]:
    return tuple(0 if i in mapped else None for i in range(len(case.types)))


def example_arrays(case: Case, mapped: Subset) -> list[list[Array]]:
    """Return the operands of each example. Operands that are not mapped are equal in all."""
    first = case.arrays()
    drawn = [first]
    for number in range(1, SIZE):
        rng, pairs = (
            np.random.default_rng(number),
            zip(case.sample.operands, case.types, strict=True),
        )
        other = [draw(operand, type.dtype, rng) for operand, type in pairs]
        drawn.append([other[i] if i in mapped else x for i, x in enumerate(first)])
    return drawn


def stacked(examples: Sequence[Sequence[Array]], mapped: Subset) -> list[Array]:
    """Return the operands with a leading axis over the examples if they are mapped."""
    pairs = enumerate(zip(*examples, strict=True))
    return [np.stack(values) if i in mapped else values[0] for i, values in pairs]


def batched_placeholders(case: Case, mapped: Subset) -> list[Node]:
    return placeholders(
        [Type(t.dtype, (SIZE, *t.shape)) if i in mapped else t for i, t in enumerate(case.types)]
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vmap_equals_a_loop_over_the_examples(case: Case) -> None:
    for mapped in subsets(case):
        examples = example_arrays(case, mapped)
        inputs = batched_placeholders(case, mapped)
        made = ngd.vmap(lambda *xs: list(case.apply(xs)), in_axes(case, mapped))(*inputs)
        values = run_reference(inputs, made, stacked(examples, mapped))
        wanted = zip(*[case.reference(arrays) for arrays in examples], strict=True)
        for value, parts in zip(values, wanted, strict=True):
            assert_close(value, np.stack(parts), slack=8)


def loss_of(case: Case, xs: Sequence[Node]) -> Node:
    """Return a nonlinear function of all floating results."""
    results = [y for y in case.apply(xs) if is_float(y.dtype)]
    return total(ops.multiply(ops.sin(y), 0.5 + ops.sigmoid(y)) for y in results)


def gradients(case: Case, xs: Sequence[Node]) -> list[Node]:
    """Return the gradients of the loss by all floating operands."""
    return ngd.grad(loss_of(case, xs), [x for x in xs if is_float(x.dtype)], unused="zero")


@pytest.mark.parametrize("case", GRADIENTS, ids=str)
def test_vmap_of_a_gradient_and_gradient_of_vmap_equal_a_loop(case: Case) -> None:
    """In the gradient of vmap, an operand that is not mapped gets the sum over the examples."""
    alone = placeholders(case.types)
    of_one = gradients(case, alone)
    for mapped in {*subsets(case)[: len(case.types)], subsets(case)[-1]}:
        examples = example_arrays(case, mapped)
        inputs = batched_placeholders(case, mapped)
        floats = [i for i, x in enumerate(inputs) if is_float(x.dtype)]
        axes = in_axes(case, mapped)
        each = ngd.vmap(lambda *xs: gradients(case, xs), axes)(*inputs)
        whole = ops.sum(ngd.vmap(lambda *xs: loss_of(case, xs), axes)(*inputs))
        summed = ngd.grad(whole, [inputs[i] for i in floats], unused="zero")
        values = run_reference(inputs, [*each, *summed], stacked(examples, mapped))
        rows = [run_reference(alone, of_one, arrays) for arrays in examples]
        wanted = [np.stack(parts) for parts in zip(*rows, strict=True)]
        wanted += [x if i in mapped else x.sum(0) for i, x in zip(floats, wanted, strict=True)]
        for value, expected in zip(values, wanted, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-10)
