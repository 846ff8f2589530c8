# SPDX-License-Identifier: Apache-2.0
"""Compare ngd.paddle's functions of paddle.distributed with NumPy."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support import harness

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings about other packages that Paddle uses
    paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed")
    import ngd.paddle as dist
    from ngd.paddle import fleet
import ngd

pytestmark = harness.needs_ranks
CALLS = 120
DTYPES = ("uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
OPS = {
    dist.ReduceOp.SUM: np.sum,
    dist.ReduceOp.MAX: np.max,
    dist.ReduceOp.MIN: np.min,
    dist.ReduceOp.PROD: np.prod,
    dist.ReduceOp.AVG: np.mean,
}


def run(program: Any, ranks: int, **arguments: Any) -> list[Any]:
    return [outcome.value for outcome in harness.run(program, ranks, arguments=arguments)]


def tensor(array: Any, dtype: str, is_transposed: bool = False) -> Any:
    """Return a tensor of these numbers. If `turned`, it is a transposed view."""
    if not is_transposed:
        return paddle.to_tensor(np.asarray(array, np.float32)).astype(dtype)
    transposed = paddle.to_tensor(np.asarray(array, np.float32).T.copy()).astype(dtype).t()
    assert not transposed.is_contiguous()
    return transposed


def numbers(x: Any) -> Any:
    return x.astype("float64").numpy()


class Case:
    """A random call: its group, operands, root and options."""

    def __init__(self, random: Any, group: Any) -> None:
        self.random, self.group, self.size = random, group, group.nranks
        self.me = group.rank
        self.dtype = str(random.choice(DTYPES))
        self.sync = bool(random.integers(2))
        self.is_transposed = bool(random.integers(2))
        rows = self.size * int(random.integers(1, 4))
        self.shape = (rows + self.is_transposed, 2 + int(random.integers(3)))
        if not self.is_transposed:
            self.shape = (rows, *random.integers(0, 4, random.integers(0, 3)))
        self.op = int(random.choice(list(OPS)))
        if self.op == dist.ReduceOp.AVG and self.dtype[0] in "ui":
            self.op = dist.ReduceOp.SUM
        self.root = int(random.integers(self.size))

    def operands(self, shape: Any = None, factor: int = 1) -> list[Any]:
        shape = self.shape if shape is None else shape
        return [self.random.integers(0, 3, shape) * factor for _ in range(self.size)]

    @property
    def how(self) -> dict[str, Any]:
        return {"group": self.group, "sync_op": self.sync}

    @property
    def root_rank(self) -> int:
        return int(self.group.ranks[self.root])

    def end(self, task: Any) -> None:
        if not self.sync:
            assert task.wait()
        assert task.is_completed()

    def tensor(self, array: Any) -> Any:
        return tensor(array, self.dtype, self.is_transposed and np.ndim(array) == 2)


def all_reduce(case: Case) -> tuple[Any, Any]:
    operands = case.operands(factor=case.size if case.op == dist.ReduceOp.AVG else 1)
    x = case.tensor(operands[case.me])
    case.end(dist.all_reduce(x, case.op, **case.how))
    return [x], [OPS[case.op](operands, axis=0)]


def reduce(case: Case) -> tuple[Any, Any]:
    operands = case.operands(factor=case.size if case.op == dist.ReduceOp.AVG else 1)
    x = case.tensor(operands[case.me])
    case.end(dist.reduce(x, case.root_rank, case.op, **case.how))
    is_unchanged = case.me != case.root
    return [x], [operands[case.me] if is_unchanged else OPS[case.op](operands, axis=0)]


def broadcast(case: Case) -> tuple[Any, Any]:
    operands = case.operands()
    x = case.tensor(operands[case.me])
    case.end(dist.broadcast(x, case.root_rank, **case.how))
    return [x], [operands[case.root]]


def all_gather(case: Case) -> tuple[Any, Any]:
    operands = case.operands()
    x = case.tensor(operands[case.me])
    kind = case.random.integers(3)
    if kind == 0:
        gathered = paddle.zeros([case.size * operands[0].shape[0], *operands[0].shape[1:]], x.dtype)
        case.end(dist.all_gather(gathered, x, **case.how))
        return [gathered], [np.concatenate(operands)]
    results = [case.tensor(np.zeros_like(g)) for g in operands] if kind == 1 else []
    case.end(dist.all_gather(results, x, **case.how))
    return results, operands


def gather(case: Case) -> tuple[Any, Any]:
    operands = case.operands()
    results: list[Any] = []
    x = case.tensor(operands[case.me])
    case.end(dist.gather(x, results, case.root_rank, **case.how))
    return results, operands if case.me == case.root else []


def scatter(case: Case) -> tuple[Any, Any]:
    operands = case.operands()
    x = case.tensor(np.zeros(case.shape))
    sent = [case.tensor(g) for g in operands] if case.me == case.root else None
    case.end(dist.scatter(x, sent, case.root_rank, **case.how))
    return [x], [operands[case.me]]


def reduce_scatter(case: Case) -> tuple[Any, Any]:
    factor = case.size if case.op == dist.ReduceOp.AVG else 1
    operands = case.operands((case.size, *case.shape), factor)  # by rank, by destination
    x = case.tensor(np.zeros(case.shape))
    sent: Any = [case.tensor(block) for block in operands[case.me]]
    if case.random.integers(2):
        sent = tensor(operands[case.me], case.dtype)
    case.end(dist.reduce_scatter(x, sent, case.op, **case.how))
    return [x], [OPS[case.op](operands, axis=0)[case.me]]


def alltoall(case: Case) -> tuple[Any, Any]:
    sizes = case.random.integers(0, 4, (case.size, case.size))
    operands = [[np.arange(n) + 10 * r for n in row] for r, row in enumerate(sizes)]
    sent = [tensor(block, case.dtype) for block in operands[case.me]]
    results = [tensor(np.zeros(n), case.dtype) for n in sizes[:, case.me]]
    case.end(dist.alltoall(results, sent, **case.how))
    return results, [operands[r][case.me] for r in range(case.size)]


def alltoall_single(case: Case) -> tuple[Any, Any]:
    sizes = case.random.integers(0, 4, (case.size, case.size))
    if case.random.integers(2):
        sizes[...] = 2
    operands = [case.random.integers(0, 9, (row.sum(), 2)) for row in sizes]
    out, x = np.zeros((sizes[:, case.me].sum(), 2)), tensor(operands[case.me], case.dtype)
    result = tensor(out, case.dtype)
    splits = (sizes[case.me].tolist(), sizes[:, case.me].tolist())
    if (sizes == 2).all():
        splits = (None, None)  # type: ignore[assignment]
    case.end(dist.alltoall_single(result, x, *splits, **case.how))
    parts = [np.split(operands[r], np.cumsum(sizes[r])[:-1])[case.me] for r in range(case.size)]
    return [result], [np.concatenate(parts)]


def ring(case: Case) -> tuple[Any, Any]:
    operands = case.operands()
    if case.size == 1:
        return [], []
    after, before = (case.group.ranks[(case.me + step) % case.size] for step in (1, -1))
    x, y = case.tensor(operands[case.me]), case.tensor(np.zeros(case.shape))
    calls = [dist.P2POp(dist.isend, x, after, case.group)]
    calls += [dist.P2POp(dist.irecv, y, before, case.group)]
    for task in dist.batch_isend_irecv(calls):
        task.wait()
    return [y], [operands[case.me - 1]]


KINDS = (
    all_reduce,
    reduce,
    broadcast,
    all_gather,
    gather,
    scatter,
    reduce_scatter,
    alltoall,
    alltoall_single,
    ring,
)


def random_calls(seed: int) -> int:
    world = dist.init_parallel_env()
    random = np.random.default_rng(seed)
    half = dist.new_group(range(1, world.nranks) if world.nranks > 2 else None)
    for number in range(CALLS):
        kind = KINDS[number % len(KINDS)]
        group = half if random.integers(2) else world
        state = int(random.integers(2**31))  # drawn by ranks outside the group, too
        if not group.is_member():
            continue
        results, expected = kind(Case(np.random.default_rng(state), group))
        assert len(results) == len(expected), kind
        for x, array in zip(results, expected, strict=True):
            np.testing.assert_array_equal(numbers(x), array, err_msg=kind.__name__)
    dist.destroy_process_group()
    assert not dist.is_initialized()
    return seed


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_random_calls_equal_numpy(ranks: int) -> None:
    assert run(random_calls, ranks, seed=ranks) == [ranks] * ranks


def reduce_in_place() -> bool:
    """Check that collectives read and write the memory of the tensors without a copy."""
    world = dist.init_parallel_env()
    x = paddle.full([1000], float(world.rank + 1))
    memory, address = np.from_dlpack(x), x.data_ptr()
    dist.all_reduce(x)
    assert x.data_ptr() == address == memory.ctypes.data
    assert (memory == 3).all()
    gathered = paddle.zeros([4], "bfloat16")
    dist.all_gather(gathered, gathered[2 * world.rank : 2 * world.rank + 2] + 1)
    raw = np.from_dlpack(gathered.view(paddle.int16)).view(ml_dtypes.bfloat16)
    assert (raw == 1).all()
    flags = paddle.to_tensor([world.rank == 0, False, True])
    dist.all_reduce(flags)
    assert flags.tolist() == [True, False, True]
    dist.all_reduce(flags, dist.ReduceOp.PROD)
    z = paddle.to_tensor([1 + 2j, 3 - 1j]) * (world.rank + 1)
    dist.all_reduce(z)
    assert z.tolist() == [3 + 6j, 9 - 3j]
    scalar = paddle.to_tensor(float(world.rank))
    dist.broadcast(scalar, 1)
    assert scalar.shape == []
    return float(scalar) == 1


def test_results_are_in_the_memory_of_the_tensors() -> None:
    assert run(reduce_in_place, 2) == [True, True]


def wait_by_tensor() -> bool:
    """Wait for collectives by their tensors, without their tasks."""
    world = dist.init_parallel_env()
    tensors = [paddle.full([3, 5], float(world.rank + i)) for i in range(8)]
    for x in tensors:
        dist.all_reduce(x, sync_op=False)
    for i, x in reversed(list(enumerate(tensors))):
        dist.wait(x)
        assert (x.numpy() == 1 + 2 * i).all()
    early = paddle.zeros([2])
    late = dist.irecv(early, 0) if world.rank else None
    if late is not None:
        assert not late.is_completed()
        assert not late.wait(0.01)
    dist.barrier()
    if late is None:
        dist.send(paddle.ones([2]), 1)
    else:
        assert late.wait()
        assert early.tolist() == [1, 1]
    return True


def test_wait_finds_the_task_of_a_tensor() -> None:
    assert run(wait_by_tensor, 2) == [True, True]


def exchange_objects() -> Any:
    world = dist.init_parallel_env()
    gathered: list[Any] = []
    dist.all_gather_object(gathered, {"rank": world.rank, "text": "x" * world.rank})
    sent: list[Any] = ["a", {"b": 2}] if world.rank == 1 else [None, None]
    dist.broadcast_object_list(sent, 1)
    part: list[Any] = []
    dist.scatter_object_list(part, [["for", r] for r in range(3)] if world.rank == 2 else None, 2)
    return [gathered, sent, part]


def test_objects_are_gathered_broadcast_and_scattered() -> None:
    for rank, (gathered, sent, part) in enumerate(run(exchange_objects, 3)):
        assert gathered == [{"rank": r, "text": "x" * r} for r in range(3)]
        assert sent == ["a", {"b": 2}]
        assert part == [["for", rank]]


def use_a_group() -> list[Any]:
    world = dist.init_parallel_env()
    assert dist.init_parallel_env() is world is dist.get_group(0)
    group = dist.new_group([2, 1], backend="gloo")
    assert dist.get_group(group.id) is group
    x = paddle.to_tensor([1.0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        task = dist.all_reduce(x, group=group)
    texts = [str(w.message) for w in caught if "is not in the group" in str(w.message)]
    dist.barrier(group)
    sampler = paddle.io.DistributedBatchSampler(list(range(6)), batch_size=2)
    facts = (group.rank, group.nranks, group.world_size, group.ranks, group.is_member())
    ranks_of = (group.get_group_rank(2), group.get_global_rank(0), dist.get_rank(group))
    dist.destroy_process_group(group)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert dist.get_group(group.id) is None
    return [task is None, len(texts), x.tolist(), *facts, *ranks_of, list(sampler)]


def test_a_group_of_some_ranks() -> None:
    outside, first, second = run(use_a_group, 3)
    assert outside == [True, 1, [1.0], -1, 2, -1, [1, 2], False, -1, -1, -1, [[0, 1]]]
    assert first == [False, 0, [2.0], 0, 2, 2, [1, 2], True, 1, 1, 0, [[2, 3]]]
    assert second == [False, 0, [2.0], 1, 2, 2, [1, 2], True, 1, 1, 1, [[4, 5]]]


def gradients_of_collectives() -> list[Any]:
    """Return gradients of sum(weights * collective(x)), with different weights per rank."""
    world = dist.init_parallel_env()
    size, f = world.nranks, dist.functional
    weights = paddle.arange(1.0, 2 * size + 1) + 10 * world.rank
    calls: list[Any] = [
        lambda x: f.all_reduce(x) * weights,
        lambda x: f.all_reduce(x, dist.ReduceOp.AVG) * weights,
        lambda x: f.all_gather(x[:2]) * weights,
        lambda x: f.reduce_scatter(x) * weights[:2],
        lambda x: f.reduce_scatter(x, dist.ReduceOp.AVG) * weights[:2],
        lambda x: f.broadcast(x, 1) * weights,
        lambda x: f.all_to_all(x) * weights,
    ]
    results = []
    for call in calls:
        x = paddle.ones([2 * size])
        x.stop_gradient = False
        call(x).sum().backward()
        results.append(x.grad.tolist())
    return results


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


def make_bad_calls() -> list[str]:
    messages = []
    ones = paddle.ones([2])
    needs = paddle.ones([2])
    needs.stop_gradient = False
    sparse = paddle.sparse.sparse_coo_tensor([[0], [1]], [1.0], [2, 2])

    def strategy(**settings: Any) -> Any:
        result = fleet.DistributedStrategy()
        for name, value in settings.items():
            setattr(result, name, value)
        return result

    calls: list[Any] = [
        lambda: dist.all_reduce(ones),
        fleet.worker_num,
        lambda: fleet.init(),
        dist.init_parallel_env,
        lambda: dist.all_reduce(np.ones(2)),
        lambda: dist.all_reduce(sparse),
        lambda: dist.all_reduce(ones, "sum"),
        lambda: dist.all_reduce(paddle.ones([2], "int32"), dist.ReduceOp.AVG),
        lambda: dist.all_reduce(paddle.ones([2], "complex64"), dist.ReduceOp.MAX),
        lambda: dist.all_reduce(ones, group="world"),
        lambda: dist.broadcast(ones, 7),
        lambda: dist.recv(ones, None),
        lambda: dist.all_gather([ones], ones),
        lambda: dist.all_gather([ones, paddle.ones([3])], ones),
        lambda: dist.alltoall_single(paddle.ones([3]), paddle.ones([3])),
        lambda: dist.alltoall_single(paddle.ones([3]), paddle.ones([3]), [1, 1], [1, 2]),
        lambda: dist.new_group([0, 5]),
        lambda: dist.new_group([0], "nccl"),
        dist.spawn,
        dist.launch,
        fleet.run_server,
        lambda: dist.DataParallel(ones),
        lambda: fleet.init(is_collective=True, strategy=strategy(amp=True, localsgd=True)),
        lambda: fleet.init(
            is_collective=True, strategy=strategy(hybrid_configs={"dp_degree": 1, "mp_degree": 2})
        ),
        lambda: dist.functional.all_reduce(needs, dist.ReduceOp.MAX),
        lambda: dist.functional.all_to_all(paddle.ones([3])),
        lambda: dist.functional.all_gather(paddle.to_tensor(1.0)),
        lambda: dist.all_reduce(paddle.ones([2 + dist.get_rank()])),
        lambda: dist.all_reduce(ones),
    ]
    for call in calls:
        try:
            messages.append(f"nothing: {call()}")
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error}")
    return messages


def test_errors_name_the_call() -> None:
    parts = [
        "expected a world; got none. Call init_parallel_env() first",
        "got none. Call fleet.init(is_collective=True) first",
        "NotImplementedError: fleet.init: is_collective: expected True",
        "nothing",
        "all_reduce: expected a paddle.Tensor; got ndarray",
        "all_reduce: expected a dense tensor on the CPU",
        "all_reduce: op: expected a ReduceOp: SUM, MAX, MIN, PROD, AVG; got 'sum'",
        "DTypeError: all_reduce: op: expected a reduction of int32; got ReduceOp.AVG",
        "DTypeError: all_reduce: op: expected a reduction of complex64; got ReduceOp.MAX",
        "group: expected one of ngd.paddle.new_group; got str",
        "broadcast: src: expected a rank of the world among [0, 1]; got 7",
        "recv: src: expected a rank",
        "all_gather: tensor_list: expected a list of 2, one per rank; got 1",
        "all_gather: tensor_list: expected 2 elements; got 3",
        "alltoall_single: expected an array whose axis 0 divides evenly among 2 ranks",
        "in_split_sizes: expected numbers that add up to the 3 rows of the array; got [1, 1]",
        "new_group: ranks: expected ranks from 0 to 1, each once; got [0, 5]",
        "new_group: backend: expected None, 'ngd' or 'gloo'; got 'nccl'",
        "ngd.paddle.spawn: expected ranks of a launcher",
        "ngd.paddle.launch: expected ranks of a launcher",
        "fleet.run_server: expected collective training",
        "DataParallel: layers: expected a paddle.nn.Layer; got Tensor",
        "got amp, localsgd. Remove the others",
        "hybrid_configs: expected dp_degree 2 or -1",
        "GradientError: functional.all_reduce: op: expected ReduceOp.SUM or AVG",
        "functional.all_to_all: expected an array whose axis 0 divides evenly among 2 ranks",
        "functional.all_gather: expected an array of at least one axis; got a scalar",
        "called different collectives:\n  rank 0: all_reduce(sum) of 2 float32",
        "an earlier failure closed this group",
    ]
    for got in run(make_bad_calls, 2):
        assert len(got) == len(parts)
        for message, part in zip(got, parts, strict=True):
            assert part in message


def call_after_an_exit() -> str:
    world = dist.init_parallel_env()
    dist.all_reduce(paddle.ones([3]))
    if world.rank == 1:
        return "left"
    try:
        dist.all_reduce(paddle.ones([3]))
    except ngd.errors.CollectiveError as error:
        return str(error)
    return "nothing"


def test_a_rank_that_leaves_is_named() -> None:
    first, second = run(call_after_an_exit, 2)
    assert "rank 1" in first
    assert second == "left"


def init_under_paddle() -> str:
    try:
        dist.init_parallel_env()
    except ngd.errors.InitError as error:
        return str(error)
    return "nothing"


def test_a_job_of_paddles_launcher_raises() -> None:
    env = {"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ID": "1"}
    (alone,) = harness.run(init_under_paddle, 1, env=env)
    assert "ngd run -n 2" in alone.value


def run_page() -> list[float]:
    """Run the programs of docs/paddle.md, and return sums of their weights."""
    text = (Path(__file__).parents[3] / "docs" / "paddle.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    weights = []
    for block in blocks:
        names: dict[str, Any] = {}
        exec(block, names)
        weights += [float(p.sum()) for p in names["model"].parameters()]
    return weights


def test_the_page_runs() -> None:
    first, second = run(run_page, 2)
    assert first == second
    assert len(first) == 4


def ones_array(shape: Any, dtype: str = "float32") -> Any:
    return np.ones(shape, dtype)


MISUSES: dict[str, tuple[Any, Any, Any]] = {
    "mean of integers": (
        *(ones_array((4, 3), "int32"), lambda x: ngd.all_reduce(x, op="mean")),
        lambda x: dist.all_reduce(x, dist.ReduceOp.AVG),
    ),
    "scattered mean of integers": (
        *(ones_array((4, 3), "int32"), lambda x: ngd.reduce_scatter(x, op="mean")),
        lambda x: dist.reduce_scatter(x, x, dist.ReduceOp.AVG),
    ),
    "unknown op": (
        *(ones_array((4, 3)), lambda x: ngd.all_reduce(x, op="avg")),
        lambda x: dist.all_reduce(x, "avg"),
    ),
    "root beyond the group": (
        *(ones_array((4, 3)), lambda x: ngd.broadcast(x, 5)),
        lambda x: dist.broadcast(x, 5),
    ),
    "fractional root": (
        *(ones_array((4, 3)), lambda x: ngd.broadcast(x, 1.5)),
        lambda x: dist.broadcast(x, 1.5),
    ),
    "receiver is the sender": (
        *(ones_array((4, 3)), lambda x: ngd.send(x, 0)),
        lambda x: dist.send(x, 0),
    ),
    "numbers of rows to send": (
        *(ones_array((4, 3)), lambda x: ngd.all_to_all_v(x, [1, 2])),
        lambda x: dist.alltoall_single(paddle.empty_like(x), x, [1, 2]),
    ),
    "fractional rows to send": (
        *(ones_array((4, 3)), lambda x: ngd.all_to_all_v(x, [4.0])),
        lambda x: dist.alltoall_single(paddle.empty_like(x), x, [4.0]),
    ),
    "sum of rows to send": (
        *(ones_array((4, 3)), lambda x: ngd.all_to_all_v(x, [3])),
        lambda x: dist.alltoall_single(paddle.empty_like(x), x, [3]),
    ),
    "size of the result": (
        *(ones_array((4, 3)), lambda x: ngd.all_gather(x, out=ones_array((5, 3)))),
        lambda x: dist.all_gather([paddle.ones([5, 3])], x),
    ),
    "scattered scalar": (
        *(ones_array(()), lambda x: ngd.reduce_scatter(x, op="sum")),
        lambda x: dist.functional.reduce_scatter(x),
    ),
}


@pytest.mark.parametrize("case", MISUSES)
def test_a_wrong_argument_has_the_same_class_as_on_arrays(case: str) -> None:
    dist.init_parallel_env()
    array, on_arrays, on_tensors = MISUSES[case]
    with pytest.raises((TypeError, ValueError)) as expected:
        on_arrays(array)
    with pytest.raises((TypeError, ValueError)) as raised:
        on_tensors(paddle.to_tensor(array))
    assert raised.type is expected.type
