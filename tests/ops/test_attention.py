# SPDX-License-Identifier: Apache-2.0
"""Tests of attention against PyTorch, of the kernel against its expansion, and of its memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ngd
from ngd import grad, ops
from ngd.dtypes import Array, DType, Type, bfloat16, float16, float32, float64
from ngd.errors import DTypeError, ShapeError
from ngd.graph.node import Node
from ngd.graph.registry import op_named
from ngd.ops._precision import expansion
from ngd.passes.op_costs import cost_of
from tests.ops.cases import placeholders, run_reference
from tests.ops.conftest import Runner
from tests.ops.witness import Shape, agrees, drawn

CPU = pytest.mark.parametrize("device", ["CPU"])
DTYPES = pytest.mark.parametrize("dtype", [float32, float64], ids=str)
PLACES = st.sampled_from([1, 2, 5, 16, 63, 64, 65, 130, 200])
EXTENTS = st.sampled_from([1, 3, 8, 16, 31, 64, 80])


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[Shape, Shape, Shape], str, Shape]:
    """Shapes of query, key and value; a kind of mask; the mask's shape."""
    batch = draw(st.lists(st.sampled_from([1, 2]), min_size=1, max_size=2).map(tuple))
    h, times = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2]))
    places, keys, extent, width = draw(PLACES), draw(PLACES), draw(EXTENTS), draw(EXTENTS)
    shapes = (
        (*batch, h * times, places, extent),
        (*batch, h, keys, extent),
        (*batch, h, keys, width),
    )
    whole = (*batch, h * times, places, keys)
    kept = [draw(st.sampled_from([1, n])) for n in whole]
    mask = tuple(kept[draw(st.integers(0, len(whole) - 2)) :])
    return shapes, draw(st.sampled_from(["none", "causal", "bool", "float"])), mask


@CPU
@DTYPES
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(problem=problems())
def test_pytorch_agrees(
    run: Runner, dtype: DType, problem: tuple[tuple[Shape, Shape, Shape], str, Shape]
) -> None:
    shapes, kind, mask_shape = problem
    rng = np.random.default_rng(8)
    arrays = drawn(dtype, *shapes)
    if kind == "float":  # an operand, for PyTorch's gradient too
        arrays.append(np.asarray(rng.uniform(-1, 1, mask_shape), dtype))
    visible = rng.uniform(size=mask_shape) < 0.6
    visible[..., 0] = True  # PyTorch gives NaN where nothing is seen

    def ours(q: Node, k: Node, v: Node, *mask: Node) -> Node:
        given = mask[0] if mask else visible if kind == "bool" else None
        return ops.attention(q, k, v, given, kind == "causal")

    def theirs(torch: Any, q: Any, k: Any, v: Any, *mask: Any) -> Any:
        given = mask[0] if mask else torch.tensor(visible) if kind == "bool" else None
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, given, is_causal=kind == "causal", enable_gqa=True
        )

    agrees(run, arrays, ours, theirs)


LARGE: list[tuple[Shape, Shape, Shape]] = [
    ((1, 1000, 16), (1, 1000, 16), (1, 1000, 16)),
    ((2, 4, 131, 24), (2, 2, 517, 24), (2, 2, 517, 40)),
    ((4, 517, 7), (1, 131, 7), (1, 131, 3)),
]


def special(dtype: DType, shapes: tuple[Shape, ...], kind: str) -> list[Array]:
    """Return operands with small or large numbers, or with values that are not finite."""
    arrays = drawn(dtype, *shapes)
    if kind == "large":
        arrays = [10 * a for a in arrays]
    elif kind != "small":
        value = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[kind]
        for a in arrays[:2]:
            a.reshape(-1)[a.size // 2] = value
    return arrays


@CPU
@DTYPES
@pytest.mark.parametrize("shapes", LARGE, ids=str)
@pytest.mark.parametrize("kind", ["small", "large", "nan", "inf", "-inf"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_equals_the_expansion(
    run: Runner, dtype: DType, shapes: tuple[Shape, ...], kind: str, causal: bool
) -> None:
    arrays = special(dtype, shapes, kind)
    rng = np.random.default_rng(2)
    mask = rng.uniform(-2, 2, (shapes[0][-2], shapes[1][-2]))
    mask = np.asarray(np.where(mask < -1, -math.inf, mask), dtype)
    mask[5] = -math.inf
    inputs = placeholders([Type(a.dtype, a.shape) for a in arrays])
    attend = ops.attention(*inputs, mask=mask, causal=causal)
    while attend.op.name != "attend":
        (attend, *_) = attend.inputs
    seed = np.asarray(rng.uniform(-1, 1, attend.shape), dtype)
    slopes = grad(ops.sum(attend * seed), inputs)
    by_kernel = run(inputs, [*attend.results, *slopes], arrays)
    stored = expansion(attend)
    by_parts = grad(ops.sum(stored[0] * seed), inputs)
    by_expansion = run(inputs, [*stored, *by_parts], arrays)
    # Attention logits of some hundreds are rounded, and so are the logarithms of their sums.
    tolerance = (1e-5 if dtype == float32 else 1e-13) * (30 if kind == "large" else 1)
    for number, (one, other) in enumerate(zip(by_kernel, by_expansion, strict=True)):
        finite = np.isfinite(one) & np.isfinite(other)
        size = float(np.max(np.abs(other[finite]), initial=1))
        npt.assert_allclose(one[finite], other[finite], rtol=0, atol=tolerance * size)
        if kind in ("small", "large"):
            assert finite.all()
        elif number < 2:
            npt.assert_array_equal(np.isnan(one), np.isnan(other))
        elif not causal:  # blocks that the causal mask hides are not read
            assert np.isnan(one)[np.isnan(other)].all()
    if kind != "nan":
        npt.assert_array_equal(by_kernel[0][..., 5, :], 0)


def test_second_gradients_equal_finite_differences(run: Runner) -> None:
    """The gradients are compared with differences of the first gradients, in float64."""
    arrays = drawn(float64, (2, 5, 3), (1, 4, 3), (1, 4, 2), (5, 4))
    inputs = placeholders([Type(a.dtype, a.shape) for a in arrays])
    y = ops.attention(*inputs[:3], mask=inputs[3], causal=True)
    first = grad(ops.sum(ops.sin(y)), inputs)
    loss = ops.sum(ops.stack([ops.sum(ops.cos(g)) for g in first]))
    second = run(inputs, grad(loss, inputs), arrays)
    for number, (array, slopes) in enumerate(zip(arrays, second, strict=True)):
        for position in range(0, array.size, 3):
            ends = []
            for step in (1e-6, -1e-6):
                changed = [a.copy() for a in arrays]
                changed[number].reshape(-1)[position] += step
                ends.append(run_reference(inputs, [loss], changed)[0])
            wanted = (ends[0] - ends[1]) / 2e-6
            npt.assert_allclose(slopes.reshape(-1)[position], wanted, rtol=1e-6, atol=1e-8)


@CPU
@pytest.mark.parametrize("masking", ["none", "causal", "bool", "float"])
def test_a_long_context_does_not_store_the_attention_matrix(device: str, masking: str) -> None:
    heads, length, extent = 2, 4096, 16
    inputs = placeholders([Type(float32, (heads, length, extent))] * 3)
    mask: Array | None = None
    if masking in ("bool", "float"):
        mask = np.zeros((1, length), bool if masking == "bool" else float32)
    y = ops.attention(*inputs, mask=mask, causal=masking == "causal")
    step = ngd.compile(inputs, [y, *grad(ops.sum(y), inputs)], device=device)
    one = heads * length * extent * 4
    assert step.memory()["private"] < 8 * one < heads * length * length
    assert str(step).count("attend") == 2


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_results_of_16_bit_floats_are_rounded_once(run: Runner, dtype: DType) -> None:
    arrays = drawn(dtype, (3, 70, 8), (3, 70, 8), (3, 70, 8))
    inputs = placeholders([Type(a.dtype, a.shape) for a in arrays])
    y = ops.attention(*inputs, causal=True)
    assert y.dtype == dtype
    (found,) = run(inputs, [y], arrays)
    wide_inputs = placeholders([Type(float64, a.shape) for a in arrays])
    (exact,) = run_reference(
        wide_inputs, [ops.attention(*wide_inputs, causal=True)], [a.astype(float64) for a in arrays]
    )
    unit = 2.0**-11 if dtype == float16 else 2.0**-8
    npt.assert_allclose(found.astype(float64), exact, rtol=1.01 * unit, atol=1e-7)


def test_a_nan_in_the_mask_gives_nan(run: Runner) -> None:
    arrays = drawn(float32, (1, 3, 4), (1, 3, 4), (1, 3, 4))
    mask = np.array([[0, 0, 0], [0, math.nan, 0], [-math.inf, 0, 1]], np.float32)
    inputs = placeholders([Type(a.dtype, a.shape) for a in arrays])
    (found,) = run(inputs, [ops.attention(*inputs, mask=mask)], arrays)
    npt.assert_array_equal(np.isnan(found).all(-1), [[False, True, False]])


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FC00001, 0xFFFFFFFF])
def test_a_nan_in_query_or_key_reaches_the_result(run: Runner, bits: int) -> None:
    """A NaN in a query affects one row. A NaN in a key affects all rows that attend to it."""
    q, k, v = drawn(float32, (2, 70, 4), (2, 70, 4), (2, 70, 4))
    q[0, 3], k[1, 69] = np.array([bits, bits], np.uint32).view(np.float32)
    inputs = placeholders([Type(a.dtype, a.shape) for a in (q, k, v)])
    (found,) = run(inputs, [ops.attention(*inputs)], [q, k, v])
    wanted = np.zeros((2, 70), bool)
    wanted[0, 3] = wanted[1] = True
    npt.assert_array_equal(np.isnan(found).all(-1), wanted)


def test_bad_shapes_and_masks_are_rejected() -> None:
    with pytest.raises(ShapeError, match=r"^attention: .*last axis, or a scale"):
        ops.attention(*[np.ones((2, 3, 0), np.float32)] * 3)
    with pytest.raises(ShapeError, match=r"^attention: .*last axis, or a scale; got float32\[\]"):
        ops.attention(*[np.ones((), np.float32)] * 3)
    q = np.ones((2, 3, 4), np.float32)
    with pytest.raises(ShapeError, match=r"^attention: .*at least one key"):
        ops.attention(q, q[:, :0], q[:, :0])
    with pytest.raises(ShapeError, match=r"^attention: .*divide"):
        ops.attention(np.ones((3, 3, 4), np.float32), q, q)
    with pytest.raises(ShapeError, match=r"^attention: .*broadcast"):
        ops.attention(q, q, q, mask=np.ones((5, 3), bool))
    with pytest.raises(ShapeError, match=r"^attention: .*broadcast"):
        ops.attention(q, q, q, mask=np.ones((4, 2, 3, 3), bool))
    for dtype in ("int64", "int32", "uint8"):
        with pytest.raises(DTypeError, match=r"^attention: mask: .*bool.* got .*astype"):
            ops.attention(q, q, q, mask=np.ones((1, 3), dtype))
    with pytest.raises(DTypeError, match=r"^attention: mask: .* got int64\[\]"):
        ops.attention(q, q, q, mask=1)
    t, mask = Type(float32, q.shape), Type(float64, (3, 3))
    with pytest.raises(DTypeError, match=r"^attend: .*mask"):
        op_named("attend").infer(t, t, t, mask, causal=False, scale=1.0, heads_last=False)


@pytest.mark.parametrize("causal", [False, True])
def test_the_cost_is_that_of_the_two_matmuls(causal: bool) -> None:
    q, k, v = placeholders([Type(float32, (2, 5, 3)), *[Type(float32, (2, 7, 3))] * 2])
    y = ops.attention(q, k, v, causal=causal)
    pairs = 2 * (1 + 2 + 3 + 4 + 5 if causal else 5 * 7)
    (slope,) = grad(ops.sum(y), [q])
    assert y.op.is_heavy
    assert cost_of(y).flops == 2 * pairs * (3 + 3)
    assert cost_of(slope.results[0]).flops == 2 * pairs * 5 * 3


def test_heads_after_the_positions_need_no_transpose() -> None:
    """A model slices query, key and value out of one matmul. The kernel reads them in place."""
    x = placeholders([Type(float32, (2, 70, 3, 4, 8))])
    q, k, v = (ops.transpose(x[0][:, :, i], (0, 2, 1, 3)) for i in range(3))
    y = ops.transpose(ops.attention(q, k, v, causal=True), (0, 2, 1, 3))
    step = str(ngd.compile(x, [y, grad(ops.sum(ops.square(y)), x[0])]))
    assert step.count("attend") == 2
    assert "transpose" not in step
