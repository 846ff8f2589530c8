# SPDX-License-Identifier: Apache-2.0
"""Tests of the INTERPRETER's evaluation, on one rank and on threads as ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from ngd import grad, ops
from ngd.devices.interpreter.evaluate import evaluate
from ngd.dtypes import Array, Type, bfloat16, float32, float64, int32
from ngd.errors import Error
from ngd.graph.graph import Graph
from ngd.graph.leaves import PLACEHOLDER, VARIABLE
from ngd.graph.node import Node, Op

COMBINE: dict[str, Callable[..., Any]] = {
    "sum": lambda a: np.sum(a, axis=0),
    "mean": lambda a: np.mean(a, axis=0),
    "min": lambda a: np.min(a, axis=0),
    "max": lambda a: np.max(a, axis=0),
    "prod": lambda a: np.prod(a, axis=0),
}


class SharedArrays:
    """The arrays that the threads of a group exchange."""

    def __init__(self, size: int) -> None:
        self.arrays: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=20)

    def exchange(self, rank: int, array: Array) -> list[Array]:
        self.arrays[rank] = array.copy()
        self.barrier.wait()
        found = list(self.arrays)
        self.barrier.wait()
        return found


class ThreadGroup:
    """A rank of threads that exchange arrays. It records the collectives that it started."""

    def __init__(self, rank: int, shared_arrays: SharedArrays) -> None:
        self.rank, self.shared_arrays = rank, shared_arrays
        self.size = len(shared_arrays.arrays)
        self.started: list[tuple[str, object]] = []

    def start(self, node: Node, operand: Array) -> Callable[[], Array]:
        assert __file__ in node.site
        kind, attrs = node.op.name, node.attrs
        self.started.append((kind, attrs.get("reduce_op", attrs.get("root"))))
        arrays = self.shared_arrays.exchange(self.rank, operand)
        if kind == "broadcast":
            return lambda: arrays[attrs["root"]]
        total = np.asarray(COMBINE[attrs["reduce_op"]](arrays), operand.dtype)
        has_result = kind != "reduce" or attrs["root"] == self.rank
        return lambda: total if has_result else np.zeros_like(total)


def placeholder(name: str, *shape: int, dtype: np.dtype[Any] = float64) -> Node:
    return Node(PLACEHOLDER, (), {"name": name, "uniform": False}, Type(dtype, shape))


def run_ranks(graph: Graph, inputs: Sequence[Sequence[Any]]) -> list[list[Array]]:
    """Evaluate one graph on one rank per list of inputs."""
    shared_arrays = SharedArrays(len(inputs))
    groups = [ThreadGroup(rank, shared_arrays) for rank in range(len(inputs))]

    def one(group: ThreadGroup) -> list[Array]:
        pairs = zip(inputs[group.rank], graph.inputs, strict=True)
        given = [np.asarray(a, n.dtype) for a, n in pairs]
        return evaluate(graph, given, {}, group)[0]

    with ThreadPoolExecutor(len(groups)) as pool:
        results = list(pool.map(one, groups, timeout=60))
    assert all(g.started == groups[0].started for g in groups)
    return results


def test_outputs_and_next_values_are_computed_from_old_values() -> None:
    x = placeholder("x", 2)
    w = Node(VARIABLE, (), {"name": "w"}, Type(float64, (2,)))
    v = Node(VARIABLE, (), {"name": "v"}, Type(float64, (2,)))
    graph = Graph((x,), (w * x, x), ((w, w + x), (v, w)))
    values = {w: np.array([1.0, 2]), v: np.zeros(2)}
    outputs, following = evaluate(graph, [np.array([10.0, 20])], values)
    assert [a.tolist() for a in outputs] == [[10, 40], [10, 20]]
    assert [a.tolist() for a in following] == [[11, 22], [1, 2]]
    assert values[w].tolist() == [1, 2]


def test_results_are_contiguous() -> None:
    x = placeholder("x", 2, 3)
    graph = Graph((x,), (x.T, ops.broadcast_to(x, (4, 2, 3)), ops.sum(x)))
    outputs, _ = evaluate(graph, [np.ones((2, 3))], {})
    assert all(a.flags.c_contiguous for a in outputs)
    assert outputs[2].shape == ()


def test_integers_wrap_silently() -> None:
    x = placeholder("x", dtype=int32)
    outputs, _ = evaluate(Graph((x,), (x + 1, x * x)), [np.array(2**31 - 1, np.int32)], {})
    assert [int(a) for a in outputs] == [-(2**31), 1]


def test_16_bit_floats_are_rounded_once_per_op() -> None:
    x = placeholder("x", dtype=bfloat16)
    outputs, _ = evaluate(Graph((x,), (x + 1 - x,)), [np.array(256, bfloat16)], {})
    assert outputs[0] == 0  # 257 is not a bfloat16


class WrongReference(Op):
    """An op whose reference returns another dtype than `infer`. It is not in the registry."""

    name = "lying"

    def infer(self, x: Type) -> Type:
        return x

    def reference(self, x: Array) -> Array:
        return x.astype(np.float32)


def test_a_reference_that_returns_another_type_is_an_internal_error() -> None:
    x = placeholder("x", 2)
    message = r"internal error: the value of <ngd.Node lying float64\[2\]> .* is float32\[2\]"
    with pytest.raises(Error, match=message):
        evaluate(Graph((x,), (WrongReference().node((x,)),)), [np.ones(2)], {})


def test_an_input_of_another_type_is_an_error() -> None:
    x = placeholder("x", 2)
    with pytest.raises(Error, match=r"placeholder 'x' float64\[2\]> .* is float64\[3\]"):
        evaluate(Graph((x,), (x,)), [np.ones(3)], {})


def test_collectives_of_one_rank_are_the_identity() -> None:
    x = placeholder("x", 2)
    nodes = [ops.all_reduce(x, op=kind) for kind in COMBINE]
    nodes += [ops.broadcast(x), ops.all_reduce(x, op="mean", weight=3)]
    outputs, _ = evaluate(Graph((x,), tuple(nodes)), [np.array([1.5, -2])], {})
    assert [a.tolist() for a in outputs] == [[1.5, -2]] * 7


def test_collectives_reach_the_group_in_the_order_of_depth() -> None:
    x = placeholder("x", 2)
    last = ops.all_reduce(ops.broadcast(x, root=1), op="max")
    graph = Graph((x,), (last, ops.all_reduce(x, op="sum")))
    shared_arrays = SharedArrays(2)
    groups = [ThreadGroup(rank, shared_arrays) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda g: evaluate(graph, [np.ones(2)], {}, g), groups, timeout=60))
    for group in groups:
        assert group.started == [("broadcast", 1), ("all_reduce", "sum"), ("all_reduce", "max")]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives_between_threads_equal_numpy(size: int) -> None:
    x = placeholder("x", 2)
    nodes = [ops.all_reduce(x, op=kind) for kind in COMBINE]
    graph = Graph((x,), (*nodes, ops.broadcast(x, root=size - 1)))
    given = [np.array([r + 1.0, -r]) for r in range(size)]
    expected = [np.asarray(f(given)) for f in COMBINE.values()] + [given[-1]]
    for outputs in run_ranks(graph, [[g] for g in given]):
        for found, wanted in zip(outputs, expected, strict=True):
            npt.assert_allclose(found, wanted, rtol=1e-15)


class TestWeightedMean:
    def run(self, values: Sequence[Any], weights: Sequence[float], dtype: Any = float64) -> Array:
        x, w = placeholder("x", 2, dtype=dtype), placeholder("w")
        graph = Graph((x, w), (ops.all_reduce(x, op="mean", weight=w),))
        graph.verify()
        found = run_ranks(graph, list(zip(values, weights, strict=True)))
        assert all(f[0].tolist() == found[0][0].tolist() for f in found)
        return found[0][0]

    def test_the_weighted_mean_is_the_mean_over_all_elements(self) -> None:
        shards = [np.array([[1.0, 2], [3, 4]]), np.array([[5.0, 6]]), np.array([[7.0, 8]] * 3)]
        found = self.run([s.mean(0) for s in shards], [len(s) for s in shards])
        npt.assert_allclose(found, np.concatenate(shards).mean(0), rtol=1e-15)

    @pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
    def test_weight_zero_contributes_nothing(self, poison: float) -> None:
        assert self.run([[1.0, 2], [poison, poison]], [4, 0]).tolist() == [1, 2]

    def test_all_weights_zero_give_zero(self) -> None:
        assert self.run([[np.nan, 2], [1, 2]], [0, 0]).tolist() == [0, 0]

    def test_16_bit_floats_are_summed_in_float32(self) -> None:
        found = self.run([[1.0, 300], [2.0, 302]], [1001, 1002], bfloat16)
        assert found.dtype == bfloat16
        assert found.astype(float64).tolist() == [1.5, 302]  # the mean is 301.0005, not 301


class TestGradients:
    """Gradients on each rank, compared with differences of the sum of the losses of all ranks."""

    @pytest.mark.parametrize("size", [1, 2, 3])
    @pytest.mark.parametrize(
        "collective",
        [
            lambda x, w: ops.all_reduce(x, op="sum"),
            lambda x, w: ops.all_reduce(x, op="mean"),
            lambda x, w: ops.broadcast(x, root=0),
            lambda x, w: ops.reduce(x, op="sum", root=0),
            lambda x, w: ops.reduce(x, op="mean", root=0),
            lambda x, w: ops.all_reduce(x, op="mean", weight=w),
        ],
        ids=["sum", "mean", "broadcast", "reduce", "reduce-mean", "weighted"],
    )
    def test_gradients_of_collectives_equal_finite_differences(
        self, collective: Callable[[Node, Node], Node], size: int
    ) -> None:
        x, w, scale = placeholder("x", 3), placeholder("w"), placeholder("scale")
        reduced = collective(ops.sin(x), w)
        loss = ops.sum(reduced * reduced * x) * scale  # the losses of the ranks differ by `scale`
        graph = Graph((x, w, scale), (loss, *grad(loss, [x, w], unused="zero")))
        rng = np.random.default_rng(size)
        given = [[rng.normal(size=3), np.array(1.0 + r), np.array(2.0 - r)] for r in range(size)]
        gradients = run_ranks(graph, given)
        values = Graph((x, w, scale), (loss,))

        def total(inputs: Sequence[Sequence[Any]]) -> float:
            return float(sum(outputs[0] for outputs in run_ranks(values, inputs)))

        step = 1e-6
        for rank in range(size):
            for operand in (0, 1):
                found = gradients[rank][1 + operand].reshape(-1)
                for position in range(found.size):
                    ends = []
                    for sign in (1, -1):
                        changed = [[a.copy() for a in row] for row in given]
                        changed[rank][operand].reshape(-1)[position] += sign * step
                        ends.append(total(changed))
                    slope = (ends[0] - ends[1]) / (2 * step)
                    npt.assert_allclose(found[position], slope, rtol=1e-6, atol=1e-8)


def test_gradients_of_uneven_shards_equal_those_of_the_whole_batch() -> None:
    """The gradients of the shards are weighted by the sizes of the shards."""
    rng = np.random.default_rng(4)
    data, weight = rng.normal(size=(7, 3)), rng.normal(size=3)

    def step(rows: int) -> Graph:
        x, w = placeholder("x", rows, 3), placeholder("w", 3)
        g = grad(ops.mean(ops.exp(x @ w)), w)
        return Graph((x, w), (ops.all_reduce(g, op="mean", weight=rows),))

    (expected,), _ = evaluate(step(7), [data, weight], {})
    shared_arrays = SharedArrays(3)
    shards = np.split(data, [4, 7])  # 4, 3 and 0 rows: the mean of 0 rows is NaN

    def one(rank: int) -> Array:
        shard = shards[rank]
        return evaluate(step(len(shard)), [shard, weight], {}, ThreadGroup(rank, shared_arrays))[0][
            0
        ]

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(one, range(3), timeout=60):
            npt.assert_allclose(found, expected, rtol=1e-13)


def test_float32_stays_float32() -> None:
    x = placeholder("x", 3, dtype=float32)
    loss = ops.mean(ops.dropout(ops.sigmoid(x) * 2 + 1, 0.5, seed=1) ** 2)
    assert grad(loss, x).type == Type(float32, (3,))
