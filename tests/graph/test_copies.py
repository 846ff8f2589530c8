# SPDX-License-Identifier: Apache-2.0
"""Tests of copies and pickles of graphs: they compute the same, and keep shared nodes shared."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd.dtypes import bfloat16
from ngd.errors import PoisonedVariableError
from ngd.graph.node import topological

Copier = Callable[[Any], Any]
COPIERS: dict[str, Copier] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "old pickle": lambda x: pickle.loads(pickle.dumps(x, 0)),
    "pickle in Python": lambda x: pickle._loads(pickle._dumps(x)),  # type: ignore[attr-defined]
}
every_copier = pytest.mark.parametrize("copier", COPIERS.values(), ids=COPIERS)


class Model:
    """A placeholder, a variable and nodes, as a program keeps them in one object."""

    def __init__(self) -> None:
        self.x = ngd.placeholder("x", (4, 3))
        self.w = ngd.variable("w", np.arange(6.0, dtype=np.float32).reshape(3, 2))
        self.scale = ngd.constant(np.array([2.0, 3.0], np.float32))
        hidden = ops.relu(self.x @ self.w) * self.scale
        self.loss = ops.mean(ops.square(hidden + hidden))
        (self.gradient,) = ngd.grad(self.loss, [self.w])

    def step(self, device: str) -> Any:
        updates = {self.w: self.w - 0.1 * self.gradient}
        return ngd.compile([self.x], [self.loss], updates=updates, device=device)


@every_copier
@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
def test_a_copied_model_computes_the_same(copier: Copier, device: str) -> None:
    model = Model()
    array = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    model.step(device)(array)
    copied = copier(model)
    assert copied.w is not model.w
    assert next(n for n in topological([copied.loss]) if n.op.name == "variable") is copied.w
    assert len(topological([copied.loss])) == len(topological([model.loss]))
    assert copied.loss.site == model.loss.site
    assert not copied.scale.attrs["value"].flags.writeable
    np.testing.assert_array_equal(copied.w.numpy(), model.w.numpy())
    before = model.w.numpy()
    losses = [copied.step(device)(array)[0] for _ in range(3)]
    np.testing.assert_array_equal(model.w.numpy(), before)  # the copy has its own variable
    assert losses == [model.step(device)(array)[0] for _ in range(3)]
    np.testing.assert_array_equal(copied.w.numpy(), model.w.numpy())


@every_copier
def test_a_deep_graph_is_copied(copier: Copier) -> None:
    x = ngd.placeholder("x", (2,))
    y = x
    for _ in range(2500):
        y = y + x
    first, again, copied = copier([y, y, x])
    assert first is again
    assert topological([first])[0] is copied
    assert len(topological([first])) == 2501
    z = y + 1  # a later copy contains its inputs too
    assert len(topological([copier(z)])) == 2503


@every_copier
def test_copies_keep_dtypes_and_attributes(copier: Copier) -> None:
    v = ngd.variable("v", np.ones(3, bfloat16))
    nodes = [
        v,
        ops.cast(v, "float16"),
        v[::-1],
        ops.one_hot(np.arange(3), 4, "bool"),
        ops.dropout(v, 0.25, seed=3),
        ops.all_reduce(v, op="sum"),
    ]
    copies = copier(nodes)
    assert [str(n.type) for n in copies] == [str(n.type) for n in nodes]
    assert all(a.op is b.op for a, b in zip(copies, nodes, strict=True))
    assert [n.uniform for n in copies] == [n.uniform for n in nodes]
    for old, new in zip(ngd.compile([], nodes)(), ngd.compile([], copies)(), strict=True):
        assert old.tobytes() == new.tobytes()


def in_a_child(model: Any, array: Any, queue: Any) -> None:
    queue.put(float(model.step("CPU")(array)[0]))


def test_a_model_is_pickled_for_a_spawned_process() -> None:
    model, array = Model(), np.ones((4, 3), np.float32)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=in_a_child, args=(model, array, queue))
    child.start()
    try:
        assert queue.get(timeout=100) == float(model.step("CPU")(array)[0])
        child.join(60)
        assert child.exitcode == 0
    finally:
        child.kill()


def test_a_poisoned_variable_cannot_be_copied() -> None:
    v = ngd.variable("v", np.zeros(2))
    v.cell.poisoned = True
    with pytest.raises(PoisonedVariableError, match="'v'"):
        pickle.dumps(v + 1)


@pytest.mark.parametrize("copier", [copy.copy, *COPIERS.values()])
def test_objects_of_the_process_cannot_be_copied(copier: Copier) -> None:
    x = ngd.placeholder("x", (2,))
    world = ngd.init()
    work = ngd.all_reduce(np.ones(2), op="sum", async_op=True)
    for bound, says in (
        (ngd.compile([x], [x + 1]), "compile those"),
        (ngd.compile([x], [x + 1], device="INTERPRETER"), "compile those"),
        (world, r"ngd\.init\(\) or split\(\)"),
        (work, r"wait\(\)"),
    ):
        with pytest.raises(TypeError, match=f"cannot be copied or pickled.*{says}"):
            copier(bound)
    if copier is not copy.copy:
        with pytest.raises(TypeError, match="cannot be copied"):
            copier(ops.all_reduce(x, op="sum", group=world))
    work.wait()


@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
@pytest.mark.parametrize("dtype", [np.float32, np.bool_, bfloat16])
def test_a_broadcast_initial_value_has_its_own_memory_per_element(device: str, dtype: Any) -> None:
    number = np.array(1, dtype)
    v = ngd.variable("v", np.broadcast_to(number, (2, 3)))
    number[...] = 0
    before = v.numpy()
    before[0, 0] = 0
    assert v.numpy().astype(np.float32).tolist() == [[1, 1, 1], [1, 1, 1]]
    step = ngd.compile([], [v], device=device)
    assert step()[0].astype(np.float32).tolist() == [[1, 1, 1], [1, 1, 1]]
    value = np.arange(6).reshape(2, 3).astype(dtype)
    v.assign(value)
    np.testing.assert_array_equal(step()[0], value)
