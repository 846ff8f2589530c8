# SPDX-License-Identifier: Apache-2.0
"""Tests of transformer layers against NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import nn, ops

X = np.random.default_rng(0).normal(size=(2, 3, 8))


def normalize(x: Any, weight: Any, bias: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def attention_by_numpy(x: Any, memory: Any, v: dict[str, Any], part: str, causal: bool) -> Any:
    """Return the attention of two heads from x to a memory."""
    weights = np.split(v[f"{part}.in_proj_weight"], 3)
    biases = np.split(v[f"{part}.in_proj_bias"], 3)
    operands = zip((x, memory, memory), weights, biases, strict=True)
    q, k, w = ((a @ u.T + b).reshape(2, -1, 2, 4).swapaxes(1, 2) for a, u, b in operands)
    logits = q @ k.swapaxes(2, 3) / 2
    if causal:
        logits = np.where(np.tril(np.ones(logits.shape[2:], bool)), logits, -np.inf)
    attention_weights = np.exp(logits - logits.max(-1, keepdims=True))
    attention_weights /= attention_weights.sum(-1, keepdims=True)
    joined_heads = (attention_weights @ w).swapaxes(1, 2).reshape(x.shape)
    return joined_heads @ v[f"{part}.out_proj.weight"].T + v[f"{part}.out_proj.bias"]


def feed_forward_by_numpy(x: Any, v: dict[str, Any]) -> Any:
    """Return the result of the feed-forward network, with ReLU."""
    inner = np.maximum(x @ v["linear1.weight"].T + v["linear1.bias"], 0)
    return inner @ v["linear2.weight"].T + v["linear2.bias"]


def layer_by_numpy(
    x: Any, v: dict[str, Any], norm_first: bool, causal: bool, memory: Any = None
) -> Any:
    """Return the result of an encoder layer, or of a decoder layer if there is a memory."""
    parts = [lambda x: attention_by_numpy(x, x, v, "self_attn", causal)]
    if memory is not None:
        parts.append(lambda x: attention_by_numpy(x, memory, v, "multihead_attn", False))
    for number, part in enumerate([*parts, lambda x: feed_forward_by_numpy(x, v)], 1):
        affine = v[f"norm{number}.weight"], v[f"norm{number}.bias"]
        x = x + part(normalize(x, *affine)) if norm_first else normalize(x + part(x), *affine)
    return x


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_an_encoder_layer_equals_numpy(norm_first: bool, causal: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=norm_first).astype("float64")
    layer.norm1.bias.assign(np.arange(8.0))
    found = ngd.function(lambda x: layer(x, causal=causal))(X)
    wanted = layer_by_numpy(X, layer.state_dict(), norm_first, causal)
    npt.assert_allclose(found, wanted, atol=1e-12)


def test_an_encoder_has_separate_layers() -> None:
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
    wanted = normalize(wanted, values["norm.weight"], values["norm.bias"])
    npt.assert_allclose(ngd.function(lambda x: encoder(x))(X), wanted, atol=1e-12)


MEMORY = np.random.default_rng(1).normal(size=(2, 5, 8))


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_layer_equals_numpy(norm_first: bool) -> None:
    layer = nn.TransformerDecoderLayer(8, 2, 16, norm_first=norm_first).astype("float64")
    layer.norm3.bias.assign(np.arange(8.0))
    found = ngd.function(lambda x, memory: layer(x, memory, causal=True))(X, MEMORY)
    wanted = layer_by_numpy(X, layer.state_dict(), norm_first, True, MEMORY)
    npt.assert_allclose(found, wanted, atol=1e-12)


def test_a_decoder_has_separate_layers() -> None:
    decoder = nn.TransformerDecoder(
        lambda: nn.TransformerDecoderLayer(8, 2, 16), 2, nn.LayerNorm(8)
    ).astype("float64")
    values, wanted = decoder.state_dict(), X
    for number in range(2):
        prefix = f"layers.{number}."
        own = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
        wanted = layer_by_numpy(wanted, own, False, True, MEMORY)
    wanted = normalize(wanted, values["norm.weight"], values["norm.bias"])
    found = ngd.function(lambda x, memory: decoder(x, memory, causal=True))(X, MEMORY)
    npt.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_equals_pytorch(norm_first: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed beside the tests")
    how = {"dim_feedforward": 16, "norm_first": norm_first, "dropout": 0.0}
    layer = torch.nn.TransformerDecoderLayer(8, 2, **how, batch_first=True)
    theirs = torch.nn.TransformerDecoder(layer, 2).double()
    ours = nn.TransformerDecoder(
        lambda: nn.TransformerDecoderLayer(8, 2, **how),  # type: ignore[arg-type]
        2,
    ).astype("float64")
    assert ours.load_state_dict(theirs.state_dict()) == ([], [])
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x, memory = torch.tensor(X), torch.tensor(MEMORY)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(3, dtype=x.dtype)
    hidden = np.arange(5) < 4  # the last position of the memory is masked
    memory_mask = torch.tensor(~np.tile(hidden, (3, 1)))
    wanted = theirs(x, memory, tgt_mask=mask, memory_mask=memory_mask).detach().numpy()
    found = ngd.function(lambda x, m: ours(x, m, memory_mask=hidden, causal=True))(X, MEMORY)
    npt.assert_allclose(found, wanted, atol=1e-12)


def test_dropout_draws_only_in_training() -> None:
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
def test_an_encoder_layer_equals_pytorch(activation: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed beside the tests")
    how = {"dim_feedforward": 16, "activation": activation, "dropout": 0.0}
    theirs = torch.nn.TransformerEncoderLayer(8, 2, **how, batch_first=True).double()
    ours = nn.TransformerEncoderLayer(8, 2, **how).astype("float64")  # type: ignore[arg-type]
    assert ours.load_state_dict(theirs.state_dict()) == ([], [])
    wanted = theirs(torch.tensor(X)).detach().numpy()
    npt.assert_allclose(ngd.function(lambda x: ours(x))(X), wanted, atol=1e-12)


def test_bad_arguments_raise_errors() -> None:
    with pytest.raises(ValueError, match='activation: expected "relu" or "gelu"; got \'tanh\''):
        nn.TransformerEncoderLayer(8, 2, activation="tanh")
    layer = nn.TransformerEncoderLayer(8, 2)
    with pytest.raises(TypeError, match="expected a function that returns a layer; got Transf"):
        nn.TransformerEncoder(layer, 2)
    with pytest.raises(
        TypeError, match=r"nn\.TransformerDecoder: expected a function that returns"
    ):
        nn.TransformerDecoder(layer, 2)
    with pytest.raises(ValueError, match=r"nn\.TransformerDecoderLayer: activation: expected"):
        nn.TransformerDecoderLayer(8, 2, activation="tanh")
    x = ngd.placeholder("x", (2, 3, 7))
    with pytest.raises(ngd.errors.ShapeError, match=r"in self_attn: MultiHeadAttention"):
        layer(ops.exp(x))
