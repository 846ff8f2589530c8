# SPDX-License-Identifier: Apache-2.0
"""Ways in which one rank can differ from the others, each with its expected outcome.

Each way is a function that all ranks call with a `Run`, whose `is_odd` is true on one rank.
The expected outcome is one of:

- NAMED: every rank gets an error of ngd whose text names a rank and the words of the way.
- RIGHT: the ranks differ by design. The way checks the results with NumPy.
- EITHER: one of the two, and the same one on all ranks.

Some differences are not in the list, because a rank could notice them only by a message in each
call: a variable that is assigned on one rank, or an argument that differs, after the first call of
a step. A frozen weight that differs is not in the list either. A step only reads it, and the ranks
of a divided network differ in this way by design.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import ngd
from ngd import nn, ops, optim, train

NAMED: Final = "named"
RIGHT: Final = "right"
EITHER: Final = "either"


@dataclass
class Run:
    """One rank's view of a run."""

    world: Any
    odd: int
    """The number of the odd rank."""
    device: str
    draw: random.Random
    """A random generator that draws the same numbers on all ranks."""

    @property
    def is_odd(self) -> bool:
        """True on the odd rank."""
        return bool(self.world.rank == self.odd)

    def choose(self, odd: Any, others: Any) -> Any:
        """Return the first argument on the odd rank, and the second one on the other ranks."""
        return odd if self.is_odd else others


@dataclass(frozen=True)
class Way:
    """A way in which a rank differs, and the expected outcome."""

    run: Callable[[Run], Any]
    verdict: str
    words: tuple[str, ...] = ()
    """Words that the error of at least one rank contains."""
    is_late: bool = False
    """True if ranks wait until the deadline for a rank that does not come."""


WAYS: dict[str, Way] = {}


def way(verdict: str, *words: str, late: bool = False) -> Callable[..., Any]:
    """Return a decorator that adds a function to the list of ways."""

    def enter(function: Callable[[Run], Any]) -> Callable[[Run], Any]:
        WAYS[function.__name__] = Way(function, verdict, words, late)
        return function

    return enter


def expect_equal(run: Run, *variables: Any) -> None:
    """Check that the variables have equal values on all ranks."""
    for v in variables:
        everywhere = run.world.all_gather(v.numpy()[None])
        assert (everywhere == everywhere[0]).all(), f"{v.name}: {everywhere}"


# Variables.


def model_of(weight: Any = None, name: str = "bias") -> dict[str, Any]:
    """Return a model of two variables."""
    weight = np.full((3, 2), 0.5) if weight is None else weight
    bias = ngd.variable(name, np.zeros(2, np.float32))
    return {"weight": ngd.variable("weight", np.asarray(weight, np.float32)), "bias": bias}


def batch(run: Run, rows: int = 4) -> np.ndarray:
    """Return the batch of this rank."""
    return np.random.default_rng(run.world.rank).uniform(size=(rows, 3)).astype(np.float32)


def train_model(
    run: Run, optimizer: Any, model: Any = None, more: Any = None, steps: int = 2
) -> Any:
    """Make some steps with an optimizer, and return the model."""
    model = model or model_of()
    x = ngd.placeholder("x", (4, 3))
    loss = ops.sum(ops.square(x @ model["weight"] + model["bias"]))
    updates = optimizer.minimize(loss, model)
    if more is not None:
        updates |= more(loss, updates)
    step = ngd.compile([x], [loss], updates, device=run.device)
    for _ in range(steps):
        step(batch(run))
    return model


@way(NAMED, "'weight'")
def weights_loaded_on_one_rank(run: Run) -> None:
    model = model_of()
    if run.is_odd:
        model["weight"].assign(np.ones((3, 2)))
    train_model(run, optim.SGD(0.1), model)


@way(NAMED, "'weight'")
def random_initial_values(run: Run) -> None:
    random_weight = np.random.default_rng(run.world.rank).normal(size=(3, 2))
    train_model(run, optim.SGD(0.1), model_of(random_weight))


@way(NAMED, "'weight'")
def one_bit_of_a_weight(run: Run) -> None:
    weight = np.full((3, 2), 0.5, np.float32)
    if run.is_odd:
        weight[1, 1] = np.nextafter(np.float32(0.5), np.float32(1))
    v = ngd.variable("weight", weight)
    total = ops.all_reduce(ops.sum(v), op="sum")
    ngd.compile([], [total], {v: v * 1.5}, device=run.device)()


@way(NAMED, "'weight'")
def gradients_that_are_not_averaged(run: Run) -> None:
    model = model_of()
    x = ngd.placeholder("x", (4, 3))
    loss = ops.sum(ops.square(x @ model["weight"] + model["bias"]))
    total = ops.all_reduce(loss, op="mean")
    gradients = ngd.grad(run.draw.choice([loss, total]), model)
    updates = {v: v - 0.1 * gradients[name] for name, v in model.items()}
    ngd.compile([x], [total], updates, device=run.device)(batch(run))


@way(NAMED, "'weight'")
def another_learning_rate(run: Run) -> None:
    train_model(run, optim.SGD(run.choose(0.1, 0.2)))


@way(NAMED, "update rules")
def another_schedule(run: Run) -> None:
    schedule = optim.warm_up(optim.cosine(0.1, run.choose(100, 200)), 10)
    train_model(run, optim.SGD(schedule))


@way(NAMED, "update rules")
def another_momentum(run: Run) -> None:
    train_model(run, optim.SGD(0.1, momentum=run.choose(0.9, 0.5)))


@way(NAMED, "update rules")
def other_betas(run: Run) -> None:
    train_model(run, optim.AdamW(1e-3, betas=(0.9, run.choose(0.99, 0.999))))


@way(NAMED, "update rules")
def another_weight_decay(run: Run) -> None:
    train_model(run, optim.AdamW(1e-3, weight_decay=run.choose(0.1, 0.0)))


@way(NAMED, "update rules")
def another_clip_norm(run: Run) -> None:
    train_model(run, optim.SGD(0.1, clip_norm=run.choose(1.0, 2.0)))


@way(NAMED)
def another_optimizer(run: Run) -> None:
    train_model(run, optim.SGD(0.1) if run.is_odd else optim.Adam(0.1))


@way(NAMED, "'rate'")
def another_state_of_the_schedule(run: Run) -> None:
    rate = ngd.variable("rate", np.float32(run.choose(0.1, 0.2)))
    train_model(run, optim.SGD(0.1), more=lambda loss, updates: {rate: rate * 0.9})


@way(NAMED, "'weight'")
def another_rate_as_argument(run: Run) -> None:
    model = model_of()
    x, rate = ngd.placeholder("x", (4, 3)), ngd.placeholder("rate", ())
    gradients = ngd.grad(ops.sum(x @ model["weight"] + model["bias"]), model)
    updates = {
        v: v - rate * ops.all_reduce(gradients[name], op="mean") for name, v in model.items()
    }
    step = ngd.compile([x, rate], [], updates, device=run.device)
    step(batch(run), np.float32(run.choose(0.1, 0.2)))


@way(NAMED, "scale'")
def another_loss_scale(run: Run) -> None:
    scale = optim.LossScale(run.choose(1024.0, 2048.0))
    train_model(run, optim.SGD(0.1, loss_scale=scale))


@way(NAMED, "random.step")
def another_count_of_draws(run: Run) -> None:
    source = nn.Random(3)
    if run.is_odd:
        source.step.assign(7)
    train_model(run, optim.SGD(0.1), more=lambda loss, updates: {source.step: source.step + 1})


@way(RIGHT)
def another_seed_of_dropout(run: Run) -> None:
    model = model_of()
    x = ngd.placeholder("x", (4, 3))
    source = nn.Random(run.choose(3, 4))
    dropout = nn.Dropout(0.5)
    with nn.training(source) as state:
        loss = ops.sum(dropout(x @ model["weight"] + model["bias"]))
        updates = optim.SGD(0.1).minimize(loss, model) | state.updates
    step = ngd.compile([x], [loss], updates, device=run.device)
    for _ in range(2):
        step(batch(run))
    expect_equal(run, *model.values(), source.step)


@way(RIGHT)
def a_variable_per_rank(run: Run) -> None:
    own = ngd.variable("own", np.float32(run.world.rank), per_rank=True)
    more = {own: own + 1.0}
    model = train_model(run, optim.SGD(0.1), more=lambda loss, updates: more)
    assert own.numpy() == run.world.rank + 2
    expect_equal(run, *model.values())


@way(RIGHT)
def statistics_of_a_norm(run: Run) -> None:
    norm = nn.BatchNorm1d(3)
    x = ngd.placeholder("x", (4, 3))
    with nn.training() as state:
        loss = ops.sum(ops.square(norm(x) + 1.0))
        updates = optim.SGD(0.1).minimize(loss, norm.parameters()) | state.updates
    ngd.compile([x], [loss], updates, device=run.device)(batch(run))
    expect_equal(run, *norm.parameters().values())
    want = 0.1 * batch(run).mean(0)
    np.testing.assert_allclose(norm.running_mean.numpy(), want, rtol=1e-5)


@way(NAMED, "other variables")
def another_name(run: Run) -> None:
    train_model(run, optim.SGD(0.1), model_of(name=run.choose("offset", "bias")))


@way(NAMED, "other variables")
def one_more_variable(run: Run) -> None:
    seen = ngd.variable("seen", np.float32(0))
    train_model(run, optim.SGD(0.1), more=lambda loss, _: {seen: seen + 1.0} if run.is_odd else {})


@way(NAMED, "with different collectives")
def another_shape_of_a_variable(run: Run) -> None:
    v = ngd.variable("v", np.zeros(run.choose(3, 4), np.float32))
    ngd.compile([], [], {v: ops.all_reduce(v + 1.0, op="sum")}, device=run.device)()


@way(NAMED, "with different collectives")
def another_dtype_of_a_variable(run: Run) -> None:
    v = ngd.variable("v", np.zeros(3, run.choose("float64", "float32")))
    ngd.compile([], [], {v: ops.all_reduce(v + 1.0, op="sum")}, device=run.device)()


@way(NAMED, "'weight'")
def another_checkpoint(run: Run) -> None:
    model = model_of()
    with tempfile.TemporaryDirectory() as folder:
        saved = ngd.variable("weight", np.full((3, 2), run.choose(1.0, 2.0), np.float32))
        ngd.checkpoint.save(folder, [saved], group=ngd.comm.world.alone())
        ngd.checkpoint.load(folder, [model["weight"]])
    train_model(run, optim.SGD(0.1), model)


@way(NAMED)
def a_checkpoint_that_one_rank_lacks(run: Run) -> None:
    model = model_of()
    with tempfile.TemporaryDirectory() as folder:
        if not run.is_odd:
            ngd.checkpoint.save(folder, [model["weight"]], group=ngd.comm.world.alone())
        try:
            ngd.checkpoint.load(Path(folder), [model["weight"]])
        except FileNotFoundError as error:
            run.world.abort(f"rank {run.odd} lacks a checkpoint: {error}")
            raise ngd.errors.Error(f"rank {run.odd} lacks a checkpoint: {error}") from None
    train_model(run, optim.SGD(0.1), model)


@way(NAMED, "update rules")
def another_outer_optimizer(run: Run) -> None:
    outer = optim.SGD(0.7, momentum=run.choose(0.9, 0.8), name="outer")
    run_rounds(run, train.DiLoCo([ngd.variable("v", np.ones(3, "float32"))], every=1, outer=outer))


@way(NAMED, "with different collectives")
def another_wire(run: Run) -> None:
    wire = run.choose("float32", "bfloat16")
    run_rounds(run, train.DiLoCo([ngd.variable("v", np.ones(3, "float32"))], every=1, wire=wire))


def run_rounds(run: Run, diloco: Any) -> None:
    """Make two rounds."""
    while diloco.round < 2:
        diloco.step()


# What a step computes.


@way(RIGHT)
def another_mask(run: Run) -> None:
    model = model_of()
    x, mask = ngd.placeholder("x", (4, 3)), ngd.placeholder("mask", (4, 1))
    loss = ops.sum((x @ model["weight"]) * mask)
    step = ngd.compile([x, mask], [loss], optim.SGD(0.5).minimize(loss, [model["weight"]]))
    masks = [(np.arange(4) % (3 if r == run.odd else 2) > 0) for r in range(run.world.size)]
    rows = [np.random.default_rng(r).uniform(size=(4, 3)) for r in range(run.world.size)]
    step(batch(run), masks[run.world.rank].astype(np.float32)[:, None])
    slopes = [(x[m].sum(0)[:, None] * np.ones((1, 2))) for x, m in zip(rows, masks, strict=True)]
    want = 0.5 - 0.5 * np.mean(slopes, 0)
    np.testing.assert_allclose(model["weight"].numpy(), want, rtol=1e-5, atol=1e-6)


@way(RIGHT)
def another_length_of_the_batch(run: Run) -> None:
    rows = run.choose(2, 5)
    v = ngd.variable("v", np.zeros(3, np.float32))
    x = ngd.placeholder("x", (rows, 3))
    step = ngd.compile([x], [], {v: ops.all_reduce(ops.sum(x, 0), op="sum")}, device=run.device)
    step(np.ones((rows, 3), np.float32))
    assert (v.numpy() == 2 + 5 * (run.world.size - 1)).all(), v.numpy()


@way(RIGHT)
def another_function_of_the_data(run: Run) -> None:
    v = ngd.variable("v", np.zeros(3, np.float32))
    x = ngd.placeholder("x", (3,))
    y = -x if run.is_odd else x * x
    step = ngd.compile([x], [], {v: v + ops.all_reduce(y, op="sum")}, device=run.device)
    step(np.full(3, 2, np.float32))
    assert (v.numpy() == 4 * (run.world.size - 1) - 2).all(), v.numpy()


@way(EITHER)
def another_device(run: Run) -> None:
    run.device = run.choose("INTERPRETER", "CPU")
    expect_equal(run, *train_model(run, optim.SGD(0.1)).values())


@way(EITHER)
def another_precision(run: Run) -> None:
    v = ngd.variable("v", np.ones((8, 8), np.float32))
    x = ngd.placeholder("x", (8, 8))
    updates = optim.SGD(0.1).minimize(ops.sum(x @ v), [v])
    precision = run.choose("bfloat16", "float32")
    ngd.compile([x], [], updates, precision=precision)(np.ones((8, 8), np.float32))
    expect_equal(run, v)


@way(EITHER, late=True)
def another_shard(run: Run) -> None:
    v = ngd.variable("v", np.ones(4096, np.float32))
    x = ngd.placeholder("x", (4096,))
    updates = optim.SGD(0.1).minimize(ops.sum(x * v), [v])
    step = ngd.compile([x], [], updates, shard=run.choose("none", "host"))
    step(np.ones(4096, np.float32))
    expect_equal(run, v)


@way(NAMED, "'v'")
def a_shard_of_another_value(run: Run) -> None:
    v = ngd.variable("v", np.full(4096, run.choose(1.0, 2.0), np.float32))
    x = ngd.placeholder("x", (4096,))
    ngd.compile([x], [], optim.SGD(0.1).minimize(ops.sum(x * v), [v]), shard="host")


# Collectives of a step.


def run_step(run: Run, *nodes: Any) -> None:
    """Compile a step that returns nodes of the placeholder `x`, float32[4], and run it."""
    x = next(n for n in leaves_of(nodes) if n.attrs.get("name") == "x")
    ngd.compile([x], [*nodes], device=run.device)(np.ones(x.shape, x.dtype))


def leaves_of(nodes: Any) -> list[Any]:
    """Return the leaves (nodes without inputs) from which some nodes are computed."""
    return [n for n in ngd.graph.node.topological(nodes) if not n.inputs]


def vector(count: int = 4, dtype: str = "float32") -> Any:
    """Return the placeholder `x`."""
    return ngd.placeholder("x", (count,), dtype)


@way(NAMED, "with different collectives")
def another_reduction_in_a_step(run: Run) -> None:
    run_step(run, ops.all_reduce(vector(), op=run.choose("max", "sum")))


@way(NAMED, "with different collectives")
def another_kind_in_a_step(run: Run) -> None:
    x = vector()
    run_step(run, ops.broadcast(x) if run.is_odd else ops.all_reduce(x, op="sum"))


@way(NAMED, "with different collectives")
def another_count_in_a_step(run: Run) -> None:
    run_step(run, ops.all_reduce(vector(run.choose(5, 4)), op="sum"))


@way(NAMED, "with different collectives")
def another_dtype_in_a_step(run: Run) -> None:
    run_step(run, ops.all_reduce(vector(4, run.choose("int32", "float32")), op="sum"))


@way(NAMED, "with different collectives")
def another_root_in_a_step(run: Run) -> None:
    run_step(run, ops.broadcast(vector(), run.choose(0, 1)))


@way(NAMED, "with different collectives")
def another_order_in_a_step(run: Run) -> None:
    x = vector()
    first, second = run.choose(("max", "min"), ("min", "max"))
    run_step(run, ops.all_reduce(ops.all_reduce(x, op=first) + 1.0, op=second))


@way(NAMED, "with different collectives")
def one_more_in_a_step(run: Run) -> None:
    y = ops.all_reduce(vector(), op="sum")
    run_step(run, ops.all_reduce(y, op="max") if run.is_odd else y)


@way(NAMED, "with different collectives")
def another_compression_in_a_step(run: Run) -> None:
    run_step(run, ops.all_reduce(vector(), op="sum", compression=run.choose("bf16", None)))


@way(NAMED)
def a_weight_in_a_step(run: Run) -> None:
    weight = 2.0 if run.is_odd else None
    run_step(run, ops.all_reduce(vector(), op="mean", weight=weight))


@way(NAMED)
def other_counts_in_a_step(run: Run) -> None:
    counts = [run.choose(2, 4) if r == run.odd else 4 for r in range(run.world.size)]
    run_step(run, ops.all_gather_v(vector(counts[run.world.rank]), counts=counts))


@way(EITHER)
def another_algorithm_in_a_step(run: Run) -> None:
    run_step(run, ops.all_reduce(vector(), op="sum", algorithm=run.choose("ring", "flat")))


@way(NAMED, late=True)
def another_group_in_a_step(run: Run) -> None:
    twin = run.world.split(0)
    run_step(run, ops.all_reduce(vector(), op="sum", group=run.choose(twin, run.world)))


@way(NAMED, late=True)
def another_branch(run: Run) -> None:
    x = vector()
    which = ngd.variable("which", np.bool_(run.is_odd))
    y = ops.cond(which, lambda: ops.all_reduce(x, op="max"), lambda: ops.all_reduce(x, op="sum"))
    run_step(run, y)


@way(NAMED, "with different collectives")
def another_number_of_iterations(run: Run) -> None:
    x = vector()
    count = run.choose(2, 3)
    rows = ngd.constant(np.ones((count, 4), np.float32))
    total, _ = ops.scan(lambda c, r: (ops.all_reduce(c + r, op="sum"), c), x, rows)
    run_step(run, total)


# Steps and scripts.


def two_steps(run: Run) -> list[Any]:
    """Return two steps that call the same collectives."""
    x = vector()
    steps = []
    for factor in (2.0, 3.0):
        v = ngd.variable(f"v{factor}", np.zeros(4, np.float32))
        total = ops.all_reduce(x * factor, op="sum")
        steps.append(ngd.compile([x], [total], {v: v + total}, device=run.device))
    return steps


@way(NAMED, "different compiled steps")
def another_order_of_steps(run: Run) -> None:
    steps = two_steps(run)
    for step in run.choose(steps[::-1], steps):
        step(np.ones(4, np.float32))


@way(NAMED, late=True)
def one_step_less(run: Run) -> None:
    for step in two_steps(run)[: run.choose(1, 2)]:
        step(np.ones(4, np.float32))
    if run.is_odd:
        run.world.barrier()


@way(NAMED)
def evaluation_instead_of_training(run: Run) -> None:
    model = model_of()
    x = ngd.placeholder("x", (4, 3))
    loss = ops.sum(x @ model["weight"] + model["bias"])
    total = ops.all_reduce(loss, op="mean")
    train_step = ngd.compile([x], [total], optim.SGD(0.1).minimize(loss, model), device=run.device)
    evaluate = ngd.compile([x], [total], device=run.device)
    run.choose(evaluate, train_step)(batch(run))


@way(NAMED)
def a_rank_that_raises(run: Run) -> None:
    v = ngd.variable("v", np.zeros(4, np.float32))
    x, at = vector(), ngd.placeholder("at", (), "int64")
    y = ops.all_reduce(ops.take(x, at) + v, op="sum")
    step = ngd.compile([x, at], [], {v: y}, device="CPU")
    try:
        step(np.ones(4, np.float32), np.int64(run.choose(9, 1)))
    except IndexError as error:
        raise ngd.errors.Error(f"rank {run.odd}: {error}") from None


# Collectives on arrays.


def ones(count: int = 4, dtype: str = "float32") -> np.ndarray:
    """Return an array of ones."""
    return np.ones(count, dtype)


ARRAY_WAYS: dict[str, Callable[[Run], Any]] = {
    "kind": lambda r: r.choose(r.world.broadcast, lambda a: r.world.all_reduce(a, op="sum"))(
        ones()
    ),
    "reduction": lambda r: r.world.all_reduce(ones(), op=r.choose("max", "sum")),
    "count": lambda r: r.world.all_reduce(ones(r.choose(5, 4)), op="sum"),
    "dtype": lambda r: r.world.all_reduce(ones(4, r.choose("int32", "float32")), op="sum"),
    "shape": lambda r: r.world.all_reduce(ones(6).reshape(r.choose((2, 3), (3, 2))), op="sum"),
    "root": lambda r: r.world.broadcast(ones(), r.choose(0, 1)),
    "axis": lambda r: r.world.all_gather(ones(4).reshape(2, 2), axis=r.choose(0, 1)),
    "list": lambda r: r.world.all_reduce([ones(), ones(r.choose(5, 4))], op="sum"),
    "length of a list": lambda r: r.world.all_reduce([ones()] * r.choose(2, 3), op="sum"),
    "algorithm": lambda r: r.world.all_reduce(ones(), op="sum", algorithm=r.choose("ring", "flat")),
    "compression": lambda r: r.world.all_reduce(
        ones(), op="sum", compression=r.choose("bf16", None)
    ),
    "weight": lambda r: r.world.all_reduce(ones(), op="mean", weight=r.choose(2.0, None)),
    "counts": lambda r: r.world.all_gather_v(
        ones(4),
        counts=[
            r.choose(4, 4) if i != (r.odd + 1) % r.world.size else r.choose(3, 4)
            for i in range(r.world.size)
        ],
    ),
    "order": lambda r: [
        r.world.all_reduce(ones(), op=op) for op in r.choose(("max", "min"), ("min", "max"))
    ],
    "asynchronous order": lambda r: [
        work.wait()
        for work in [
            r.world.all_reduce(ones(n), op="sum", async_op=True) for n in r.choose((4, 5), (5, 4))
        ]
    ],
    "broadcast_variables": lambda r: ngd.broadcast_variables(
        [ngd.variable("v", ones(r.choose(5, 4)))]
    ),
}
for _name, _call in ARRAY_WAYS.items():
    WAYS[f"{_name} of arrays"] = Way(_call, NAMED)


@way(NAMED, late=True)
def another_group_of_arrays(run: Run) -> None:
    twin = run.world.split(0)
    run.choose(twin, run.world).all_reduce(ones(), op="sum")


@way(NAMED, late=True)
def a_split_that_one_rank_leaves_out(run: Run) -> None:
    if run.is_odd:
        run.world.all_reduce(ones(), op="sum")
    else:
        run.world.split(0)


@way(NAMED)
def another_tag(run: Run) -> None:
    peer = (run.odd + 1) % run.world.size
    if run.is_odd:
        run.world.send(ones(), peer, tag=1)
    elif run.world.rank == peer:
        run.world.recv(run.odd, tag=2, out=ones())
    run.world.barrier()


__all__ = ["EITHER", "NAMED", "RIGHT", "WAYS", "Run", "Way"]
