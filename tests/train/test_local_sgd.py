# SPDX-License-Identifier: Apache-2.0
"""Tests of DiLoCo and local SGD on a fixed number of ranks, compared with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ngd
from ngd import checkpoint, ops, optim, train
from ngd.train import local_sgd
from tests.support import harness

RANKS, EVERY, ROUNDS = 2, 3, 4
RATE, DECAY = 0.01, 0.1


def batch(rank: int, step: int) -> tuple[Any, Any]:
    random = np.random.default_rng([7, rank, step])
    return random.normal(size=(8, 3)).astype("f4"), random.normal(size=(8, 4)).astype("f4")


def beginning() -> list[Any]:
    random = np.random.default_rng(3)
    return [random.normal(size=(3, 4)).astype("f4"), np.zeros(4, "f4")]


def gradients(weights: list[Any], x: Any, y: Any) -> list[Any]:
    """Return the gradients of mean((x @ w + b - y)**2)."""
    distance = 2 * (x @ weights[0] + weights[1] - y) / y.size
    return [x.T @ distance, distance.sum(0)]


class AdamWByHand:
    """Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2."""

    def __init__(self, count: int) -> None:
        self.m, self.v, self.t = [0.0] * count, [0.0] * count, 0

    def step(self, weights: list[Any], slopes: list[Any]) -> list[Any]:
        self.t += 1
        made = []
        for i, (w, g) in enumerate(zip(weights, slopes, strict=True)):
            self.m[i] = 0.9 * self.m[i] + 0.1 * g
            self.v[i] = 0.999 * self.v[i] + 0.001 * g * g
            m, v = self.m[i] / (1 - 0.9**self.t), self.v[i] / (1 - 0.999**self.t)
            made.append(w - RATE * (m / (np.sqrt(v) + 1e-8) + DECAY * w))
        return made


def by_hand() -> list[Any]:
    """Return the weights of algorithm 1 of arXiv:2311.08105 on all ranks, in float64."""
    outer = [w.astype("f8") for w in beginning()]
    momentum = [np.zeros(w.shape) for w in outer]
    inner = [AdamWByHand(len(outer)) for _ in range(RANKS)]
    for round in range(ROUNDS):
        moved = []
        for rank in range(RANKS):
            weights = outer
            for step in range(round * EVERY, (round + 1) * EVERY):
                weights = inner[rank].step(weights, gradients(weights, *batch(rank, step)))
            moved.append([a - b for a, b in zip(outer, weights, strict=True)])
        for i, parts in enumerate(zip(*moved, strict=True)):
            g = sum(parts) / RANKS
            momentum[i] = 0.9 * momentum[i] + g
            outer[i] = outer[i] - 0.7 * (g + 0.9 * momentum[i])
    return outer


def on_the_graph(wire: str) -> list[Any]:
    w, b = (ngd.variable(n, v) for n, v in zip("wb", beginning(), strict=True))
    x, y = ngd.placeholder("x", (8, 3)), ngd.placeholder("y", (8, 4))
    loss = ops.mean(ops.square(x @ w + b - y))
    inner = optim.AdamW(RATE, weight_decay=DECAY)
    updates = inner.apply(dict(zip([w, b], ngd.grad(loss, [w, b]), strict=True)))
    step = ngd.compile([x, y], [loss], updates)
    diloco = train.DiLoCo({"w": w, "b": b}, every=EVERY, wire=wire, carried=inner.state)
    rank = ngd.init().rank
    due = []
    for number in range(EVERY * ROUNDS):
        step(*batch(rank, number))
        due.append(diloco.step())
    assert due == [False, False, True] * ROUNDS
    assert diloco.round == ROUNDS
    return [w.numpy().tolist(), b.numpy().tolist()]


def on_arrays(wire: str) -> list[Any]:
    weights = beginning()
    rank = ngd.init().rank
    weights[0] += 5 * rank  # all ranks start from the weights of rank 0
    diloco = train.DiLoCo(weights, every=EVERY, wire=wire)
    inner = AdamWByHand(len(weights))
    for number in range(EVERY * ROUNDS):
        made = inner.step(weights, gradients(weights, *batch(rank, number)))
        for w, new in zip(weights, made, strict=True):
            w[...] = new
        diloco.step()
    return [w.tolist() for w in weights]


@harness.needs_ranks
@pytest.mark.parametrize("program", [on_the_graph, on_arrays])
@pytest.mark.parametrize(("wire", "off"), [("float32", 1e-6), ("bfloat16", 5e-3), ("int8", 5e-3)])
def test_two_ranks_equal_numpy(program: Any, wire: str, off: float) -> None:
    outcomes = harness.run(program, RANKS, arguments={"wire": wire})
    assert outcomes[0].value == outcomes[1].value
    for mine, wanted in zip(outcomes[0].value, by_hand(), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=off, atol=off)


def changes_of(rank: int) -> dict[str, Any]:
    random = np.random.default_rng(rank)
    rows = random.normal(size=(5, 300)) * 10.0 ** np.arange(-2, 3)[:, None]
    few = random.normal(size=7)
    return {"rows": rows.astype("f4"), "few": few.astype("f4"), "none": np.zeros((2, 3), "f4")}


def mean_of_changes(wire: str) -> dict[str, Any]:
    """Return the mean of the changes of all ranks, computed by an outer step from 0 with rate 1."""
    weights = {name: np.zeros_like(move) for name, move in changes_of(0).items()}
    outer = optim.SGD(1.0)
    diloco = train.DiLoCo(weights, every=1, outer=outer, wire=wire)
    for name, move in changes_of(ngd.init().rank).items():
        weights[name] -= move
    diloco.step()
    return {name: (-value).tolist() for name, value in weights.items()}


def round_to_int8(move: Any) -> Any:
    """Return the values of rows that are rounded to int8 by the rule of the documentation."""
    rows = move.reshape(len(move) if move.ndim > 1 else 1, -1)
    scale = np.abs(rows).max(1, keepdims=True) / np.float32(127)
    scale[scale == 0] = 1
    return (np.rint(rows / scale) * scale).reshape(move.shape)


@harness.needs_ranks
def test_int8_errors_are_within_the_documented_bound() -> None:
    outcomes = harness.run(mean_of_changes, RANKS, arguments={"wire": "int8"})
    for name in changes_of(0):
        result = np.array(outcomes[0].value[name])
        given = [changes_of(rank)[name] for rank in range(RANKS)]
        exact = np.mean(given, 0, dtype="f8")
        limit = np.mean([np.abs(g).max(-1, keepdims=True) for g in given], 0) / 254
        assert (np.abs(result - exact) <= limit * (1 + 1e-5)).all()
        # Some value was rounded.
        assert name == "none" or np.abs(result - exact).max() > limit.min() / 10
        np.testing.assert_allclose(
            result, np.mean([round_to_int8(g / 2) for g in given], 0) * 2, 1e-5
        )


@harness.needs_ranks
def test_bfloat16_errors_are_within_the_documented_bound() -> None:
    outcomes = harness.run(mean_of_changes, RANKS, arguments={"wire": "bfloat16"})
    for name in changes_of(0):
        result = np.array(outcomes[0].value[name])
        given = np.array([changes_of(rank)[name] for rank in range(RANKS)], "f8")
        exact = given.mean(0)
        limit = (np.abs(given).sum(0) / RANKS + np.abs(exact)) * 2**-8 * (1 + 2**-8)
        assert (np.abs(result - exact) <= limit).all()
        assert name == "none" or (result != exact.astype("f4")).any()


def data_parallel(local: bool) -> list[Any]:
    w, b = (ngd.variable(n, v) for n, v in zip("wb", beginning(), strict=True))
    x, y = ngd.placeholder("x", (8, 3)), ngd.placeholder("y", (8, 4))
    loss, sgd = ops.mean(ops.square(x @ w + b - y)), optim.SGD(0.1)
    if local:
        updates = sgd.apply(dict(zip([w, b], ngd.grad(loss, [w, b]), strict=True)))
    else:
        updates = sgd.minimize(loss, [w, b])
    step = ngd.compile([x, y], [loss], updates)
    method = train.LocalSGD([w, b], every=1) if local else None
    rank = ngd.init().rank
    for number in range(20):
        step(*batch(rank, number))
        assert method is None or method.step()
    return [w.numpy().tolist(), b.numpy().tolist()]


@harness.needs_ranks
def test_local_sgd_after_every_step_equals_data_parallel_sgd() -> None:
    local, plain = (
        [o.value for o in harness.run(data_parallel, RANKS, arguments={"local": each})]
        for each in (True, False)
    )
    assert local[0] == local[1]
    for mine, wanted in zip(local[0], plain[0], strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-6, atol=1e-6)


def test_a_nan_reaches_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    for wire in ("float32", "bfloat16", "int8"):
        weights = [np.zeros((2, 3), "f4")]
        diloco = train.DiLoCo(weights, every=1, outer=optim.SGD(1.0, name=wire), wire=wire)
        weights[0][1, 2] = np.nan
        diloco.step()
        assert np.isnan(weights[0][1, 2])


def test_a_checkpoint_continues_with_the_next_round(tmp_path: Any) -> None:
    def make(name: str) -> tuple[Any, Any]:
        v = ngd.variable("v", np.ones(3))
        return v, train.DiLoCo(v, every=1, outer=optim.SGD(0.7, momentum=0.9, name=name))

    v, diloco = make("outer")
    for _ in range(2):
        v.assign(v.numpy() - 1)
        diloco.step()
    checkpoint.save(tmp_path, diloco.state)
    other_v, other = make("outer")
    checkpoint.load(tmp_path, other.state)
    other.restart()
    for variable, each in ((v, diloco), (other_v, other)):
        variable.assign(variable.numpy() - 1)
        each.step()
    assert other.round == 3
    np.testing.assert_array_equal(other_v.numpy(), v.numpy())


def test_16_bit_weights_have_a_float32_copy() -> None:
    v = ngd.variable("v", np.ones(3, ngd.bfloat16))
    diloco = train.LocalSGD(v, every=1)
    v.assign(np.full(3, 1.25))
    diloco.step()
    assert v.numpy().tolist() == [1.25] * 3
    assert diloco.state["local_sgd.v.start"].dtype == np.float32


@pytest.mark.parametrize(
    ("parameters", "how", "error", "words"),
    [
        ([np.zeros(3, "i4")], {}, TypeError, r"parameters\[0\].*of floats"),
        ([3.0], {}, TypeError, r"train\.DiLoCo: parameters\[0\]: expected a variable"),
        ([], {}, TypeError, "expected only variables, or only arrays; got both"),
        ([np.zeros(2), ngd.variable("x", 1.0)], {}, TypeError, "only variables, or only arrays"),
        ([np.zeros(2)], {"every": 0}, ValueError, "every.*>= 1; got 0"),
        ([np.zeros(2)], {"wire": "int16"}, ValueError, "wire: expected one of float32, bfl.*int16"),
        ([np.zeros(2)], {"carried": [1]}, TypeError, r"carried\[0\]: expected a variable"),
    ],
)
def test_bad_arguments_raise_errors(parameters: Any, how: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        train.DiLoCo(parameters, **{"every": 1, **how})


def scalars() -> list[Any]:
    scale, rest = np.array(4.0, np.float32), np.ones(2, np.float32)
    method = train.LocalSGD([scale, rest], every=1)
    scale[...] = 1 + ngd.init().rank
    method.step()
    return [scale.tolist(), rest.tolist()]


@harness.needs_ranks
def test_a_parameter_may_be_a_scalar() -> None:
    for outcome in harness.run(scalars, 2):
        assert outcome.value == [1.5, [1.0, 1.0]]


def on_a_function() -> list[Any]:
    """Send the state of rank 1, which has taken a step, to all ranks."""
    world = ngd.init()
    w = ngd.variable("w", np.ones((3, 4)))
    inner = optim.AdamW(RATE)

    @ngd.function(updates=True)
    def step(x: Any, y: Any) -> Any:
        loss = ops.mean(ops.square(x @ w - y))
        return loss, inner.apply({w: ngd.grad(loss, w)})

    other = optim.AdamW(RATE)
    if world.rank == 1:
        step(*batch(1, 0))
    state, is_complete = local_sgd.broadcast_state(inner.state, 1, world)
    other.state.load(state, source="rank 1", is_complete=is_complete)
    return [sorted(other.state.pending), is_complete, int(other.step.numpy())]


@harness.needs_ranks
def test_state_is_sent_to_a_rank_without_its_variables() -> None:
    for outcome in harness.run(on_a_function, 2):
        names = ["adamw.w.first_moment", "adamw.w.second_moment"]
        assert outcome.value == [names, True, 1]
