# SPDX-License-Identifier: Apache-2.0
"""Compare trainings of 50 steps by compile_step with eager PyTorch: losses and saved states."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.support import harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
from torch.nn.functional import cross_entropy  # noqa: E402

import ngd  # noqa: E402
from ngd.torch import compile_step  # noqa: E402
from tests.bridges.torch import hf_models, torch_ranks  # noqa: E402

nn = torch.nn
STEPS, NUM_BATCHES = 50, 4
Case = tuple[Any, Callable[..., Any], list[Any]]


def loss_of_hf(model: Any, batch: Any) -> Any:
    return model(**batch).loss


def loss_of_tokens(model: Any, batch: Any) -> Any:
    """Return a loss in the dtype of the model. That of transformers is in float32."""
    logits = model(batch["input_ids"]).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())


def loss_of_classifier(model: Any, batch: Any) -> Any:
    return cross_entropy(model(batch[0]), batch[1])


def mlp() -> Case:
    batches = [(torch.randn(8, 20), torch.randint(0, 4, (8,))) for _ in range(NUM_BATCHES)]
    layers = [nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)]
    return nn.Sequential(*layers), loss_of_classifier, batches


class Block(nn.Module):
    """A residual block of ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity()
        if stride > 1:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: Any) -> Any:
        return (self.layers(x) + self.shortcut(x)).relu()


def resnet18() -> Case:
    """Return a ResNet-18 with an eighth of the channels."""
    stages = [8, 16, 32, 64]
    layers: list[Any] = [nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for number, channels in enumerate(stages):
        before = stages[max(number - 1, 0)]
        layers += [Block(before, channels, 1 + (number > 0)), Block(channels, channels, 1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4)]
    images = [(torch.randn(4, 3, 48, 48), torch.randint(0, 4, (4,))) for _ in range(NUM_BATCHES)]
    return nn.Sequential(*layers), loss_of_classifier, images


def of_hf(name: str, loss: Callable[..., Any] = loss_of_hf) -> Case:
    """Return a small model of Hugging Face."""
    model, _ = hf_models.MODELS[name]()
    return model, loss, [hf_models.MODELS[name]()[1] for _ in range(NUM_BATCHES)]


class LanguageModel(nn.Module):
    """Two LSTM layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(30, 16), nn.LSTM(16, 24, 2, batch_first=True)
        self.head = nn.Linear(24, 30)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.lstm(self.embedding(tokens))[0])


def lstm() -> Case:
    def loss(model: Any, tokens: Any) -> Any:
        return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return LanguageModel(), loss, [torch.randint(0, 30, (4, 9)) for _ in range(NUM_BATCHES)]


MODELS: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "resnet18": resnet18,
    "gpt2": partial(of_hf, "gpt2", loss_of_tokens),
    "bert": partial(of_hf, "bert"),
    "vit": partial(of_hf, "vit"),
    "lstm": lstm,
}
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": partial(torch.optim.SGD, lr=0.02, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1),
}


def make_case(name: str, dtype: Any) -> Case:
    """Return a model of a dtype, its loss function and its batches."""
    torch.manual_seed(0)
    model, loss, batches = MODELS[name]()
    floats = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, batches
    )
    return model.to(dtype).train(), loss, floats


class Eager:
    """A training in eager PyTorch, with clipping and a cosine schedule."""

    def __init__(self, model: Any, loss: Any, optimizer: Any) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    def step(self, batch: Any) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(self.model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return float(loss.item())


class Compiled(Eager):
    """The same training by compile_step."""

    def __init__(self, model: Any, loss: Any, optimizer: Any) -> None:
        super().__init__(model, loss, optimizer)
        self.compiled = compile_step(model, loss, optimizer, clip_norm=1.0)

    def step(self, batch: Any) -> float:
        loss = self.compiled(batch)
        self.schedule.step()
        return float(loss.item())


def losses_of(kind: Any, case: Case, make_optimizer: Any) -> np.ndarray:
    model, loss, batches = copy.deepcopy(case)
    training = kind(model, loss, make_optimizer(model.parameters()))
    return np.array([training.step(batches[n % NUM_BATCHES]) for n in range(STEPS)])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_losses_in_float64_equal_eager(name: str, optimizer: str) -> None:
    case = make_case(name, torch.float64)
    expected = losses_of(Eager, case, OPTIMIZERS[optimizer])
    assert expected[-4:].mean() < expected[:4].mean()
    np.testing.assert_allclose(losses_of(Compiled, case, OPTIMIZERS[optimizer]), expected, 0, 1e-9)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_losses_in_float32_differ_no_more_than_eager_from_itself(name: str, optimizer: str) -> None:
    case, of_threads = make_case(name, torch.float32), {}
    threads = torch.get_num_threads()
    for number in (1, 2):
        torch.set_num_threads(number)
        of_threads[number] = losses_of(Eager, case, OPTIMIZERS[optimizer])
    torch.set_num_threads(threads)
    distance = abs(of_threads[2] - of_threads[1]).max()
    losses = losses_of(Compiled, case, OPTIMIZERS[optimizer])
    assert abs(losses - of_threads[1]).max() < max(1e-3, distance)


@pytest.mark.parametrize("kinds", [(Compiled, Eager), (Eager, Compiled)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_training_continues_in_the_other_mode(
    name: str, optimizer: str, kinds: Any
) -> None:
    """Ten steps in one mode, and then ten in the other mode from the saved state."""
    case = make_case(name, torch.float32)
    batches = case[2]
    trainings = []
    for kind in (kinds[0], kinds[1], kinds[0]):
        model, loss, _ = copy.deepcopy(case)
        trainings.append(kind(model, loss, OPTIMIZERS[optimizer](model.parameters())))
    for number in range(10):
        trainings[0].step(batches[number % NUM_BATCHES])
    for source, target in pairwise(trainings):
        file = io.BytesIO()
        parts = ("model", "optimizer", "schedule")
        torch.save({part: getattr(source, part).state_dict() for part in parts}, file)
        file.seek(0)
        for part, state in torch.load(file).items():
            getattr(target, part).load_state_dict(state)
        for number in range(5):
            batch = batches[number % NUM_BATCHES]
            assert target.step(batch) == pytest.approx(source.step(batch), rel=1e-5)


def save_on_ranks(name: str, optimizer: str) -> str:
    """Train 10 steps, and return the file that this rank saves, in hexadecimal digits."""
    torch.set_num_threads(1)
    ngd.init()
    model, loss, batches = make_case(name, torch.float32)
    training = Compiled(model, loss, OPTIMIZERS[optimizer](model.parameters()))
    for number in range(10):
        training.step(batches[number % NUM_BATCHES])
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": training.optimizer.state_dict()}, file)
    ngd.barrier()
    return file.getvalue().hex()


@harness.needs_ranks
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["mlp", "resnet18", "gpt2"])
def test_files_of_ranks_equal_the_file_of_one_process(name: str, optimizer: str) -> None:
    arguments = {"name": name, "optimizer": optimizer}
    (one,) = torch_ranks.run(save_on_ranks, 1, arguments=arguments)
    files = torch_ranks.run(save_on_ranks, 3, arguments=arguments)
    assert files[1:] == files[:-1]
    states = [torch.load(io.BytesIO(bytes.fromhex(each))) for each in (one, files[0])]
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-5, check_dtype=True)
