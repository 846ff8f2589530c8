# SPDX-License-Identifier: Apache-2.0
"""Compare collectives in JAX programs with NumPy, and with one process on the whole batch."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import digits, harness

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import ngd  # noqa: E402
import ngd.jax as nj  # noqa: E402

pytestmark = harness.needs_ranks
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
DTYPES = ("uint8", "int32", "float16", "bfloat16", "float32")
CALLS = 40
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")


def run(program: Any, ranks: int, **arguments: Any) -> list[Any]:
    outcomes = harness.run(program, ranks, arguments=arguments, env=ENVIRONMENT)
    return [outcome.value for outcome in outcomes]


def numpy_result(kind: str, operands: list[Any], op: str, root: int, rank: int) -> Any:
    """Return a rank's result by NumPy from the operands of all ranks."""
    size, operands_64 = len(operands), [np.asarray(g, np.float64) for g in operands]
    functions = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "prod": np.prod}
    if kind == "all_reduce":
        return functions[op](operands_64, axis=0)
    if kind == "reduce_scatter":
        return np.split(functions[op](operands_64, axis=0), size)[rank]
    if kind == "all_gather":
        return np.concatenate(operands_64)
    if kind == "broadcast":
        return operands_64[root]
    return np.concatenate([np.split(w, size)[rank] for w in operands_64])


def random_calls(seed: int) -> int:
    """Run programs of three random calls on small integers, which are exact in every dtype."""
    world = ngd.init()
    rank, size = world.rank, world.size
    random, own = np.random.default_rng(seed), np.random.default_rng(seed + rank)
    for _ in range(CALLS // 3 + 1):
        calls, inputs, expected = [], [], []
        for _ in range(3):
            kind = str(random.choice(KINDS))
            dtype = str(random.choice(DTYPES))
            op = str(random.choice(["sum", "min", "max", "prod", "mean"]))
            op = "sum" if op == "mean" and dtype[0] in "ui" else op
            root = int(random.integers(size))
            rows = size * int(random.integers(1, 4))
            shape = (rows, *random.integers(0, 4, random.integers(0, 3)))
            operands = [
                random.integers(0, 3, shape) * (size if op == "mean" else 1) for _ in range(size)
            ]
            how: Any = {"op": op} if kind in ("all_reduce", "reduce_scatter") else {}
            how |= {"root": root} if kind == "broadcast" else {}
            how["async_op"] = bool(own.integers(2))
            calls.append((getattr(nj, kind), how))
            inputs.append(jnp.asarray(operands[rank].astype("float32")).astype(dtype))
            expected.append(numpy_result(kind, operands, op, root, rank))

        def program(*xs: Any, calls: Any = calls) -> Any:
            return [call(x, **how) for (call, how), x in zip(calls, xs, strict=True)]

        for function in (program, jax.jit(program)):
            for got, value, operands in zip(function(*inputs), expected, inputs, strict=True):
                assert got.dtype == operands.dtype
                np.testing.assert_array_equal(np.asarray(got, np.float64), value)
    return seed


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_random_calls_equal_numpy(ranks: int) -> None:
    assert run(random_calls, ranks, seed=ranks) == [ranks] * ranks


def gradients_of_collectives() -> list[Any]:
    """Return gradients of sum(weights * collective(x)), with different weights per rank."""
    world = ngd.init()
    size = world.size
    weights = jnp.arange(1.0, 2 * size + 1) + 10 * world.rank
    calls: list[Any] = [
        lambda x: nj.all_reduce(x, op="sum") * weights,
        lambda x: nj.all_reduce(x, op="mean") * weights,
        lambda x: nj.all_gather(x[:2]) * weights,
        lambda x: nj.reduce_scatter(x, op="sum") * weights[:2],
        lambda x: nj.reduce_scatter(x, op="mean") * weights[:2],
        lambda x: nj.broadcast(x, 1) * weights,
        lambda x: nj.all_to_all(x) * weights,
    ]
    gradients = []
    for call in calls:
        of = jax.grad(lambda x, call=call: call(x).sum())
        x = jnp.ones(2 * size)
        plain, compiled = of(x), jax.jit(of)(x)
        np.testing.assert_array_equal(plain, compiled)
        gradients.append(plain.tolist())
    return gradients


def test_gradients_are_of_the_sum_over_all_ranks() -> None:
    size = 2
    w = [np.arange(1.0, 5) + 10 * rank for rank in range(size)]
    for rank, gradients in enumerate(run(gradients_of_collectives, size)):
        both = (w[0] + w[1]).tolist()
        gathered = np.zeros(4)
        gathered[:2] = (w[0] + w[1])[2 * rank : 2 * rank + 2]
        scattered = np.concatenate([w[0][:2], w[1][:2]])
        root = both if rank == 1 else [0.0] * 4
        exchanged = np.concatenate([w[r][2 * rank : 2 * rank + 2] for r in range(size)])
        assert gradients == [
            both,
            (np.array(both) / 2).tolist(),
            gathered.tolist(),
            scattered.tolist(),
            (scattered / 2).tolist(),
            root,
            exchanged.tolist(),
        ]


def compare_vmap_with_loop() -> bool:
    """Check that vmap over any axis, and nested vmap, equal a loop."""
    world = ngd.init()
    x = jnp.arange(24.0 * world.size).reshape(3, 4 * world.size, 2) + world.rank
    for call in (
        lambda v: nj.all_reduce(v, op="sum"),
        nj.all_gather,
        nj.all_to_all,
        lambda v: nj.reduce_scatter(v, op="mean"),
        lambda v: nj.broadcast(v, world.size - 1),
    ):
        expected = jnp.stack([call(each) for each in x])
        np.testing.assert_array_equal(jax.vmap(call)(x), expected)
        batch_last = jnp.moveaxis(x, 0, 2)
        np.testing.assert_array_equal(jax.vmap(call, in_axes=2)(batch_last), expected)
        np.testing.assert_array_equal(jax.vmap(jax.vmap(call))(x[:, None]), expected[:, None])
    return True


def test_vmap_equals_a_loop() -> None:
    assert run(compare_vmap_with_loop, 2) == [True, True]


def train() -> list[float]:
    """Train an MLP on digits on all ranks and in one process; return the largest difference."""
    world = ngd.init()
    random = np.random.default_rng(0)
    sizes = [digits.FEATURES, 300, 300, digits.CLASSES]
    start = [
        jnp.asarray(random.normal(0, i**-0.5, (i, o)), jnp.float32)
        for i, o in itertools.pairwise(sizes)
    ]

    def loss(ws: Any, x: Any, t: Any) -> Any:
        for w in ws[:-1]:
            x = jnp.tanh(x @ w)
        scores = jax.nn.log_softmax(x @ ws[-1])
        return -jnp.take_along_axis(scores, t[:, None], 1).mean()

    @jax.jit
    def step(ws: Any, x: Any, t: Any) -> Any:
        means = nj.all_reduce(jax.grad(loss)(ws, x, t), op="mean")
        return [w - 0.1 * g for w, g in zip(ws, means, strict=True)]

    @jax.jit
    def step_of_one_process(ws: Any, x: Any, t: Any) -> Any:
        return [w - 0.1 * g for w, g in zip(ws, jax.grad(loss)(ws, x, t), strict=True)]

    mine = reference = start
    for number in range(20):
        x, t = digits.batch(number, 8 * world.size)
        part = slice(8 * world.rank, 8 * world.rank + 8)
        mine, reference = step(mine, x[part], t[part]), step_of_one_process(reference, x, t)
    pairs = list(zip(mine, reference, strict=True))
    return [max(float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in pairs)]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_train_as_one_process(ranks: int) -> None:
    for (difference,) in run(train, ranks):
        assert difference < 1e-5


def independent_calls() -> int:
    """Run calls without data dependencies, which must keep the program's order on all ranks."""
    world = ngd.init()
    half = world.split(0, name="the same")

    @jax.jit
    def program(xs: Any) -> Any:
        results = []
        for i, x in enumerate(xs):
            heavy = jnp.linalg.matrix_power(jnp.eye(40) * 1.0, 3 + (i + world.rank) % 5)
            results.append(nj.all_reduce(x * heavy[0, 0], op="sum", group=half if i % 3 else None))
        return results

    for _ in range(20):
        xs = [jnp.full(1 + i, i + world.rank, jnp.float32) for i in range(30)]
        for i, got in enumerate(program(xs)):
            assert got.shape == (1 + i,)
            assert float(got[0]) == sum(i + r for r in range(world.size))
    return len(xs)


def test_independent_calls_keep_their_order() -> None:
    assert run(independent_calls, 2) == [30, 30]


def send_and_receive() -> list[Any]:
    """Send from rank 0 to rank 1: plain, compiled, differentiated, and in vmap."""
    world, results = ngd.init(), []
    x, v = jnp.arange(3.0), jnp.asarray([1.0, 2.0, 3.0])
    for async_op in (False, True):
        how: Any = {"async_op": async_op, "tag": 3}

        def send(w: Any, how: Any = how) -> Any:
            return nj.send(w * x, 1, **how)

        def loss(v: Any, start: Any, how: Any = how) -> Any:
            return (nj.recv(0, shape=3, dtype="float32", after=start, **how) * v).sum()

        for wrapped in (lambda f: f, jax.jit):
            if world.rank == 0:
                results += [wrapped(send)(2.0), wrapped(jax.grad(send))(2.0)]
                results.append(wrapped(jax.vmap(send))(jnp.asarray([1.0, 2.0])))
                results.append(wrapped(jax.vmap(jax.grad(send)))(jnp.asarray([1.0, 2.0])))
            else:
                starts = jnp.zeros(2)
                results += [wrapped(loss)(v, 0.0), wrapped(jax.grad(loss, (0, 1)))(v, 0.0)]
                results.append(wrapped(jax.vmap(loss, (None, 0)))(v, starts))
                of_both = jax.vmap(jax.grad(loss, (0, 1)), (None, 0))
                results.append(wrapped(of_both)(v, starts))
    return jax.tree.map(lambda a: a.tolist(), results)


def test_send_and_recv_have_values_and_gradients() -> None:
    sent, received = run(send_and_receive, 2)
    # By hand: rank 1 receives w * (0, 1, 2) and weights it by (1, 2, 3), which gives 8 w.
    assert sent == [0, 8, [0, 0], [8, 8]] * 4
    assert received == [16, [[0, 2, 4], 0], [8, 16], [[[0, 1, 2], [0, 2, 4]], [0, 0]]] * 4


def run_pipeline() -> list[float]:
    """Compute a gradient through one layer per rank, and compare it with one process."""
    world = ngd.init()
    rank, last = world.rank, world.size - 1
    weights = [
        jnp.asarray(np.random.default_rng(r).normal(0, 0.5, (4, 4))) for r in range(last + 1)
    ]
    x = jnp.ones((2, 4), weights[0].dtype)

    def stage(w: Any, start: Any) -> Any:
        h = nj.recv(rank - 1, shape=x.shape, dtype=x.dtype, after=start) if rank else x
        h = jnp.tanh(h @ w)
        return (h**2).sum() if rank == last else nj.send(h, rank + 1)

    def loss_of_all_layers(ws: Any) -> Any:
        h = x
        for w in ws:
            h = jnp.tanh(h @ w)
        return (h**2).sum()

    gradient, _ = jax.jit(jax.grad(stage, (0, 1)))(weights[rank], jnp.zeros((), x.dtype))
    return float(jnp.abs(gradient - jax.grad(loss_of_all_layers)(weights)[rank]).max())


@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_go_through_a_pipeline(ranks: int) -> None:
    assert max(run(run_pipeline, ranks)) < 1e-6


def make_bad_calls() -> list[str]:
    world = ngd.init()
    send_and_receive = []
    for call in (
        lambda: nj.all_reduce(jnp.ones(2), op="average"),
        lambda: nj.all_reduce(jnp.ones(2, jnp.int32), op="mean"),
        lambda: nj.broadcast(jnp.ones(2), 7),
        lambda: nj.all_gather(jnp.float32(1)),
        lambda: nj.all_to_all(jnp.ones(3)),
        lambda: jax.grad(lambda x: nj.all_reduce(x, op="max").sum())(jnp.ones(2)),
        lambda: nj.all_reduce(jnp.ones(2), op="sum", group="world"),
        lambda: nj.all_reduce(jnp.ones(2, jnp.complex64), op="sum"),
        lambda: nj.send(jnp.ones(2), world.rank),
        lambda: nj.recv(7, shape=2, dtype="float32"),
        lambda: nj.recv(1 - world.rank, shape=2, dtype="float32", after=jnp.ones(2)),
        lambda: nj.recv(1 - world.rank, shape=2, dtype="complex64"),
        lambda: nj.recv(1 - world.rank, shape=2, dtype="float64"),
        lambda: nj.all_reduce(jnp.ones(2 + world.rank), op="sum"),
        lambda: nj.all_reduce(jnp.ones(2), op="sum"),
    ):
        try:
            jax.block_until_ready(call())
        except Exception as error:
            send_and_receive.append(f"{type(error).__name__}: {error}")
    return send_and_receive


def test_errors_name_the_call() -> None:
    for got in run(make_bad_calls, 2):
        parts = [
            "ngd.jax.all_reduce: expected op among sum, mean, min, max, prod; got 'average'",
            'ngd.jax.all_reduce(op="mean"): expected floats; got int32',
            "ngd.jax.broadcast: expected root to be in [0, 2); got 7",
            "ngd.jax.all_gather: expected at least one axis; got float32[]",
            "ngd.jax.all_to_all: expected an array whose axis 0 divides evenly among 2 ranks",
            "GradientError: ngd.jax.all_reduce: expected op='sum' or 'mean' to differentiate; got",
            "group: expected an ngd.Group; got str",
            "ngd.jax.all_reduce: expected numbers or booleans; got complex64",
            "ngd.jax.send: to: expected another rank in [0, 2); got ",
            "ngd.jax.recv: source: expected another rank in [0, 2); got 7 on rank ",
            "ngd.jax.recv: after: expected a scalar; got an array of shape (2,)",
            "ngd.jax.recv: expected ",
            "ngd.jax.recv: expected a dtype that JAX has enabled; got float64. Set jax_enable_x64",
            "called different collectives:\n  rank 0: all_reduce(sum) of 2 float32",
            "an earlier failure closed this group",
        ]
        assert len(got) == len(parts)
        for message, part in zip(got, parts, strict=True):
            assert part in message


def call_after_an_exit(asynchronous: bool) -> str:
    world = ngd.init()
    step = jax.jit(lambda x: nj.all_reduce(x, op="sum", async_op=asynchronous))
    step(jnp.ones(3))
    if world.rank == 1:
        return "left"
    try:
        jax.block_until_ready(step(jnp.ones(3)))
    except Exception as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_rank_that_leaves_is_named(asynchronous: bool) -> None:
    first, second = run(call_after_an_exit, 2, asynchronous=asynchronous)
    assert "rank 1" in first
    assert second == "left"


def call_badly_on_rank_0(attribute: str, asynchronous: bool) -> list[str]:
    """Make a call that fails on rank 0, and then a call that all ranks can make."""
    world = ngd.init()
    group = nj.register_group(world)
    nj.register()
    attributes = {
        "kind": "all_reduce",
        "op": "sum",
        "site": "here",
        "group": np.int64(group),
        "root": np.int64(0),
        "asynchronous": np.int64(asynchronous),
    }
    bad = {"kind": "nonsense", "root": np.int32(0)}[attribute]
    first = {**attributes, attribute: bad} if world.rank == 0 else attributes
    call = jax.ffi.ffi_call(
        nj.TARGET,
        [jax.ShapeDtypeStruct((3,), np.float32), jax.ShapeDtypeStruct((), np.int32)],
        has_side_effect=True,
    )
    results = []
    for attributes_of_call in (first, attributes):
        step = jax.jit(functools.partial(call, **attributes_of_call))
        try:
            result, _ = jax.block_until_ready(step(jnp.ones(3), np.int32(0)))
            results.append(str(np.asarray(result)))
        except Exception as error:
            results.append(str(error))
    return results


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("attribute", ["kind", "root"])
def test_a_failed_call_is_not_matched_with_a_later_call(attribute: str, asynchronous: bool) -> None:
    first, second = run(call_badly_on_rank_0, 2, attribute=attribute, asynchronous=asynchronous)
    text = {"kind": "nonsense", "root": "expected an int64"}[attribute]
    assert text in first[0]
    assert text in first[1], "the group is closed"
    for each in second:
        assert "rank 0" in each
        assert text in each


def run_page() -> list[float]:
    """Run the program of docs/jax.md, and return its weights."""
    text = (Path(__file__).parents[3] / "docs" / "jax.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(block, names)
    return [float(w) for w in names["w"].ravel()]


def test_the_page_runs() -> None:
    first, second = run(run_page, 2)
    assert first == second
    assert all(0 < w < 1 for w in first)


FLOATS, INTEGERS, BOOLS = (np.ones((4, 3), dtype) for dtype in ("float32", "int32", "bool"))
MISUSES: dict[str, tuple[Any, Any]] = {
    "unknown op": (FLOATS, lambda m, x: m.all_reduce(x, op="avg")),
    "unknown op of reduce_scatter": (FLOATS, lambda m, x: m.reduce_scatter(x, op="avg")),
    "mean of integers": (INTEGERS, lambda m, x: m.all_reduce(x, op="mean")),
    "scattered mean of integers": (INTEGERS, lambda m, x: m.reduce_scatter(x, op="mean")),
    "sum of bools": (BOOLS, lambda m, x: m.all_reduce(x, op="sum")),
    "root beyond the group": (FLOATS, lambda m, x: m.broadcast(x, 5)),
    "negative root": (FLOATS, lambda m, x: m.broadcast(x, -1)),
    "fractional root": (FLOATS, lambda m, x: m.broadcast(x, 1.5)),
    "receiver beyond the group": (FLOATS, lambda m, x: m.send(x, 5)),
    "receiver is the sender": (FLOATS, lambda m, x: m.send(x, 0)),
    "fractional receiver": (FLOATS, lambda m, x: m.send(x, 1.5)),
    "scattered scalar": (np.float32(1), lambda m, x: m.reduce_scatter(x, op="sum")),
}


@pytest.mark.parametrize("case", MISUSES)
def test_a_wrong_argument_has_the_same_class_as_on_arrays(case: str) -> None:
    ngd.init()
    array, call = MISUSES[case]
    kinds = []
    for module, x in ((ngd, array), (nj, jnp.asarray(array))):
        with pytest.raises((TypeError, ValueError)) as raised:
            call(module, x)
        kinds.append(raised.type)
    assert kinds[0] is kinds[1]
