# SPDX-License-Identifier: Apache-2.0
"""Tests of sharded weight updates on several hosts: the training does not change."""

from __future__ import annotations

import atexit
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops, optim
from ngd.passes.partition import SMALL_BYTES as SMALL
from tests.passes.sharding.test_sharding import ELEMENTWISE, OPTIMIZERS, Net, trained
from tests.support import harness
from tests.support.harness import Job, caught, say
from tests.support.hosts import Hosts, permitted

__all__ = ["permitted"]

pytestmark = harness.needs_mpi
both = pytest.mark.parametrize("shard", ["host", "world"])


def on_hosts(per_host: int) -> ngd.Group:
    """Return a world with several ranks per host, by NGD_HOST."""
    os.environ["NGD_HOST"] = f"host-{int(harness.own_rank()) // per_host}"
    return ngd.init()


def run(program: Any, hosts: int, per_host: int, **arguments: Any) -> list[harness.Outcome]:
    """Run a program that gets the number of ranks per host."""
    arguments |= {"per_host": per_host}
    return harness.run(program, hosts * per_host, arguments=arguments, launcher="mpirun")


def same_training(
    per_host: int, shard: str, rules: list[str], clip: float | None, dtype: str
) -> None:
    """Compare with one copy per rank: equal bits, except for norms."""
    if per_host:
        on_hosts(per_host)
    world = ngd.init()
    sizes = [np.dtype(dtype).itemsize * n for n in (61 * 301, 301, 301 * 33, 33)]
    large = sum(n for n in sizes if n > SMALL)
    for rule in rules:
        plain, variables, _ = trained(rule, clip, "none", np.dtype(dtype))
        losses, shared, memory = trained(rule, clip, shard, np.dtype(dtype))
        moments = {"sgd": 0, "momentum": 1, "lars": 1}.get(rule, 2)
        once = 1 if shard == "world" else 1 + moments
        assert memory["sharded"] == (once * large if world.local_size > 1 else 0), rule
        assert memory["apart"] == (moments * large if shard == "world" else 0), rule
        tolerance = 0.0
        if clip is not None or rule not in ELEMENTWISE:
            tolerance = 1e-5 if dtype == "float32" else 1e-13
        for name, value in variables.items():
            np.testing.assert_allclose(
                shared[name], value, rtol=tolerance, atol=tolerance, err_msg=f"{rule} {name}"
            )
        np.testing.assert_allclose(losses, plain, rtol=tolerance * 10)


@both
@pytest.mark.parametrize("per_host", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sharded_updates_train_like_private_copies(per_host: int, shard: str, dtype: str) -> None:
    run(same_training, 2, per_host, shard=shard, rules=list(OPTIMIZERS), clip=None, dtype=dtype)


@both
@pytest.mark.parametrize(("hosts", "per_host"), [(2, 2), (3, 1)])
def test_norms_of_sharded_gradients_train_alike(hosts: int, per_host: int, shard: str) -> None:
    rules = list(OPTIMIZERS)
    run(same_training, hosts, per_host, shard=shard, rules=rules, clip=0.5, dtype="float32")


@both
@pytest.mark.usefixtures("permitted")
def test_ranks_on_separate_hosts_train_alike(shard: str) -> None:
    arguments = {"per_host": 0, "shard": shard, "rules": ["adamw"], "clip": None}
    arguments["dtype"] = "float32"
    with Hosts(2) as hosts:
        harness.run(same_training, 4, arguments=arguments, launcher=hosts.launcher(2))


def collectives_of(step: Any) -> list[str]:
    """Return the kinds of the collectives of a step, in order."""
    lines = [line for line in str(step).splitlines() if "= start " in line]
    return [line.split("= start ")[1].split("(")[0].split()[0] for line in lines]


def what_goes_between_hosts(per_host: int, shard: str) -> None:
    """A gradient is reduced to a shard in a host, and then among counterparts."""
    on_hosts(per_host)
    net = Net()
    updates = optim.AdamW(1e-2, clip_norm=1.0).minimize(net.loss, list(net.parameters.values()))
    kinds = collectives_of(ngd.compile([net.x, net.t], [net.loss], updates, shard=shard))
    between = 2 if shard == "world" else 0
    assert kinds.count("reduce_scatter") == 2 + between
    assert kinds.count("all_reduce") == 2 + 1 + 2 - between  # of the biases and of the norm
    assert kinds.count("all_gather") == between
    assert kinds.count("barrier") == 3  # of all ranks, and twice of the host


@both
def test_only_shards_are_sent_between_hosts(shard: str) -> None:
    run(what_goes_between_hosts, 2, 2, shard=shard)


def other_layouts(per_host: int, names: list[str]) -> None:
    """Ranks that are not in equal blocks keep one copy each."""
    os.environ["NGD_HOST"] = names[int(harness.own_rank())]
    for shard in ("host", "world"):
        plain, variables, _ = trained("adamw", None, "none", np.float32)
        losses, same, memory = trained("adamw", None, shard, np.float32)
        assert (memory["sharded"], memory["apart"], losses) == (0, 0, plain)
        for name, value in variables.items():
            np.testing.assert_array_equal(same[name], value)


@pytest.mark.parametrize("names", ["abb", "abab", "aabbb"])
def test_ranks_in_other_layouts_keep_copies(names: str) -> None:
    harness.run(
        other_layouts,
        len(names),
        arguments={"per_host": 0, "names": list(names)},
        launcher="mpirun",
    )


def averaging(shard: str, n: int = 5000) -> tuple[ngd.Variable, ngd.Variable, Any]:
    """Return a weight and its moment, and the step of both: w += m, m += mean(x)."""
    w, m = (ngd.variable(name, np.zeros(n, np.float32)) for name in "wm")
    x = ngd.placeholder("x", (n,))
    next_m = m + ops.all_reduce(x, op="mean")
    return w, m, ngd.compile([x], [ops.sum(w)], {m: next_m, w: w + next_m}, shard=shard)


def reads_and_assignments(per_host: int) -> None:
    """Read and assign a moment that is kept once over all hosts. Other steps may not use it."""
    world = on_hosts(per_host)
    n = 5000
    w, m, step = averaging("world", n)
    before = ngd.compile([], [w + 0.0])
    assert step.memory()["apart"] == 4 * n
    assert (m.kept_by, w.kept_by) == (world, None)
    given = np.arange(n, dtype=np.float32) * (world.rank + 1)
    mean = np.arange(n, dtype=np.float32) * np.float32((world.size + 1) / 2)
    for turn in range(1, 4):
        step(given)
        np.testing.assert_array_equal(m.numpy(), turn * mean)
        np.testing.assert_array_equal(w.numpy(), turn * (turn + 1) / 2 * mean)
        np.testing.assert_array_equal(before()[0], w.numpy())
    with pytest.raises(ngd.errors.CompileError, match="variable 'm' is kept once over all hosts"):
        ngd.compile([], [m + 1.0])
    with pytest.raises(ngd.errors.CompileError, match="variable 'm' is kept once over all hosts"):
        ngd.compile([], {}, {m: m * 0.0})
    with pytest.raises(ngd.errors.CompileError, match="variable 'm' is kept once over all hosts"):
        ngd.compile([], [ops.sum(m)], {m: m * 0.5}, shard="world")
    with pytest.raises(ValueError, match="one value on all ranks"):
        m.assign(np.full(n, world.rank, np.float32))
    m.assign(np.ones(n, np.float32))
    w.assign(np.ones(n, np.float32))
    step(np.zeros(n, np.float32))
    np.testing.assert_array_equal(m.numpy(), 1)
    np.testing.assert_array_equal(w.numpy(), 2)
    ngd.compile([], [], {m: m * 3.0}, shard="world")()
    np.testing.assert_array_equal(m.numpy(), 3)
    ngd.broadcast_variables([m, w], root=1)
    np.testing.assert_array_equal(m.numpy(), 3)


def compiled_before(per_host: int) -> None:
    """Read a whole moment in a step that was built before the moment was divided."""
    on_hosts(per_host)
    w, m = (ngd.variable(name, np.zeros(5000, np.float32)) for name in "wm")
    x = ngd.placeholder("x", (5000,))
    look, double = ngd.compile([], [m + 0.0]), ngd.compile([], [], {m: m * 2.0})
    look()
    next_m = m + ops.all_reduce(x, op="mean")
    step = ngd.compile([x], [ops.sum(w)], {m: next_m, w: w + next_m}, shard="world")
    step(np.ones(5000, np.float32))
    with pytest.raises(ngd.errors.CompileError, match="variable 'm' is kept once over all hosts"):
        look()
    with pytest.raises(ngd.errors.CompileError, match="variable 'm' is kept once over all hosts"):
        double()
    np.testing.assert_array_equal(m.numpy(), 1)


def read_before(per_host: int) -> None:
    """Divide a moment over the hosts after a sharded step that only reads it was compiled."""
    on_hosts(per_host)
    w, m = (ngd.variable(name, np.ones(5000, np.float32)) for name in "wm")
    x = ngd.placeholder("x", (5000,))
    mean = ops.all_reduce(x, op="mean")
    look = ngd.compile([x], [ops.sum(m)], {w: w + mean}, shard="world")
    assert look(np.ones(5000, np.float32))[0] == 5000
    step = ngd.compile([x], [], {m: m * 2 + mean}, shard="world")
    step(np.ones(5000, np.float32))
    assert step.memory()["apart"] == 4 * 5000
    np.testing.assert_array_equal(m.numpy(), 3)
    np.testing.assert_array_equal(w.numpy(), 2)
    with pytest.raises(ngd.errors.CompileError, match="variable 'm' is kept once over all hosts"):
        look(np.ones(5000, np.float32))


def after_shutdown(per_host: int) -> None:
    """The shards of other hosts are lost with the group. A rank then assigns a value privately."""
    on_hosts(per_host)
    w, m, step = averaging("world")
    ones = np.ones(5000, np.float32)
    step(ones)
    look = ngd.compile([], [w + 0.0])
    ngd.shutdown()
    np.testing.assert_array_equal(w.numpy(), 1)
    np.testing.assert_array_equal(look()[0], 1)
    with pytest.raises(ngd.errors.GroupClosedError, match="was kept once over all hosts"):
        m.numpy()
    with pytest.raises(ngd.errors.GroupClosedError, match="was kept once over all hosts"):
        ngd.compile([], [m + 1.0])
    m.assign(ones * 5)
    np.testing.assert_array_equal(m.numpy(), 5)
    np.testing.assert_array_equal(ngd.compile([], [m + 1.0])()[0], 6)


@pytest.mark.parametrize(
    "program", [reads_and_assignments, compiled_before, read_before, after_shutdown]
)
@pytest.mark.parametrize("per_host", [1, 2])
def test_moments_kept_once_over_all_hosts_can_be_read_and_assigned(
    program: Any, per_host: int
) -> None:
    run(program, 2, per_host)


def saves(per_host: int, folder: str, shard: str) -> list[float]:
    """Train, save and train again, or load and train."""
    world = on_hosts(per_host)
    net = Net()
    optimizer = optim.AdamW(1e-2)
    updates = optimizer.minimize(net.loss, list(net.parameters.values()))
    state = [net.parameters, optimizer.state]
    step = ngd.compile([net.x, net.t], [net.loss], updates, shard=shard)
    random = np.random.default_rng(world.rank)
    for _ in range(5):
        step(*net.batch(random))
    if not ngd.checkpoint.exists(folder):
        world.barrier()
        if shard == "world" or world.rank == 0:
            ngd.checkpoint.save(folder, state)
    else:
        for v in updates:
            v.assign(np.zeros(v.shape, v.dtype))
        ngd.checkpoint.load(folder, state)
    world.barrier()
    return [float(step(*net.batch(random))[0]) for _ in range(3)]


def test_checkpoints_do_not_depend_on_the_number_of_hosts(tmp_path: Path) -> None:
    """The file is the same on each rank, and any number of hosts can load it."""
    losses = [
        run(saves, 4 // per_host, per_host, folder=str(tmp_path / folder), shard=shard)[0].value
        for folder, shard, per_host in (("a", "none", 2), ("b", "world", 2), ("b", "world", 1))
    ]
    assert losses[0] == losses[1] == losses[2]
    files = [next((tmp_path / folder).glob("*.safetensors")).read_bytes() for folder in "ab"]
    assert files[0] == files[1]


def last_words(error: dict[str, Any], *variables: ngd.Variable) -> dict[str, Any]:
    """Return the error of a rank, and the first element of each variable or its error."""
    held = []
    for variable in variables:
        try:
            held.append(float(variable.numpy()[0]))
        except ngd.errors.Error as refused:
            held.append(type(refused).__name__)
    atexit.register(time.sleep, 20)  # over MPI, the first rank to exit ends the other ranks
    return {**error, "held": held}


def fails_in_the_update(per_host: int, shard: str) -> dict[str, Any]:
    """The first shard becomes infinite, which NGD_CHECK_FINITE reports as a failure."""
    os.environ["NGD_CHECK_FINITE"] = "1"
    on_hosts(per_host)
    n = 100_000
    w, x = ngd.variable("w", np.zeros(n, np.float32)), ngd.placeholder("x", (n,))
    grown = (w + 1e38) + ops.all_reduce(x, op="mean")
    step = ngd.compile([x], [], {w: grown}, shard=shard)
    given = np.zeros(n, np.float32)
    given[0] = 1e38

    def train() -> None:
        for _ in range(5):
            step(given)

    words = last_words(caught(train), w)
    w.assign(given)  # private to this rank from this point on
    np.testing.assert_array_equal(w.numpy(), given)
    return words


@both
def test_a_rank_that_fails_in_the_update_is_reported_on_all_ranks(shard: str) -> None:
    """The rank and its counterpart fail with their own errors. The other ranks are notified."""
    arguments = {"per_host": 2, "shard": shard}
    with Job(fails_in_the_update, 4, arguments=arguments, launcher="mpirun") as job:
        words = job.values([0, 1, 2, 3])
    mine = (0, 2) if shard == "host" else (0,)
    for rank, said in enumerate(words):
        assert said["error"] == ("NotFiniteError" if rank in mine else "RemoteRankError"), words
        assert "NGD_CHECK_FINITE" in said["message"], words
        allowed = {"PoisonedVariableError"}
        if shard == "world" and rank > 1:
            # The notice of the failure may arrive before or after this rank has ended its update.
            # After it, the rank has its shard, but cannot gather those of the other host.
            allowed.add("GroupClosedError")
        (held,) = said["held"]
        assert held in allowed, words


def trains_until_a_death(per_host: int, shard: str) -> dict[str, Any]:
    """Read the variables after a death: they have values of whole steps."""
    on_hosts(per_host)
    w, m, step = averaging(shard, 100_000)
    ones, done = np.ones(100_000, np.float32), 0

    def train() -> None:
        nonlocal done
        while True:
            step(ones)
            done += 1
            if done == 20:
                say(f"process {os.getpid()} is ready")

    error = caught(train)
    return last_words(error, w, m) | {"done": done}


@both
@pytest.mark.parametrize("turn", range(2))
def test_a_rank_may_be_killed_on_one_of_the_hosts(shard: str, turn: int) -> None:
    """All living ranks are notified, including those that wait for the dead rank."""
    arguments = {"per_host": 2, "shard": shard}
    assert harness.MPIRUN is not None
    launcher = [harness.MPIRUN, "--oversubscribe", "--enable-recovery", "-np", "4"]
    with Job(trains_until_a_death, 4, arguments=arguments, launcher=launcher) as job:
        job.wait_for(3, "is ready")
        time.sleep(0.005 * turn)
        os.kill(int(job.read(3, "out").split()[1]), signal.SIGKILL)
        words = job.values([0, 1, 2], 10)
    assert words[2]["error"] == "RankLostError", words
    for said in words:
        assert said["error"] in ("RankLostError", "RemoteRankError"), words
        assert "rank 3" in said["message"], words
        (w, m), done = said["held"], said["done"]
        if w == "PoisonedVariableError":
            assert m == w, words
        else:
            assert w == done * (done + 1) / 2, words
            assert m == ("GroupClosedError" if shard == "world" else done), words


def reads_alone(per_host: int) -> dict[str, Any]:
    """Let rank 0 read a moment while the other ranks take the next step."""
    world = on_hosts(per_host)
    _, m, step = averaging("world")
    step(np.ones(5000, np.float32))
    call = m.numpy if world.rank == 0 else lambda: step(np.ones(5000, np.float32))
    return last_words(caught(call))


@pytest.mark.parametrize("per_host", [1, 2])
def test_a_rank_that_reads_a_divided_moment_alone_gets_an_error(per_host: int) -> None:
    ranks = 2 * per_host
    arguments = {"per_host": per_host}
    with Job(reads_alone, ranks, arguments=arguments, launcher="mpirun") as job:
        words = job.values(range(ranks))
    assert words[0]["error"] == "CollectiveMismatchError", words
    for said in words:
        assert said["error"] in ("CollectiveMismatchError", "RemoteRankError"), words
        assert "all_gather" in said["message"], words
        assert "test_sharding_hosts.py" in said["message"], words
