# SPDX-License-Identifier: Apache-2.0
"""Compare every kind of collective on arrays with NumPy: shapes, dtypes, axes and out arrays."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ngd
from ngd import dtypes
from tests.support import harness
from tests.support.harness import caught, run
from tests.support.standing import fail_in_world, run_in_world

each_communicator = pytest.mark.parametrize("communicator", harness.communicators())
each_world = pytest.mark.parametrize(("communicator", "ranks"), harness.worlds())

# All ranks must draw the same examples: nothing is random, and failures are not shrunk.
equal_on_all_ranks = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=25,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

COMBINE: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max, "min": np.min}


def array(rank: int, shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    """Return the array of a rank: small integers, which are exact in every dtype."""
    random = np.random.default_rng([seed, rank])
    return random.integers(0, 9, shape).astype(dtype)


def check_equal(got: Any, want: Any) -> None:
    """Check that values, shape and dtype are equal."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    assert got.tobytes() == np.ascontiguousarray(want).tobytes()


def check_every_kind() -> None:
    world = ngd.init()
    n, r = world.size, world.rank

    @equal_on_all_ranks
    @given(
        rows=st.integers(0, 7),
        rest=st.lists(st.integers(0, 5), max_size=2),
        dtype=st.sampled_from(dtypes.NUMBERS),
        op=st.sampled_from(sorted(COMBINE)),
        root=st.integers(0, n - 1),
        seed=st.integers(0, 999),
    )
    def check(rows: int, rest: list[int], dtype: Any, op: str, root: int, seed: int) -> None:
        shape = (rows * n, *rest)
        arrays = [array(k, shape, dtype, seed) for k in range(n)]
        mine, mine_before = arrays[r], arrays[r].copy()
        reduced = COMBINE[op](arrays, axis=0).astype(dtype)
        block = slice(r * rows, (r + 1) * rows)
        check_equal(ngd.all_reduce(mine, op=op), reduced)
        check_equal(ngd.reduce_scatter(mine, op=op), reduced[block])
        check_equal(ngd.all_gather(mine), np.concatenate(arrays))
        check_equal(ngd.broadcast(mine, root), arrays[root])
        check_equal(ngd.all_to_all(mine), np.concatenate([a[block] for a in arrays]))
        check_equal(
            ngd.scatter(mine if r == root else None, root, shape=(rows, *rest), dtype=dtype),
            arrays[root][block],
        )
        at_root = {
            "reduce": (ngd.reduce(mine, root, op=op), reduced),
            "gather": (ngd.gather(mine, root), np.concatenate(arrays)),
        }
        for got, want in at_root.values():
            if r == root:
                check_equal(got, want)
            else:
                assert got is None
        in_out: dict[str, tuple[Callable[..., Any], Any]] = {
            "all_reduce": (lambda out: ngd.all_reduce(mine, op=op, out=out), reduced),
            "reduce_scatter": (
                lambda out: ngd.reduce_scatter(mine, op=op, out=out),
                reduced[block],
            ),
            "all_gather": (lambda out: ngd.all_gather(mine, out=out), np.concatenate(arrays)),
            "broadcast": (lambda out: ngd.broadcast(mine, root, out=out), arrays[root]),
            "all_to_all": (
                lambda out: ngd.all_to_all(mine, out=out),
                np.concatenate([a[block] for a in arrays]),
            ),
        }
        for call, want in in_out.values():
            out = np.empty(want.shape, dtype)
            assert call(out) is out
            check_equal(out, want)
        check_equal(mine, mine_before)

    check()


@each_world
def test_every_kind_equals_numpy(communicator: str, ranks: int) -> None:
    run_in_world(check_every_kind, communicator, ranks)


@pytest.mark.skipif(harness.MODE == "OFF", reason="built with NGD_DISTRIBUTED_ENABLE=OFF")
def test_every_kind_with_eight_ranks() -> None:
    run(check_every_kind, 8, **harness.over("shm", 8))


def check_uneven_blocks() -> None:
    """Check blocks of different lengths, including 0, with and without `counts`."""
    world = ngd.init()
    n, r = world.size, world.rank
    random = np.random.default_rng(5)
    for rest in [(), (3,), (2, 0), (50, 40)]:
        for _ in range(4):
            counts = random.integers(0, 6, n)
            arrays = [array(k, (int(counts[k]), *rest), np.float32, 1) for k in range(n)]
            check_equal(ngd.all_gather_v(arrays[r]), np.concatenate(arrays))
            check_equal(ngd.all_gather_v(arrays[r], counts=counts.tolist()), np.concatenate(arrays))
            gathered = np.zeros((int(counts.sum()), *rest), np.float32)
            begin = int(counts[:r].sum())
            own = gathered[begin : begin + counts[r]]
            own[...] = arrays[r]
            assert ngd.all_gather_v(own, out=gathered) is gathered
            check_equal(gathered, np.concatenate(arrays))

            table = random.integers(0, 5, (n, n))  # row r is for sender r, column c for receiver c
            sent = [array(k, (int(table[k].sum()), *rest), np.int16, 2) for k in range(n)]
            blocks = [np.split(sent[k], np.cumsum(table[k])[:-1])[r] for k in range(n)]
            check_equal(ngd.all_to_all_v(sent[r], table[r]), np.concatenate(blocks))
            check_equal(ngd.all_to_all_v(sent[r], table[r], table[:, r]), np.concatenate(blocks))


@each_world
def test_blocks_of_different_lengths(communicator: str, ranks: int) -> None:
    run_in_world(check_uneven_blocks, communicator, ranks)


def check_axes() -> None:
    """Check axes other than the first, strided operands, and results in place."""
    world = ngd.init()
    n, r = world.size, world.rank
    arrays = [array(k, (2 * n, 3 * n, 4 * n), np.float64, 7) for k in range(n)]
    mine, total = arrays[r], sum(arrays)
    for axis in (0, 1, 2, -1):
        check_equal(ngd.all_gather(mine, axis=axis), np.concatenate(arrays, axis))
        blocks = np.split(total, n, axis)
        check_equal(ngd.reduce_scatter(mine, op="sum", axis=axis), np.ascontiguousarray(blocks[r]))
        out = np.empty_like(np.concatenate(arrays, axis))
        assert ngd.all_gather(mine, axis=axis, out=out) is out
        check_equal(out, np.concatenate(arrays, axis))
        out = np.empty(blocks[r].shape)
        assert ngd.reduce_scatter(mine, op="sum", axis=axis, out=out) is out
        check_equal(out, blocks[r])
    check_equal(ngd.all_gather(mine.T[::2]), np.concatenate([a.T[::2] for a in arrays]))
    check_equal(
        ngd.all_to_all(mine[:, ::-1]), np.concatenate([a[2 * r : 2 * r + 2, ::-1] for a in arrays])
    )
    swapped = mine.astype(mine.dtype.newbyteorder())
    check_equal(ngd.all_gather(swapped), np.concatenate(arrays))

    gathered = np.zeros((2 * n * n, 3))
    own = gathered[2 * n * r : 2 * n * (r + 1)]
    own[...] = r
    assert ngd.all_gather(own, out=gathered) is gathered
    assert (gathered == np.repeat(np.arange(n), 2 * n)[:, None]).all()
    array_in_place = mine.copy()
    part = array_in_place[2 * r : 2 * r + 2]
    assert ngd.reduce_scatter(array_in_place, op="sum", out=part) is part
    check_equal(part, total[2 * r : 2 * r + 2])
    array_in_place = mine.copy()
    for root in range(n):
        assert (
            ngd.reduce(array_in_place, root, op="sum", out=array_in_place) is array_in_place
        ) == (root == r)
        array_in_place[...] = mine
    exchanged = np.concatenate([a[2 * r : 2 * r + 2] for a in arrays])
    for array_in_place in (mine.copy(), np.repeat(mine, 900, -1)):
        want = exchanged if array_in_place.shape == mine.shape else np.repeat(exchanged, 900, -1)
        operand = array_in_place.copy()
        assert ngd.all_to_all(array_in_place, out=array_in_place) is array_in_place
        check_equal(array_in_place, want)
        out = operand if r % 2 else np.empty_like(operand)  # in place on some ranks
        assert ngd.all_to_all(operand, out=out) is out
        check_equal(out, want)
    assert ngd.all_gather(r).tolist() == list(range(n))
    assert ngd.all_gather([r, r]).tolist() == sorted([*range(n)] * 2)


@each_world
def test_axes_strides_and_results_in_place(communicator: str, ranks: int) -> None:
    run_in_world(check_axes, communicator, ranks)


def send_around_a_ring() -> None:
    """Send arrays of several sizes to the next rank, and receive from the previous rank."""
    world = ngd.init()
    n, r = world.size, world.rank
    after, before = (r + 1) % n, (r - 1) % n
    for count in (0, 1, 3000, 400_000):
        mine = array(r, (count,), np.float32, 3)
        want = array(before, (count,), np.float32, 3)
        sending = ngd.send(mine, after, tag=4, async_op=True)
        check_equal(ngd.recv(before, tag=4, shape=count, dtype=np.float32), want)
        assert sending.wait() is None
        out = np.empty(count, np.float32)
        if r % 2:
            assert ngd.recv(before, out=out) is out
            ngd.send(mine, after)
        else:
            coming = ngd.recv(before, out=out, async_op=True)
            ngd.send(mine, after)
            assert coming.wait() is out
        check_equal(out, want)
    ngd.barrier()


@each_communicator
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_send_and_recv(communicator: str, ranks: int) -> None:
    run_in_world(send_around_a_ring, communicator, ranks)


def check_bad_arguments() -> None:
    """Check that bad arguments raise before anything is sent, and that the group stays open."""
    world = ngd.init()
    n, r = world.size, world.rank
    odd, even = np.ones(2 * n + 1), np.ones(2 * n)
    frozen = np.empty(2 * n)
    frozen.flags.writeable = False
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("reduce_scatter: expected an array whose axis", lambda: ngd.reduce_scatter(odd, op="sum")),
        ("reduce_scatter: expected op", lambda: ngd.reduce_scatter(even, op="xor")),
        ("reduce_scatter: axis", lambda: ngd.reduce_scatter(even, op="sum", axis=1)),
        ("reduce_scatter: out", lambda: ngd.reduce_scatter(even, op="sum", out=np.empty(3))),
        ("reduce_scatter: out", lambda: ngd.reduce_scatter(even, op="sum", out=even[1:3])),
        ("all_gather: axis", lambda: ngd.all_gather(even, axis=-2)),
        ("all_gather: out", lambda: ngd.all_gather(even, out=even)),
        ("all_gather_v: counts", lambda: ngd.all_gather_v(even, counts=[1] * n)),
        ("all_gather_v: counts", lambda: ngd.all_gather_v(even, counts=[2.0 * n] * n)),
        ("all_gather_v: counts", lambda: ngd.all_gather_v(even, counts=[2 * n] * (n + 1))),
        ("all_to_all: expected", lambda: ngd.all_to_all(odd)),
        ("all_to_all: out", lambda: ngd.all_to_all(odd[1:], out=odd[:-1])),
        ("all_to_all: out", lambda: ngd.all_to_all(even, out=frozen)),
        ("all_to_all_v: send_counts", lambda: ngd.all_to_all_v(even, [1] * n)),
        ("all_to_all_v: send_counts", lambda: ngd.all_to_all_v(even, [-1] * n)),
        ("all_to_all_v: receive_counts", lambda: ngd.all_to_all_v(even, [2] * n, [])),
        ("broadcast of", lambda: ngd.broadcast(even, n)),
        ("reduce: expected root", lambda: ngd.reduce(even, -1, op="sum")),
        ("gather: expected root", lambda: ngd.gather(even, n)),
        ("scatter: expected root", lambda: ngd.scatter(even, n)),
        ("scatter: expected an array whose axis", lambda: ngd.scatter(odd)),
        ("scatter: expected", lambda: ngd.scatter(None, r)),
        ("scatter: expected", lambda: ngd.scatter(None, (r + 1) % n, shape=2)),
        ("scatter: expected a dtype", lambda: ngd.scatter(None, (r + 1) % n, shape=2, dtype="c8")),
        ("send: to", lambda: ngd.send(even, r)),
        ("send: to", lambda: ngd.send(even, n)),
        ("recv: source", lambda: ngd.recv(r, out=even)),
        ("recv: expected", lambda: ngd.recv((r + 1) % n)),
        ("recv: out", lambda: ngd.recv((r + 1) % n, out=frozen)),
        ("recv: out", lambda: ngd.recv((r + 1) % n, out=[1.0])),
        ("split: expected a color", lambda: world.split(-1)),
        ("make_mesh: expected sizes", lambda: ngd.make_mesh((n, 2), ("a", "b"))),
        ("make_mesh: expected a name", lambda: ngd.make_mesh((n,), ("a", "b"))),
        ("make_mesh: expected a name", lambda: ngd.make_mesh((n, 1), ("a", "a"))),
    ]
    check_raising_calls(calls)


def check_bad_all_reduce_options() -> None:
    """Check that incompatible options of all_reduce raise."""
    n = ngd.init().size
    even, odd = np.ones(2 * n), np.ones(2 * n + 1)
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("all_reduce: expected a dtype", lambda: ngd.all_reduce(np.ones(2, complex), op="sum")),
        ("all_reduce: out", lambda: ngd.all_reduce(even[1:], op="sum", out=even[:-1])),
        ("all_reduce: out", lambda: ngd.all_reduce([even, odd], op="sum", out=[even])),
        ("all_reduce: out", lambda: ngd.all_reduce([even, odd], op="sum", out=[even, even])),
        (
            "all_reduce: compression: expected",
            lambda: ngd.all_reduce(even, op="sum", compression="zip"),
        ),
        (
            "all_reduce: expected float32 arrays for compression",
            lambda: ngd.all_reduce(even, op="sum", compression="bf16"),
        ),
        (
            "all_reduce: expected op",
            lambda: ngd.all_reduce(even, op="max", compression=ngd.TopK(1)),
        ),
        (
            "all_reduce: expected weight or compression",
            lambda: ngd.all_reduce(even, op="mean", weight=1, compression=ngd.TopK(1)),
        ),
        ("all_reduce: expected algorithm", lambda: ngd.all_reduce(even, op="sum", algorithm="x")),
        (
            "all_reduce: expected algorithm",
            lambda: ngd.all_reduce(even, op="sum", algorithm="ring", compression=ngd.TopK(1)),
        ),
        (
            "all_reduce: expected an array without a mask",
            lambda: ngd.all_reduce(np.ma.masked_less(even, 3), op="sum"),
        ),
    ]
    check_raising_calls(calls)


def check_bad_numbers() -> None:
    """Check that bad roots, counts, axes and tags raise, including those too large for the core."""
    world = ngd.init()
    n, other = world.size, (world.rank + 1) % world.size
    even = np.ones(2 * n)
    twice = [even, even]
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("reduce_scatter: axis", lambda: ngd.reduce_scatter(even, op="sum", axis=0.5)),
        ("all_gather_v: counts", lambda: ngd.all_gather_v(even, counts=np.uint64([2**63] * n))),
        ("broadcast: root", lambda: ngd.broadcast(even, 0.5)),
        ("reduce: root", lambda: ngd.reduce(even, 0.5, op="sum")),
        ("gather: root", lambda: ngd.gather(even, "0")),
        ("send: to", lambda: ngd.send(even, 0.5)),
        ("send: tag", lambda: ngd.send(even, other, tag=2**31)),
        ("recv: shape", lambda: ngd.recv(other, shape=(2, -1), dtype="f4")),
        ("all_reduce: expected separate", lambda: ngd.all_reduce(twice, op="sum", out=twice)),
        ("all_reduce: weight", lambda: ngd.all_reduce(even, op="mean", weight="1 kg")),
        ("split: color", lambda: world.split(0.5)),
        ("broadcast: root", lambda: ngd.broadcast(even, 2**32)),
        ("broadcast: root", lambda: ngd.broadcast(even, -(2**80))),
        ("reduce: root", lambda: ngd.reduce(even, 2**32, op="sum")),
        ("scatter: root", lambda: ngd.scatter(even, 2**64)),
        ("recv: source", lambda: ngd.recv(2**32, out=even)),
        ("recv: tag", lambda: ngd.recv(other, -(2**31) - 1, out=even)),
        ("recv: shape", lambda: ngd.recv(other, shape=2**63, dtype="f4")),
        ("recv: shape", lambda: ngd.recv(other, shape=(2**40, 2**40), dtype="f4")),
        ("scatter: shape", lambda: ngd.scatter(None, other, shape=(2**62, 4), dtype="u1")),
        ("broadcast: root", lambda: ngd.ops.broadcast(even, 2**32)),
        ("broadcast: root", lambda: ngd.ops.broadcast(even, 0.5)),
        ("send: tag", lambda: ngd.ops.send(even, other, tag=2**40)),
        ("recv: shape", lambda: ngd.ops.recv(other, shape=(2**63,), dtype="f4")),
        ("placeholder 'x': expected a shape", lambda: ngd.placeholder("x", (2**40, 2**40))),
        ("split: key", lambda: world.split(0, 2**31)),
    ]
    check_raising_calls(calls)


def check_raising_calls(calls: list[tuple[str, Callable[[], Any]]]) -> None:
    for begins, call in calls:
        error = caught(call)
        assert error["message"].startswith(begins), (begins, error)
    assert ngd.all_reduce(1, op="sum") == ngd.init().size


@each_communicator
def test_bad_arguments_raise_and_leave_the_group_open(communicator: str) -> None:
    for program in (check_bad_arguments, check_bad_all_reduce_options, check_bad_numbers):
        run_in_world(program, communicator, 2)


def compare_with_mpi4py() -> None:
    """Compare with mpi4py on the communicator that ngd uses."""
    from mpi4py import MPI

    number = MPI.COMM_WORLD.rank
    half = MPI.COMM_WORLD.Split(number % 2, -number)
    both = half.Create_intercomm(0, MPI.COMM_WORLD, 3 - number % 2)
    for comm, words in ((both, "between two groups"), (MPI.COMM_NULL, "COMM_NULL")):
        assert words in caught(lambda comm=comm: ngd.init(comm=comm))["message"]
    world = ngd.init(comm=half)
    assert (world.rank, world.size) == (half.rank, half.size)
    assert "comm" in caught(lambda: ngd.init(comm=MPI.COMM_WORLD))["message"]
    mine = np.arange(6.0) * (MPI.COMM_WORLD.rank + 1)
    theirs = np.empty_like(mine)
    half.Allreduce(mine, theirs, MPI.SUM)
    check_equal(ngd.all_reduce(mine, op="sum"), theirs)
    gathered = np.empty((half.size, 6))
    half.Allgather(mine, gathered)
    check_equal(ngd.all_gather(mine[None]), gathered)
    exchanged = np.empty_like(mine)
    half.Alltoall(mine, exchanged)
    check_equal(ngd.all_to_all(mine), exchanged)
    ngd.shutdown()


@harness.needs_mpi
def test_results_equal_those_of_mpi4py() -> None:
    pytest.importorskip("mpi4py")
    run(compare_with_mpi4py, 4, launcher="mpirun")


def test_init_of_an_mpi4py_communicator_raises() -> None:
    ngd.shutdown()  # end a world that an earlier test has joined
    error = caught(lambda: ngd.init(comm=object()))
    assert error["error"] == "InitError"
    text = "an mpi4py communicator" if harness.MODE == "OMPI" else "NGD_DISTRIBUTED_ENABLE=OMPI"
    assert text in error["message"]


def call_differently(case: str) -> dict[str, str]:
    """Call a collective with other arguments on rank 1."""
    world = ngd.init()
    n, odd = world.size, world.rank == 1
    ones = np.ones((2 * n, 3 + odd), np.float32)
    few = [1 if odd and rank == 0 else 2 for rank in range(n)]
    calls: dict[str, Callable[[], Any]] = {
        "all_gather": lambda: ngd.all_gather(ones),
        "all_gather_v": lambda: ngd.all_gather_v(ones),
        "all_gather_v counts": lambda: ngd.all_gather_v(ones[:2, :3], counts=few),
        # A rank whose own blocks fit gets the error in its next call.
        "all_to_all_v": lambda: (ngd.all_to_all_v(ones[:, :3], [2] * n, few), ngd.barrier()),
        "lists": lambda: ngd.all_reduce([ones[:, 0], ones[: 3 + odd, 0]], op="sum"),
        "split": lambda: world.split(0).all_reduce(ones, op="sum"),
    }
    return caught(calls[case])


@each_communicator
@pytest.mark.parametrize(
    "case", ["all_gather", "all_gather_v", "all_gather_v counts", "all_to_all_v", "lists", "split"]
)
def test_a_mismatch_raises_on_all_ranks(communicator: str, case: str) -> None:
    for outcome in fail_in_world(call_differently, communicator, 3, case=case):
        assert outcome.value["error"] == "CollectiveMismatchError", outcome.value
        assert "test_array_kinds.py" in outcome.value["message"]


@harness.needs_mpi
def test_every_kind_between_two_hosts() -> None:
    run(between_hosts, 4, launcher="mpirun")


def between_hosts() -> None:
    """Check every kind on two hosts of two ranks. Only NGD_HOST separates the hosts."""
    os.environ["NGD_HOST"] = f"host-{int(harness.own_rank()) // 2}"
    assert ngd.init().communicator.name == "hierarchical"
    check_every_kind()
    check_uneven_blocks()
    check_axes()
    send_around_a_ring()
