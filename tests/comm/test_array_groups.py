# SPDX-License-Identifier: Apache-2.0
"""Tests of groups of some ranks, and of meshes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from tests.support import harness
from tests.support.harness import caught, run
from tests.support.standing import run_in_world

each_communicator = pytest.mark.parametrize("communicator", harness.communicators())
each_world = pytest.mark.parametrize(("communicator", "ranks"), harness.worlds())


def check_splits() -> None:
    """Check members, their order, every kind of collective, and groups inside groups."""
    world = ngd.init()
    n, r = world.size, world.rank
    half = world.split(r % 2, key=-r)
    members = sorted(range(r % 2, n, 2), reverse=True)
    assert half.size == len(members)
    assert members[half.rank] == r
    assert ngd.all_gather(r, group=half).tolist() == members
    assert ngd.all_reduce(np.full(5, r), op="sum", group=half)[0] == sum(members)
    assert ngd.broadcast(np.full(70_000, r), half.size - 1, group=half)[-1] == members[-1]
    without_rank_0 = world.split(None if r == 0 else 3)
    assert without_rank_0.is_member == (r != 0)
    if without_rank_0.is_member:
        assert ngd.all_gather(r, group=without_rank_0).tolist() == list(range(1, n))
        inner = without_rank_0.split(0)
        assert ngd.all_gather(inner.rank, group=inner).tolist() == list(range(n - 1))
    assert ngd.all_reduce(1, op="sum") == n
    half.close()
    assert caught(lambda: half.barrier())["error"] == "GroupClosedError"
    assert ngd.all_reduce(1, op="sum") == n
    last = world.split(0)
    ngd.shutdown()
    for group in (last, *([without_rank_0, inner] if without_rank_0.is_member else [])):
        assert group.closed
        assert caught(lambda group=group: ngd.barrier(group=group))["error"] == "GroupClosedError"
    assert ngd.all_reduce(1, op="sum") == n


@each_world
def test_split_makes_groups_with_all_collectives(communicator: str, ranks: int) -> None:
    run_in_world(check_splits, communicator, ranks)


def call_without_membership() -> None:
    """Check that calls of rank 0 on a group without rank 0 raise, and do not reach any rank."""
    world = ngd.init()
    n, r = world.size, world.rank
    some = world.split(None if r == 0 else 0, name="some")
    ones, x = np.ones(2 * n), ngd.placeholder("x", (2,))
    if r == 0:
        assert (some.is_member, some.rank, some.size) == (False, -1, 0)
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: ngd.all_reduce(ones, op="sum", group=some),
            "reduce_scatter": lambda: some.reduce_scatter(ones, op="sum"),
            "all_gather": lambda: ngd.all_gather(ones, group=some, async_op=True),
            "all_gather_v": lambda: ngd.all_gather_v(ones, group=some),
            "broadcast": lambda: ngd.broadcast([ones], group=some),
            "reduce": lambda: ngd.reduce(ones, op="sum", group=some),
            "gather": lambda: ngd.gather(ones, group=some),
            "scatter": lambda: ngd.scatter(ones, group=some),
            "all_to_all": lambda: ngd.all_to_all(ones, group=some),
            "all_to_all_v": lambda: ngd.all_to_all_v(ones, [], group=some),
            "send": lambda: ngd.send(ones, 1, group=some),
            "recv": lambda: ngd.recv(1, out=ones, group=some),
            "barrier": lambda: ngd.barrier(group=some),
            "split": lambda: some.split(0),
            "make_mesh": lambda: ngd.make_mesh((1,), ("a",), group=some),
            "compile": lambda: ngd.compile([x], [x + 1], group=some),
        }
        kinds = ["all_gather", "all_to_all", "broadcast", "gather", "scatter"]
        for kind in kinds:
            calls[f"{kind}: group"] = lambda kind=kind: getattr(ops, kind)(x, group=some)
        calls["all_reduce: group"] = lambda: ops.all_reduce(x, op="sum", group=some)
        calls["reduce: group"] = lambda: ops.reduce(x, op="sum", group=some)
        for name, call in calls.items():
            error = caught(call)
            assert error["error"] == "NotMemberError", (name, error)
            assert error["message"].startswith(f"{name}: "), (name, error)
            assert "expected a group that includes this rank" in error["message"], (name, error)
            if name.endswith(": group"):
                assert "test_array_groups.py:" in error["message"], (name, error)
        some.close()
    else:
        assert (some.is_member, some.rank, some.size) == (True, r - 1, n - 1)
        assert ngd.all_reduce(1, op="sum", group=some) == n - 1
    assert ngd.all_reduce(1, op="sum") == n
    assert all(row.group != "some" for row in ngd.comm_stats()) or r != 0


@each_world
def test_calls_of_a_rank_outside_the_group_raise(communicator: str, ranks: int) -> None:
    run_in_world(call_without_membership, communicator, ranks)


def wait_in_overlapping_groups() -> None:
    """Wait in different orders for works of three groups. This must not deadlock."""
    world = ngd.init()
    n, r = world.size, world.rank
    rows, columns = world.split(r // 2), world.split(r % 2)
    assert rows is not None
    assert columns is not None
    ranks = np.arange(n)
    for count in (1, 50_000):
        for _ in range(5):
            mine = np.full(count, r)
            works = [
                ngd.all_reduce(mine, op="sum", group=group, async_op=True)
                for group in (rows, world, columns)
            ]
            want = [ranks[ranks // 2 == r // 2], ranks, ranks[ranks % 2 == r % 2]]
            for i in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1))[r % 4]:
                assert (works[i].wait() == want[i].sum()).all()


@each_communicator
@pytest.mark.parametrize("ranks", [3, 4])
def test_overlapping_groups_do_not_deadlock(communicator: str, ranks: int) -> None:
    run_in_world(wait_in_overlapping_groups, communicator, ranks)


def check_mesh(shape: list[int]) -> dict[str, Any]:
    world = ngd.init()
    names = ("data", "model", "pipe")[: len(shape)]
    mesh = ngd.make_mesh(shape, names)
    assert mesh.shape == tuple(shape)
    assert mesh["data"] is mesh["data"]
    assert "data" in repr(mesh)
    message = caught_key(mesh)
    assert "nothing" in message
    ranks_in_mesh = np.arange(world.size).reshape(shape)
    assert ranks_in_mesh[mesh.coordinates] == world.rank
    for axis, name in enumerate(names):
        line = list(mesh.coordinates)
        line[axis] = slice(None)
        want = ranks_in_mesh[tuple(line)].tolist()
        assert ngd.all_gather(world.rank, group=mesh[name]).tolist() == want
        assert mesh[name].rank == mesh.coordinates[axis]
    return {"names": [mesh[name].name for name in names]}


def caught_key(mesh: ngd.Mesh) -> str:
    with pytest.raises(KeyError) as error:
        mesh["nothing"]
    return str(error.value)


@each_communicator
@pytest.mark.parametrize(("ranks", "shape"), [(2, [2]), (4, [2, 2]), (4, [1, 4]), (4, [2, 1, 2])])
def test_a_mesh_has_a_group_per_axis(communicator: str, ranks: int, shape: list[int]) -> None:
    for outcome in run_in_world(check_mesh, communicator, ranks, shape=shape):
        assert outcome.value["names"] == ["data", "model", "pipe"][: len(shape)]


def make_different_meshes() -> None:
    world = ngd.init()
    odd = world.rank == world.size - 1
    for shape, names in (
        ((1, world.size) if odd else (world.size, 1), ("a", "b")),
        ((1, world.size), ("b", "a") if odd else ("a", "b")),
    ):
        error = caught(lambda shape=shape, names=names: ngd.make_mesh(shape, names))
        assert error["error"] == "ValueError"
        assert "rank 0 gives" in error["message"]
        assert f"rank {world.size - 1}" in error["message"]
    ngd.barrier()


@each_communicator
def test_different_meshes_raise_on_all_ranks(communicator: str) -> None:
    run_in_world(make_different_meshes, communicator, 3)


def fail_beside_a_small_group() -> None:
    world = ngd.init()
    half = world.split(world.rank // 2)
    ngd.barrier()
    if world.rank == 1:
        raise RuntimeError("the reason")
    harness.say(str(caught(lambda: ngd.all_reduce(1, op="sum", group=half))))


@harness.needs_ranks
def test_a_failure_closes_smaller_groups() -> None:
    with harness.Job(fail_beside_a_small_group, 2, **harness.over("shm", 2)) as job:
        outcomes = job.wait(60)
        assert "RemoteRankError" in outcomes[0].out
        assert "the reason" in outcomes[0].out


def count_calls() -> list[list[Any]]:
    """Count calls at two call sites in two groups. Rank 1 is late for the first one."""
    world = ngd.init()
    pair = world.split(0, name="pair")
    ones = np.ones(10, np.float32)
    for _ in range(20):
        if world.rank == 1:
            ngd.recv(0, out=np.empty(1))  # rank 0 sends it after it has started the all-reduce
            ngd.all_reduce(ones, op="sum")
        else:
            work = ngd.all_reduce(ones, op="sum", async_op=True)
            ngd.send(np.zeros(1), 1)
            work.wait()
    for _ in range(3):
        ngd.all_gather(ones, group=pair)
    stats = ngd.comm_stats()
    assert str(stats).splitlines()[0].split()[:3] == ["group", "op", "calls"]
    assert len(str(stats).splitlines()) == len(stats) + 1
    mine = [row for row in stats if "test_array_groups.py" in row.site]
    for row in mine:
        assert 0 <= row.waited <= row.seconds < 60
    return [[row.group, row.op, row.calls, row.bytes, list(row.last)] for row in mine]


@harness.needs_ranks
def test_statistics_name_the_last_rank() -> None:
    for outcome in run(count_calls, 2, **harness.over("shm", 2)):
        rows = {row[1]: row for row in outcome.value}
        reduced, gathered = rows["all_reduce(sum)"], rows["all_gather"]
        assert reduced[:4] == ["world", "all_reduce(sum)", 20, 800]
        assert reduced[4] == [0, 20]
        assert gathered[:4] == ["pair", "all_gather", 3, 240]


def compare_two_steps(device: str) -> list[str]:
    """Compare steps that agree, and steps whose second collective differs on rank 1."""
    world = ngd.init()
    pair = world.split(0, name="pair")
    x = ngd.placeholder("x", (4,), "float32")
    answers = []
    for op in ("max", "min" if world.rank == 1 else "max"):
        total = ngd.ops.all_reduce(x, op="sum")
        largest = ngd.ops.all_reduce(total, op=op)  # the op differs on rank 1
        inner = ngd.ops.all_gather(largest, group=pair)
        step = ngd.compile([x], [inner], device=device)
        answers.append(step.compare_ranks())
    return answers


@each_communicator
@pytest.mark.parametrize("device", ["CPU", "INTERPRETER", "NULL"])
def test_compare_ranks_reports_different_collectives(communicator: str, device: str) -> None:
    for outcome in run_in_world(compare_two_steps, communicator, 3, device=device):
        same, different = (answer.splitlines() for answer in outcome.value)
        assert same == [
            "world: all 3 ranks agree, 2 collectives",
            "pair: all 3 ranks agree, 1 collectives",
        ]
        assert different[0] == "world: rank 1 differs from rank 0 in collective 2:"
        for line, rank, op in ((different[1], 0, "max"), (different[2], 1, "min")):
            assert line.startswith(f"  rank {rank}: all_reduce")
            assert f"={op} " in line
            assert "test_array_groups.py:" in line
        assert different[3] == f"{same[1]}; rank 1 has other computations than rank 0:"
