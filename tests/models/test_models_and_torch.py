# SPDX-License-Identifier: Apache-2.0
"""Tests that train known networks beside torchvision, timm and transformers, and load weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpt
import lstm
import numpy as np
import pytest
import resnet50
from safetensors.numpy import save_file

import ngd
from ngd import checkpoint, nn, ops, optim
from tests.models import zoo
from tests.models.witnesses import torch, witness
from tests.optim import formulas

pytestmark = pytest.mark.long
CLASSES, IMAGE, LENGTH, TOKENS = 7, 32, 12, 40
IMAGES = {"float64": (8, IMAGE), "float32": (4, 2 * IMAGE)}
"""The number and the size of the images. Kernels for float64 are slow."""
BETAS = (0.9, 0.98)


class TorchLSTM(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Embedding(TOKENS, 24)
        self.rnn = torch.nn.LSTM(24, 24, 2, batch_first=True)
        self.decoder = torch.nn.Linear(24, TOKENS)

    def forward(self, tokens: Any) -> Any:
        return self.decoder(self.rnn(self.encoder(tokens))[0])


class LogitsOnly(torch.nn.Module):  # type: ignore[misc]
    """A network of Hugging Face that returns only the logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Any) -> Any:
        return self.model(tokens, use_cache=False).logits


def hugging_face_gpt2(layers: int = 2, width: int = 32, tokens: int = TOKENS) -> Any:
    transformers = witness("transformers")
    config = transformers.GPT2Config(
        vocab_size=tokens, n_positions=64, n_embd=width, n_layer=layers, n_head=max(2, width // 64),
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager",
    )  # fmt: skip
    return LogitsOnly(transformers.GPT2LMHeadModel(config))


def ngd_name_of_gpt2(key: str) -> str:
    """Return the name that ngd's GPT uses for a weight, or "" for the shared weight."""
    return "" if key == "model.lm_head.weight" else key.removeprefix("model.transformer.")


def images(random: Any, dtype: str) -> tuple[Any, Any]:
    rows, size = IMAGES[dtype]
    return random.normal(size=(rows, 3, size, size)), random.integers(CLASSES, size=rows)


def small_images(random: Any, dtype: str) -> tuple[Any, Any]:
    return random.normal(size=(8, 3, IMAGE, IMAGE)), random.integers(CLASSES, size=8)


def masks(random: Any, dtype: str) -> tuple[Any, Any]:
    return random.normal(size=(2, 3, 32, 32)), random.normal(size=(2, 2, 32, 32))


def texts(random: Any, dtype: str) -> tuple[Any, Any]:
    drawn = random.integers(TOKENS, size=(4, LENGTH + 1))
    return drawn[:, :-1], drawn[:, 1:]


@dataclasses.dataclass
class Case:
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    batch: Callable[[Any, str], tuple[Any, Any]] = images
    renamed: Callable[[str], str] = str


CASES = {
    "resnet18": Case(
        lambda: resnet50.ResNet(18, CLASSES),
        lambda: witness("torchvision").models.resnet18(num_classes=CLASSES),
    ),
    "mobilenet_v3_small": Case(
        lambda: zoo.MobileNetV3Small(CLASSES),
        lambda: witness("torchvision").models.mobilenet_v3_small(num_classes=CLASSES, dropout=0.0),
    ),
    "vit_tiny": Case(
        lambda: zoo.ViT(CLASSES, IMAGE),
        lambda: witness("timm").create_model(
            "vit_tiny_patch16_224", num_classes=CLASSES, img_size=IMAGE
        ),
        small_images,
    ),
    "convnext_atto": Case(
        lambda: zoo.ConvNeXt(CLASSES),
        lambda: witness("timm").create_model("convnext_atto", num_classes=CLASSES),
    ),
    "unet": Case(lambda: zoo.unet(nn, ops.concat), lambda: zoo.unet(torch.nn, torch.cat), masks),
    "gpt": Case(lambda: gpt.GPT(TOKENS, 64, 32, 2, 2), hugging_face_gpt2, texts, ngd_name_of_gpt2),
    "lstm": Case(lambda: lstm.LanguageModel(TOKENS, 24, 2, 0.0), TorchLSTM, texts),
}


def state_of(theirs: Any, renamed: Callable[[str], str] = str) -> dict[str, Any]:
    """Return the values of a PyTorch module under ngd's names."""
    state = {renamed(key): value.numpy() for key, value in theirs.state_dict().items()}
    return {key: value for key, value in state.items() if key}


class PaperOptimizer:
    """An optimizer with PyTorch's interface, whose steps are a paper's formula in NumPy."""

    def __init__(self, parameters: Iterator[Any], formula: Callable[[Any, Any], Any]) -> None:
        self.parameters = list(parameters)
        self.steps = [
            formula(p.detach().numpy().copy(), lambda _, p=p: p.grad.numpy().copy())
            for p in self.parameters
        ]

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        with torch.no_grad():
            for p, step in zip(self.parameters, self.steps, strict=True):
                p.copy_(torch.from_numpy(next(step)))


OPTIMIZERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "sgd": (
        lambda: optim.SGD(0.002, momentum=0.9),
        lambda p: torch.optim.SGD(p, 0.002, momentum=0.9),
    ),
    "slow sgd": (
        lambda: optim.SGD(1e-5, momentum=0.9),
        lambda p: torch.optim.SGD(p, 1e-5, momentum=0.9),
    ),
    "adamw": (
        lambda: optim.AdamW(2e-4, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, 2e-4, weight_decay=0.1),
    ),
    "lars": (
        lambda: optim.LARS(0.5, momentum=0.9, weight_decay=0.01, trust_coefficient=0.02),
        lambda p: PaperOptimizer(
            p, lambda w, g: formulas.lars(w, g, rate=0.5, m=0.9, beta=0.01, eta=0.02)
        ),
    ),
    "lamb": (
        lambda: optim.LAMB(0.003, betas=BETAS, weight_decay=0.1),
        lambda p: PaperOptimizer(
            p,
            lambda w, g: formulas.lamb(w, g, rate=0.003, betas=BETAS, epsilon=1e-6, decay=0.1),
        ),
    ),
}


def our_loss(found: Any, wanted: Any) -> Any:
    if wanted.dtype.kind == "f":
        return ops.mean(ops.square(found - wanted))
    flat = ops.reshape(found, (-1, found.shape[-1]))
    return ops.mean(ops.softmax_cross_entropy(flat, ops.reshape(wanted, (-1,))))


def their_loss(found: Any, wanted: Any) -> Any:
    if wanted.dtype.is_floating_point:
        return torch.nn.functional.mse_loss(found, wanted)
    return torch.nn.functional.cross_entropy(found.flatten(0, -2), wanted.flatten())


def compare(case: Case, optimizer: str, dtype: str, steps: int, losses: float, last: float) -> None:
    """Train both networks from equal weights on equal data, and compare losses and outputs."""
    torch.manual_seed(0)
    model, reference = case.ours().astype(dtype), case.theirs().to(getattr(torch, dtype)).train()
    model.load_state_dict(state_of(reference, case.renamed))
    random = np.random.default_rng(1)
    batches = [case.batch(random, dtype) for _ in range(2)]
    batches = [tuple(a.astype(dtype) if a.dtype.kind == "f" else a for a in b) for b in batches]
    x, y = (
        ngd.placeholder(name, a.shape, a.dtype) for name, a in zip("xy", batches[0], strict=True)
    )
    ours, theirs = OPTIMIZERS[optimizer]
    with nn.training() as state:
        loss = our_loss(model(x), y)
    updates = [ours().minimize(loss, model.parameters()), state.updates]
    step, evaluate = ngd.compile([x, y], [loss], updates), ngd.compile([x], [model(x)])
    trainer = theirs(reference.parameters())
    our_losses, their_losses = [], []
    for i in range(steps):
        inputs, labels = batches[i % len(batches)]
        our_losses.append(float(step(inputs, labels)[0]))
        trainer.zero_grad()
        value = their_loss(reference(torch.from_numpy(inputs)), torch.from_numpy(labels))
        value.backward()
        trainer.step()
        their_losses.append(value.item())
    np.testing.assert_allclose(our_losses, their_losses, rtol=losses)
    logits = reference.eval()(torch.from_numpy(batches[0][0])).detach().numpy()
    size = float(np.abs(logits).max())
    np.testing.assert_allclose(evaluate(batches[0][0])[0], logits, rtol=0, atol=last * size)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("name", CASES)
def test_ten_steps_in_float64_equal_pytorch(name: str, optimizer: str) -> None:
    compare(CASES[name], optimizer, "float64", 10, 1e-8, 1e-8)


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
@pytest.mark.parametrize("name", ["unet", "gpt", "lstm"])
def test_ten_steps_of_lars_and_lamb_equal_the_papers(name: str, optimizer: str) -> None:
    compare(CASES[name], optimizer, "float64", 10, 1e-8, 1e-8)


@pytest.mark.parametrize("name", CASES)
def test_thirty_steps_in_float32_equal_pytorch(name: str) -> None:
    """SGD is used, because Adam amplifies rounding errors of gradients that should be zero.

    ResNet-18 is chaotic: in some batches, rounding changes the sign of an operand of a ReLU. Then
    PyTorch's gradients in float32 and float64 differ by 1 %. Therefore its steps are short.
    """
    optimizer = "slow sgd" if name == "resnet18" else "sgd"
    compare(CASES[name], optimizer, "float32", 30, 1e-3, 1e-2 if name == "resnet18" else 1e-3)


def test_weights_of_gpt2_load_and_give_the_same_logits(tmp_path: Path) -> None:
    """The weights are in a file that transformers writes, for two layers of GPT-2."""
    reference = hugging_face_gpt2(layers=2, width=768, tokens=1000).eval()
    reference.model.save_pretrained(tmp_path)
    state = checkpoint.read_safetensors(tmp_path / "model.safetensors")
    state = {key.removeprefix("transformer."): value for key, value in state.items()}
    state.pop("lm_head.weight", None)
    model = gpt.GPT(1000, 64, 768, 2, 12)
    model.load_state_dict(state)
    tokens = np.random.default_rng(0).integers(0, 1000, (2, 50))
    expected = reference(torch.from_numpy(tokens)).detach().numpy()
    (found,) = ngd.compile([], [model(tokens)])()
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_weights_of_resnet50_load_and_give_the_same_logits(tmp_path: Path) -> None:
    """The weights are a state dict of torchvision."""
    torch.manual_seed(0)
    reference = witness("torchvision").models.resnet50().train()
    random = np.random.default_rng(0)
    images = random.normal(size=(4, 3, IMAGE, IMAGE)).astype(np.float32)
    with torch.no_grad():
        reference(torch.from_numpy(images))  # moves the running statistics away from 0 and 1
        expected = reference.eval()(torch.from_numpy(images)).numpy()
    save_file(state_of(reference), tmp_path / "weights")
    model = resnet50.ResNet(50, 1000)
    model.load_state_dict(checkpoint.read_safetensors(tmp_path / "weights"))
    (found,) = ngd.compile([], [model(images)])()
    np.testing.assert_allclose(found, expected, atol=1e-4)
