# SPDX-License-Identifier: Apache-2.0
"""Tests of every op, generated from the samples in the registry."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np
import numpy.testing as npt
import pytest

from ngd import grad
from ngd.devices.interpreter.evaluate import evaluate
from ngd.dtypes import FLOATS, Array, Type, bool_, float64, is_float
from ngd.errors import DTypeError, GradientError
from ngd.graph.graph import Graph
from ngd.graph.node import Node, Op
from ngd.ops import add, multiply, sum
from ngd.ops._precision import expansion
from tests.ops.cases import (
    Case,
    all_cases,
    assert_close,
    computing_ops,
    placeholders,
    run_reference,
    takes_two,
)
from tests.ops.conftest import Coverage, Runner

CASES = all_cases()
NO_GRADIENT = {
    (op, kind)
    for op in ("all_reduce", "reduce", "reduce_scatter")
    for kind in ("min", "max", "prod")
}
POSITIONS = 48
"""The maximum number of elements of an operand that are changed for differences."""


def named(cases: Sequence[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=str)


def has_gradient(case: Case) -> bool:
    """Return True if the gradient of a case can be compared with finite differences in float64."""
    kind = (case.op.name, case.sample.attrs.get("reduce_op"))
    return (
        case.dtype in (None, float64)
        and any(t.dtype == float64 for t in case.results)
        and any(t.dtype == float64 for t in case.types)
        and case.op.name != "stop_gradient"
        and kind not in NO_GRADIENT
        and not takes_two(case.op)
    )


@pytest.mark.parametrize("op", computing_ops(), ids=lambda op: op.name)
def test_every_op_has_samples_and_a_docstring(op: Op) -> None:
    assert list(op.samples()), "an op without samples is never tested"
    assert (type(op).__doc__ or "").strip()
    assert not (op.kernel.is_elementwise and op.has_expansion)


@named(CASES)
def test_the_reference_has_the_inferred_type(case: Case) -> None:
    values = case.reference(case.arrays())
    assert tuple(Type(value.dtype, value.shape) for value in values) == case.results


@named([c for c in CASES if not takes_two(c.op)])
def test_every_device_equals_the_reference(
    case: Case, device: str, run: Runner, coverage: Coverage
) -> None:
    coverage.cases_run.add(f"{case} on {device}")
    inputs, arrays = placeholders(case.types), case.arrays()
    expected = case.reference(arrays)
    for value, wanted in zip(run(inputs, case.apply(inputs), arrays), expected, strict=True):
        assert_close(value, wanted)
    coverage.note(device, case.op.name, case.dtype or case.results[0].dtype)


@named([c for c in CASES if len(c.results) > 1])
def test_each_result_can_be_read_without_the_others(case: Case, run: Runner) -> None:
    """A result that is read alone equals the result that is read with the others."""
    inputs, arrays = placeholders(case.types), case.arrays()
    for number, wanted in enumerate(case.reference(arrays)):
        (value,) = run(inputs, [case.apply(inputs)[number]], arrays)
        assert_close(value, wanted)


@named([c for c in CASES if c.op.has_expansion])
def test_the_expansion_equals_the_reference(case: Case, coverage: Coverage) -> None:
    inputs, arrays = placeholders(case.types), case.arrays()
    values = run_reference(inputs, expansion(case.apply(inputs)[0]), arrays)
    for value, wanted in zip(values, case.reference(arrays), strict=True):
        assert_close(value, wanted, slack=8)
    coverage.note("expansion", case.op.name, case.dtype or case.results[0].dtype)


class Weighted:
    """A loss: the sum of some results of a case, each multiplied by a seed."""

    def __init__(self, case: Case, reading: Sequence[int]) -> None:
        types = [case.results[number] for number in reading]
        self.case, self.reading = case, reading
        self.inputs = placeholders([*case.types, *types])
        self.operands = self.inputs[: len(case.types)]
        self.wrt = [x for x in self.operands if is_float(x.dtype)]
        rng = np.random.default_rng(3)
        self.seeds = [np.asarray(rng.uniform(0.5, 1.5, type.shape)) for type in types]
        self.arrays = [*case.arrays(), *self.seeds]
        results = case.apply(self.operands)
        self.loss = total(
            multiply(results[number], seed)
            for number, seed in zip(reading, self.inputs[len(case.types) :], strict=True)
        )

    def at(self, arrays: Sequence[Array]) -> float:
        """Return the loss, computed by the reference."""
        values = self.case.reference(arrays)
        return builtins.sum(
            float(np.sum(values[number] * seed))
            for number, seed in zip(self.reading, self.seeds, strict=True)
        )


def total(nodes: Iterable[Node]) -> Node:
    """Return the sum of all elements of all nodes."""
    return reduce(add, (sum(node) for node in nodes))


@named([c for c in CASES if has_gradient(c)])
def test_gradients_equal_finite_differences(case: Case, coverage: Coverage) -> None:
    arrays = case.arrays()
    for reading in case.readings:
        the = Weighted(case, reading)
        gradients = run_reference(the.inputs, grad(the.loss, the.wrt, unused="zero"), the.arrays)
        numbers = [i for i, x in enumerate(the.operands) if is_float(x.dtype)]
        for i, gradient in zip(numbers, gradients, strict=True):
            compare_with_differences(the.at, arrays, i, gradient, step=1e-6)
    coverage.note("gradient", case.op.name, float64)


@named([c for c in CASES if has_gradient(c)])
def test_gradients_on_a_device_equal_the_reference(case: Case, run: Runner) -> None:
    """The passes may rewrite the graph of gradients, and its values must not change."""
    for reading in case.readings:
        the = Weighted(case, reading)
        outputs = [the.loss, *grad(the.loss, the.wrt, unused="zero")]
        expected = run_reference(the.inputs, outputs, the.arrays)
        for found, wanted in zip(run(the.inputs, outputs, the.arrays), expected, strict=True):
            assert_close(found, wanted, slack=8)


@named([c for c in CASES if has_gradient(c) and c.op.smooth])
def test_second_gradients_equal_finite_differences(case: Case, coverage: Coverage) -> None:
    """The gradients are weighted and summed, and differentiated by the operands and by dy."""
    for reading in case.readings:
        the, rng = Weighted(case, reading), np.random.default_rng(7)
        first = grad(the.loss, the.wrt, unused="zero")
        loss = total(multiply(g, rng.uniform(-1, 1, g.shape)) for g in first)
        numbers = [i for i, x in enumerate(the.inputs) if is_float(x.dtype)]
        slopes = grad(loss, [the.inputs[i] for i in numbers], unused="zero")
        second = run_reference(the.inputs, slopes, the.arrays)
        graph = Graph(tuple(the.inputs), (loss,))

        def loss_at(changed: Sequence[Array], graph: Graph = graph) -> float:
            return float(evaluate(graph, changed, {})[0][0])

        for i, gradient in zip(numbers, second, strict=True):
            compare_with_differences(loss_at, the.arrays, i, gradient, step=1e-5)
    coverage.note("second gradient", case.op.name, float64)


def compare_with_differences(
    function: object, arrays: Sequence[Array], operand: int, gradient: Array, step: float
) -> None:
    """Compare a gradient with central differences of a function, for elements of one operand."""
    assert callable(function)
    size = arrays[operand].size
    positions = np.arange(size)
    if size > POSITIONS:
        positions = np.random.default_rng(1).choice(size, POSITIONS, replace=False)
    for position in positions:
        ends = []
        for sign in (1, -1):
            changed = [a.copy() for a in arrays]
            changed[operand].reshape(-1)[position] += sign * step
            ends.append(function(changed))
        slope = (ends[0] - ends[1]) / (2 * step)
        npt.assert_allclose(gradient.reshape(-1)[position], slope, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("op", "kind"), sorted(NO_GRADIENT))
def test_collectives_without_a_gradient_raise_gradient_error(op: str, kind: str) -> None:
    (case,) = (
        c
        for c in CASES
        if c.op.name == op
        and c.sample.attrs["reduce_op"] == kind
        and c.dtype == float64
        and c.sample.operands[0].dtype is None
    )
    (x,) = placeholders(case.types)
    loss = sum(*case.apply((x,)))
    with pytest.raises(GradientError, match=rf'{op}\(op="{kind}"\) has no gradient .*\.py:'):
        grad(loss, x)


def undeclared_dtypes() -> list[tuple[Op, Case, np.dtype]]:  # type: ignore[type-arg]
    """Return the first sample of each op, with a dtype that the op does not declare."""
    found = []
    for op in computing_ops():
        cases = [c for c in CASES if c.op is op and c.dtype is not None]
        if cases and bool_ not in op.dtypes and op.dtypes:
            found.append((op, cases[0], bool_))
        if cases and op.dtypes == FLOATS:
            found.append((op, cases[0], np.dtype(np.int32)))
    return found


@pytest.mark.parametrize(
    ("op", "case", "dtype"), undeclared_dtypes(), ids=lambda v: getattr(v, "name", "")
)
def test_an_undeclared_dtype_raises_an_error_of_the_op(op: Op, case: Case, dtype: np.dtype) -> None:  # type: ignore[type-arg]
    types = [Type(o.dtype or dtype, o.shape) for o in case.sample.operands]
    with pytest.raises(DTypeError, match=rf"^{op.name}.*: expected .*; got "):
        op.infer(*types, **case.sample.attrs)
