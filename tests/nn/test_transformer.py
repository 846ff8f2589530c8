# SPDX-License-Identifier: Apache-2.0
"""Layers of Transformers: by NumPy, and beside PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import nn, ops

X = np.random.default_rng(0).normal(size=(2, 3, 8))


def normalized(x: Any, weight: Any, bias: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def layer_by_numpy(x: Any, v: dict[str, Any], norm_first: bool, causal: bool) -> Any:
    """One layer of two heads with relu."""

    def attended(x: Any) -> Any:
        q, k, w = np.split(x @ v["self_attn.in_proj_weight"].T + v["self_attn.in_proj_bias"], 3, -1)
        q, k, w = (a.reshape(2, 3, 2, 4).swapaxes(1, 2) for a in (q, k, w))
        scores = q @ k.swapaxes(2, 3) / 2
        if causal:
            scores = np.where(np.tril(np.ones((3, 3), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        joined = (weights @ w).swapaxes(1, 2).reshape(2, 3, 8)
        return joined @ v["self_attn.out_proj.weight"].T + v["self_attn.out_proj.bias"]

    def transformed(x: Any) -> Any:
        inner = np.maximum(x @ v["linear1.weight"].T + v["linear1.bias"], 0)
        return inner @ v["linear2.weight"].T + v["linear2.bias"]

    first, second = ((v[f"norm{i}.weight"], v[f"norm{i}.bias"]) for i in (1, 2))
    if norm_first:
        x = x + attended(normalized(x, *first))
        return x + transformed(normalized(x, *second))
    x = normalized(x + attended(x), *first)
    return normalized(x + transformed(x), *second)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_layer_is_that_of_numpy(norm_first: bool, causal: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=norm_first).astype("float64")
    layer.norm1.bias.assign(np.arange(8.0))
    found = ngd.function(lambda x: layer(x, causal=causal))(X)
    wanted = layer_by_numpy(X, layer.state_dict(), norm_first, causal)
    npt.assert_allclose(found, wanted, atol=1e-12)


def test_an_encoder_has_layers_of_its_own() -> None:
    encoder = nn.TransformerEncoder(
        lambda: nn.TransformerEncoderLayer(8, 2, 16), 2, nn.LayerNorm(8)
    ).astype("float64")
    values = encoder.state_dict()
    assert not np.array_equal(values["layers.0.linear1.weight"], values["layers.1.linear1.weight"])
    wanted = X
    for number in range(2):
        prefix = f"layers.{number}."
        own = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
        wanted = layer_by_numpy(wanted, own, False, False)
    wanted = normalized(wanted, values["norm.weight"], values["norm.bias"])
    npt.assert_allclose(ngd.function(lambda x: encoder(x))(X), wanted, atol=1e-12)


def test_dropout_draws_in_training_only() -> None:
    layer, random = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5), nn.Random(1)

    @ngd.function(updates=True)
    def step(x: Any) -> Any:
        with nn.training(random) as state:
            return layer(x), state.updates

    x = X.astype(np.float32)
    assert not np.array_equal(step(x), step(x))
    evaluate = ngd.function(lambda x: layer(x))
    npt.assert_array_equal(evaluate(x), evaluate(x))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_layer_is_pytorchs(activation: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed beside the tests")
    how = {"dim_feedforward": 16, "activation": activation, "dropout": 0.0}
    theirs = torch.nn.TransformerEncoderLayer(8, 2, **how, batch_first=True).double()
    ours = nn.TransformerEncoderLayer(8, 2, **how).astype("float64")  # type: ignore[arg-type]
    assert ours.load_state_dict(theirs.state_dict()) == ([], [])
    wanted = theirs(torch.tensor(X)).detach().numpy()
    npt.assert_allclose(ngd.function(lambda x: ours(x))(X), wanted, atol=1e-12)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match='activation: expected "relu" or "gelu"; got \'tanh\''):
        nn.TransformerEncoderLayer(8, 2, activation="tanh")
    layer = nn.TransformerEncoderLayer(8, 2)
    with pytest.raises(TypeError, match="expected a function that returns a layer; got Transf"):
        nn.TransformerEncoder(layer, 2)
    x = ngd.placeholder("x", (2, 3, 7))
    with pytest.raises(ngd.errors.ShapeError, match=r"in self_attn: MultiHeadAttention"):
        layer(ops.exp(x))
