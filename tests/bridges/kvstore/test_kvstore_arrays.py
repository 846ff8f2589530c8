# SPDX-License-Identifier: Apache-2.0
"""Compare ngd.kvstore on arrays with NumPy: each rank computes the operands of all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import errors, kvstore
from tests.support import harness

F32 = np.float32


def ones(shape: Any = (2, 3), by: float = 1.0) -> Any:
    return np.full(shape, by, F32)


def pull(store: Any, key: Any) -> Any:
    out = np.zeros((2, 3), F32)
    store.pull(key, out=out)
    return out


def test_a_push_replaces_and_its_values_are_summed() -> None:
    store = kvstore.create("local")
    store.init(["a", "b"], [ones(), ones(by=2)])
    store.push(["b", "a", "a"], [ones(by=7), [ones(by=3), ones(by=4)], ones(by=5)], priority=-1)
    assert pull(store, "a").tolist() == ones(by=12).tolist()
    assert pull(store, "b").tolist() == ones(by=7).tolist()
    values = [ones(by=1), ones(by=2)]
    store.pushpull("a", values)
    assert [each.tolist() for each in values] == [ones(by=3).tolist()] * 2
    doubles = np.zeros((2, 3))
    store.pull("a", out=[doubles, values[0]])
    assert doubles.tolist() == ones(by=3).tolist()


def test_a_push_copies_its_arrays() -> None:
    store = kvstore.create("local")
    start, value = ones(), ones(by=2)
    store.init(0, start)
    store.push(0, value)
    start[:], value[:] = 9, 9
    assert pull(store, 0).tolist() == ones(by=2).tolist()


def test_broadcast_and_row_sparse_pull() -> None:
    store = kvstore.create()
    out = [np.zeros((4, 2), F32), np.zeros((4, 2), F32)]
    values = np.arange(8, dtype=F32).reshape(4, 2)
    store.broadcast(5, values, out)
    np.testing.assert_array_equal(out[1], values)
    store.row_sparse_pull(5, out=out, row_ids=[np.array([3, 0, 3]), np.array([1])])
    assert out[0].tolist() == [[0, 1], [0, 0], [0, 0], [6, 7]]
    assert out[1].tolist() == [[0, 0], [2, 3], [0, 0], [0, 0]]
    store.row_sparse_pull([5], out=[out], row_ids=[np.array([2])])
    assert out[0].tolist() == out[1].tolist() == [[0, 0], [0, 0], [4, 5], [0, 0]]


REFUSED = [
    (KeyError, "expected a key that init", lambda s: s.push("y", ones())),
    (KeyError, "expected a key that init", lambda s: s.pull("y", out=ones())),
    (KeyError, "initialized before", lambda s: s.init("x", ones())),
    (KeyError, "keys of one type", lambda s: s.init(1, ones())),
    (TypeError, "keys of one type", lambda s: s.push(["x", 1], [ones(), ones()])),
    (TypeError, "integer or a string", lambda s: s.push(1.5, ones())),
    (ValueError, "a list of 2, one for each key; got 1", lambda s: s.push(["x", "x"], [ones()])),
    (ValueError, "expected an array for key 'x'; got none", lambda s: s.push("x", [])),
    (errors.ShapeError, r"shape \(2, 3\).*got \(3,\)", lambda s: s.push("x", ones(3))),
    (errors.ShapeError, r"shape \(2, 3\)", lambda s: s.pull("x", out=ones(3))),
    (errors.DTypeError, "expected float32.*got float64", lambda s: s.push("x", np.ones((2, 3)))),
    (TypeError, "got None", lambda s: s.pull("x")),
    (TypeError, "expected an array for key 'x'; got str", lambda s: s.pull("x", out="here")),
    (
        IndexError,
        r"in \[0, 2\); got 0 to 2",
        lambda s: s.row_sparse_pull("x", ones(), 0, np.arange(3)),
    ),
    (ValueError, "whole numbers", lambda s: s.row_sparse_pull("x", ones(), 0, np.array([0.5]))),
    (
        ValueError,
        "one for each of 1 arrays",
        lambda s: s.row_sparse_pull("x", ones(), 0, [np.arange(1)] * 2),
    ),
    (
        ValueError,
        "store of type device or dist",
        lambda s: s.set_gradient_compression({"type": "2bit"}),
    ),
    (ValueError, "got none. Call set_optimizer first", lambda s: s.save_optimizer_states("f")),
    (ValueError, "got none. Call set_optimizer first", lambda s: s.load_optimizer_states("f")),
    (TypeError, "optimizer of ngd.optim", lambda s: s.set_optimizer("sgd")),
    (TypeError, "expected a function", lambda s: s.set_updater(3)),
    (ValueError, "expected 'optimizer'", lambda s: s.is_capable("flight")),
]


@pytest.mark.parametrize(("kind", "words", "call"), REFUSED)
def test_bad_calls_raise_and_change_nothing(kind: type[Exception], words: str, call: Any) -> None:
    store = kvstore.create("local")
    store.init("x", ones())
    with pytest.raises(kind, match=words):
        call(store)
    assert pull(store, "x").tolist() == ones().tolist()


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("expected one of local", {"name": "nccl"}),
        ("staleness", {"name": "dist_sync", "staleness": 1}),
        ("staleness", {"name": "dist_async", "staleness": -1}),
        ("group", {"name": "local", "group": ngd.comm.world.alone()}),
    ],
)
def test_bad_stores_raise(words: str, arguments: Any) -> None:
    with pytest.raises(ValueError, match=words):
        kvstore.create(**arguments)


def test_two_bit_compression_keeps_the_residual() -> None:
    """Compare 2-bit compression with results by hand. The threshold is 0.5."""
    store = kvstore.create("device")
    store.set_gradient_compression({"type": "2bit"})
    store.init("x", np.zeros(5, F32))
    out = np.zeros(5, F32)
    gradient = np.array([0.3, -0.3, 0.5, 1.7, -0.6], F32)
    results = []
    for _ in range(3):
        store.pushpull("x", gradient, out=out)
        results.append(out.tolist())
    assert results == [[0, 0, 0.5, 0.5, -0.5], [0.5, -0.5, 0.5, 0.5, -0.5], [0, 0, 0.5, 0.5, -0.5]]
    store.init("y", np.zeros(2))
    with pytest.raises(TypeError, match="float32"):
        store.push("y", np.zeros(2))


@pytest.mark.parametrize(
    ("words", "parameters"),
    [
        ("expected '2bit'; got '1bit'", {"type": "1bit"}),
        ("threshold: expected a number > 0", {"type": "2bit", "threshold": 0}),
        ("got colour", {"type": "2bit", "colour": 3}),
    ],
)
def test_bad_compression_raises(words: str, parameters: Any) -> None:
    with pytest.raises(ValueError, match=words):
        kvstore.create("device").set_gradient_compression(parameters)


def sgd_with_momentum(value: Any, gradients: list[Any], rate: float, by: float) -> Any:
    """Return the value after SGD with momentum, by NumPy."""
    velocity = np.zeros_like(value)
    for gradient in gradients:
        velocity = by * velocity + gradient
        value = value - rate * velocity
    return value


def test_each_key_has_its_own_optimizer_state(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    gradients = random.normal(size=(6, 2, 3)).astype(F32)

    def make_store() -> Any:
        store = kvstore.create("local")
        store.init(["a", "b"], [ones(), ones()])
        store.set_optimizer(ngd.optim.SGD(0.1, momentum=0.5))
        return store

    store = make_store()
    for g in gradients[:3]:
        store.push("a", g)
    store.push(["b", "a"], [gradients[3], [gradients[3] / 2, gradients[3] / 2]])
    np.testing.assert_allclose(
        pull(store, "a"), sgd_with_momentum(ones(), gradients[:4], 0.1, 0.5), 1e-6
    )
    np.testing.assert_allclose(
        pull(store, "b"), sgd_with_momentum(ones(), gradients[3:4], 0.1, 0.5), 1e-6
    )
    store.save_optimizer_states(tmp_path / "states")
    other = kvstore.create("local")
    other.init(["a", "b"], [pull(store, "a"), pull(store, "b")])
    other.set_optimizer(ngd.optim.SGD(0.1, momentum=0.5))
    other.load_optimizer_states(tmp_path / "states")
    for each in (store, other):
        each.pushpull(["a", "b"], [gradients[4], gradients[5]], out=[out := ones(), ones()])
        np.testing.assert_allclose(out, sgd_with_momentum(ones(), gradients[:5], 0.1, 0.5), 1e-5)
    smaller_store = kvstore.create("local")
    smaller_store.init("a", ones())
    smaller_store.set_optimizer(ngd.optim.SGD(0.1, momentum=0.5))
    with pytest.raises(ValueError, match="the state of this store's keys"):
        smaller_store.load_optimizer_states(tmp_path / "states")
    with pytest.raises(ValueError, match="dump_optimizer"):
        store.save_optimizer_states(tmp_path / "states", dump_optimizer=True)
    with pytest.raises(TypeError, match="expected floats"):
        store.init("n", np.arange(3))


def test_gradients_are_clipped_over_the_keys_of_a_call() -> None:
    store = kvstore.create("local")
    store.init(["a", "b"], [np.zeros(1, F32), np.zeros(1, F32)])
    store.set_optimizer(ngd.optim.SGD(1.0, clip_norm=1.0))
    outs = [np.zeros(1, F32), np.zeros(1, F32)]
    store.pushpull(["a", "b"], [np.array([3], F32), np.array([4], F32)], out=outs)
    np.testing.assert_allclose(outs, [[-0.6], [-0.8]], rtol=1e-5)


def push_on_ranks(compress: bool, update: str) -> dict[str, Any]:
    """Push random arrays, and compare the stored values with NumPy."""
    store = kvstore.create("dist_sync")
    rank, size = store.rank, store.num_workers
    world = ngd.init()
    assert (rank, size) == (world.rank, world.size)
    random = np.random.default_rng(4)
    shapes = {0: (3,), 1: (2, 3), 2: (300, 41), 3: ()}
    store.init(list(shapes), [np.full(s, rank + 1, F32) for s in shapes.values()])
    expected = {k: np.ones(s) for k, s in shapes.items()}
    residuals = np.zeros((size, len(shapes)), object)
    if compress:
        store.set_gradient_compression({"type": "2bit", "threshold": 0.25})
    if update == "updater":
        store.set_updater(lambda key, gradient, value: np.add(value, gradient * 2, out=value))
    if update == "optimizer":
        store.set_optimizer(ngd.optim.SGD(0.125))
    for _ in range(20):
        keys = [int(k) for k in random.permutation(4)[: random.integers(1, 5)]]
        two = random.integers(-8, 9, (size, 2, len(keys)))
        values = [
            [np.full(shapes[k], two[rank, i, j] / 16, F32) for i in range(2)]
            for j, k in enumerate(keys)
        ]
        outs = [np.zeros(shapes[k], F32) for k in keys]
        order = list(range(len(keys)))[:: -1 if rank % 2 else 1]  # of the keys in one call
        store.pushpull(
            [keys[j] for j in order], [values[j] for j in order], [outs[j] for j in order]
        )
        for j, k in enumerate(keys):
            total = 0.0
            for r in range(size):
                part = two[r, :, j].sum() / 16
                if compress:
                    residuals[r, k] += part
                    part = 0.25 * ((residuals[r, k] >= 0.25) * 1.0 - (residuals[r, k] <= -0.25))
                    residuals[r, k] -= part
                total += part
            new_values = {
                "": total,
                "updater": expected[k] + 2 * total,
                "optimizer": expected[k] - total / 8,
            }
            expected[k] = np.broadcast_to(new_values[update], shapes[k])
            np.testing.assert_allclose(outs[j], expected[k], rtol=1e-6, atol=1e-6)
    store.barrier()
    return {"type": store.type}


@pytest.mark.parametrize("update", ["", "updater", "optimizer"])
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(("communicator", "ranks"), harness.worlds(1, 2, 4))
def test_dist_sync_sums_over_the_ranks(
    communicator: str, ranks: int, compress: bool, update: str
) -> None:
    arguments = {"compress": compress, "update": update}
    harness.run(push_on_ranks, ranks, **harness.over(communicator, ranks, arguments=arguments))


def collectives_of_pushpull() -> list[str]:
    """Return the collectives of three pushpulls with an optimizer of ngd, after a first one.

    The first call of its step also compares the variables of the ranks.
    """
    store = kvstore.create("dist_sync")
    store.init(["a", "b"], [ones(), ones()])
    store.set_optimizer(ngd.optim.Adam(0.1))
    step = store._table._step(("a", "b"), True, False)
    store.pushpull(["a", "b"], [ones(), ones()], out=[ones(), ones()])
    before = {(each.op, each.site): each.calls for each in ngd.comm_stats()}
    for _ in range(3):
        store.pushpull(["a", "b"], [ones(), ones()], out=[ones(), ones()])
    after = {(each.op, each.site): each.calls for each in ngd.comm_stats()}
    assert step is store._table._step(("a", "b"), True, False)
    return [op for (op, site), calls in after.items() if calls > before.get((op, site), 0)]


@harness.needs_ranks
def test_an_ngd_optimizer_reduces_in_its_step() -> None:
    for outcome in harness.run(collectives_of_pushpull, ranks=2):
        assert set(outcome.value) == {"all_reduce(sum)"}
