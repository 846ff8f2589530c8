# SPDX-License-Identifier: Apache-2.0
"""Known networks against torchvision's, timm's and transformers' own code: trainings, weights."""

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
CLASSES, IMAGE, PLACES, TOKENS = 7, 32, 12, 40
IMAGES = {"float64": (8, IMAGE), "float32": (4, 2 * IMAGE)}
"""How many, and how large: the kernels for float64 are slow."""
BETAS = (0.9, 0.98)


class TorchLSTM(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Embedding(TOKENS, 24)
        self.rnn = torch.nn.LSTM(24, 24, 2, batch_first=True)
        self.decoder = torch.nn.Linear(24, TOKENS)

    def forward(self, tokens: Any) -> Any:
        return self.decoder(self.rnn(self.encoder(tokens))[0])


class Scores(torch.nn.Module):  # type: ignore[misc]
    """Of Hugging Face's networks the scores alone."""

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
    return Scores(transformers.GPT2LMHeadModel(config))


def of_gpt2(key: str) -> str:
    """The name here of what is there `model.transformer.*`; that of the shared weight is empty."""
    return "" if key == "model.lm_head.weight" else key.removeprefix("model.transformer.")


def images(random: Any, dtype: str) -> tuple[Any, Any]:
    rows, size = IMAGES[dtype]
    return random.normal(size=(rows, 3, size, size)), random.integers(CLASSES, size=rows)


def small_images(random: Any, dtype: str) -> tuple[Any, Any]:
    return random.normal(size=(8, 3, IMAGE, IMAGE)), random.integers(CLASSES, size=8)


def masks(random: Any, dtype: str) -> tuple[Any, Any]:
    return random.normal(size=(2, 3, 32, 32)), random.normal(size=(2, 2, 32, 32))


def texts(random: Any, dtype: str) -> tuple[Any, Any]:
    drawn = random.integers(TOKENS, size=(4, PLACES + 1))
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
    "gpt": Case(lambda: gpt.GPT(TOKENS, 64, 32, 2, 2), hugging_face_gpt2, texts, of_gpt2),
    "lstm": Case(lambda: lstm.LanguageModel(TOKENS, 24, 2, 0.0), TorchLSTM, texts),
}


def state_of(theirs: Any, renamed: Callable[[str], str] = str) -> dict[str, Any]:
    """Their values under the names here."""
    state = {renamed(key): value.numpy() for key, value in theirs.state_dict().items()}
    return {key: value for key, value in state.items() if key}


class Papers:
    """An optimizer of PyTorch's kind whose steps are a paper's formula in NumPy."""

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
        lambda p: Papers(p, lambda w, g: formulas.lars(w, g, rate=0.5, m=0.9, beta=0.01, eta=0.02)),
    ),
    "lamb": (
        lambda: optim.LAMB(0.003, betas=BETAS, weight_decay=0.1),
        lambda p: Papers(
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
    """Train both from the same weights on the same data; losses and last scores agree."""
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
    step, judge = ngd.compile([x, y], [loss], updates), ngd.compile([x], [model(x)])
    trainer = theirs(reference.parameters())
    found, wanted = [], []
    for i in range(steps):
        inputs, labels = batches[i % len(batches)]
        found.append(float(step(inputs, labels)[0]))
        trainer.zero_grad()
        value = their_loss(reference(torch.from_numpy(inputs)), torch.from_numpy(labels))
        value.backward()
        trainer.step()
        wanted.append(value.item())
    np.testing.assert_allclose(found, wanted, rtol=losses)
    scores = reference.eval()(torch.from_numpy(batches[0][0])).detach().numpy()
    size = float(np.abs(scores).max())
    np.testing.assert_allclose(judge(batches[0][0])[0], scores, rtol=0, atol=last * size)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("name", CASES)
def test_ten_steps_in_float64(name: str, optimizer: str) -> None:
    compare(CASES[name], optimizer, "float64", 10, 1e-8, 1e-8)


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
@pytest.mark.parametrize("name", ["unet", "gpt", "lstm"])
def test_ten_steps_by_the_papers(name: str, optimizer: str) -> None:
    compare(CASES[name], optimizer, "float64", 10, 1e-8, 1e-8)


@pytest.mark.parametrize("name", CASES)
def test_thirty_steps_in_float32(name: str) -> None:
    """By SGD: where a gradient is zero but for rounding, Adam's step is its sign.

    ResNet-18 is chaotic: in some batches a ReLU falls on the other side of 0, and then PyTorch's
    own gradients in float32 and in float64 differ by 1 %. So its steps are short.
    """
    optimizer = "slow sgd" if name == "resnet18" else "sgd"
    compare(CASES[name], optimizer, "float32", 30, 1e-3, 1e-2 if name == "resnet18" else 1e-3)


def test_the_weights_of_a_gpt2_load(tmp_path: Path) -> None:
    """A file that Hugging Face's own code writes gives its scores: two of GPT-2's layers."""
    reference = hugging_face_gpt2(layers=2, width=768, tokens=1000).eval()
    reference.model.save_pretrained(tmp_path)
    state = checkpoint.read_safetensors(tmp_path / "model.safetensors")
    state = {key.removeprefix("transformer."): value for key, value in state.items()}
    state.pop("lm_head.weight", None)
    model = gpt.GPT(1000, 64, 768, 2, 12)
    model.load_state_dict(state)
    tokens = np.random.default_rng(0).integers(0, 1000, (2, 50))
    wanted = reference(torch.from_numpy(tokens)).detach().numpy()
    (found,) = ngd.compile([], [model(tokens)])()
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_the_weights_of_a_resnet50_load(tmp_path: Path) -> None:
    """A state dict of torchvision's own code gives its scores."""
    torch.manual_seed(0)
    reference = witness("torchvision").models.resnet50().train()
    random = np.random.default_rng(0)
    images = random.normal(size=(4, 3, IMAGE, IMAGE)).astype(np.float32)
    with torch.no_grad():
        reference(torch.from_numpy(images))  # the running statistics leave 0 and 1
        wanted = reference.eval()(torch.from_numpy(images)).numpy()
    save_file(state_of(reference), tmp_path / "weights")
    model = resnet50.ResNet(50, 1000)
    model.load_state_dict(checkpoint.read_safetensors(tmp_path / "weights"))
    (found,) = ngd.compile([], [model(images)])()
    np.testing.assert_allclose(found, wanted, atol=1e-4)
