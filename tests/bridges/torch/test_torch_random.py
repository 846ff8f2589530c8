# SPDX-License-Identifier: Apache-2.0
"""Tests of random numbers in compiled steps: rates, independence, seeds and resume."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest

from tests.support import harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import ngd  # noqa: E402
from ngd.torch import compile_step  # noqa: E402
from tests.bridges.torch import torch_ranks  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
COUNT, RATE = 1_000_000, 0.1


class Drawing(nn.Module):
    """A model with two dropout layers. The loss is the sum of both."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.dropout = nn.Dropout(RATE)

    def forward(self, x: Any) -> Any:
        first = self.dropout(x * self.scale)
        return first, functional.dropout(x, RATE, self.training)


def masks_of(model: Any, x: Any) -> Any:
    first, second = model(x)
    return (first.sum() + second.sum()) * 0, first.detach(), second


def drawing_step(seed: int) -> Any:
    torch.manual_seed(seed)
    model = Drawing()
    return compile_step(model, masks_of, torch.optim.SGD(model.parameters(), lr=0.1))


def expect_rate(mask: Any, rate: float) -> None:
    mask = np.asarray(mask)
    deviation = (rate * (1 - rate) / mask.size) ** 0.5
    assert abs(mask.mean() - rate) < 4.5 * deviation


def test_layers_and_steps_draw_independently_at_the_rate() -> None:
    step = drawing_step(0)
    masks = []
    for _ in range(2):
        masks += [np.asarray(mask) != 0 for mask in step(torch.ones(COUNT))[1:]]
    for mask in masks:
        expect_rate(mask, 1 - RATE)
    for a, b in itertools.combinations(masks, 2):
        expect_rate(a & b, (1 - RATE) ** 2)


def test_dropout_in_attention_has_the_rate() -> None:
    model = nn.Linear(1, 1)

    def loss_of(model: Any, q: Any, v: Any) -> Any:
        # All scores are equal, so each result is the fraction of keys that are kept.
        y = functional.scaled_dot_product_attention(q, q, v, dropout_p=RATE)
        return model(y.mean().reshape(1)).sum() * 0, y

    step = compile_step(model, loss_of, torch.optim.SGD(model.parameters(), lr=0.1))
    length = 500
    y = step(torch.zeros(1, 4, length, 8), torch.ones(1, 4, length, 8))[1].double()
    num_kept = (y[..., 0] * length * (1 - RATE)).round().sum().item()
    count = 4 * length * length
    assert abs(num_kept / count - (1 - RATE)) < 4.5 * (RATE * (1 - RATE) / count) ** 0.5


def test_one_seed_gives_the_same_draws() -> None:
    x = torch.ones(1000)
    first, same, other = (drawing_step(seed)(x)[1] for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_evaluation_draws_nothing() -> None:
    assert torch.equal(drawing_step(0).evaluate(torch.ones(100))[1], torch.ones(100))


def draw() -> Any:
    torch.set_num_threads(1)
    rank = ngd.init().rank
    step = drawing_step(rank)  # only the seed of rank 0 counts
    return [[(mask != 0).tolist() for mask in step(torch.ones(2000))[1:]] for _ in range(2)]


@harness.needs_ranks
def test_ranks_draw_independently() -> None:
    outcomes = torch_ranks.run(draw, 3)
    masks = [np.array(mask) for ranks in outcomes for step in ranks for mask in step]
    for a, b in itertools.combinations(masks, 2):
        expect_rate(a & b, (1 - RATE) ** 2)


def make_trained(seed: int) -> tuple[Any, Any, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, compile_step(model, lambda m, x: m(x).square().mean(), optimizer)


def test_a_resumed_training_has_the_same_bits() -> None:
    x = torch.ones(32, 4)
    model, optimizer, step = make_trained(0)
    for _ in range(3):
        step(x)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    expected = [step(x).item() for _ in range(3)]
    model, optimizer, step = make_trained(5)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert [step(x).item() for _ in range(3)] == expected
    optimizer.load_state_dict(saved[1])
    model.load_state_dict(saved[0])
    assert [step(x).item() for _ in range(3)] == expected


def test_pytorch_loads_the_state() -> None:
    _, optimizer, step = make_trained(0)
    step(torch.ones(32, 4))
    model, _, _ = make_trained(0)
    plain = torch.optim.AdamW(model.parameters(), lr=0.5)
    plain.load_state_dict(optimizer.state_dict())
    model(torch.ones(32, 4)).square().mean().backward()
    plain.step()
    assert plain.state_dict()["state"][0]["step"].item() == 2


def periodic_tokens(step: int) -> Any:
    """Return sequences that repeat three tokens, with a tenth of them replaced."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 50, (8, 3), generator=generator).repeat(1, 8)
    noise = torch.rand(tokens.shape, generator=generator) < 0.1
    return torch.where(noise, torch.randint(0, 50, tokens.shape, generator=generator), tokens)


def test_a_language_model_with_dropout_learns_as_in_eager() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "n_positions": 24, "n_embd": 64, "n_layer": 2, "n_head": 4}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))  # drops a tenth
    eager = copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=3e-3) for each in (model, eager)]
    step = compile_step(model, lambda m, x: m(x, labels=x).loss, optimizers[0])
    losses: list[list[float]] = [[], []]
    for number in range(200):
        tokens = periodic_tokens(number)
        losses[0].append(step(tokens).item())
        optimizers[1].zero_grad()
        loss = eager(tokens, labels=tokens).loss
        loss.backward()
        optimizers[1].step()
        losses[1].append(loss.item())
    compiled_loss, expected = (np.mean(each[-40:]) for each in losses)
    assert expected < 0.8 * losses[1][0]
    assert compiled_loss == pytest.approx(expected, rel=0.02)
