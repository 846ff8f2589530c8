# SPDX-License-Identifier: Apache-2.0
"""A rank is killed at a random time: other ranks name it, and weights are valid or poisoned."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
import time
from typing import Any

import pytest

from tests.support import harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import ngd  # noqa: E402
from ngd.errors import CollectiveError, PoisonedVariableError  # noqa: E402
from ngd.torch import compile_step  # noqa: E402
from tests.bridges.torch import torch_ranks  # noqa: E402

pytestmark = harness.needs_ranks
STEPS, VICTIM = 12, 1
KILLS = int(os.environ.get("NGD_TORCH_KILLS", "3"))


def make_model() -> Any:
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.Linear(512, 8))


def digest_of(model: Any) -> str:
    weights = [p.detach().numpy().tobytes() for p in model.parameters()]
    return hashlib.blake2b(b"".join(weights)).hexdigest()


def train(seed: int | None) -> dict[str, Any]:
    """Train, kill the victim at a time that the seed determines, and return what survivors see."""
    torch.set_num_threads(1)
    rank = ngd.init().rank
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = compile_step(model, lambda m, x: m(x).square().mean(), optimizer)
    generator = torch.Generator().manual_seed(rank)
    digests = []
    x = torch.randn(4, 64, generator=generator)
    step(x)
    if rank == VICTIM and seed is not None:
        wait = random.Random(seed).uniform(0, 0.05)
        threading.Thread(
            target=lambda: (time.sleep(wait), os.kill(os.getpid(), signal.SIGKILL))
        ).start()
    digests.append(digest_of(model))
    try:
        while len(digests) < (STEPS if seed is None else 10_000):
            step(x)
            if seed is None or len(digests) < STEPS:
                digests.append(digest_of(model))
    except CollectiveError as error:
        return {
            "error": str(error),
            "digest": digest_of(model),
            **check_failed(model, optimizer, step, x),
        }
    return {"digests": digests}


def check_failed(model: Any, optimizer: Any, step: Any, x: Any) -> dict[str, Any]:
    """Return if the model is poisoned. Check that all uses of it then raise until it is loaded."""
    uses = {
        "forward": lambda: model(x),
        "layer": lambda: model[0](x),
        "step": lambda: step(x),
        "evaluate": lambda: step.evaluate(x),
        "state": model.state_dict,
        "optimizer": optimizer.state_dict,
    }
    poisoned = {}
    for name, use in uses.items():
        try:
            use()
            poisoned[name] = False
        except PoisonedVariableError:
            poisoned[name] = True
        except CollectiveError:
            poisoned[name] = False
    model.load_state_dict(make_model().state_dict())
    return {
        "poisoned": poisoned,
        "loaded": model(x).isfinite().all().item() and digest_of(model) == digest_of(make_model()),
    }


@pytest.mark.timeout(300 + 20 * KILLS)
@pytest.mark.parametrize("has_hosts", [False, pytest.param(True, marks=harness.needs_mpi)])
def test_a_killed_rank_is_named_and_no_weights_are_half_written(has_hosts: bool) -> None:
    ranks = 4 if has_hosts else 3
    survivors = [rank for rank in range(ranks) if rank != VICTIM]
    how = torch_ranks.on_hosts(ranks) if has_hosts else {}
    uninterrupted = torch_ranks.run(train, ranks, arguments={"seed": None}, **how)
    expected = uninterrupted[0]["digests"]
    first = random.randrange(1 << 30)
    kinds = []
    for seed in range(first, first + KILLS):
        with torch_ranks.job(train, ranks, arguments={"seed": seed}, **how) as job:
            values = job.values(survivors, 120)
        for value in values:
            assert f"rank {VICTIM} " in value["error"], (seed, value)
            states = set(value["poisoned"].values())
            assert len(states) == 1, (seed, value)
            assert states == {True} or value["digest"] in expected, (seed, value)
            assert value["loaded"], (seed, value)
            kinds += states
    print(f"{sum(kinds)} of {len(kinds)} survivors were poisoned")
