# SPDX-License-Identifier: Apache-2.0
"""Every op block held to its own word: generated from the samples of the registry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.testing as npt
import pytest
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

from ngd.autodiff import grad
from ngd.dtype import FLOATS, bool_, float64, is_float
from ngd.errors import DTypeError, GradientError
from ngd.ir import Array, Graph, Node, Op, Type
from ngd.ops import multiply, sum
from ngd.ops.precision import expansion
from ngd.reference import evaluate

CASES = all_cases()
NO_GRADIENT = {
    (op, kind)
    for op in ("all_reduce", "reduce_to", "reduce_scatter")
    for kind in ("min", "max", "prod")
}
POSITIONS = 48
"""At most so many elements of an operand are perturbed."""


def named(cases: Sequence[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=str)


def has_gradient(case: Case) -> bool:
    """Whether finite differences in f64 say anything about the case."""
    kind = (case.op.name, case.sample.attrs.get("reduce_op"))
    return (
        case.dtype in (None, float64)
        and case.result.dtype == float64
        and any(t.dtype == float64 for t in case.types)
        and case.op.name != "stop_gradient"
        and kind not in NO_GRADIENT
        and not takes_two(case.op)
    )


@pytest.mark.parametrize("op", computing_ops(), ids=lambda op: op.name)
def test_block_is_complete(op: Op) -> None:
    assert list(op.samples()), "an op without samples is never tested"
    assert (type(op).__doc__ or "").strip()
    assert not (op.elementwise and op.expands)


@named(CASES)
def test_reference_has_the_inferred_type(case: Case) -> None:
    value = np.asarray(case.reference(case.arrays()))
    assert Type(value.dtype, value.shape) == case.result


@named([c for c in CASES if not takes_two(c.op)])
def test_device_matches_reference(case: Case, device: str, run: Runner, coverage: Coverage) -> None:
    coverage.cases_run.add(f"{case} on {device}")
    inputs, arrays = placeholders(case.types), case.arrays()
    (value,) = run(inputs, [case.op.node(inputs, case.sample.attrs)], arrays)
    assert_close(value, np.asarray(case.reference(arrays)))
    coverage.note(device, case.op.name, case.dtype or case.result.dtype)


@named([c for c in CASES if c.op.expands])
def test_expansion_matches_reference(case: Case, coverage: Coverage) -> None:
    inputs, arrays = placeholders(case.types), case.arrays()
    wanted = expansion(case.op.node(inputs, case.sample.attrs))
    (value,) = run_reference(inputs, [wanted], arrays)
    assert_close(value, np.asarray(case.reference(arrays)), slack=8)
    coverage.note("expansion", case.op.name, case.dtype or case.result.dtype)


@named([c for c in CASES if has_gradient(c)])
def test_gradient_matches_finite_differences(case: Case, coverage: Coverage) -> None:
    arrays, dy = case.arrays(), weights(case)
    inputs = placeholders([*case.types, case.result])
    *operands, seed = inputs
    loss = sum(multiply(case.op.node(operands, case.sample.attrs), seed))
    wrt = [i for i, x in enumerate(operands) if is_float(x.dtype)]
    gradients = run_reference(inputs, grad(loss, [operands[i] for i in wrt]), [*arrays, dy])

    def loss_at(changed: Sequence[Array]) -> float:
        return float(np.sum(case.reference(changed) * dy))

    for i, gradient in zip(wrt, gradients, strict=True):
        compare_with_differences(loss_at, arrays, i, gradient, step=1e-6)
    coverage.note("gradient", case.op.name, float64)


@named([c for c in CASES if has_gradient(c)])
def test_gradients_on_a_device(case: Case, run: Runner) -> None:
    """The same graph of gradients as the references compute it: whatever passes make of it."""
    inputs = placeholders([*case.types, case.result])
    *operands, seed = inputs
    loss = sum(multiply(case.op.node(operands, case.sample.attrs), seed))
    outputs = [loss, *grad(loss, [x for x in operands if is_float(x.dtype)])]
    arrays = [*case.arrays(), weights(case)]
    expected = run_reference(inputs, outputs, arrays)
    for found, wanted in zip(run(inputs, outputs, arrays), expected, strict=True):
        assert_close(found, wanted, slack=8)


@named([c for c in CASES if has_gradient(c) and c.op.smooth])
def test_second_gradient_matches_finite_differences(case: Case, coverage: Coverage) -> None:
    """The gradients, weighted and summed, differentiated by the operands and by dy."""
    arrays = [*case.arrays(), weights(case)]
    inputs = placeholders([*case.types, case.result])
    *operands, seed = inputs
    loss = sum(multiply(case.op.node(operands, case.sample.attrs), seed))
    first = grad(loss, [x for x in operands if is_float(x.dtype)])
    rng = np.random.default_rng(7)
    factors = [rng.uniform(-1, 1, g.shape) for g in first]
    total = weighted_sum(first, factors)
    wrt = [i for i, x in enumerate(inputs) if is_float(x.dtype)]
    second = run_reference(inputs, grad(total, [inputs[i] for i in wrt], unused="zero"), arrays)
    graph = Graph(tuple(inputs), (total,))

    def total_at(changed: Sequence[Array]) -> float:
        return float(evaluate(graph, changed, {})[0][0])

    for i, gradient in zip(wrt, second, strict=True):
        compare_with_differences(total_at, arrays, i, gradient, step=1e-5)
    coverage.note("second gradient", case.op.name, float64)


def weights(case: Case) -> Array:
    """What a result is multiplied with before it is summed to a loss."""
    return np.asarray(np.random.default_rng(3).uniform(0.5, 1.5, case.result.shape))


def weighted_sum(nodes: Sequence[Node], factors: Sequence[Array]) -> Node:
    parts = [sum(multiply(n, f)) for n, f in zip(nodes, factors, strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def compare_with_differences(
    function: object, arrays: Sequence[Array], operand: int, gradient: Array, step: float
) -> None:
    """Central differences of a function of all arrays, element by element of one of them."""
    assert callable(function)
    size = arrays[operand].size
    places = np.arange(size)
    if size > POSITIONS:
        places = np.random.default_rng(1).choice(size, POSITIONS, replace=False)
    for place in places:
        ends = []
        for sign in (1, -1):
            changed = [a.copy() for a in arrays]
            changed[operand].reshape(-1)[place] += sign * step
            ends.append(function(changed))
        slope = (ends[0] - ends[1]) / (2 * step)
        npt.assert_allclose(gradient.reshape(-1)[place], slope, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("op", "kind"), sorted(NO_GRADIENT))
def test_collectives_without_a_gradient_say_so(op: str, kind: str) -> None:
    (case,) = (
        c
        for c in CASES
        if c.op.name == op
        and c.sample.attrs["reduce_op"] == kind
        and c.dtype == float64
        and c.sample.operands[0].dtype is None
    )
    (x,) = placeholders(case.types)
    loss = sum(case.op.node((x,), case.sample.attrs))
    with pytest.raises(GradientError, match=rf'{op}\(op="{kind}"\) has no gradient .*\.py:'):
        grad(loss, x)


def refused_dtypes() -> list[tuple[Op, Case, np.dtype]]:  # type: ignore[type-arg]
    """Per op its first sample, with a dtype that the op does not declare."""
    found = []
    for op in computing_ops():
        cases = [c for c in CASES if c.op is op and c.dtype is not None]
        if cases and bool_ not in op.dtypes and op.dtypes:
            found.append((op, cases[0], bool_))
        if cases and op.dtypes == FLOATS:
            found.append((op, cases[0], np.dtype(np.int32)))
    return found


@pytest.mark.parametrize(
    ("op", "case", "dtype"), refused_dtypes(), ids=lambda v: getattr(v, "name", "")
)
def test_wrong_dtype_is_an_error_of_the_op(op: Op, case: Case, dtype: np.dtype) -> None:  # type: ignore[type-arg]
    types = [Type(o.dtype or dtype, o.shape) for o in case.sample.operands]
    with pytest.raises(DTypeError, match=rf"^{op.name}.*: expected .*; got "):
        op.infer(*types, **case.sample.attrs)
