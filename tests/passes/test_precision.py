# SPDX-License-Identifier: Apache-2.0
"""Tests of steps in 16-bit floats: which values are rounded, and which are not."""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import numpy.testing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ngd
from ngd import nn, ops, optim
from ngd.errors import CompileError, DTypeError, PrecisionWarning
from tests.passes.layers import block, multiplies, needs_bfloat16

DEVICES = (pytest.param("CPU", marks=needs_bfloat16), "INTERPRETER")
BF16 = np.dtype(ml_dtypes.bfloat16)
random = np.random.default_rng(7)


def rounded(x: Any) -> Any:
    """Return float32 values rounded to bfloat16 by ml_dtypes."""
    return np.asarray(x, np.float32).astype(BF16).astype(np.float32)


def normal(*shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


def instructions(step: Any) -> list[str]:
    return [line.strip() for line in str(step).splitlines() if re.match(r"\s+\d+:", line)]


def types_of(step: Any) -> dict[str, str]:
    """Return the dtypes of the values of a program."""
    return dict(re.findall(r"(%\d+) : (\w+)\[", str(step)))


def operands(line: str) -> list[str]:
    """Return the operands of an instruction."""
    return re.findall(r"%\d+", re.split(r"= \w+\(", line)[1].split(")")[0])


@pytest.mark.parametrize("device", DEVICES)
def test_a_matmul_rounds_only_its_operands(device: str) -> None:
    x, w = normal(9, 31), normal(31, 5)
    node, variable = ngd.placeholder("x", x.shape, "float32"), ngd.variable("w", w)
    step = ngd.compile([node], [node @ variable], precision="bfloat16", device=device)
    (found,) = step(x)
    assert found.dtype == np.float32
    exact = rounded(x).astype(np.float64) @ rounded(w).astype(np.float64)
    npt.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)
    assert np.abs(found - x.astype(np.float64) @ w).max() > 1e-4


@pytest.mark.parametrize("device", DEVICES)
def test_a_convolution_and_its_gradients_round_only_their_operands(device: str) -> None:
    x, w = normal(2, 16, 8, 8), normal(16, 16, 3, 3)
    node, variable = ngd.placeholder("x", x.shape, "float32"), ngd.variable("w", w)
    y = ops.conv(node, variable, padding=1)
    wanted = [y, *ngd.grad(ops.sum(y * y), [node, variable])]
    given = [node]
    found = ngd.compile(given, wanted, precision="bfloat16", device=device)(x)
    variable.assign(rounded(w))
    value, to_x, to_w = ngd.compile(given, wanted, device=device)(rounded(x))
    npt.assert_allclose(found[0], value, rtol=1e-4, atol=1e-4)
    for narrow, wide in zip(found[1:], (to_x, to_w), strict=True):
        npt.assert_allclose(narrow, wide, rtol=0.02, atol=0.01 * np.abs(wide).max())


@pytest.mark.parametrize("device", DEVICES)
def test_updates_are_float32(device: str) -> None:
    w = ngd.variable("w", (1 + 2**-20) * np.ones((16, 16), np.float32))
    x = ngd.placeholder("x", (4, 16), "float32")
    loss = ops.sum(x @ w)
    (slope,) = ngd.grad(loss, [w])
    updates = {w: w * (1 - 2**-10) - 2**-12 * slope}
    step = ngd.compile([x], [loss], updates, precision="bfloat16", device=device)
    step(np.ones((4, 16), np.float32))
    npt.assert_array_equal(
        w.numpy(), np.float32(1 + 2**-20) * np.float32(1 - 2**-10) - np.float32(4 * 2**-12)
    )


@needs_bfloat16
def test_values_between_matmuls_are_stored_in_16_bits() -> None:
    x = ngd.placeholder("x", (512, 128), "float32")
    layers = [ngd.variable(f"w{n}", normal(128, 128)) for n in range(3)]
    y = x
    for w in layers:
        y = ops.tanh(y @ w) * y
    loss = ops.mean(y * y)
    slopes = ngd.grad(loss, layers)
    narrow = ngd.compile([x], [loss, *slopes], device="CPU", precision="bfloat16")
    wide = ngd.compile([x], [loss, *slopes], device="CPU")
    assert narrow.memory()["private"] < 0.7 * wide.memory()["private"]
    products = [line for line in instructions(narrow) if " matmul(" in line]
    types = types_of(narrow)
    assert len(products) == 8  # three forward, three for weights, two for activations
    for line in products:
        assert {types[each] for each in operands(line)} == {"bf16"}, line


@needs_bfloat16
def test_statistics_are_float32_and_read_16_bit_values() -> None:
    x = ngd.placeholder("x", (4, 16, 8, 8), "float32")
    w, scale = ngd.variable("w", normal(16, 16, 3, 3)), ngd.variable("s", np.ones(16, np.float32))
    y = x
    for _ in range(2):
        y, mean, variance = ops.batch_norm(ops.conv(ops.relu(y), w, padding=1), scale)
    wanted = [ops.sum(ops.conv(y, w)), mean, variance]
    step = ngd.compile([x], wanted, device="CPU", precision="bfloat16")
    types = types_of(step)
    moments = [line for line in instructions(step) if "= moments(" in line]
    assert len(moments) == 2
    for line in moments:
        make_step = re.findall(r"%\d+", line.split("=")[0])
        assert [types[each] for each in operands(line)] == ["bf16"]
        assert {types[each] for each in make_step} == {"f32"}


@needs_bfloat16
def test_gradients_that_are_sums_read_16_bit_values() -> None:
    x, w = ngd.placeholder("x", (4, 16, 8, 8), "float32"), normal(16, 16, 3, 3)
    y, variables = x, []
    for n in range(3):
        layer = [ngd.variable(f"w{n}", w / 12)]
        layer += [ngd.variable(f"{name}{n}", np.ones(16, np.float32)) for name in ("scale", "b")]
        y = ops.relu(ops.batch_norm(ops.conv(y, layer[0], padding=1), *layer[1:])[0])
        variables += layer
    loss = ops.mean(ops.conv(y, variables[0]) ** 2)
    updates = optim.SGD(0.1, momentum=0.9).minimize(loss, variables)
    step = ngd.compile([x], [loss], [updates], device="CPU", precision="bfloat16")
    large = re.findall(r"%\d+ : (\w+)\[(4,8,8,16|4,16,8,8)\]", str(step))
    assert [dtype for dtype, _ in large].count("f32") == 1  # x
    assert len(large) > 8


@needs_bfloat16
@pytest.mark.parametrize("weighted", [False, True])
def test_weights_with_averages_are_not_rounded(weighted: bool) -> None:
    """A matmul reads the variables, and the next value of one variable is a sum of both."""
    x = ngd.placeholder("x", (8, 64), "float32")
    w = ngd.variable("w", np.ones((64, 64), np.float32))
    d = ngd.variable("d", np.full((64, 64), 1e-3, np.float32))
    each = ngd.variable("each", np.ones((2, 1, 1), np.float32))
    both = ops.stack([w, d])
    total = ops.sum(both * each if weighted else both, axis=0)
    step = ngd.compile([x], [x @ both], {w: total}, device="CPU", precision="bfloat16")
    for _ in range(100):
        step(normal(8, 64))
    npt.assert_allclose(w.numpy(), 1.1, rtol=1e-5)


@needs_bfloat16
def test_collectives_send_float32() -> None:
    x, w = ngd.placeholder("x", (8, 16), "float32"), ngd.variable("w", normal(16, 16))
    (slope,) = ngd.grad(ops.sum(ops.tanh(x @ w)), [w])
    mean = ops.all_reduce(slope, op="mean")
    step = ngd.compile([x], [], {w: w - 0.1 * mean}, device="CPU", precision="bfloat16")
    text = str(step.graph)
    assert "all_reduce" in text
    assert text.splitlines()[0].endswith("in bf16")
    before, batch = w.numpy(), normal(8, 16)
    step(batch)
    inner = rounded(batch) @ rounded(before)
    wanted = rounded(batch).T @ (1 - np.tanh(inner) ** 2)
    npt.assert_allclose(w.numpy(), before - 0.1 * wanted, atol=0.01)


@pytest.mark.parametrize("device", DEVICES)
def test_a_precision_block_keeps_float32(device: str) -> None:
    x, w = ngd.placeholder("x", (32, 16), "float32"), ngd.variable("w", normal(16, 16))
    v, bias = ngd.variable("v", normal(16, 16)), ngd.variable("b", normal(16))

    def make_step(precision: str, blocks: bool) -> list[Any]:
        y = x @ w
        with ngd.full_precision() if blocks else contextlib.nullcontext():
            z = ops.tanh(y @ v)
        loss = ops.sum((z + bias) * (z + bias))
        wanted = [z, *ngd.grad(loss, [v])]
        return ngd.compile([x], wanted, device=device, precision=precision)(batch)  # type: ignore[no-any-return]

    batch = normal(32, 16)
    exact, kept, narrow = (
        make_step("float32", False),
        make_step("bfloat16", True),
        make_step("bfloat16", False),
    )
    y = rounded(batch).astype(float) @ rounded(w.numpy())  # a matmul outside of the block
    z = np.tanh(y @ v.numpy())
    slope = y.T @ (2 * (z + bias.numpy()) * (1 - z * z))
    npt.assert_allclose(kept[0], z, rtol=1e-4, atol=1e-4)
    npt.assert_allclose(kept[1], slope, rtol=1e-3, atol=1e-3)
    for one, other in zip(narrow, exact, strict=True):
        assert np.abs(one - other).max() > 1e-3


def test_a_block_ends_at_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), ngd.full_precision():
        1 / 0  # noqa: B018
    assert not ngd.placeholder("x", (2,), "float32").keeps_float32


def test_a_block_around_a_traced_call_is_rejected() -> None:
    doubled = ngd.function(lambda x: x * 2)
    with pytest.raises(TypeError, match=r"ngd\.full_precision"), ngd.full_precision():
        doubled(np.ones(2))


@needs_bfloat16
def test_a_function_has_its_own_precision() -> None:
    w = ngd.variable("w", normal(8, 8))
    product = ngd.function(lambda x: x @ w, precision="bfloat16")
    batch = normal(4, 8)
    exact = rounded(batch).astype(float) @ rounded(w.numpy())
    npt.assert_allclose(product(batch), exact, rtol=1e-5, atol=1e-5)
    with pytest.raises(DTypeError, match=r"function: precision: expected .*int8"):
        ngd.function(precision="int8")


def weights(*names: str) -> list[Any]:
    return [ngd.variable(name, (normal(32, 32) / 6)) for name in names]


def check_agreement(
    given_: list[Any], wanted: list[Any], arrays: list[Any], atol: float = 0.1
) -> None:
    """Check that the CPU in bfloat16 nearly gives the float32 results."""
    exact = ngd.compile(given_, wanted, device="CPU")(*arrays)
    found = ngd.compile(given_, wanted, device="CPU", precision="bfloat16")(*arrays)
    for one, other in zip(found, exact, strict=True):
        npt.assert_allclose(one, other, rtol=0, atol=atol * (np.abs(other).max() + 1e-3))


@needs_bfloat16
def test_an_input_that_is_multiplied_is_converted_once() -> None:
    x = ngd.placeholder("x", (64, 32), "float32")
    a, b, c = weights("a", "b", "c")
    h = ops.tanh(x @ a)
    check_agreement([x], [(h + ops.relu(ops.layer_norm(h, 32) @ b)) @ c, h], [normal(64, 32)])
    check_agreement([x], [(ops.exp(h) * ops.cumsum(h, 0)) @ c], [normal(64, 32)])


@needs_bfloat16
@pytest.mark.parametrize(
    "inside", [lambda h: ops.exp(h) * 2, lambda h: ops.layer_norm(h, 32), ops.tanh]
)
def test_a_value_of_a_block_is_rounded_by_a_matmul_outside(inside: Any) -> None:
    x = ngd.placeholder("x", (64, 32), "float32")
    a, b = weights("a", "b")
    with ngd.full_precision():
        make_step = inside(x @ a)
    check_agreement([x], [make_step @ b], [normal(64, 32)])


@needs_bfloat16
def test_blocks_cause_no_cycles_of_kernels() -> None:
    x = ngd.placeholder("x", (64, 32), "float32")
    h = ops.tanh(x @ weights("a")[0])
    with ngd.full_precision():
        gate = ops.sigmoid(h)
    y = h * gate + x
    check_agreement([x], [y, *ngd.grad(ops.sum(y), [x])], [normal(64, 32)])


def test_a_matmul_of_a_block_stays_float32_after_a_reshape() -> None:
    x, (w,), batch = ngd.placeholder("x", (32, 32), "float32"), weights("w"), normal(32, 32)
    with ngd.full_precision():
        y = x @ w
    z = ops.relu(ops.reshape(y, (8, 4, 32)))
    (found,) = ngd.compile([x], [z], device="CPU", precision="bfloat16")(batch)
    exact = np.maximum(batch.astype(float) @ w.numpy(), 0).reshape(8, 4, 32)
    npt.assert_allclose(found, exact, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_gradient_built_in_a_block_stays_float32(device: str) -> None:
    x, (w,), batch = ngd.placeholder("x", (32, 32), "float32"), weights("w"), normal(32, 32)
    loss = ops.sum(ops.tanh(x) @ w * 0.5)
    with ngd.full_precision():
        (slope,) = ngd.grad(loss, [w])
    (found,) = ngd.compile([x], [slope], device=device, precision="bfloat16")(batch)
    npt.assert_allclose(found, 0.5 * np.tanh(batch).sum(0)[:, None] * np.ones(32), rtol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_weights_between_two_updates_in_a_step_are_float32(device: str) -> None:
    w, x = ngd.variable("w", np.ones((16, 16), "f")), ngd.placeholder("x", (8, 16), "float32")
    now: Any = w
    for _ in range(2):
        loss = ops.sum(x @ now)
        (slope,) = ngd.grad(loss, [now])
        now = now - 1e-5 * slope
    step = ngd.compile([x], [loss], {w: now}, device=device, precision="bfloat16")
    for _ in range(10):
        step(np.ones((8, 16), "f"))
    npt.assert_allclose(w.numpy(), 1 - 20 * 8e-5, rtol=1e-6)


@needs_bfloat16
@pytest.mark.parametrize("largest", [ops.max, ops.min])
@pytest.mark.parametrize("limited", [False, True])
def test_max_and_its_gradient_find_the_same_element(largest: Any, limited: bool) -> None:
    u, w = weights("u", "w")
    x, batch = ngd.placeholder("x", (64, 32), "float32"), normal(64, 32)
    h = ops.tanh(x @ u) * 1.1
    y = (h @ w) * 0.001 + largest(h, 1, keepdims=True)
    slopes = ngd.grad(ops.mean(y * y), [u])
    (exact,) = ngd.compile([x], slopes, device="CPU")(batch)
    step = ngd.compile([x], slopes, device="CPU", precision="bfloat16")
    if limited:
        with contextlib.suppress(CompileError):
            limit = int(0.9 * step.memory()["private"])
            step = ngd.compile([x], slopes, device="CPU", precision="bfloat16", memory_limit=limit)
    # If two values are nearly equal, rounding may make the other one the largest.
    assert np.linalg.norm(step(batch)[0] - exact) < 0.5 * np.linalg.norm(exact)


@needs_bfloat16
def test_rows_of_a_table_are_rounded_and_not_the_table() -> None:
    table, ids = ngd.variable("t", normal(20_000, 32)), ngd.placeholder("i", (8,), "int64")
    (w,) = weights("w")
    wanted = [ops.take(table, ids) @ w, table[:64] @ w]
    step = ngd.compile([ids], wanted, device="CPU", precision="bfloat16")
    assert step.memory()["private"] < 100_000


@needs_bfloat16
@pytest.mark.parametrize(
    ("data", "kernel", "stride", "padding"),
    [
        ((2, 8, 4, 22), (8, 8, 1, 1), 2, 0),  # oneDNN loses values between strides
        ((8, 16, 2, 1), (16, 16, 3, 3), 2, 1),  # a position of the kernel reads only padding
        ((2, 4, 8, 1, 3), (4, 4, 3, 3, 3), 2, 1),
        ((3, 3, 15, 6), (1, 3, 1, 1), 3, 0),
    ],
)
def test_convolutions_that_onednn_computes_wrong_in_bfloat16_stay_float32(
    data: tuple[int, ...], kernel: tuple[int, ...], stride: int, padding: int
) -> None:
    x, w = ngd.placeholder("x", data, "float32"), ngd.placeholder("w", kernel, "float32")
    y = ops.conv(x, w, stride=stride, padding=padding)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no other op multiplies here
        check_agreement(
            [x, w], [y, *ngd.grad(ops.sum(y * y), [x, w])], [normal(*data), normal(*kernel)], 0.05
        )


def test_unknown_precisions_are_rejected() -> None:
    x = ngd.placeholder("x", (2,), "float32")
    for wrong, said in (("float64", "float64"), ("int8", "int8"), ("half-ish", "half-ish")):
        with pytest.raises(DTypeError, match=rf"compile: precision: expected .*{said}"):
            ngd.compile([x], [x], precision=wrong)


@needs_bfloat16
def test_each_precision_is_a_separate_step() -> None:
    x, w = ngd.placeholder("x", (4, 8), "float32"), ngd.variable("w", normal(8, 8))
    y = x @ w
    make_step = {dtype: ngd.compile([x], [y], precision=dtype) for dtype in ("float32", "bfloat16")}
    assert make_step["float32"] is ngd.compile([x], [y])
    assert make_step["bfloat16"] is ngd.compile([x], [y], precision=ngd.bfloat16)
    assert make_step["bfloat16"] is not make_step["float32"]


def test_without_16_bit_kernels_steps_stay_float32_and_warn() -> None:
    if multiplies("float16"):
        pytest.skip("this CPU's kernels multiply float16")
    x, w = ngd.placeholder("x", (4, 8), "float32"), ngd.variable("w", normal(8, 8))
    y = x @ w
    found = rf"^compile: precision: expected a float16 kernel .*; got .* matmul .*{y.site}"
    with pytest.warns(PrecisionWarning, match=found) as caught:
        step = ngd.compile([x], [y], device="CPU", precision="float16")
    assert caught[0].filename == __file__
    (found,) = step(batch := normal(4, 8))
    npt.assert_allclose(found, batch @ w.numpy(), rtol=1e-5, atol=1e-5)


def test_float16_on_the_interpreter_rounds_operands() -> None:
    x, w = ngd.placeholder("x", (4, 8), "float32"), ngd.variable("w", normal(8, 8))
    step = ngd.compile([x], [x @ w], device="INTERPRETER", precision="float16")
    (found,) = step(batch := normal(4, 8))
    exact = batch.astype(np.float16).astype(float) @ w.numpy().astype(np.float16).astype(float)
    npt.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


@needs_bfloat16
def test_explicit_casts_are_kept() -> None:
    x, w = ngd.placeholder("x", (4, 8), "float32"), ngd.variable("w", normal(8, 8))
    y = ops.tanh(ops.cast(x, "bfloat16") * 2)
    wanted = [y, ops.cast(y, "float32") @ w]
    found = ngd.compile([x], wanted, device="CPU", precision="bfloat16")(batch := normal(4, 8))
    assert [each.dtype for each in found] == [BF16, np.float32]
    npt.assert_array_equal(found[0], ngd.compile([x], [y], device="CPU")(batch)[0])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=5),
    st.integers(1, 40),
    st.sampled_from([8, 16, 34]),
    st.integers(0, 2**32 - 1),
)
def test_the_cpu_and_the_references_agree(
    kinds: list[int], rows: int, width: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    x = ngd.placeholder("x", (rows, width), "float32")
    weights = [
        ngd.variable(f"w{n}", (draw.standard_normal((width, width)) * width**-0.5).astype("f"))
        for n in range(2)
    ]
    y = x
    for number, kind in enumerate(kinds):
        y = block(y, weights[number % 2], kind)
    loss = ops.mean(y * y)
    read = weights[: len(kinds)]
    wanted = [loss, y, *ngd.grad(loss, read, unused="zero")]
    batch = draw.standard_normal((rows, width)).astype("f")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a CPU without bfloat16 kernels
        make_step = [
            ngd.compile([x], wanted, device=device, precision=precision)(batch)
            for device, precision in (
                ("CPU", "bfloat16"),
                ("INTERPRETER", "bfloat16"),
                ("INTERPRETER", "float32"),
            )
        ]
    scales = [np.abs(exact).max(initial=0) + 1e-3 for exact in make_step[2]]
    rounded = [
        np.abs(slow - exact).max(initial=0) / scale
        for slow, exact, scale in zip(*make_step[1:], scales, strict=True)
    ]
    assume(max(rounded) < 0.15)  # a larger error means that the network amplifies rounding
    for cpu, slow, exact, scale, part in zip(*make_step, scales, rounded, strict=True):
        assert cpu.dtype == slow.dtype == np.float32
        npt.assert_allclose(cpu, slow, rtol=0, atol=(0.05 + 2 * part) * scale)
        npt.assert_allclose(cpu, exact, rtol=0, atol=(0.05 + 3 * part) * scale)


@needs_bfloat16
def test_training_in_bfloat16_ends_like_float32() -> None:
    batch, labels = normal(64, 32), random.integers(0, 10, 64)
    ends = []
    for precision in ("float32", "bfloat16"):
        model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))
        start = np.random.default_rng(3)
        for variable in model.parameters().values():
            drawn = start.standard_normal(variable.shape) * 0.2
            variable.assign(drawn.astype(np.float32))
        x, t = ngd.placeholder("x", (64, 32), "float32"), ngd.placeholder("t", (64,), "int64")
        loss = ops.mean(ops.softmax_cross_entropy(model(x), t))
        updates = optim.AdamW(1e-3).minimize(loss, model.parameters())
        step = ngd.compile([x, t], [loss], updates, device="CPU", precision=precision)
        ends.append(float([step(batch, labels) for _ in range(60)][-1][0]))
    assert ends[1] == pytest.approx(ends[0], rel=0.01)
    assert ends[0] < 2.0
