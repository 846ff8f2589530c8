# SPDX-License-Identifier: Apache-2.0
"""Tests of functions of torch.nn.functional: values and gradients against PyTorch and literals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from ngd import grad, ops
from ngd.dtypes import Array, DType, Type, bfloat16, float16, float32, float64
from ngd.errors import DTypeError, OutOfRangeError, ShapeError
from ngd.graph.node import Node
from ngd.ops import _resizing as resizing
from tests.ops.cases import placeholders, run_reference
from tests.ops.conftest import Runner
from tests.ops.witness import agrees, drawn

BOTH = pytest.mark.parametrize("dtype", [float32, float64], ids=str)
CPU = pytest.mark.parametrize("device", ["CPU"])

ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "glu": (lambda x: ops.glu(x, 1), lambda t, x: t.nn.functional.glu(x, 1)),
    "mish": (lambda x: ops.mish(9 * x), lambda t, x: t.nn.functional.mish(9 * x)),
    "selu": (ops.selu, lambda t, x: t.nn.functional.selu(x)),
    "softsign": (ops.softsign, lambda t, x: t.nn.functional.softsign(x)),
    "logsigmoid": (
        lambda x: ops.logsigmoid(50 * x),
        lambda t, x: t.nn.functional.logsigmoid(50 * x),
    ),
    "hardtanh": (
        lambda x: ops.hardtanh(x, -0.3, 0.4),
        lambda t, x: t.nn.functional.hardtanh(x, -0.3, 0.4),
    ),
    "softmin": (lambda x: ops.softmin(x, 0), lambda t, x: t.nn.functional.softmin(x, 0)),
    "leaky_relu": (
        lambda x: ops.leaky_relu(x, negative_slope=0.2),
        lambda t, x: t.nn.functional.leaky_relu(x, negative_slope=0.2),
    ),
    "lgamma": (lambda x: ops.lgamma(x * 9 + 0.05), lambda t, x: t.lgamma(x * 9 + 0.05)),
    "erfinv": (lambda x: ops.erfinv(x * 0.99), lambda t, x: t.erfinv(x * 0.99)),
    "logaddexp": (lambda x: ops.logaddexp(x, 0.5), lambda t, x: t.logaddexp(x, x * 0 + 0.5)),
    "logcumsumexp": (lambda x: ops.logcumsumexp(x, 1), lambda t, x: t.logcumsumexp(x, 1)),
    "cumprod": (lambda x: ops.cumprod(x, 1), lambda t, x: t.cumprod(x, 1)),
    "cummax": (lambda x: ops.cummax(x, 1), lambda t, x: t.cummax(x, 1).values),
    "std": (lambda x: ops.std(x, 1, ddof=1), lambda t, x: t.std(x, 1)),
    "quantile": (lambda x: ops.quantile(x, 0.3, 1), lambda t, x: t.quantile(x, 0.3, 1)),
    "sinc": (lambda x: ops.sinc(2 * x), lambda t, x: t.sinc(2 * x)),
    "unbind": (lambda x: ops.unbind(x, 1)[1], lambda t, x: t.unbind(x, 1)[1]),
    "chunk": (lambda x: ops.chunk(x, 3, 1)[1], lambda t, x: t.chunk(x, 3, 1)[1]),
}


@CPU
@BOTH
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_pytorch(name: str, dtype: DType, run: Runner) -> None:
    ours, theirs = ACTIVATIONS[name]
    agrees(run, drawn(dtype, (3, 8)), ours, theirs)


@CPU
@BOTH
@pytest.mark.parametrize(("shape", "weights"), [((2, 3, 4), 3), ((2, 3), 1), ((3,), 3), ((), 1)])
def test_prelu_equals_pytorch(shape: Any, weights: int, dtype: DType, run: Runner) -> None:
    arrays = drawn(dtype, shape, (weights,))
    if shape == (3,):  # PyTorch accepts one weight only for one axis
        arrays[1] = arrays[1][:1]
    agrees(run, arrays, ops.prelu, lambda t, x, w: t.nn.functional.prelu(x, w))


RESIZES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    *(((2, 3, 5), {"size": n, "mode": m}) for n in (3, 10, 7) for m in ("nearest", "linear")),
    *(((1, 2, 6, 5), {"size": s}) for s in ((12, 10), (3, 7), (1, 1), (6, 5))),
    *(((1, 2, 6, 5), {"size": s, "mode": "nearest-exact"}) for s in ((12, 10), (4, 7))),
    *(((1, 2, 6, 5), {"size": s, "mode": "area"}) for s in ((3, 2), (4, 7))),
    *(
        ((1, 2, 6, 5), {"size": s, "mode": m, "align_corners": c})
        for s in ((12, 10), (4, 7), (1, 3))
        for m in ("bilinear", "bicubic")
        for c in (False, True)
    ),
    *(
        ((1, 2, 9, 7), {"size": s, "mode": m, "antialias": True})
        for s in ((4, 3), (13, 2), (1, 7))
        for m in ("bilinear", "bicubic")
    ),
    ((1, 1, 70, 3), {"size": (100, 3), "mode": "bilinear"}),
    ((1, 1, 70, 3), {"size": (33, 5), "mode": "bicubic"}),
    ((1, 2, 3, 4, 5), {"size": (5, 3, 10), "mode": "trilinear"}),
    ((1, 2, 3, 4, 5), {"size": (6, 8, 10)}),
    *(((1, 2, 6, 5), {"scale_factor": f}) for f in (2, 0.5, 1.7, (0.7, 2.3))),
    *(((1, 2, 6, 5), {"scale_factor": f, "mode": "bilinear"}) for f in (2.0, 1.7, (0.7, 2.3))),
    ((1, 2, 6, 5), {"scale_factor": 1.3, "mode": "bicubic", "align_corners": False}),
    ((1, 2, 6, 5), {"scale_factor": 0.6, "mode": "bilinear", "antialias": True}),
]


@CPU
@BOTH
@pytest.mark.parametrize("dense", [1, 256])
@pytest.mark.parametrize(("shape", "how"), RESIZES, ids=str)
def test_interpolate_equals_pytorch(
    shape: Any,
    how: dict[str, Any],
    dense: int,
    dtype: DType,
    run: Runner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resizing, "DENSE", dense)
    theirs = dict(how)
    if isinstance(theirs.get("scale_factor"), float):
        theirs["scale_factor"] = (how["scale_factor"],) * (len(shape) - 2)
    agrees(
        run,
        drawn(dtype, shape),
        lambda x: ops.interpolate(x, **how),
        lambda t, x: t.nn.functional.interpolate(x, **theirs),
    )


@CPU
@BOTH
def test_pixel_shuffle_and_unshuffle_equal_pytorch(dtype: DType, run: Runner) -> None:
    for name, shape in (("pixel_shuffle", (2, 8, 3, 2)), ("pixel_unshuffle", (2, 2, 4, 6))):
        agrees(
            run,
            drawn(dtype, shape),
            lambda x, name=name: getattr(ops, name)(x, 2),
            lambda t, x, name=name: getattr(t.nn.functional, name)(x, 2),
        )


WINDOWS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": (3, 2), "stride": 2},
    {"kernel_size": 2, "dilation": (2, 1), "padding": (1, 2), "stride": (1, 3)},
    {"kernel_size": (1, 3), "padding": 1},
]


@CPU
@BOTH
@pytest.mark.parametrize("how", WINDOWS, ids=str)
def test_unfold_and_fold_equal_pytorch(how: dict[str, Any], dtype: DType, run: Runner) -> None:
    (x,) = drawn(dtype, (2, 3, 6, 5))
    agrees(
        run,
        [x],
        lambda x: ops.unfold(x, **how),
        lambda t, x: t.nn.functional.unfold(x, **how),
    )
    columns = drawn(dtype, ops.unfold(x, **how).shape)
    agrees(
        run,
        columns,
        lambda c: ops.fold(c, (6, 5), **how),
        lambda t, c: t.nn.functional.fold(c, (6, 5), **how),
    )


REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


@CPU
@BOTH
@REDUCTIONS
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 5, 3)])
def test_cross_entropy_equals_pytorch(
    shape: Any, smoothing: float, reduction: str, dtype: DType, run: Runner
) -> None:
    labels = np.random.default_rng(1).integers(0, 5, (*shape[: len(shape) > 1], *shape[2:]))
    if labels.ndim:
        labels.reshape(-1)[0] = -100
    weight = np.arange(1.0, 6).astype(dtype)
    probabilities = np.random.default_rng(2).dirichlet(np.ones(5), labels.shape).astype(dtype)
    probabilities = np.moveaxis(probabilities, -1, min(1, len(shape) - 1))
    for given in (labels, probabilities):
        for factors in (None, weight):
            agrees(
                run,
                drawn(dtype, shape),
                lambda x, given=given, factors=factors: ops.cross_entropy(
                    x, given, factors, label_smoothing=smoothing, reduction=reduction
                ),
                lambda t, x, given=given, factors=factors: t.nn.functional.cross_entropy(
                    x,
                    t.tensor(given),
                    None if factors is None else t.tensor(factors),
                    label_smoothing=smoothing,
                    reduction=reduction,
                ),
            )


@CPU
@BOTH
@REDUCTIONS
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 5, 3)])
def test_nll_loss_equals_pytorch(shape: Any, reduction: str, dtype: DType, run: Runner) -> None:
    labels = np.random.default_rng(1).integers(0, 5, (*shape[: len(shape) > 1], *shape[2:]))
    weight = np.arange(1.0, 6).astype(dtype)
    for factors in (None, weight):
        agrees(
            run,
            drawn(dtype, shape),
            lambda x, factors=factors: ops.nll_loss(x, labels, factors, 2, reduction),
            lambda t, x, factors=factors: t.nn.functional.nll_loss(
                x,
                t.tensor(labels),
                None if factors is None else t.tensor(factors),
                ignore_index=2,
                reduction=reduction,
            ),
        )


LOSSES: dict[str, tuple[int, Callable[..., Any], Callable[..., Any]]] = {
    "smooth_l1": (
        2,
        lambda x, y, r: ops.smooth_l1_loss(x, y, 0.3, r),
        lambda f, x, y, r: f.smooth_l1_loss(x, y, beta=0.3, reduction=r),
    ),
    "smooth_l1 of 0": (
        2,
        lambda x, y, r: ops.smooth_l1_loss(x, y, 0, r),
        lambda f, x, y, r: f.smooth_l1_loss(x, y, beta=0, reduction=r),
    ),
    "gaussian_nll": (
        3,
        lambda x, y, v, r: ops.gaussian_nll_loss(x, y, v * v, True, 0.2, r),
        lambda f, x, y, v, r: f.gaussian_nll_loss(x, y, v * v, True, 0.2, r),
    ),
    "triplet": (
        3,
        lambda a, p, n, r: ops.triplet_margin_loss(a, p, n, reduction=r),
        lambda f, a, p, n, r: f.triplet_margin_loss(a, p, n, reduction=r),
    ),
    "triplet with swap": (
        3,
        lambda a, p, n, r: ops.triplet_margin_loss(a, p, n, 0.5, 1.0, swap=True, reduction=r),
        lambda f, a, p, n, r: f.triplet_margin_loss(a, p, n, 0.5, 1.0, swap=True, reduction=r),
    ),
}


@CPU
@BOTH
@REDUCTIONS
@pytest.mark.parametrize("name", LOSSES)
def test_losses_equal_pytorch(name: str, reduction: str, dtype: DType, run: Runner) -> None:
    count, ours, theirs = LOSSES[name]
    agrees(
        run,
        drawn(dtype, *[(4, 3)] * count),
        lambda *x: ours(*x, reduction),
        lambda t, *x: theirs(t.nn.functional, *x, reduction),
    )


@CPU
@BOTH
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cosine_similarity_equals_pytorch(axis: int, dtype: DType, run: Runner) -> None:
    agrees(
        run,
        drawn(dtype, (4, 3), (4, 3)),
        lambda a, b: ops.cosine_similarity(a, b, axis),
        lambda t, a, b: t.nn.functional.cosine_similarity(a, b, axis),
    )


def value(node: Node) -> Array:
    found: Array = run_reference([], [node], [])[0]
    return found


def test_values_equal_literals_of_pytorch() -> None:
    """The literals are results of PyTorch 2.13."""
    line = np.array([[[0.0, 1.0, 4.0]]])
    found = value(ops.resize(line, 6, "linear"))
    npt.assert_allclose(found, [[[0, 0.25, 0.75, 1.75, 3.25, 4]]])
    found = value(ops.resize(line, 5, "linear", align_corners=True))
    npt.assert_allclose(found, [[[0, 0.5, 1, 2.5, 4]]])
    assert value(ops.resize(line, 6)).tolist() == [[[0, 0, 1, 1, 4, 4]]]
    assert value(ops.interpolate(line, scale_factor=1.7)).tolist() == [[[0, 0, 1, 1, 4]]]
    logits = np.array([[2.0, 0.0, -1.0], [0.5, 0.5, 0.0]])
    weighted = value(ops.cross_entropy(logits, [0, 2], [1.0, 1.0, 3.0]))
    rows = [math.log(sum(math.exp(v) for v in row)) for row in logits]
    npt.assert_allclose(weighted, ((rows[0] - 2) + 3 * rows[1]) / 4)
    soft = value(ops.cross_entropy(logits, [[0.5, 0.5, 0], [0, 0, 1.0]]))
    npt.assert_allclose(soft, ((rows[0] - 1) + rows[1]) / 2)
    npt.assert_allclose(value(ops.nll_loss([[-1.0, -2], [-3, -4]], [0, 1])), 2.5)
    npt.assert_allclose(value(ops.cosine_similarity([[3.0, 4]], [[4.0, 3]])), [0.96])
    npt.assert_allclose(value(ops.mish(1.0)), math.tanh(math.log(1 + math.e)))
    npt.assert_allclose(value(ops.selu([-1.0, 2])), [-1.1113307378125625, 2.101401974610967])
    x = np.arange(9.0).reshape(1, 1, 3, 3)
    assert value(ops.unfold(x, 2))[0, :, 0].tolist() == [0, 1, 3, 4]
    assert value(ops.fold(ops.unfold(x, 2), 3, 2))[0, 0].tolist() == [
        *([0, 2, 2], [6, 16, 10], [6, 14, 8])
    ]
    shuffled = value(ops.pixel_shuffle(np.arange(8.0).reshape(1, 8, 1, 1), 2))
    assert shuffled.tolist() == [[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]]


def test_embedding_bag_equals_literals() -> None:
    table = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert value(ops.embedding_bag([[0, 1], [2, 2]], table)).tolist() == [[2, 3], [5, 6]]
    found = ops.embedding_bag([0, 1, 2], table, [0, 1, 1], "sum", [2.0, 1.0, 1.0])
    assert value(found).tolist() == [[2, 4], [0, 0], [8, 10]]
    found = ops.embedding_bag([[0, 1], [1, 1]], table, padding_idx=1)
    assert value(found).tolist() == [[1, 2], [0, 0]]
    unused = np.array([[1.0, 2.0], [np.nan, np.inf]])
    found = ops.embedding_bag([[0, 1], [1, 1]], unused, padding_idx=1)
    assert value(found).tolist() == [[1, 2], [0, 0]]
    with pytest.raises(ShapeError, match=r"^embedding_bag: expected \[bags, n\], or \[n\]"):
        ops.embedding_bag([0, 1], table)
    with pytest.raises(ShapeError, match=r"^embedding_bag: expected per_sample_weights"):
        ops.embedding_bag([[0]], table, per_sample_weights=[[1.0]])


def test_gradients_of_resizes_are_sums_of_their_columns() -> None:
    """Resizes are linear, so this holds without PyTorch."""
    (x,) = placeholders([Type(float64, (1, 1, 4, 3))])
    for how in (
        {"mode": "bilinear"},
        {"mode": "bicubic"},
        {"mode": "nearest"},
        {"mode": "bilinear", "antialias": True},
    ):
        y = ops.resize(x, (7, 5), **how)
        at = np.random.default_rng(0).normal(size=x.shape)
        found, slope = run_reference([x], [ops.sum(y), grad(ops.sum(y), x)], [at])
        npt.assert_allclose(found, (slope * at).sum(), rtol=1e-12)
        npt.assert_allclose(slope.sum(), 35, rtol=1e-12)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_16_bit_floats_are_rounded_once(dtype: Any) -> None:
    x = np.linspace(-3, 3, 99).astype(dtype)
    wide = x.astype(float32)
    for name in ("mish", "selu", "softsign", "logsigmoid", "sinh", "atan", "asinh"):
        found = value(getattr(ops, name)(x))
        expected = value(getattr(ops, name)(wide)).astype(dtype)
        assert found.dtype == dtype, name
        assert np.count_nonzero(found != expected) <= 2, name


def test_gumbel_softmax_gives_probabilities_or_one_hot_rows() -> None:
    (x,) = placeholders([Type(float64, (4, 3))])
    soft = ops.gumbel_softmax(x, 0.5, seed=1)
    hard = ops.gumbel_softmax(x, 0.5, True, seed=1)
    weights = np.arange(3.0)
    slopes = [grad(ops.sum(y * weights), x) for y in (soft, hard)]
    at = np.random.default_rng(0).normal(size=(4, 3))
    found = run_reference([x], [soft, hard, *slopes], [at])
    npt.assert_allclose(found[0].sum(-1), 1)
    assert found[1].argmax(-1).tolist() == found[0].argmax(-1).tolist()
    npt.assert_allclose(np.sort(found[1], -1), [[0, 0, 1]] * 4, atol=1e-15)
    npt.assert_allclose(found[2], found[3])


IMAGE = np.ones((1, 4, 2, 2))
MESSAGES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: ops.glu(np.ones(3)), ShapeError, "glu: expected an even extent of axis -1"),
    (lambda: ops.prelu(IMAGE, [1.0, 2]), ShapeError, "prelu: expected one weight"),
    (lambda: ops.resize(np.ones((2, 2)), 2), ShapeError, "resize: expected .N, C, spatial"),
    (lambda: ops.resize(IMAGE, 2, "cubic"), ValueError, "resize: expected a mode among nearest"),
    (lambda: ops.resize(IMAGE, 2, "linear"), ShapeError, "resize: expected 1 spatial axes"),
    (lambda: ops.resize(IMAGE, 0), ShapeError, "resize: expected a size of one whole number"),
    (lambda: ops.resize(IMAGE, 2, antialias=True), ValueError, "resize: expected antialias with"),
    (
        lambda: ops.resize(IMAGE, 2, align_corners=True),
        ValueError,
        "resize: expected align_corners with one of",
    ),
    (
        lambda: ops.resize(IMAGE.astype(int), 3, "bilinear"),
        DTypeError,
        "resize: expected floats for 'bilinear'",
    ),
    (lambda: ops.interpolate(IMAGE), ValueError, "interpolate: expected either size or scale"),
    (
        lambda: ops.interpolate(IMAGE, scale_factor=(1.0,)),
        ValueError,
        "interpolate: expected a factor > 0, or 2",
    ),
    (lambda: ops.pixel_shuffle(IMAGE, 3), ShapeError, "pixel_shuffle: expected channels in 9"),
    (lambda: ops.pixel_unshuffle(IMAGE, 3), ShapeError, "pixel_unshuffle: expected extents"),
    (lambda: ops.unfold(IMAGE, 3), ShapeError, "unfold: expected a kernel"),
    (lambda: ops.fold(np.ones((1, 4, 3)), 3, 2), ShapeError, "fold: expected .N, C . 4, 4"),
    (lambda: ops.nll_loss(np.ones((2, 3)), [0]), ShapeError, "nll_loss: expected log"),
    (lambda: ops.nll_loss(np.ones((2, 3)), [0, 1], [1.0]), ShapeError, "nll_loss: expected a wei"),
    (lambda: ops.smooth_l1_loss([1.0], [1.0], -1), ValueError, "smooth_l1_loss: expected beta"),
    (
        lambda: ops.gaussian_nll_loss([1.0], [1.0], [[1.0], [2]]),
        ShapeError,
        "gaussian_nll_loss: expected var that broadcasts",
    ),
    (
        lambda: ops.triplet_margin_loss([1.0], [1.0], [1.0, 2]),
        ShapeError,
        "triplet_margin_loss: expected three tensors of one shape",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES, ids=lambda v: str(v)[:40])
def test_bad_arguments_raise_errors(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}"):
        call()


@pytest.mark.parametrize("label", [3, -1])
def test_labels_out_of_range_raise_errors(label: int, run: Runner) -> None:
    (x,) = placeholders([Type(np.dtype(np.int64), (2,))])
    logs = np.zeros((2, 3))
    for name in ("nll_loss", "cross_entropy"):
        for weight in (None, np.ones(3)):
            made = getattr(ops, name)(logs, x, weight)
            with pytest.raises(OutOfRangeError, match=rf"{name}: expected an index in \[0, 3\)"):
                run([x], [made], [np.array([0, label])])
