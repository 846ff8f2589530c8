# SPDX-License-Identifier: Apache-2.0
"""Tests of state that is loaded before its variables exist, in functions and compiled steps."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import checkpoint, data, nn, ops, optim, train
from tests.support import harness

BATCHES = [
    (x.astype(np.float32), y)
    for x, y in zip(
        np.random.default_rng(1).normal(size=(12, 8, 5)),
        np.random.default_rng(2).integers(0, 3, (12, 8)),
        strict=True,
    )
]
OPTIMIZERS: dict[str, Callable[[], optim.Optimizer]] = {
    "sgd": lambda: optim.SGD(0.1, momentum=0.9),
    "adamw": lambda: optim.AdamW(optim.warm_up(optim.cosine(0.05, 10), 3)),
    "rmsprop": lambda: optim.RMSprop(0.01, centered=True, momentum=0.5),
    "adam": lambda: optim.Adam(0.01, loss_scale=optim.LossScale(growth_interval=2)),
}


class Program:
    """A model, its optimizer, an average and random draws, as in a new process."""

    def __init__(
        self, optimizer: optim.Optimizer, how: str = "function", *, model: Any = None
    ) -> None:
        self.model = model or nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.2), nn.Linear(4, 3))
        self.optimizer, self.random = optimizer, nn.Random(seed=3)
        self.average = optim.ExponentialMovingAverage(0.9)
        self.step: Any = ngd.function(self.updates, updates=True)
        if how == "compile":
            x, y = ngd.placeholder("x", (8, 5)), ngd.placeholder("y", (8,), "int64")
            loss, updates = self.updates(x, y)
            step = ngd.compile([x, y], [loss], updates)
            self.step = lambda x, y: step(x, y)[0]

    def updates(self, x: Any, y: Any) -> Any:
        with nn.training(self.random) as state:
            loss = ops.mean(ops.softmax_cross_entropy(self.model(x), y))
        parameters = self.model.parameters()
        updates = self.optimizer.minimize(loss, parameters)
        updates |= self.average.updates(updates, parameters)
        return loss, [updates, state.updates]

    @property
    def saved(self) -> Any:
        states = [self.optimizer.state, self.average.state, self.random.state]
        return [self.model.variables(), {"states": states}]

    def train(self, first: int, last: int) -> Any:
        return [float(self.step(*BATCHES[i])) for i in range(first, last)]

    def values(self) -> dict[str, Any]:
        return {v.name: v.numpy() for v in ngd.trees.leaves_of(self.saved)}


def assert_equal(one: Program, other: Program) -> None:
    values_of_one, values_of_other = one.values(), other.values()
    assert values_of_one.keys() == values_of_other.keys()
    for name, value in values_of_one.items():
        np.testing.assert_array_equal(value, values_of_other[name], name)


@pytest.mark.parametrize("after", ["compile", "function"])
@pytest.mark.parametrize("before", ["compile", "function"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_loaded_before_the_first_step_continues_bit_for_bit(
    name: str, before: str, after: str, tmp_path: Path
) -> None:
    straight = Program(OPTIMIZERS[name](), before)
    losses = straight.train(0, 10)
    first = Program(OPTIMIZERS[name](), before)
    first.train(0, 6)
    checkpoint.save(tmp_path, first.saved)
    resumed = Program(OPTIMIZERS[name](), after)
    checkpoint.load(tmp_path, resumed.saved)
    assert resumed.train(6, 10) == losses[6:]
    assert_equal(straight, resumed)
    assert not resumed.optimizer.state.pending


def test_a_second_restart_before_the_first_step_loses_nothing(tmp_path: Path) -> None:
    straight, first = Program(OPTIMIZERS["adamw"]()), Program(OPTIMIZERS["adamw"]())
    straight.train(0, 8)
    first.train(0, 4)
    checkpoint.save(tmp_path, first.saved)
    for _ in range(2):
        again = Program(OPTIMIZERS["adamw"]())
        checkpoint.load(tmp_path, again.saved)
        checkpoint.load(tmp_path, again.saved)
        assert len(again.optimizer.state.pending) == 8
        checkpoint.save(tmp_path, again.saved)
    again.train(4, 8)
    assert_equal(straight, again)


def test_a_checkpoint_before_the_first_step_can_be_loaded(tmp_path: Path) -> None:
    first = Program(OPTIMIZERS["adamw"]())
    checkpoint.save(tmp_path, first.saved)
    straight, again = Program(OPTIMIZERS["adamw"]()), Program(OPTIMIZERS["adamw"]())
    checkpoint.load(tmp_path, again.saved)
    assert again.train(0, 3) == straight.train(0, 3)


def test_values_without_a_variable_raise_at_the_first_step(tmp_path: Path) -> None:
    first = Program(OPTIMIZERS["adamw"]())
    first.train(0, 2)
    checkpoint.save(tmp_path, [first.optimizer.state, first.average.state])
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.2), nn.Linear(4, 3))
    model.name = "renamed"
    other = Program(OPTIMIZERS["adamw"](), model=model)
    checkpoint.load(tmp_path, [other.optimizer.state, other.average.state])
    before = other.model.state_dict()
    for _ in range(2):
        with pytest.raises(ValueError, match="a variable for each value") as caught:
            other.train(0, 1)
        text = str(caught.value)
        for name in ("0.bias", "0.weight", "2.bias", "2.weight"):
            assert f"'adamw.{name}.first_moment'" in text
            assert f"'adamw.renamed.{name}.second_moment'" in text
        assert f"checkpoint {tmp_path}" in text
        assert "no value for 'adamw.renamed" in text
    for name, value in other.model.state_dict().items():  # no step has run
        np.testing.assert_array_equal(value, before[name])
    other.optimizer.state.drop_pending()
    other.average.state.drop_pending()
    other.train(0, 1)


def test_values_without_a_variable_raise_in_a_compiled_step(tmp_path: Path) -> None:
    w, b = ngd.variable("w", np.ones(2)), ngd.variable("b", np.ones(1))

    def make_step(parameters: list[Any]) -> Any:
        optimizer = optim.SGD(0.1, momentum=0.5)
        updates = optimizer.apply({v: ops.ones(v.shape, v.dtype) for v in parameters})
        return optimizer, ngd.compile([], [], updates)

    optimizer, step = make_step([w, b])
    step()
    assert type(step.hold).__name__ == "Hold"  # later calls have no check
    checkpoint.save(tmp_path, optimizer.state)
    fewer, step = make_step([w])
    checkpoint.load(tmp_path, fewer.state)
    with pytest.raises(ValueError, match=r"no variable for 'sgd\.b\.momentum'\."):
        step()
    step_before = fewer.step.numpy()
    assert step_before == 1
    checkpoint.save(tmp_path, fewer.state)  # the checkpoint still contains the value of b
    both, step = make_step([w, b])
    checkpoint.load(tmp_path, both.state)
    assert both.state["sgd.b.momentum"].numpy() == 1
    step()
    with pytest.raises(ValueError, match=r"for variable 'sgd.c.momentum'; got nothing in"):
        checkpoint.load(tmp_path, make_step([w, b, ngd.variable("c", [1.0])])[0].state)
    started, step = make_step([w])
    step()
    with pytest.raises(ValueError, match=r"got 'sgd\.b\.momentum' from checkpoint .* no variables"):
        checkpoint.load(tmp_path, started.state)
    assert started.step.numpy() == 1


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [(np.zeros(3, np.float32), r"float32\[3\]"), (np.zeros((4, 5)), r"float64\[4, 5\]")],
)
def test_a_pending_value_of_another_type_raises_value_error(wrong: Any, shown: str) -> None:
    program = Program(optim.SGD(0.1, momentum=0.9))
    program.train(0, 1)
    values = {name: v.numpy() for name, v in program.optimizer.state.items()}
    resumed = Program(optim.SGD(0.1, momentum=0.9))
    resumed.optimizer.state.load(values | {"sgd.0.weight.momentum": wrong}, source="a file")
    with pytest.raises(
        ValueError, match=rf"float32\[4, 5\] for .*0.weight.*; got {shown} from a file"
    ):
        resumed.train(1, 2)


def test_a_state_can_be_loaded_from_a_dict() -> None:
    name = "adam"  # has a loss scale, whose state is part of the optimizer's
    straight, first = Program(OPTIMIZERS[name]()), Program(OPTIMIZERS[name]())
    straight.train(0, 6)
    first.train(0, 3)
    values = {name: v.numpy() for name, v in first.optimizer.state.items()}
    assert "loss_scale.scale" in values
    resumed = Program(OPTIMIZERS[name]())
    state = resumed.optimizer.state
    before = resumed.values()
    with pytest.raises(ValueError, match=r"for variable 'adam\.step'; got nothing in a mapping"):
        state.load({name: v for name, v in values.items() if name != "adam.step"})
    with pytest.raises(ValueError, match=r"int64\[\] for variable 'adam\.step'; got float32"):
        state.load(values | {"adam.step": np.float32(1)})
    for key, value in resumed.values().items():
        np.testing.assert_array_equal(value, before[key])
    assert not state.pending
    state.load(values)
    checkpoint_of = {name: v.numpy() for name, v in first.average.state.items()}
    resumed.average.state.load(checkpoint_of)
    for key, v in first.model.variables().items():
        resumed.model.variables()[key].assign(v.numpy())
    resumed.random.step.assign(3)
    resumed.train(3, 6)
    assert_equal(straight, resumed)


def test_pending_values_cannot_be_read_or_omitted(tmp_path: Path) -> None:
    first = Program(OPTIMIZERS["adamw"]())
    first.train(0, 2)
    checkpoint.save(tmp_path, first.saved)
    resumed = Program(OPTIMIZERS["adamw"]())
    copied = dict(resumed.optimizer.state)
    with pytest.raises(ValueError, match="expected the state 'adamw' itself; got a copy"):
        checkpoint.load(tmp_path, copied)
    checkpoint.load(tmp_path, resumed.saved)
    state = resumed.optimizer.state
    assert "8 pending" in repr(state)
    assert len(state) == 1
    with pytest.raises(KeyError, match="is pending"):
        state["adamw.0.bias.first_moment"]
    for use in (dict, list, lambda s: ngd.trees.flatten({"a": s}), lambda s: s.values().__iter__()):
        with pytest.raises(RuntimeError, match=r"from checkpoint .*: they are pending"):
            list(use(state))
    with pytest.raises(RuntimeError, match=r"ema: applied: .* pending"), resumed.average.applied():
        pass
    with pytest.raises(TypeError, match="got a union"):
        resumed.model.variables() | state
    with pytest.raises(TypeError, match="got a union"):
        state | resumed.model.variables()


def test_a_checkpoint_of_a_training_can_be_loaded_into_the_model_only(tmp_path: Path) -> None:
    first = Program(OPTIMIZERS["adamw"]())
    first.train(0, 2)
    checkpoint.save(tmp_path, first.saved)
    resumed, fresh = Program(OPTIMIZERS["adamw"]()), Program(OPTIMIZERS["adamw"]())
    checkpoint.load(tmp_path, [resumed.model.variables()])
    for key, v in first.model.variables().items():
        fresh.model.variables()[key].assign(v.numpy())
    assert resumed.train(0, 2) == fresh.train(0, 2)
    checkpoint.load(tmp_path, [resumed.model.variables(), resumed.random.state])


def test_two_optimizers_in_one_checkpoint_are_separate(tmp_path: Path) -> None:
    """The name of one optimizer is a prefix of the other's."""

    def train(first: int, last: int) -> Any:
        model = nn.Linear(5, 3)
        two = [optim.AdamW(0.1, name="a"), optim.AdamW(0.2, name="a.b")]

        @ngd.function(updates=True)
        def step(x: Any, y: Any) -> Any:
            loss = ops.mean(ops.softmax_cross_entropy(model(x), y))
            return loss, [two[0].minimize(loss, model.weight), two[1].minimize(loss, model.bias)]

        saved = [model.variables(), [each.state for each in two]]
        if first:
            checkpoint.load(tmp_path, saved)
        for i in range(first, last):
            step(*BATCHES[i])
        return saved, [v.numpy() for v in ngd.trees.leaves_of(saved)]

    _, straight = train(0, 5)
    saved, _ = train(0, 3)
    checkpoint.save(tmp_path, saved)
    _, resumed = train(3, 5)
    for got, want in zip(resumed, straight, strict=True):
        np.testing.assert_array_equal(got, want)
    with pytest.raises(ValueError, match=r"got two called 'a\.step'"):
        checkpoint.save(tmp_path, [saved, optim.AdamW(0.1, name="a").state])


def test_copies_of_an_optimizer_have_their_own_state(tmp_path: Path) -> None:
    first = Program(optim.SGD(0.1, momentum=0.9))
    first.train(0, 2)
    checkpoint.save(tmp_path, first.saved)
    resumed = Program(optim.SGD(0.1, momentum=0.9))
    checkpoint.load(tmp_path, resumed.saved)
    state = resumed.optimizer.state
    assert copy.copy(state) is state
    for other in (copy.deepcopy(resumed.optimizer), pickle.loads(pickle.dumps(resumed.optimizer))):
        assert other.state is not state
        assert other.step is other.state["sgd.step"]
        assert other.step.owner is other.state
        assert other.state.pending.keys() == state.pending.keys()
        for name, value in other.state.pending.items():
            np.testing.assert_array_equal(value, state.pending[name])
        other.state.drop_pending()
    assert len(state.pending) == 4
    resumed.train(2, 3)


def trainer_of(program: Program, folder: Path, epochs: int, saved: Any) -> train.Trainer:
    source = data.Arrays(np.concatenate([x for x, _ in BATCHES]), np.arange(96) % 3)

    @ngd.function(updates=True)
    def step(x: Any, y: Any) -> Any:
        loss, updates = program.updates(x, y)
        return [loss], updates

    def evaluate() -> dict[str, float]:
        with program.average.applied():
            return {"norm": float(np.abs(program.model[0].weight.numpy()).sum())}

    loader = data.Loader(source, data.Sampler(96, 8, seed=1))
    return train.Trainer(
        step, loader, saved, epochs=epochs, evaluate=evaluate, save=folder, resume=True,
        progress=False,
    )  # fmt: skip


def test_a_trainer_resumes_with_moments_and_averages(tmp_path: Path) -> None:
    straight = Program(OPTIMIZERS["adamw"]())
    report = trainer_of(straight, tmp_path / "straight", 2, straight.saved).run()
    first, second = Program(OPTIMIZERS["adamw"]()), Program(OPTIMIZERS["adamw"]())
    trainer_of(first, tmp_path / "killed", 1, first.saved).run()
    resumed = trainer_of(second, tmp_path / "killed", 2, second.saved).run()
    assert (resumed["steps"], resumed["norm"]) == (report["steps"], report["norm"])
    assert_equal(straight, second)


def test_a_state_that_no_step_uses_raises_in_the_trainer(tmp_path: Path) -> None:
    def trainer(program: Program, optimizer: optim.Optimizer, epochs: int) -> train.Trainer:
        saved = [program.model.variables(), optimizer.state]
        return trainer_of(program, tmp_path, epochs, saved)

    first = Program(OPTIMIZERS["sgd"]())
    trainer(first, first.optimizer, 1).run()
    second = Program(OPTIMIZERS["sgd"]())
    again = trainer(second, second.optimizer, 2)
    assert len(second.optimizer.state.pending) == 4
    again.run()
    third = Program(OPTIMIZERS["sgd"]())
    with pytest.raises(ValueError, match=r"state 'sgd': .* no variable for 'sgd\.0\.weight\.mom"):
        trainer(third, optim.SGD(0.1, momentum=0.9), 3).run()
    assert checkpoint.load(tmp_path, first.model.variables())["epoch"] == 2


def resume_shards(folder: str, shard: str) -> list[str]:
    """Train on all ranks, with and without a restart, and return the names of different values."""
    rank = ngd.init().rank

    def train(first: int, last: int) -> dict[str, Any]:
        model, optimizer = nn.Linear(5, 300), optim.AdamW(0.1)

        @ngd.function(updates=True, shard=shard)
        def step(x: Any) -> Any:
            loss = ops.mean(ops.square(model(x)))
            return loss, optimizer.minimize(loss, model.parameters())

        saved = [model.variables(), optimizer.state]
        if first:
            checkpoint.load(folder, saved)
            assert len(optimizer.state.pending) == 4
            ngd.barrier()  # all ranks have read the checkpoint
            # Another restart before the first step.
            checkpoint.save(Path(folder) / str(rank), saved)
            checkpoint.load(Path(folder) / str(rank), saved)
        for i in range(first, last):
            step(BATCHES[2 * i + rank][0])
        if last == 3 and rank == 0:  # with one host, each rank can read all values
            checkpoint.save(folder, saved)
        ngd.barrier()
        return {v.name: v.numpy() for v in ngd.trees.leaves_of(saved)}

    straight = train(0, 5)
    train(0, 3)
    resumed = train(3, 5)
    return [name for name, value in straight.items() if not np.array_equal(value, resumed[name])]


@harness.needs_ranks
@pytest.mark.parametrize("shard", ["host", "world"])
def test_a_sharded_state_is_resumed_bit_for_bit(shard: str, tmp_path: Path) -> None:
    arguments = {"folder": str(tmp_path), "shard": shard}
    for outcome in harness.run(resume_shards, 2, arguments=arguments):
        assert outcome.value == []
