# SPDX-License-Identifier: Apache-2.0
"""Compare ngd.horovod.numpy with NumPy: each rank computes the operands of all ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
import ngd.horovod.numpy as hvd
from tests.support import harness

pytestmark = harness.needs_ranks

DTYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")
CALLS = 120


def value(random: Any, dtype: str, shape: Any) -> Any:
    """Return small integers, whose sums and products are exact in every dtype."""
    return random.integers(0, 4, shape).astype(dtype)


def reduce_with_numpy(values: list[Any], op: int) -> Any:
    """Return the reduction by NumPy."""
    if op == hvd.Average:
        total = np.sum(values, axis=0, dtype=np.float64) / len(values)
        is_integer = values[0].dtype.kind in "iu"
        return (np.trunc(total) if is_integer else total).astype(values[0].dtype)
    functions: Any = {hvd.Sum: np.sum, hvd.Product: np.prod, hvd.Min: np.min, hvd.Max: np.max}
    return functions[op](values, axis=0).astype(values[0].dtype)


def random_calls(seed: int) -> int:
    """Make random calls, and compare each result with NumPy."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    some = hvd.ProcessSet(range(0, size, 2))
    if size > 1:
        hvd.add_process_set(some)
    random = np.random.default_rng(seed)
    for _ in range(CALLS):
        kind = random.choice(
            ["allreduce", "grouped", "allgather", "broadcast", "alltoall", "reducescatter"]
        )
        dtype, is_subset = random.choice(DTYPES), size > 1 and random.random() < 0.3
        shape = tuple(random.integers(0, 5, random.integers(1, 4)))
        members = list(range(0, size, 2)) if is_subset else list(range(size))
        ranks = some if is_subset else hvd.global_process_set
        n, is_member = len(members), rank in members
        me = members.index(rank) if is_member else -1
        if kind in ("allreduce", "grouped"):
            op = int(random.choice([hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]))
            terms = [[value(random, dtype, shape) for _ in range(3)] for _ in range(n)]
            if not is_member:
                continue
            if kind == "allreduce":
                got = [hvd.allreduce(terms[me][0], op=op, process_set=ranks)]
            else:
                got = hvd.grouped_allreduce(terms[me], op=op, process_set=ranks)
            for i, each in enumerate(got):
                expected = reduce_with_numpy([of_rank[i] for of_rank in terms], op)
                check_equal(each, expected, 1e-3 if dtype == "float16" else 1e-6)
        elif kind == "allgather":
            rows = random.integers(0, 4, n)
            terms = [value(random, dtype, (k, *shape[1:])) for k in rows]
            if is_member:
                check_equal(hvd.allgather(terms[me], process_set=ranks), np.concatenate(terms))
        elif kind == "broadcast":
            root = int(random.integers(n))
            terms = [value(random, dtype, shape) for _ in range(n)]
            if is_member:
                check_equal(hvd.broadcast(terms[me], members[root], process_set=ranks), terms[root])
        elif kind == "alltoall":
            splits = random.integers(0, 4, (n, n))
            terms = [value(random, dtype, (k.sum(), *shape[1:])) for k in splits]
            if is_member:
                got, received = hvd.alltoall(terms[me], splits[me], process_set=ranks)
                ends = np.cumsum(splits, axis=1)
                parts = [
                    g[e[me] - s[me] : e[me]] for g, e, s in zip(terms, ends, splits, strict=True)
                ]
                check_equal(got, np.concatenate(parts))
                assert received.tolist() == splits[:, me].tolist()
        else:
            op = int(random.choice([hvd.Average, hvd.Sum]))
            terms = [value(random, dtype, shape) for _ in range(n)]
            if is_member:
                got = hvd.reducescatter(terms[me], op=op, process_set=ranks)
                expected = np.array_split(reduce_with_numpy(terms, op), n)[me]
                check_equal(got, expected, 1e-3 if dtype == "float16" else 1e-6)
    return CALLS


def check_equal(got: Any, expected: Any, tolerance: float = 0.0) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    np.testing.assert_allclose(
        got.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=0
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_random_calls_equal_numpy(ranks: int, seed: int) -> None:
    outcomes = harness.run(random_calls, ranks, arguments={"seed": seed})
    assert [outcome.value for outcome in outcomes] == [CALLS] * ranks


@pytest.mark.parametrize("communicator", harness.communicators())
def test_random_calls_over_each_communicator(communicator: str) -> None:
    launcher = "mpirun" if communicator == "mpi" else "plain"
    env = {"NGD_COMM": communicator}
    arguments = {"seed": 7}
    outcomes = harness.run(random_calls, 3, arguments=arguments, env=env, launcher=launcher)
    assert [outcome.value for outcome in outcomes] == [CALLS] * 3


def register_in_a_second_world() -> list[float]:
    """Join a second world with `ngd.shutdown` instead of `hvd.shutdown` in between."""
    results = []
    even = hvd.ProcessSet([0, 2])
    for _ in range(2):
        hvd.init(process_sets=[even])
        if hvd.rank() != 1:
            one = np.ones(1, np.float32)
            results.append(float(hvd.allreduce(one, op=hvd.Sum, process_set=even)[0]))
        ngd.shutdown()
    return results


def test_a_process_set_is_registered_again_in_a_second_world() -> None:
    outcomes = harness.run(register_in_a_second_world, 3)
    assert [outcome.value for outcome in outcomes] == [[2, 2], [], [2, 2]]


def world_facts() -> list[Any]:
    before = hvd.is_initialized()
    hvd.init()
    hvd.init()
    facts = [before, hvd.is_initialized(), hvd.rank(), hvd.size(), hvd.local_rank()]
    facts += [hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()]
    hvd.shutdown()
    return [*facts, hvd.is_initialized(), hvd.nccl_built(), hvd.gloo_enabled()]


def test_ranks_and_sizes_of_the_world() -> None:
    outcomes = harness.run(world_facts, 3)
    for rank, outcome in enumerate(outcomes):
        assert outcome.value == [
            *[False, True, rank, 3, rank, 3],
            *[0, 1, True, False, 0, False],
        ]


def call_and_join() -> list[Any]:
    """Make rank + 1 calls, and then join."""
    hvd.init()
    sums = [
        hvd.allreduce(np.ones(3, np.float32), op=hvd.Sum).tolist() for _ in range(hvd.rank() + 1)
    ]
    return [sums, hvd.join(), float(hvd.allreduce(np.float64(hvd.rank()), op=hvd.Max))]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_can_join_at_different_times(ranks: int) -> None:
    outcomes = harness.run(call_and_join, ranks)
    for rank, outcome in enumerate(outcomes):
        sums, last, greatest = outcome.value
        assert sums == [[float(ranks - i)] * 3 for i in range(rank + 1)]
        assert last == ranks - 1
        assert greatest == ranks - 1


class BusyOnce:
    """A work whose first wait raises BusyError."""

    def __init__(self) -> None:
        self.num_calls = 0

    def wait(self) -> None:
        self.num_calls += 1
        if self.num_calls == 1:
            raise ngd.errors.BusyError("another thread")


def wait_for_a_busy_work() -> list[Any]:
    hvd.init()
    handle = hvd.allreduce_async(np.ones(2), op=hvd.Sum)
    handle.works.insert(0, BusyOnce())
    try:
        handle.wait()
    except ngd.errors.BusyError:
        return [handle.is_done, handle.wait().tolist()]
    return []


def test_a_busy_handle_can_be_waited_for_again() -> None:
    (outcome,) = harness.run(wait_for_a_busy_work, 1)
    assert outcome.value == [False, [1.0, 1.0]]


def join_twice() -> list[int]:
    """Join twice: rank 1 makes more calls the first time, and rank 0 the second time."""
    hvd.init()
    last = []
    for more in (1, 0):
        for _ in range(3 if hvd.rank() == more else 1):
            hvd.allreduce(np.ones(1))
        last.append(hvd.join())
    return last


def test_join_returns_the_last_rank_each_time() -> None:
    assert [outcome.value for outcome in harness.run(join_twice, 2)] == [[1, 0]] * 2


def join_during_reductions() -> list[Any]:
    """Join at once on rank 0 while the other ranks make every kind of reduction."""
    hvd.init()
    if hvd.rank() == 0:
        return [hvd.join()]
    three = np.full(2, 3, np.int32)
    ops = (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product)
    results = [hvd.allreduce(three, op=op).tolist() for op in ops]
    results += [hvd.allreduce(-three.astype(np.float32), op=op).tolist() for op in ops]
    hvd.barrier()
    many = hvd.grouped_allreduce([np.ones(1, np.float16), np.ones((2, 2), np.int8)], op=hvd.Sum)
    return [*results, [each.ravel().tolist() for each in many], hvd.join()]


def test_a_joined_rank_changes_no_reduction() -> None:
    first, *others = harness.run(join_during_reductions, 3)
    assert first.value[0] == 2
    for other in others:
        assert other.value == [
            *[[6, 6], [2, 2], [3, 3], [3, 3], [9, 9]],
            *[[-6.0] * 2, [-2.0] * 2, [-3.0] * 2, [-3.0] * 2, [9.0] * 2],
            [[2.0], [2, 2, 2, 2]],
            2,
        ]


def gather_after_join() -> str:
    hvd.init()
    try:
        if hvd.rank() == 1:
            hvd.join()
        hvd.allgather(np.ones(2))
    except hvd.HorovodInternalError as error:
        return str(error)
    return "nothing"


def test_an_unsupported_call_after_join_raises() -> None:
    job = harness.Job(gather_after_join, 2)
    with job:
        outcomes = job.wait(60)
    assert "got another call of rank 0, while rank 1 has joined" in outcomes[1].value
    assert outcomes[0].value != "nothing"


def call_differently(what: str) -> str:
    hvd.init()
    me = hvd.rank()
    names = {"name": ("a", "b")}.get(what, ("a", "a"))
    shapes = {"shape": ((2, 3), (3, 2)), "size": ((2,), (3,))}.get(what, ((2,), (2,)))
    ops = {"op": (hvd.Sum, hvd.Average)}.get(what, (hvd.Sum,) * 2)
    reduce_with_factors = {"pair of scale factors": (1.0, 2.0)}.get(what, (1.0,) * 2)
    dtypes = {"dtype": ("float32", "float64")}.get(what, ("float32",) * 2)
    try:
        x = np.ones(shapes[me], "int64" if what == "op" else dtypes[me])
        hvd.allreduce(x, name=names[me], op=ops[me], postscale_factor=reduce_with_factors[me])
    except hvd.HorovodInternalError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("what", ["name", "shape", "size", "dtype", "op", "pair of scale factors"])
def test_different_calls_raise_on_all_ranks(what: str) -> None:
    for outcome in harness.run(call_differently, 2, arguments={"what": what}):
        assert outcome.value != "nothing"
        if what not in ("size", "dtype"):
            assert f"expected one {what} on all ranks" in outcome.value


def reduce_with_adasum() -> list[Any]:
    hvd.init()
    orthogonal = np.zeros(4)
    orthogonal[hvd.rank()] = hvd.rank() + 1
    equal = np.array([3.0, -4.0])
    at_an_angle = np.array([[1.0, 0.0], [1.0, 1.0]])[hvd.rank() % 2]
    zeros = np.zeros(3, np.float32)
    operands = (orthogonal, equal, at_an_angle, zeros)
    return [hvd.allreduce(each, op=hvd.Adasum).tolist() for each in operands]


def test_adasum_adds_orthogonal_and_averages_equal_vectors() -> None:
    # (1, 0) and (1, 1) have the dot product 1 and the squares 1 and 2. Adasum adds (1 - 1/2) of the
    # first one and (1 - 1/4) of the second one.
    for outcome in harness.run(reduce_with_adasum, 2):
        assert outcome.value == [[1, 2, 0, 0], [3, -4], [0.5 + 0.75, 0.75], [0, 0, 0]]
    for outcome in harness.run(reduce_with_adasum, 4):
        assert outcome.value[:2] == [[1, 2, 3, 4], [3, -4]]


def exchange_objects() -> list[Any]:
    hvd.init()
    mine = {"rank": hvd.rank(), "text": "x" * 1000 * hvd.rank()}
    one = hvd.broadcast_object(mine if hvd.rank() == 1 else None, 1)
    return [one["rank"], [len(each["text"]) for each in hvd.allgather_object(mine)]]


def test_objects_are_broadcast_and_gathered() -> None:
    for outcome in harness.run(exchange_objects, 3):
        assert outcome.value == [1, [0, 1000, 2000]]


def reduce_with_factors() -> list[Any]:
    hvd.init()
    x = np.array([1.0, 2.0], np.float32) * (hvd.rank() + 1)
    integers = np.array([5, -7]) * (hvd.rank() + 1)
    return [
        hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0).tolist(),
        hvd.allreduce(x, average=False).tolist(),
        hvd.allreduce(x, average=True).tolist(),
        hvd.allreduce(integers).tolist(),
        hvd.allreduce(integers, op=hvd.Sum, postscale_factor=0.5).tolist(),
        x.tolist(),
        hvd.allreduce(np.array([-64, 63], np.int8)).tolist(),
        hvd.allreduce(np.float16([1e4]), op=hvd.Sum, prescale_factor=1e-4).tolist(),
        hvd.allreduce(np.float16([1e-3]), op=hvd.Sum, postscale_factor=1e5).tolist(),
        hvd.allreduce(np.ones(2), op=hvd.Adasum, postscale_factor=10.0).tolist(),
    ]


def test_scale_factors_and_averages() -> None:
    for rank, outcome in enumerate(harness.run(reduce_with_factors, 2)):
        assert outcome.value[:3] == [[4.5, 9.0], [3.0, 6.0], [1.5, 3.0]]
        assert outcome.value[3:5] == [[7, -10], [7, -10]]  # rounded towards zero
        assert outcome.value[5] == [1.0 + rank, 2.0 + 2 * rank]
        assert outcome.value[6] == [-64, 63]
        assert outcome.value[7] == pytest.approx([2.0], rel=1e-3)
        assert outcome.value[8] == pytest.approx([200.0], rel=1e-3)
        assert outcome.value[9] == [10.0, 10.0]


def make_bad_calls() -> list[str]:
    hvd.init()
    hvd.add_process_set([1])
    calls: list[Any] = [
        lambda: hvd.allreduce(np.ones(2), op=17),
        lambda: hvd.allreduce(np.ones(2), op=hvd.Sum, average=True),
        lambda: hvd.broadcast(np.ones(2), 5),
        lambda: hvd.alltoall(np.ones(3)),
        lambda: hvd.alltoall(np.ones(3), [1, 1]),
        lambda: hvd.reducescatter(np.ones(2), op=hvd.Max),
        lambda: hvd.add_process_set([1]),
        lambda: hvd.add_process_set([0, 9]),
        lambda: hvd.init(comm=[0, 1]),
    ]
    messages = []
    for call in calls:
        try:
            call()
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error}")
    return messages


def test_errors_name_the_call() -> None:
    for outcome in harness.run(make_bad_calls, 2):
        got = outcome.value
        assert "hvd.allreduce: op: expected one of Average" in got[0]
        assert "expected op or average; got both" in got[1]
        assert "root_rank: expected a rank of the world among [0, 1]; got 5" in got[2]
        assert "hvd.alltoall: expected an array whose axis 0 divides evenly" in got[3]
        assert "hvd.alltoall: splits: expected numbers that add up to the 3 rows" in got[4]
        assert "hvd.reducescatter: op: expected Average or Sum" in got[5]
        assert "those of the registered sets; got [1]" in got[6]
        assert "expected ranks from 0 to 1; got [0, 9]" in got[7]
        assert "expected an mpi4py communicator" in got[8]


def write_timeline(path: str) -> int:
    hvd.init()
    hvd.start_timeline(path)
    for _ in range(3):
        hvd.allreduce(np.ones(10))
    hvd.stop_timeline()
    hvd.stop_timeline()
    return hvd.rank()


def test_a_timeline_is_written(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    harness.run(write_timeline, 2, arguments={"path": str(path)})
    events = json.loads(path.read_text())["traceEvents"]
    for rank in range(2):
        mine = [e for e in events if e.get("name") == "hvd.allreduce" and e["pid"] == rank]
        assert len(mine) == 3
        assert all("test_horovod_arrays.py" in e["args"]["site"] for e in mine)
        begins = [e["ts"] for e in mine]
        assert begins == sorted(begins)
        assert 0 <= begins[0] < 60e6
        assert all(e["dur"] > 0 for e in mine)
