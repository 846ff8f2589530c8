# SPDX-License-Identifier: Apache-2.0
"""Tests of compile_step on several ranks: they train as one process, with one copy of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import ngd  # noqa: E402
from ngd.torch.compiled.step import compile_step  # noqa: E402
from tests.bridges.torch import torch_ranks  # noqa: E402

pytestmark = harness.needs_ranks
STEPS, BATCH = 20, 12


def make_model() -> Any:
    torch.manual_seed(0)
    nn = torch.nn
    layers = [nn.Linear(16, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 512), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(512, 4)).double()


def batches() -> Any:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, BATCH, 16, dtype=torch.float64, generator=generator)
    return zip(x, torch.randint(0, 4, (STEPS, BATCH), generator=generator), strict=True)


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(x), y)


def optimizer_of(model: Any) -> tuple[Any, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def is_in_memory_of_ranks(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(each, 16) for each in line.split()[0].split("-"))
        if begin <= address < end:
            return "memfd:ngd" in line
    raise AssertionError(address)


def train_on_ranks() -> dict[str, Any]:
    torch.set_num_threads(1)
    world = ngd.init()
    model = make_model()
    optimizer, schedule = optimizer_of(model)
    step = compile_step(model, loss_of, optimizer, clip_norm=0.5)
    share = BATCH // world.size
    mine = slice(world.rank * share, (world.rank + 1) * share)
    losses = []
    for x, y in batches():
        losses.append(step(x[mine], y[mine]).item())
        schedule.step()
    weight = model[3].weight
    moment = optimizer.state[weight]["exp_avg"]
    shared = [is_in_memory_of_ranks(each.data_ptr()) for each in (weight, moment)]
    result = {
        "losses": losses,
        "shared": shared,
        "weights": [p.detach().numpy().ravel().tolist() for p in model.parameters()],
    }
    ngd.barrier()
    ngd.shutdown()
    weight.data.mul_(2.0)  # the memory stays valid after the end of the world
    return result


@pytest.mark.parametrize(
    ("ranks", "has_hosts"),
    [(2, False), (4, False), pytest.param(4, True, marks=harness.needs_mpi)],
)
def test_ranks_take_the_steps_of_one_process(ranks: int, has_hosts: bool) -> None:
    how = torch_ranks.on_hosts(ranks) if has_hosts else {}
    outcomes = torch_ranks.run(train_on_ranks, ranks, **how)
    eager = make_model()
    optimizer, schedule = optimizer_of(eager)
    for number, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        loss = loss_of(eager, x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(eager.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        mean = np.mean([outcome["losses"][number] for outcome in outcomes])
        assert mean == pytest.approx(loss.item(), abs=1e-10)
    for outcome in outcomes:
        assert outcome["shared"] == [True, True]
        for weight, p in zip(outcome["weights"], eager.parameters(), strict=True):
            np.testing.assert_allclose(weight, p.detach().numpy().ravel(), 0, 1e-9)
