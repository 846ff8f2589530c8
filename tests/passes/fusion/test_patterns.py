# SPDX-License-Identifier: Apache-2.0
"""Tests of the pattern matcher and of each fusion rule: fused kernels equal separate ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import ops
from ngd.graph.node import Node
from ngd.passes.fusion.patterns import Pattern

RNG = np.random.default_rng(5)


def placeholders(*shapes: tuple[int, ...], dtype: str = "float32") -> list[Node]:
    """Return a placeholder of each shape."""
    return [ngd.placeholder(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)]


def kernels(inputs: list[Node], outputs: list[Node]) -> list[str]:
    """Return the kernels of a graph on the CPU, after a comparison with the INTERPRETER."""
    step = ngd.compile(inputs, outputs, device="CPU")
    arrays = [RNG.uniform(-1, 1, x.shape).astype(x.dtype) for x in inputs]
    expected = ngd.compile(inputs, outputs, device="INTERPRETER")(*arrays)
    for found, wanted in zip(step(*arrays), expected, strict=True):
        npt.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    lines = [line for line in str(step).splitlines() if line.partition(":")[0].strip().isdigit()]
    return [line.split(" = ")[1] for line in lines]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("build", "post"),
    [
        (lambda a, b, c: a @ b + c, False),
        (lambda a, b, c: c + a @ b, False),
        (lambda a, b, c: ops.relu(a @ b + c), True),
        (lambda a, b, c: ops.relu(a @ b), True),
    ],
)
def test_a_bias_and_a_relu_are_fused_into_the_matmul(
    build: Callable[..., Node], post: bool, dtype: str
) -> None:
    inputs = placeholders((3, 4), (4, 5), (5,), dtype=dtype)
    result = build(*inputs)
    (only,) = kernels(inputs, [result])
    assert only.startswith("matmul(")
    assert ('post=("relu")' in only) == post
    assert (only.split(")")[0].count(",") == 2) == any(i is inputs[2] for i in all_nodes(result))


POSTS: dict[str, Callable[[Node], Node]] = {
    "gelu": ops.gelu,
    "gelu_tanh": lambda x: ops.gelu(x, "tanh"),
    "silu": ops.silu,
}
needs_onednn = pytest.mark.skipif(
    not ngd.build_info()["onednn"], reason="this build has no oneDNN, whose epilogue it is"
)


@needs_onednn
@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("bias", [False, True])
def test_activations_are_fused_into_the_matmul(post: str, bias: bool) -> None:
    a, b, c = placeholders((7, 5), (5, 33), (33,))
    product = a @ b + c if bias else a @ b
    (only,) = kernels([a, b, c], [POSTS[post](product)])
    assert f'post=("{post}")' in only


@needs_onednn
@pytest.mark.parametrize(
    ("build", "posts"),
    [
        (lambda a, b, c, d: d + a @ b, '("add")'),
        (lambda a, b, c, d: a @ b + c + d, '("add")'),
        (lambda a, b, c, d: ops.relu(a @ b + c + d), '("add","relu")'),
        (lambda a, b, c, d: ops.silu(d + (a @ b + c)), '("add","silu")'),
        (lambda a, b, c, d: ops.gelu(a @ b) + d, '("gelu","add")'),
    ],
)
def test_a_residual_sum_is_fused_into_the_matmul(build: Callable[..., Node], posts: str) -> None:
    given = placeholders((7, 5), (5, 33), (33,), (7, 33))
    (only,) = kernels(given, [build(*given)])
    assert f"post={posts}" in only


@needs_onednn
def test_residual_sums_are_fused_once_per_matmul() -> None:
    x, w, y = placeholders((2, 3, 4), (4, 4), (2, 3, 4))
    loss = ops.sum(ops.square(y + x @ w))
    names = kernels([x, w, y], [loss, *ngd.grad(loss, [x, w, y])])
    assert str(names).count('post=("add")') == 1
    a, b = placeholders((5, 4), (4, 4))
    names = kernels([a, b], [a @ b + (a * 2) @ b])  # the second matmul adds the first
    assert str(names).count("matmul(") == 2
    assert str(names).count('post=("add")') == 1
    names = kernels([a, b], [(a @ b + a) + ops.exp(a)])  # a matmul adds one operand
    assert str(names).count('post=("add")') == 1


def test_other_sums_are_not_fused_into_the_matmul() -> None:
    a, b, row, wide = placeholders((5, 4), (4, 4), (1, 4), (3, 5, 4))
    for result in (a @ b + wide, a @ b + row * 2, a @ b + ops.broadcast_to(row, (5, 4))):
        assert '"add"' not in str(kernels([a, b, row, wide], [result]))


@needs_onednn
def test_an_activation_of_a_batched_matmul_is_fused() -> None:
    x, w = placeholders((2, 3, 4), (4, 5))
    product, total = kernels([x, w], [ops.sum(ops.gelu(x @ w))])
    assert 'post=("gelu")' in product
    assert total.startswith("reduce(")


def test_activations_of_other_dtypes_are_not_fused() -> None:
    inputs = placeholders((3, 4), (4, 5), dtype="float64")
    assert "post" not in str(kernels(inputs, [ops.gelu(inputs[0] @ inputs[1])]))


@pytest.mark.parametrize("post", POSTS)
def test_a_training_step_stores_what_the_gradient_reads(post: str) -> None:
    a, b = placeholders((7, 5), (5, 3))
    loss = ops.sum(POSTS[post](a @ b))
    names = kernels([a, b], [loss, ngd.grad(loss, b)])
    assert "post" not in str(names)
    assert str(names).count("matmul(") == 2
    again = POSTS[post](a @ b)  # the same value again, which no gradient reads
    assert str(kernels([a, b], [again, ngd.grad(loss, b)])).count("matmul(") == 2


SHAPES = [
    ((2, 4, 9), (6, 4, 3), 1),
    ((2, 4, 9, 8), (6, 2, 3, 3), 2),
    ((2, 4, 5, 6, 7), (6, 4, 1, 1, 1), 1),
]


@needs_onednn
@pytest.mark.parametrize(("x", "w", "groups"), SHAPES)
@pytest.mark.parametrize("post", [None, *POSTS])
def test_a_bias_and_an_activation_are_fused_into_the_convolution(
    x: tuple[int, ...], w: tuple[int, ...], groups: int, post: str | None
) -> None:
    data, weights, bias = placeholders(x, w, w[:1])
    y = ops.conv(data, weights, bias, padding=1, groups=groups)
    names = kernels([data, weights, bias], [POSTS[post](y) if post else y])
    (conv,) = [line for line in names if line.startswith("conv(")]
    assert conv.split(")")[0].count(",") == 2
    assert (f'post=("{post}")' in conv) == (post is not None)
    assert not any(line.startswith("elementwise(") for line in names)


@needs_onednn
def test_a_convolution_in_training_fuses_only_its_bias() -> None:
    data, weights, bias = given = placeholders((2, 4, 9, 8), (6, 4, 3, 3), (6,))
    loss = ops.sum(ops.silu(ops.conv(data, weights, bias)))
    names = kernels(given, [loss, *ngd.grad(loss, given)])
    (conv,) = [line for line in names if line.startswith("conv(")]
    assert conv.split(")")[0].count(",") == 2
    assert "post" not in conv


def test_other_sums_are_not_fused_into_the_convolution() -> None:
    data, weights, rows = placeholders((2, 4, 9, 8), (6, 4, 3, 3), (7, 1))
    assert "elementwise(" in str(kernels([data, weights, rows], [ops.conv(data, weights) + rows]))


@pytest.mark.parametrize(("x", "w", "groups"), SHAPES)
def test_a_convolution_with_bias_and_activation_equals_separate_kernels(
    x: tuple[int, ...], w: tuple[int, ...], groups: int
) -> None:
    inputs = placeholders(x, w, w[:1], dtype="float64")
    plain = ops.conv(*inputs[:2], stride=2, groups=groups)
    attrs = plain.attrs | {"post": ("gelu", "silu")}
    apart = ops.silu(ops.gelu(ops.conv(*inputs, stride=2, groups=groups)))
    outputs = [
        [y, *ngd.grad(ops.sum(y * y), inputs)] for y in (apart, plain.op.node(inputs, attrs))
    ]
    arrays = [RNG.uniform(-1, 1, each.shape) for each in inputs]
    wanted, found = (ngd.compile(inputs, y, device="INTERPRETER")(*arrays) for y in outputs)
    for got, want in zip(found, wanted, strict=True):
        npt.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "posts", [("relu",), ("gelu", "relu"), ("silu", "gelu_tanh"), ("add",), ("gelu", "add", "relu")]
)
@pytest.mark.parametrize("bias", [False, True])
def test_a_matmul_with_post_operations_equals_separate_kernels(
    posts: tuple[str, ...], bias: bool
) -> None:
    a, b, c, d = placeholders((4, 3), (3, 5), (5,), (4, 5), dtype="float64")
    apart = a @ b + c if bias else a @ b
    for name in posts:
        apart = (POSTS | {"relu": ops.relu, "add": lambda x: x + d})[name](apart)
    inputs = [a, b, *([c] if bias else []), *([d] if "add" in posts else [])]
    fused = ops.matmul.node(inputs, {"transpose_a": False, "transpose_b": False, "post": posts})
    outputs = [[y, *ngd.grad(ops.sum(y * y), inputs)] for y in (apart, fused)]
    arrays = [RNG.uniform(-1, 1, x.shape) for x in inputs]
    wanted, found = (ngd.compile(inputs, y, device="INTERPRETER")(*arrays) for y in outputs)
    for got, want in zip(found, wanted, strict=True):
        npt.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@needs_onednn
@pytest.mark.parametrize("post", ["relu", *POSTS])
@pytest.mark.parametrize("simd", ["avx512_core", "avx2", "sse41"])
def test_nan_and_infinity_stay_in_fused_kernels(post: str, simd: str) -> None:
    """A separate process is used, because oneDNN chooses its code once per process."""
    call = [sys.executable, "-c", NOT_FINITE.format(post=post)]
    subprocess.run(call, check=True, timeout=120, env=os.environ | {"ONEDNN_MAX_CPU_ISA": simd})


NOT_FINITE = """
import numpy as np, ngd
from ngd import ops
post = {post!r}
apply = dict(relu=ops.relu, gelu=ops.gelu, silu=ops.silu, gelu_tanh=lambda x: ops.gelu(x, "tanh"))
a, b = ngd.placeholder("a", (40, 1)), ngd.placeholder("b", (1, 40))
step = ngd.compile([a, b], [apply[post](a @ b)])
assert post in str(step) and "elementwise" not in str(step), step
value = np.resize(np.float32([np.nan, np.inf, -np.inf, 1e38, -1e38, 2, -2, 0]), (1, 40))
one = np.ones((40, 1), np.float32)
(found,) = step(one, value)
x = ngd.placeholder("x", (40, 40))
(wanted,) = ngd.compile([x], [apply[post](x)], device="INTERPRETER")(one * value)
assert np.isnan(found[np.isnan(wanted)]).all(), found[0]
finite = np.isfinite(wanted)
np.testing.assert_allclose(found[finite], wanted[finite], rtol=1e-5, atol=1e-5)
assert not np.isfinite(found[~finite]).any(), found[0]
"""


def all_nodes(node: Node) -> list[Node]:
    return [node, *(found for operand in node.inputs for found in all_nodes(operand))]


@pytest.mark.parametrize(
    "build",
    [
        lambda a, b, c: [ops.relu(a @ b + c), a @ b],  # read twice
        lambda a, b, c: [ops.relu(a @ b) + c],  # the bias is added too late
        lambda a, b, c: [a @ b + ops.reshape(c, (5, 1))],  # not one bias per column
        lambda a, b, c: [ops.tanh(a @ b)],  # not a post-operation
    ],
)
def test_graphs_that_do_not_match_are_not_fused(build: Callable[..., list[Node]]) -> None:
    inputs = placeholders((5, 4), (4, 5), (5,))
    assert any("elementwise(" in line for line in kernels(inputs, build(*inputs)))


def test_each_op_of_a_fused_kernel_rounds_16_bit_floats() -> None:
    inputs = placeholders((5, 4), (4, 5), (5,), dtype="float16")
    step = ngd.compile(inputs, [ops.relu(inputs[0] @ inputs[1] + inputs[2])], device="CPU")
    assert "post" not in str(step)
    assert "elementwise" in str(step)


def found(pattern: Pattern, node: Node) -> list[dict[str, Any]]:
    counts = dict.fromkeys(all_nodes(node), 1)
    return [dict(match) for match in pattern.matches(node, counts)]


def test_a_pattern_matches_operands_by_trait_and_name() -> None:
    a, b = placeholders((2, 2), (2, 2))
    product, vector = a @ b, ops.sum(a, axis=0)
    total = vector + product
    heavy = Pattern("heavy", lambda op: op.is_heavy)
    operands = (heavy, Pattern("other"))
    assert found(Pattern("sum", lambda op: op.fusion.is_addition, (heavy,)), total) == []
    either = Pattern("sum", lambda op: op.fusion.is_addition, operands, any_order=True)
    (match,) = found(either, total)
    assert match["heavy"] is product
    assert match["other"] is vector
    assert len(found(either, product + product @ b)) == 2
    assert found(either, ops.abs(a)) == []
    once = Pattern("heavy", lambda op: op.is_heavy, read_once=True)
    assert list(once.matches(product, {product: 2})) == []
    assert list(once.matches(product, {product: 1})) == [{"heavy": product}]
    assert list(heavy.matches(product, {})) == [{"heavy": product}]
