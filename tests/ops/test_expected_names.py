# SPDX-License-Identifier: Apache-2.0
"""Tests that ngd.ops has the functions that users of NumPy, PyTorch and JAX expect."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import ngd
from ngd import nn, ops
from ngd.ops._other_names import OTHER_NAMES

LIMITATIONS = Path(__file__).parents[2] / "docs" / "limitations.md"

EXPECTED = {
    "making": "zeros ones full arange one_hot tri linspace eye meshgrid diag",
    "elementwise": "exp log log1p sqrt rsqrt sin cos tanh erf sign round clip where tan atan2 asin "
    "acos atan sinh cosh asinh acosh atanh log2 log10 exp2 logaddexp hypot cbrt trunc fmod sinc "
    "logical_xor isnan isinf isfinite nan_to_num lgamma digamma erfinv heaviside select "
    "fmax fmin copysign signbit isclose logaddexp2 deg2rad rad2deg",
    "reductions": "sum mean var std max min prod argmax argmin all any logsumexp cumsum median "
    "quantile percentile cumprod cummax cummin ptp count_nonzero average nansum nanmean "
    "logcumsumexp trapezoid cov corrcoef nanmin nanmax nanprod nanvar nanstd nanmedian nanquantile "
    "nanpercentile nanargmin nanargmax nancumsum nancumprod",
    "order and sets": "sort argsort top_k searchsorted digitize bincount histogram partition "
    "interp isin",
    "moving": "concat stack split tile roll flip pad moveaxis take take_along_axis repeat vstack "
    "hstack array_split diff gradient convolve rot90 atleast_2d chunk unbind "
    "dstack column_stack append hsplit vsplit dsplit fliplr flipud ediff1d correlate",
    "nn": "conv conv_transpose avg_pool max_pool attention softmax cross_entropy "
    "binary_cross_entropy kl_div huber_loss mse_loss interpolate pixel_shuffle unfold fold "
    "grid_sample embedding_bag instance_norm glu mish prelu selu softsign logsigmoid hardtanh "
    "gumbel_softmax ctc_loss nll_loss triplet_margin_loss cosine_similarity smooth_l1_loss "
    "gaussian_nll_loss",
    "random": "random_bits random_uniform random_normal dropout randint bernoulli permutation "
    "categorical multinomial truncated_normal gumbel",
    "linear algebra": "einsum matmul vector_norm tril triu outer kron trace diagonal inner "
    "tensordot cross vdot",
    "loops": "scan cond while_loop fori_loop switch map",
}
"""Functions of ngd.ops by family."""

LAYERS = (
    "LSTM GRU Dropout1d Dropout2d Dropout3d InstanceNorm1d InstanceNorm2d InstanceNorm3d "
    "CrossEntropyLoss NLLLoss MSELoss L1Loss SmoothL1Loss HuberLoss KLDivLoss BCELoss "
    "BCEWithLogitsLoss CTCLoss TransformerEncoder TransformerEncoderLayer "
    "TransformerDecoder TransformerDecoderLayer TripletMarginLoss GaussianNLLLoss CosineSimilarity "
    "EmbeddingBag Upsample PixelShuffle Unfold Fold GLU Mish PReLU SELU Softsign LogSigmoid "
    "Hardtanh weight_norm spectral_norm"
)

MISSING = (
    "cholesky solve inv det svd qr eigh matrix_power fft nonzero argwhere unique histogram repeat"
)
"""Functions whose limits docs/limitations.md describes, with what to write instead."""


@pytest.mark.parametrize("family", EXPECTED)
def test_expected_functions_exist(family: str) -> None:
    assert [name for name in EXPECTED[family].split() if name not in ops.__all__] == []


def test_expected_layers_exist() -> None:
    assert [name for name in LAYERS.split() if not hasattr(nn, name)] == []


def test_missing_functions_are_documented_with_a_replacement() -> None:
    rows = [row for row in LIMITATIONS.read_text().splitlines() if row.startswith("| ")]
    for name in MISSING.split():
        (row,) = [r for r in rows if f"{name}`" in r.split("|")[1] or f"`{name}" in r.split("|")[1]]
        assert len(row.split("|")[2].strip()) > 20, name


def test_suggested_names_exist() -> None:
    assert set(OTHER_NAMES.values()) <= set(ops.__all__)
    assert not set(OTHER_NAMES) & set(ops.__all__)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("arctan2", "Use ops.atan2."),
        ("unsqueeze", "Use ops.expand_dims."),
        ("softmx", "Did you mean ops.softmax?"),
        ("fft", "See the list at https://"),
    ],
)
def test_an_unknown_name_suggests_the_function_to_use(name: str, fix: str) -> None:
    with pytest.raises(AttributeError, match=rf"got '{name}', .* {re.escape(fix)}"):
        getattr(ops, name)


@pytest.mark.parametrize("name", ["arctan2", "maximum", "isnan", "std", "outer", "diff", "interp"])
def test_numpy_functions_accept_nodes(name: str) -> None:
    x = ngd.placeholder("x", (4,))
    arguments = {"arctan2": 2, "maximum": 2, "outer": 2, "interp": 3}.get(name, 1)
    assert isinstance(getattr(np, name)(*[x] * arguments), ngd.Node)
