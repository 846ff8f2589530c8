# SPDX-License-Identifier: Apache-2.0
"""Tests of variables that differ between ranks: reported on all ranks, or allowed by design."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import data, nn, ops, optim, train
from ngd.comm.statistics import stats_of
from ngd.errors import CollectiveError, VariableMismatchError, VaryingVariableWarning
from ngd.passes.sharding.uniform import next_values
from tests.support import harness
from tests.support.fake_group import FakeGroup
from tests.support.harness import caught
from tests.support.standing import fail_in_world, run_in_world

over = pytest.mark.parametrize("communicator", harness.communicators())
devices = pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])

X = np.arange(8, dtype=np.float32).reshape(4, 2) / 8
"""The batch of rank r is X + r."""


def inputs() -> np.ndarray:
    """Return the batch of this rank."""
    return X + np.float32(ngd.init().rank)


def model_of(odd: bool) -> dict[str, Any]:
    """Return a weight and a bias. The values of the weight are different if `odd` is true."""
    weight = np.full((2, 3), 2.0 if odd else 1.0, np.float32)
    return {
        "weight": ngd.variable("weight", weight),
        "bias": ngd.variable("bias", np.zeros(3, np.float32)),
    }


def loss_of(model: dict[str, Any], x: Any) -> Any:
    """Return a scalar that depends on weight and bias."""
    return ops.mean(ops.square(x @ model["weight"] + model["bias"]))


def compile_step(model: dict[str, Any], device: str) -> Callable[[Any], Any]:
    """Return a step of SGD that `ngd.compile` builds."""
    x = ngd.placeholder("x", (4, 2))
    updates = optim.SGD(0.1).minimize(loss_of(model, x), model)
    return ngd.compile([x], [], updates, device=device)


def trace_step(model: dict[str, Any], device: str) -> Callable[[Any], Any]:
    """Return a step of SGD that `ngd.function` traces."""
    optimizer = optim.SGD(0.1)

    @ngd.function(updates=True, device=device)
    def step(x: Any) -> Any:
        loss = loss_of(model, x)
        return loss, optimizer.minimize(loss, model)

    return step


STEPS = {"compile": compile_step, "function": trace_step}


def other_weights(how: str, device: str) -> dict[str, Any]:
    """Train with other weights on the last rank. Then broadcast those of rank 0, and train."""
    world = ngd.init()
    model = model_of(world.rank == world.size - 1)
    step = STEPS[how](model, device)
    error = caught(lambda: step(inputs()))
    ngd.broadcast_variables([*model.values()])
    expected = {name: v.numpy() for name, v in model.items()}
    for _ in range(2):  # the first step compares the variables again
        step(inputs())
        expected = one_step(expected, world.size)
    for name, v in model.items():
        np.testing.assert_allclose(v.numpy(), expected[name], rtol=1e-5)
    of_all_ranks = world.all_gather(model["weight"].numpy()[None])
    assert (of_all_ranks == of_all_ranks[0]).all()
    return error


def one_step(model: dict[str, np.ndarray], ranks: int) -> dict[str, np.ndarray]:
    """Return the model after one step on the batches of all ranks, computed by NumPy."""
    x = np.concatenate([X + np.float32(rank) for rank in range(ranks)])
    slope = 2 * (x @ model["weight"] + model["bias"]) / (len(x) * 3)
    return {
        "weight": model["weight"] - 0.1 * (x.T @ slope),
        "bias": model["bias"] - 0.1 * slope.sum(0),
    }


@over
@devices
@pytest.mark.parametrize("how", STEPS)
def test_different_weights_on_one_rank_are_reported_on_all(
    communicator: str, how: str, device: str
) -> None:
    for outcome in run_in_world(other_weights, communicator, 3, how=how, device=device):
        assert outcome.value["error"] == "VariableMismatchError", outcome
        message = outcome.value["message"]
        assert "other values on rank 2 than on rank 0, for " in message, outcome
        assert "'weight'" in message, outcome
        assert "ngd.broadcast_variables" in message, outcome
        assert "test_variables_of_ranks.py:" in message, outcome
        assert outcome.value["ranks"] == [2], outcome


def other_weights_in_a_trainer() -> dict[str, Any]:
    """Load weights on one rank only, and train with a Trainer."""
    world = ngd.init()
    layer = nn.Linear(2, 3)
    layer.name = "layer"
    if world.rank == 1:
        layer.load_state_dict({"weight": np.ones((3, 2)), "bias": np.ones(3)})
    optimizer = optim.SGD(0.1)

    @ngd.function(updates=True)
    def step(x: Any) -> Any:
        loss = ops.mean(ops.square(layer(x)))
        return loss, optimizer.minimize(loss, layer.parameters())

    source = data.Arrays(inputs())
    loader = data.Loader(source, data.Sampler(len(source), 2))
    trainer = train.Trainer(step, loader, layer.variables(), epochs=1, progress=False)
    return caught(trainer.run)


@over
def test_a_trainer_reports_different_weights(communicator: str) -> None:
    for outcome in fail_in_world(other_weights_in_a_trainer, communicator, 2):
        assert outcome.value["error"] == "VariableMismatchError", outcome
        assert "'layer.weight'" in outcome.value["message"], outcome


def wrong_update(what: str, device: str) -> dict[str, Any]:
    """Run a step that makes equal variables different. Return its error and the warnings."""
    world = ngd.init()
    odd = world.rank == 1
    model = model_of(False)
    if what == "name" and odd:
        model["bias"] = ngd.variable("other", np.zeros(3, np.float32))
    x = ngd.placeholder("x", (4, 2))
    loss = loss_of(model, x)
    total = ops.all_reduce(loss, op="mean")
    variables = [*model.values()]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if what in ("gradient", "loss"):
            gradients = ngd.grad(total if what == "loss" else loss, variables)
            pairs = zip(variables, gradients, strict=True)
            updates = {v: v - 0.1 * g for v, g in pairs}
        elif what == "momentum":  # makes no difference in the first step
            updates = optim.SGD(0.1, momentum=0.5 if odd else 0.9).minimize(loss, variables)
        elif what == "extra":
            updates = optim.SGD(0.1).minimize(loss, variables)
            if odd:
                updates[ngd.variable("seen", np.float32(0))] = total
        else:
            updates = optim.SGD(0.2 if odd and what == "rate" else 0.1).minimize(loss, variables)
        step = ngd.compile([x], [total], updates, device=device)
    kinds = [str(w.message) for w in seen if w.category is VaryingVariableWarning]
    return {**caught(lambda: step(inputs())), "warnings": kinds}


WRONG = {
    "gradient": ("values", "'weight'", 1),
    "loss": ("values", "'weight'", 1),
    "rate": ("values", "'weight'", 0),
    "momentum": ("update rules", "momentum'", 0),
    "name": ("variables", "'bias'", 0),
    "extra": ("variables", "", 0),
}


@over
@devices
@pytest.mark.parametrize("what", WRONG)
def test_updates_that_differ_between_ranks_are_reported(
    communicator: str, what: str, device: str
) -> None:
    differs, name, warned = WRONG[what]
    outcomes = run_in_world(wrong_update, communicator, 2, what=what, device=device)
    for outcome in outcomes:
        assert outcome.value["error"] == "VariableMismatchError", outcome
        assert f"other {differs} on rank 1 than on rank 0" in outcome.value["message"], outcome
        assert outcome.value["ranks"] == [1], outcome
        assert len(outcome.value["warnings"]) == warned, outcome
        for text in outcome.value["warnings"]:
            assert "placeholder 'x' of each rank" in text, outcome
            assert "'bias', 'weight'" in text, outcome
    assert name in outcomes[0].value["message"], outcomes[0]


def by_design(device: str) -> int:
    """Use values that differ by design. No rank warns or raises, and the results are correct."""
    world = ngd.init()
    model = model_of(False)
    own = ngd.variable("own", np.float32(world.rank), per_rank=True)
    x = ngd.placeholder("x", (4, 2))
    loss = loss_of(model, x)
    updates = optim.SGD(0.1).minimize(loss, model) | {own: own + ops.sum(x)}
    step = ngd.compile([x], [], updates, device=device)
    copy, total = ngd.variable("copy", np.float32(0)), ops.all_reduce(loss, op="sum")
    with pytest.warns(VaryingVariableWarning, match="'copy'.*depend on variable 'own'"):
        ngd.compile([x], [total], {copy: own * 2}, device=device)
    before = gathers(world)
    for _ in range(2):
        step(inputs())
    assert own.numpy() == world.rank + 2 * inputs().sum()
    of_all_ranks = world.all_gather(model["weight"].numpy()[None])
    assert (of_all_ranks == of_all_ranks[0]).all()
    alone = ngd.variable("alone", np.float32(world.rank))  # a step without collectives
    ngd.compile([x], [], {alone: alone + ops.sum(x)}, device=device)(inputs())
    return gathers(world) - before


def gathers(group: ngd.Group) -> int:
    """Return the number of all_gathers of this rank in a group."""
    return sum(row.calls for row in stats_of(group) if row.op == "all_gather")


@over
@devices
def test_variables_that_differ_by_design_are_not_compared(communicator: str, device: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for outcome in run_in_world(by_design, communicator, 2, device=device):
            assert outcome.value == 2, outcome  # one by the first call, one by the test


def batches_of_other_lengths(device: str) -> bool:
    """Compile a step for shorter batches, in different calls per rank. No rank compares again."""
    world = ngd.init()
    model = model_of(False)
    optimizer = optim.SGD(0.01)

    @ngd.function(updates=True, device=device)
    def step(x: Any) -> Any:
        loss = ops.sum(x @ model["weight"] + model["bias"])
        return loss, optimizer.minimize(loss, model)

    lengths = [4, 3, 4, 2, 4] if world.rank == 0 else [4, 4, 1, 4, 3]
    for length in lengths:
        step(inputs()[:length])
    of_all_ranks = world.all_gather(model["weight"].numpy()[None])
    return bool((of_all_ranks == of_all_ranks[0]).all())


@over
@devices
def test_ranks_may_compile_a_step_again_in_different_calls(communicator: str, device: str) -> None:
    for outcome in run_in_world(batches_of_other_lengths, communicator, 2, device=device):
        assert outcome.value is True, outcome


def in_groups(what: str) -> dict[str, Any]:
    """Reduce gradients over columns, and a flag over the world. Values may differ by column."""
    world = ngd.init()
    column = world.split(world.rank % 2)
    value = world.rank % 2 if what == "columns" else world.rank // 2
    v = ngd.variable("v", np.full(3, value, np.float32))
    x = ngd.placeholder("x", (3,))
    gradient = ops.all_reduce(x * v, op="mean", group=column)
    finite = ops.all_reduce(ops.cast(ops.sum(x) < 1e9, "int32"), op="min")
    updates = {v: ops.where(finite > 0, v - 0.5 * gradient, v)}
    step = ngd.compile([x], [], updates)
    try:
        step(np.full(3, 1.0, np.float32))
    except (VariableMismatchError, CollectiveError) as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"value": v.numpy().tolist()}


@over
def test_only_ranks_that_share_all_groups_are_compared(communicator: str) -> None:
    outcomes = run_in_world(in_groups, communicator, 4, what="columns")
    assert [each.value["value"][0] for each in outcomes] == [0, 0.5, 0, 0.5]
    for outcome in fail_in_world(in_groups, communicator, 4, what="rows"):
        assert outcome.value["error"] in ("VariableMismatchError", "RemoteRankError"), outcome
        assert "than on rank" in outcome.value["message"], outcome
        assert "for 'v'" in outcome.value["message"], outcome


def uneven_groups(device: str) -> list[float]:
    """The group of rank 2 has one rank, so rank 2 compares nothing and no rank waits for it."""
    world = ngd.init()
    host = world.split(world.rank // 2)
    v = ngd.variable("v", np.full(3, world.rank // 2, np.float32))
    w = ngd.variable("w", np.zeros(3, np.float32))
    x = ngd.placeholder("x", (3,))
    updates = {
        v: v - ops.all_reduce(x, op="sum", group=host),
        w: w + ops.all_reduce(x, op="sum"),
    }
    step = ngd.compile([x], [], updates, device=device)
    for _ in range(2):
        step(np.full(3, world.rank, np.float32))
    return [float(v.numpy()[0]), float(w.numpy()[0])]


@over
@devices
def test_groups_may_have_one_rank_on_some_ranks(communicator: str, device: str) -> None:
    outcomes = run_in_world(uneven_groups, communicator, 3, device=device)
    assert [each.value for each in outcomes] == [[-2, 6], [-2, 6], [-3, 6]]


def test_next_values_computed_by_collectives_are_proved_equal() -> None:
    """Test the analysis without ranks, for a group of two ranks and one of four."""
    two, four = FakeGroup(0, 2), FakeGroup(1, 4)
    v, t = (ngd.variable(name, np.ones(4, np.float32)) for name in "vt")
    own = ngd.variable("own", np.ones(4, np.float32), per_rank=True)
    x, rate = ngd.placeholder("x", (4,)), ngd.placeholder("rate", ())
    uniform_input = ngd.placeholder("given", (4,), uniform=True)

    def result_of(value: Any) -> tuple[set[Any], bool] | None:
        graph = ngd.graph.graph.Graph((), (ops.all_reduce(x, op="sum"),), ((v, value),))
        values = next_values(graph, two)
        return (set(values[0].groups), values[0].varies) if values else None

    mean = ops.all_reduce(x * v, op="mean", group=four)
    assert result_of(v - rate * mean) == ({four}, False)
    assert result_of(v - mean * x) == ({four}, True)
    assert result_of(v + 1.0) == ({two}, False)  # without a collective: the group of the step
    assert result_of(v + uniform_input) == ({two}, False)
    assert result_of(v + own * t) == ({two}, True)
    assert result_of(v + ops.cast(ops.own_rank(group=two), "float32")) == ({two}, True)
    assert result_of(ops.all_reduce(own, op="sum", group=four) + mean) == ({four}, False)
    assert result_of(ops.broadcast(v, group=two) + mean) == ({two, four}, False)
    assert result_of(v + ops.reduce(x, op="sum", group=two)) == ({two}, True)
    block = ops.reduce_scatter(ops.concat([x, x]), op="sum", group=two)
    assert result_of(v - block) is None  # each rank has another block
    assert result_of(own) == ({two}, True)
