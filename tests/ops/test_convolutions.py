# SPDX-License-Identifier: Apache-2.0
"""Tests of convolutions and pools of random shapes against PyTorch: values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ngd import ops
from ngd.dtypes import Array, DType, Type, float32, float64
from ngd.errors import ShapeError
from tests.ops.cases import placeholders, run_reference
from tests.ops.conftest import Runner
from tests.ops.witness import Shape, agrees, torch_or_skip

COMMON = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def drawn(shape: Shape, dtype: DType, seed: int) -> Array:
    return np.asarray(np.random.default_rng(seed).uniform(-1, 1, shape), dtype)


@st.composite
def convolutions(draw: st.DrawFn, transposed: bool = False) -> dict[str, Any]:
    """Draw shapes and options of a convolution that PyTorch has too."""
    axes = draw(st.integers(1, 3))

    def numbers(low: int, high: int) -> Shape:
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    groups = draw(st.integers(1, 3))
    inner, outer = (groups * draw(st.sampled_from([1, 2, 5])) for _ in range(2))
    kernel, stride, dilation = numbers(1, 3), numbers(1, 3), numbers(1, 2)
    padding = tuple(draw(st.integers(0, k)) for k in kernel)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    least = [max(1, r - 2 * p) for r, p in zip(reach, padding, strict=True)]
    if transposed:
        least = [
            max(1, -(-(2 * p + 1 - r) // s) + 1)
            for r, p, s in zip(reach, padding, stride, strict=True)
        ]
    spatial = tuple(n + draw(st.integers(0, 9 // axes)) for n in least)
    more = {"output_padding": tuple(draw(st.integers(0, s - 1)) for s in stride)}
    return {
        "x": (draw(st.integers(1, 3)), inner, *spatial),
        "w": (inner, outer // groups, *kernel) if transposed else (outer, inner // groups, *kernel),
        "b": (outer,),
        "options": {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        | (more if transposed else {}),
    }


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@COMMON
@given(convolutions())
def test_convolutions(run: Runner, dtype: DType, case: dict[str, Any]) -> None:
    arrays = [drawn(case[name], dtype, i) for i, name in enumerate("xwb")]
    options, name = case["options"], f"conv{len(case['x']) - 2}d"
    agrees(
        run,
        arrays,
        lambda x, w, b: ops.conv(x, w, b, **options),
        lambda torch, x, w, b: getattr(torch.nn.functional, name)(x, w, b, **options),
    )


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@COMMON
@given(convolutions(transposed=True))
def test_transposed_convolutions(run: Runner, dtype: DType, case: dict[str, Any]) -> None:
    arrays = [drawn(case[name], dtype, i) for i, name in enumerate("xwb")]
    options, name = case["options"], f"conv_transpose{len(case['x']) - 2}d"
    agrees(
        run,
        arrays,
        lambda x, w, b: ops.conv_transpose(x, w, b, **options),
        lambda torch, x, w, b: getattr(torch.nn.functional, name)(x, w, b, **options),
    )


@COMMON
@given(
    st.integers(1, 3),
    st.tuples(st.integers(15, 22), st.integers(15, 22)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_convolutions_by_winograd(
    run: Runner, batch: int, result: Shape, padding: Shape, vectors: Shape
) -> None:
    """The sizes are those of the Winograd kernel: 3 x 3, and full vectors of channels."""
    spatial = tuple(n + 2 - 2 * p for n, p in zip(result, padding, strict=True))
    inner, outer = (16 * n for n in vectors)
    arrays = [
        drawn((batch, inner, *spatial), float32, 1),
        drawn((outer, inner, 3, 3), float32, 2),
        drawn((outer,), float32, 3),
    ]
    agrees(
        run,
        arrays,
        lambda x, w, b: ops.conv(x, w, b, padding=padding),
        lambda torch, x, w, b: torch.nn.functional.conv2d(x, w, b, padding=padding),
    )


@pytest.mark.parametrize("shape", [(2, 16, 14, 14), (1, 3, 33, 40), (4, 1, 100)], ids=str)
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_larger_convolutions_equal_pytorch(run: Runner, dtype: DType, shape: Shape) -> None:
    """The shapes have more channels than a vector, and several chunks of columns."""
    axes = len(shape) - 2
    arrays = [drawn(shape, dtype, 1), drawn((20, shape[1], *(5,) * axes), dtype, 2)]
    agrees(
        run,
        arrays,
        lambda x, w: ops.conv(x, w, padding=2, stride=2),
        lambda torch, x, w: getattr(torch.nn.functional, f"conv{axes}d")(x, w, padding=2, stride=2),
    )


def test_same_padding_equals_pytorch(run: Runner) -> None:
    x, w = drawn((1, 2, 7, 8), float64, 1), drawn((3, 2, 3, 3), float64, 2)
    agrees(
        run,
        [x, w],
        lambda x, w: ops.conv(x, w, padding="same"),
        lambda torch, x, w: torch.nn.functional.conv2d(x, w, padding="same"),
    )
    assert ops.conv(x, w, padding="same", stride=3).shape == (1, 3, 3, 3)
    assert ops.conv(x, w[..., :2], padding="same").shape == (1, 3, 7, 8)
    both = [ops.conv(x, w, padding=p) for p in ([(1, 0), (2, 3)], (0, 0))]
    assert [y.shape for y in both] == [(1, 3, 6, 11), (1, 3, 5, 6)]


@st.composite
def pools(draw: st.DrawFn) -> tuple[Shape, dict[str, Any]]:
    """Draw shapes and options of a pool. PyTorch allows padding up to half of the window."""
    axes = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(axes))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    spatial = tuple(k + draw(st.integers(0, 12 // axes)) for k in kernel)
    options = {
        "stride": tuple(draw(st.integers(1, 4)) for _ in range(axes)),
        "padding": padding,
        "ceil_mode": draw(st.booleans()),
    }
    return (draw(st.integers(1, 2)), draw(st.integers(1, 3)), *spatial), {
        "kernel": kernel,
        **options,
    }


def spread(shape: Shape, dtype: DType) -> Array:
    """Return different numbers in random order."""
    count = int(np.prod(shape))
    return (
        np.random.default_rng(6).permutation(np.linspace(-1, 1, count, dtype=dtype)).reshape(shape)
    )


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@COMMON
@given(pools())
def test_max_pools(run: Runner, dtype: DType, case: tuple[Shape, dict[str, Any]]) -> None:
    shape, options = case
    name = f"max_pool{len(shape) - 2}d"
    theirs = {**options, "kernel_size": options["kernel"]}
    del theirs["kernel"]
    x = spread(shape, dtype)
    agrees(
        run,
        [x],
        lambda x: ops.max_pool(x, **options),
        lambda torch, x: getattr(torch.nn.functional, name)(x, **theirs),
    )
    torch = torch_or_skip()
    _, places = getattr(torch.nn.functional, name)(torch.tensor(x), **theirs, return_indices=True)
    (node,) = placeholders([Type(x.dtype, x.shape)])
    _, ours = ops.max_pool(node, **options, return_indices=True)
    npt.assert_array_equal(run([node], [ours], [x])[0], places.numpy())


@pytest.mark.parametrize("include_pad", [True, False])
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@COMMON
@given(pools())
def test_average_pools(
    run: Runner, dtype: DType, include_pad: bool, case: tuple[Shape, dict[str, Any]]
) -> None:
    shape, options = case
    options = {**options, "count_include_pad": include_pad}
    theirs = {**options, "kernel_size": options["kernel"]}
    del theirs["kernel"]
    agrees(
        run,
        [drawn(shape, dtype, 5)],
        lambda x: ops.avg_pool(x, **options),
        lambda torch, x: getattr(torch.nn.functional, f"avg_pool{len(shape) - 2}d")(x, **theirs),
    )


@pytest.mark.parametrize("kind", ["avg", "max"])
@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((2, 3, 7), 3),
        ((1, 2, 8, 6), (4, 3)),
        ((1, 2, 7, 5), (3, 5)),
        ((2, 2, 6, 6), 1),
        ((1, 2, 3, 3), 5),
        ((1, 2, 5, 4, 6), (2, 4, 5)),
    ],
    ids=str,
)
def test_adaptive_pools_equal_pytorch(run: Runner, kind: str, shape: Shape, size: Any) -> None:
    name = f"adaptive_{kind}_pool"
    agrees(
        run,
        [spread(shape, float64)],
        lambda x: getattr(ops, name)(x, size),
        lambda torch, x: getattr(torch.nn.functional, f"{name}{len(shape) - 2}d")(x, size),
    )


def test_the_first_nan_and_the_first_of_equal_values_win(run: Runner) -> None:
    x = np.array([[[1, 1, np.nan, np.nan, 5, -np.inf, -np.inf, -np.inf]]], np.float32)
    (node,) = placeholders([Type(x.dtype, x.shape)])
    values, indices = run([node], list(ops.max_pool(node, 2, return_indices=True)), [x])
    npt.assert_array_equal(values, [[[1, np.nan, 5, -np.inf]]])
    npt.assert_array_equal(indices, [[[0, 2, 4, 6]]])


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: ops.conv(np.ones((1, 3, 5)), np.ones((2, 2, 3))),
        r"^conv: .*float64\[1, 3, 5\] and float64",
    ),
    (lambda: ops.conv(np.ones((1, 4, 5)), np.ones((3, 2, 3)), groups=2), "^conv: .*multiple of"),
    (lambda: ops.conv(np.ones((1, 3, 2)), np.ones((2, 3, 3))), "^conv: .*to fit into 2"),
    (lambda: ops.conv(np.ones((3, 2)), np.ones((2, 3))), r"^conv: .*1 to 3 spatial axes"),
    (lambda: ops.conv(np.ones((1, 1, 5)), np.ones((1, 1, 3)), stride=0), r"^conv: .*in \[1, "),
    (lambda: ops.conv(np.ones((1, 1, 5)), np.ones((1, 1, 3)), np.ones(2)), "^conv: .*bias"),
    (lambda: ops.conv(np.ones((1, 1, 5)), np.ones((1, 1, 3)), stride=1.5), "^conv: .*whole .*1.5"),
    (lambda: ops.conv(np.ones((1, 1, 5)), np.ones((1, 1, 3)), dilation=(1, 1)), "^conv: .*dilatio"),
    (lambda: ops.conv(np.ones((1, 1, 5)), np.ones((1, 1, 3)), padding=-1), "^conv: .*padding"),
    (lambda: ops.conv(np.ones((1, 2, 5)), np.ones((2, 2, 3)), groups=0), "^conv: .*groups=0"),
    (lambda: ops.conv(np.ones((1, 2, 5)), np.ones((2, 2, 0))), "^conv: .*float64"),
    (lambda: ops.max_pool(np.ones((1, 1, 3)), 2, padding=2), "^max_pool: .*only padding"),
    (lambda: ops.max_pool(np.ones((1, 1, 3)), 0), r"^max_pool: .*kernel .*in \[1, "),
    (lambda: ops.avg_pool(np.ones((1, 1, 3)), 4), "^avg_pool: .*to fit"),
    (
        lambda: ops.conv_transpose(np.ones((1, 1, 3)), np.ones((1, 1, 3)), output_padding=1),
        "^conv_transpose: .*output_padding",
    ),
    (
        lambda: ops.conv_transpose(np.ones((1, 3, 3)), np.ones((3, 1, 3)), groups=2),
        "^conv_transpose: .*multiple of groups=2",
    ),
    (lambda: ops.adaptive_avg_pool(np.ones((1, 1, 3)), (2, 2)), "^adaptive_avg_pool: "),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_shapes_and_options_are_rejected(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        call()


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take_along_axis_broadcasts(axis: int) -> None:
    x = drawn((4, 3, 5), float64, 7)
    chosen = np.random.default_rng(8).integers(-3, 3, (4, 3, 5))
    wide = np.take(chosen, [0], axis=(axis + 1) % 3)
    (found,) = run_reference([], [ops.take_along_axis(x, wide, axis)], [])
    npt.assert_array_equal(found, np.take_along_axis(x, wide, axis))
