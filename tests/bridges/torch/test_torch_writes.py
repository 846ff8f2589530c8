# SPDX-License-Identifier: Apache-2.0
"""Tests of writes to parameters and optimizer state between steps: as in eager, or an error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support import harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import ngd  # noqa: E402
from ngd.torch import compile_step  # noqa: E402
from tests.bridges.torch import torch_ranks  # noqa: E402

STEPS, BATCH = 6, 8


def make_model() -> Any:
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 4)).double()


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(x), y)


def batches() -> Any:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, BATCH, 16, dtype=torch.float64, generator=generator)
    return zip(x, torch.randint(0, 4, (STEPS, BATCH), generator=generator), strict=True)


def noise_of(p: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(p.shape, dtype=p.dtype, generator=generator)


def decayed_data(model: Any, optimizer: Any) -> None:
    for p in model.parameters():
        p.data.mul_(0.9)


@torch.no_grad()
def added_noise(model: Any, optimizer: Any) -> None:
    for p in model.parameters():
        p.add_(noise_of(p, 3))


def initialized(model: Any, optimizer: Any) -> None:
    torch.nn.init.constant_(model[2].weight, 0.01)
    torch.nn.init.zeros_(model[2].bias)


def other_memory(model: Any, optimizer: Any) -> None:
    model[2].weight.data = noise_of(model[2].weight, 4)
    model[0].bias.data = noise_of(model[0].bias, 5)


@torch.no_grad()
def one_element(model: Any, optimizer: Any) -> None:
    model[2].weight[5, 7] = 2.0
    model[3].bias[1] = -1.0


def loaded(model: Any, optimizer: Any) -> None:
    other = {key: noise_of(p, 6) for key, p in model.state_dict().items()}
    model.load_state_dict(other)


def changed_moments(model: Any, optimizer: Any) -> None:
    for each in optimizer.state.values():
        each["exp_avg"].zero_()


def replaced_moments(model: Any, optimizer: Any) -> None:
    for p, each in optimizer.state.items():
        each["exp_avg_sq"] = torch.ones_like(p)


def loaded_optimizer(model: Any, optimizer: Any) -> None:
    state = copy.deepcopy(optimizer.state_dict())
    for each in state["state"].values():
        each["exp_avg"].mul_(-1)
        each["step"].fill_(100)
    state["param_groups"][0]["lr"] = 0.02
    optimizer.load_state_dict(state)


def loaded_counts(model: Any, optimizer: Any) -> None:
    state = copy.deepcopy(optimizer.state_dict())
    for number, each in state["state"].items():
        each["step"].fill_(1 + number)
    optimizer.load_state_dict(state)


def frozen(model: Any, optimizer: Any) -> None:
    model[0].requires_grad_(False)


WRITES: dict[str, Callable[[Any, Any], None]] = {
    each.__name__: each
    for each in (
        decayed_data,
        added_noise,
        initialized,
        other_memory,
        one_element,
        loaded,
        changed_moments,
        replaced_moments,
        loaded_optimizer,
        loaded_counts,
        frozen,
    )
}


def optimizer_of(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train_eagerly(write: Callable[[Any, Any], None], is_frozen: bool) -> tuple[list[float], Any]:
    model = make_model()
    model[0].requires_grad_(not is_frozen)
    optimizer = optimizer_of(model)
    losses = []
    for number, (x, y) in enumerate(batches()):
        if number in (2, 4):
            write(model, optimizer)
            if number == 4:
                model.requires_grad_(True)
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def train_compiled(write: Callable[[Any, Any], None], is_frozen: bool) -> dict[str, Any]:
    """Train with writes between steps. The first layer may be frozen in the first four steps."""
    world = ngd.init()
    model = make_model()
    model[0].requires_grad_(not is_frozen)
    if world.rank:
        torch.nn.init.zeros_(model[0].weight)  # rank 0's values replace it
    optimizer = optimizer_of(model)
    step = compile_step(model, loss_of, optimizer)
    share = BATCH // world.size
    mine = slice(world.rank * share, (world.rank + 1) * share)
    losses = []
    for number, (x, y) in enumerate(batches()):
        if number in (2, 4):
            write(model, optimizer)
            if number == 4:
                model.requires_grad_(True)
        losses.append(step(x[mine], y[mine]).item())
    return {"losses": losses, "weights": [p.detach().numpy().tolist() for p in model.parameters()]}


def train_with_all_writes(is_frozen: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    return {name: train_compiled(write, is_frozen) for name, write in WRITES.items()}


def expect_equal_to_eager(name: str, is_frozen: bool, outcomes: list[dict[str, Any]]) -> None:
    losses, model = train_eagerly(WRITES[name], is_frozen)
    mean_losses = np.mean([outcome["losses"] for outcome in outcomes], 0)
    np.testing.assert_allclose(mean_losses, losses, 1e-9, err_msg=name)
    for outcome in outcomes:
        for weight, p in zip(outcome["weights"], model.parameters(), strict=True):
            np.testing.assert_allclose(weight, p.detach().numpy(), 0, 1e-8, err_msg=name)


@pytest.mark.parametrize("name", WRITES)
def test_a_write_is_part_of_the_training(name: str) -> None:
    expect_equal_to_eager(name, False, [train_compiled(WRITES[name], False)])


@harness.needs_ranks
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_write_on_all_ranks_is_part_of_the_training(is_frozen: bool) -> None:
    outcomes = torch_ranks.run(train_with_all_writes, 4, arguments={"is_frozen": is_frozen})
    for name in WRITES:
        expect_equal_to_eager(name, is_frozen, [outcome[name] for outcome in outcomes])


def noise_per_rank(model: Any, rank: int) -> None:
    with torch.no_grad():
        model[2].weight.add_(noise_of(model[2].weight, rank))


def bias_per_rank(model: Any, rank: int) -> None:
    model[0].bias.data.fill_(rank)


def frozen_weight_per_rank(model: Any, rank: int) -> None:
    model[0].weight.data.mul_(rank + 2)


def memory_per_rank(model: Any, rank: int) -> None:
    model[2].weight.data = noise_of(model[2].weight, rank)


def write_on_rank_1(model: Any, rank: int) -> None:
    if rank == 1:
        model[2].weight.data.mul_(2)


DIFFERING = {
    each.__name__: each
    for each in (
        noise_per_rank,
        bias_per_rank,
        frozen_weight_per_rank,
        memory_per_rank,
        write_on_rank_1,
    )
}


def write_differently(kind: str) -> str:
    torch.set_num_threads(1)
    world = ngd.init()
    model = make_model()
    model[0].weight.requires_grad_(kind != "frozen_weight_per_rank")
    step = compile_step(model, loss_of, optimizer_of(model))
    x, y = next(batches())
    step(x, y)
    DIFFERING[kind](model, world.rank)
    try:
        step(x, y)
    except ngd.errors.Error as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@harness.needs_ranks
@pytest.mark.parametrize("kind", DIFFERING)
def test_a_write_that_differs_between_ranks_is_refused(kind: str) -> None:
    names = {"bias_per_rank": "0.bias", "frozen_weight_per_rank": "0.weight"}
    name = names.get(kind, "2.weight")
    for message in torch_ranks.run(write_differently, 2, arguments={"kind": kind}):
        if kind == "write_on_rank_1":
            assert "CollectiveMismatchError" in message
            assert f"after writes to '{name}'" in message
        else:
            assert "VariableMismatchError: ngd.torch.compile_step: expected the same" in message
            assert f"write to '{name}' on all ranks; got other values on rank" in message
