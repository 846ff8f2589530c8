# SPDX-License-Identifier: Apache-2.0
"""Tests of gpt.py and lstm.py: numbers of ranks, checkpoints, weights of GPT-2, and bad input."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import ngd
from tests.examples.configured import train_configured
from tests.examples.runs import alone, expect_raised, needs_ranks

pytestmark = pytest.mark.long

EXAMPLE = "gpt.py"
both = pytest.mark.parametrize("example", ["gpt.py", "lstm.py"])
TEXT = "A rank that has left is named. The others are told, and nothing hangs. " * 60


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def train(example: str, ranks: int, text: Path, **changes: Any) -> dict[str, Any]:
    return train_configured(example, ranks, "--smoke", "--data", text, **changes)


@needs_ranks
@both
@pytest.mark.parametrize("shard", ["none", "host"])
def test_two_ranks_learn_like_one_rank(example: str, shard: str, text: Path) -> None:
    one = train(example, 1, text)
    two = train(example, 2, text, function={"shard": shard})
    assert one["steps"] == two["steps"] == 20
    assert one["bits_a_token"] < 7.8  # 8 before the first step
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=1e-3)
    np.testing.assert_allclose(two["bits_a_token"], one["bits_a_token"], rtol=1e-3)


@pytest.mark.parametrize(("precision", "device"), [("bfloat16", "CPU"), ("float16", "INTERPRETER")])
def test_16_bit_floats_learn_like_float32(
    precision: str, device: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = train("gpt.py", 1, text)
    monkeypatch.setenv("NGD_DEVICE", device)
    found = train("gpt.py", 1, text, precision=precision)
    assert found["device"] == device
    np.testing.assert_allclose(found["loss"], exact["loss"], rtol=0.01)
    np.testing.assert_allclose(found["bits_a_token"], exact["bits_a_token"], rtol=0.01)


class KilledError(Exception):
    """An exception that ends a run."""


@both
def test_training_resumes_from_a_checkpoint_bit_for_bit(
    example: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*options: str | Path) -> dict[str, bytes]:
        """Train in this process, and return the variables of the checkpoint."""
        monkeypatch.setattr(
            sys, "argv", [example, "--smoke", *map(str, ["--data", text, *options])]
        )
        module = importlib.import_module(Path(example).stem)
        module.run(module.parse_arguments())
        folder = Path(options[-1])
        index = json.loads((folder / "checkpoint.json").read_text())
        assert (index["position"]["epoch"], index["position"]["step"]) == (0, 20)
        state = ngd.checkpoint.read_safetensors(folder / index["tensors"])
        return {name: value.tobytes() for name, value in state.items()}

    save = ngd.checkpoint.save

    def save_and_end(*args: Any, position: Any, **kwargs: Any) -> None:
        save(*args, position=position, **kwargs)
        assert position["step"] == 10
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(ngd.checkpoint, "save", save_and_end)
        with pytest.raises(KilledError):
            run("--save", tmp_path / "begun")
    resumed = run("--resume", tmp_path / "begun", "--save", tmp_path / "ended")
    assert resumed == run("--save", tmp_path / "whole")


def weights(width: int, context: int, tokens: int) -> dict[str, Any]:
    """Return random weights in Hugging Face's format, for a GPT-2 of one layer."""
    random = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return (0.02 * random.normal(size=shape)).astype(np.float32)

    state = {"wte.weight": draw(tokens, width), "wpe.weight": draw(context, width)}
    shapes = {"attn.c_attn": 3 * width, "attn.c_proj": width, "mlp.c_fc": 4 * width}
    for name, outputs in shapes.items():
        state |= {f"h.0.{name}.weight": draw(width, outputs), f"h.0.{name}.bias": draw(outputs)}
    state |= {"h.0.mlp.c_proj.weight": draw(4 * width, width), "h.0.mlp.c_proj.bias": draw(width)}
    for name in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
        state |= {f"{name}.weight": np.ones(width, np.float32), f"{name}.bias": draw(width)}
    return {f"transformer.{key}": value for key, value in state.items()}


def gpt2(state: dict[str, Any], tokens: Any) -> Any:
    """Return the logits of a GPT-2 of one layer and one head, computed by NumPy."""
    state = {key.removeprefix("transformer."): v.astype(np.float64) for key, v in state.items()}

    def norm(x: Any, name: str) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        scaled = centered / np.sqrt((centered * centered).mean(-1, keepdims=True) + 1e-5)
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    def project(x: Any, name: str) -> Any:
        return x @ state[f"h.0.{name}.weight"] + state[f"h.0.{name}.bias"]

    x = state["wte.weight"][tokens] + state["wpe.weight"][: len(tokens)]
    q, k, v = np.split(project(norm(x, "h.0.ln_1"), "attn.c_attn"), 3, -1)
    attention_logits = q @ k.T / np.sqrt(q.shape[-1])
    attention_logits[np.triu_indices(len(tokens), 1)] = -np.inf
    weights_of_keys = np.exp(attention_logits - attention_logits.max(-1, keepdims=True))
    x = x + project(weights_of_keys / weights_of_keys.sum(-1, keepdims=True) @ v, "attn.c_proj")
    y = project(norm(x, "h.0.ln_2"), "mlp.c_fc")
    y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    return norm(x + project(y, "mlp.c_proj"), "ln_f") @ state["wte.weight"].T


def test_loaded_weights_of_gpt2_have_the_loss_of_numpy(tmp_path: Path) -> None:
    """Compare the loss on the held-out tokens, without training, with NumPy."""
    state, context = weights(width=64, context=8, tokens=40), 8
    save_file(state, tmp_path / "model.safetensors")
    tokens = np.random.default_rng(1).integers(0, 40, 400).astype(np.uint16)
    tokens.tofile(tmp_path / "tokens.bin")
    files = ["--data", tmp_path / "tokens.bin", "--weights", tmp_path / "model.safetensors"]
    settings = {"steps": 0, "batch": 4, "context": context, "generate": 0}
    report = train_configured(EXAMPLE, 1, *files, **settings)
    held_out = tokens[360:].astype(int)
    losses = []
    for row in (held_out[s : s + context + 1] for s in range(0, 32, context)):
        logits = gpt2(state, row[:-1])
        log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        losses.append(-log_probabilities[np.arange(context), row[1:]].mean())
    np.testing.assert_allclose(report["bits_a_token"] * np.log(2), np.mean(losses), rtol=1e-5)


@pytest.mark.parametrize("option", ["--data", "--resume"])
@both
def test_a_missing_file_is_named(example: str, option: str) -> None:
    expect_raised(alone(example, "--smoke", option, "/nowhere"), "/nowhere")


def test_weights_that_do_not_fit_raise_errors(tmp_path: Path, text: Path) -> None:
    few = tmp_path / "few.safetensors"
    save_file(weights(width=64, context=8, tokens=40), few)
    for given, words in (
        (__file__, "safetensors"),
        (few, "--weights: expected tokens below 40; got 116"),
    ):
        done = alone(EXAMPLE, "--smoke", "--data", text, "--weights", given)
        expect_raised(done, words)
