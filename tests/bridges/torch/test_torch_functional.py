# SPDX-License-Identifier: Apache-2.0
"""Compare functional collectives over "ngd" with gloo, called plainly and by torch.compile.

NGD_FUNCTIONAL_CALLS is the number of random calls (default 60).
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from ngd.torch.distributed import works  # noqa: E402
from tests.bridges.torch import torch_ranks  # noqa: E402

Tensor = Any
pytestmark = harness.needs_ranks
CALLS = int(os.environ.get("NGD_FUNCTIONAL_CALLS", "60"))
COMPILER = shutil.which("g++") or shutil.which("clang++")
INDUCTOR = ["inductor"] if COMPILER else []
ops = torch.ops._c10d_functional

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
ROWS_OF_ALL = 12
"""A number of rows that 2, 3 and 4 ranks can divide evenly."""


class Draw:
    """A random call, which is equal on all ranks of a group."""

    def __init__(self, numbers: random.Random, groups: list[tuple[int, ...]]) -> None:
        self.ranks = numbers.choice(groups)
        self.dtype = numbers.choice((*FLOATS, *INTEGERS, torch.bool))
        self.kind = numbers.choice(sorted(KINDS))
        self.op = numbers.choice(reductions(self.dtype))
        self.root = numbers.randrange(len(self.ranks))
        self.rest = tuple(numbers.randrange(4) for _ in range(numbers.randrange(3)))
        self.rows = ROWS_OF_ALL * numbers.randrange(3)
        self.axis = numbers.randrange(2) if self.rest else 0
        if self.axis:
            self.rest = (ROWS_OF_ALL, *self.rest[1:])
        self.transposed = bool(self.rest) and numbers.random() < 0.3
        self.seed = numbers.randrange(2**31)

    def __repr__(self) -> str:
        return str(vars(self))

    def mine(self, rank: int, salt: int = 0) -> Tensor:
        """Return a rank's tensor of small integers, which are exact in every dtype."""
        generator = torch.Generator().manual_seed(self.seed + 100 * salt + rank)
        shape = (self.rows, *self.rest)
        if self.transposed:
            shape = shape[::-1]
        values = torch.randint(0, 3, shape, generator=generator) * len(self.ranks)
        values = values.ge(1) if self.dtype is torch.bool else values.to(self.dtype)
        return values.permute(*range(values.dim())[::-1]) if self.transposed else values

    def splits(self, rank: int) -> tuple[list[int], list[int]]:
        """Return the numbers of rows that a rank receives from each rank and sends to each rank."""
        size = len(self.ranks)
        sent = random.Random(self.seed)
        table = [[sent.randrange(4) for _ in range(size)] for _ in range(size)]
        return [row[rank] for row in table], table[rank]


def reductions(dtype: Any) -> tuple[str, ...]:
    if dtype is torch.bool:
        return ("sum", "min", "max", "product")
    return ("sum", "min", "max", "product", *(["avg"] if dtype in FLOATS else []))


def exchange_uneven(call: Draw, rank: int, group: Any) -> list[Tensor]:
    """Exchange blocks of different sizes."""
    receive, send = call.splits(rank)
    generator = torch.Generator().manual_seed(call.seed + rank)
    rows = torch.randint(0, 3, (sum(send), *call.rest), generator=generator).to(call.dtype)
    return [functional.all_to_all_single(rows, receive, send, group)]


def permute(call: Draw, rank: int, group: Any) -> list[Tensor]:
    """Permute a flat tensor, because permute_tensor counts elements."""
    size = len(call.ranks)
    goals = random.Random(call.seed).sample(range(size), size)
    return [functional.permute_tensor(call.mine(rank).reshape(-1), goals, group)]


KINDS: dict[str, Callable[[Draw, int, Any], list[Tensor]]] = {
    "all_reduce": lambda c, r, g: [functional.all_reduce(c.mine(r), c.op, g)],
    "all_reduce_coalesced": lambda c, r, g: functional.all_reduce_coalesced(
        [c.mine(r), c.mine(r, 1)], c.op, g
    ),
    "all_gather": lambda c, r, g: [functional.all_gather_tensor(c.mine(r), c.axis, g)],
    "all_gather_coalesced": lambda c, r, g: functional.all_gather_into_tensor_coalesced(
        [c.mine(r), c.mine(r, 1)], g
    ),
    "reduce_scatter": lambda c, r, g: [
        functional.reduce_scatter_tensor(c.mine(r), c.op, c.axis, g)
    ],
    "reduce_scatter_coalesced": lambda c, r, g: functional.reduce_scatter_tensor_coalesced(
        [c.mine(r), c.mine(r, 1)], c.op, [c.axis, 0], g
    ),
    "all_to_all": lambda c, r, g: [functional.all_to_all_single(c.mine(r), None, None, g)],
    "all_to_all_split": exchange_uneven,
    "broadcast": lambda c, r, g: [functional.broadcast(c.mine(r), c.root, g)],
    "permute": permute,
    "all_reduce_": lambda c, r, g: [ops.all_reduce_(c.mine(r), c.op, g.group_name)],
    "all_reduce_coalesced_": lambda c, r, g: ops.all_reduce_coalesced_(
        [c.mine(r), c.mine(r, 1)], c.op, g.group_name
    ),
    "broadcast_": lambda c, r, g: [ops.broadcast_(c.mine(r), c.root, g.group_name)],
    "reduce_scatter_out": lambda c, r, g: [
        ops.reduce_scatter_tensor_out(
            c.mine(r).contiguous(),
            c.op,
            g.size(),
            g.group_name,
            out=torch.empty(c.rows // g.size(), *c.rest, dtype=c.dtype),
        )
    ],
}


def wait_for_all(tensors: list[Tensor]) -> list[Tensor]:
    return [functional.wait_tensor(tensor) for tensor in tensors]


def random_calls(calls: int, seed: int) -> int:
    """Make each call over both backends, and return the number of calls of this rank.

    Up to four calls are pending, and each rank waits in its own random order.
    """
    rank, size = torch_ranks.join()
    numbers, own = random.Random(seed), random.Random(seed + rank)
    subsets = [tuple(range(size)), tuple(range(size)), (0, size - 1), tuple(range(1, size))]
    both = {
        ranks: [dist.new_group(list(ranks), backend=name) for name in ("ngd", "gloo")]
        for ranks in dict.fromkeys(subsets)
    }
    pending: list[tuple[Draw, list[Tensor], list[Tensor]]] = []
    num_calls = 0
    for number in range(calls):
        call = Draw(numbers, subsets)
        if rank in call.ranks:
            mine, theirs = (
                KINDS[call.kind](call, call.ranks.index(rank), g) for g in both[call.ranks]
            )
            pending.append((call, mine, theirs))
            num_calls += 1
        while len(pending) > 3 or (pending and number == calls - 1):
            call, mine, theirs = pending.pop(own.randrange(len(pending)))
            for got, expected in zip(wait_for_all(mine), wait_for_all(theirs), strict=True):
                assert got.dtype == expected.dtype, call
                assert torch.equal(got, expected), (call, got, expected)
    return num_calls


@pytest.mark.parametrize("ranks", [3] if CALLS < 500 else [2, 3, 4])
def test_random_calls_equal_those_over_gloo(ranks: int) -> None:
    num_calls = torch_ranks.run(random_calls, ranks, arguments={"calls": CALLS, "seed": ranks})
    assert num_calls[0] > CALLS // 3


# In compiled programs.


def compile_function(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """Compile a function into one graph. The backend "plain" returns the function itself."""
    if backend == "plain":
        return function
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True)


def wait_until(seconds: float, ready: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < limit, f"{what}: not in {seconds} s"
        time.sleep(0.001)


@torch.library.custom_op(
    "ngd_tests::computed", mutates_args=("x",), schema="(Tensor(a!) x, str name) -> ()"
)
def compute_and_report(x: Tensor, name: str) -> None:
    """Report that this rank computes, and wait until the other rank has seen the report."""
    folder = Path(sys.argv[-1])
    Path(folder, name).touch()
    wait_until(60, Path(folder, f"{name}-seen").exists, name)
    x.mul_(2)


@compute_and_report.register_fake
def _(x: Tensor, name: str) -> None:
    return None


def compute_during_collectives(backends: list[str]) -> list[list[float]]:
    """Start collectives before a computation, and wait for them after it.

    Rank 1 starts its collectives only after rank 0 has reported its computation.
    """
    rank, _ = torch_ranks.join()
    name, folder = dist.group.WORLD.group_name, Path(sys.argv[-1])
    results = []
    for backend in ("plain", *backends):

        def program(x: Tensor, y: Tensor, event: str = backend) -> list[Tensor]:
            operand = x + 1
            pending = ops.all_reduce(operand, "sum", name), ops.all_gather_into_tensor(x, 2, name)
            if rank == 0:
                torch.ops.ngd_tests.computed(y, event)
            return [functional.wait_tensor(part) * y[:1] for part in pending]

        call = compile_function(program, backend)
        if rank == 1:
            wait_until(60, Path(folder, backend).exists, backend)
            Path(folder, f"{backend}-seen").touch()
        result = call(torch.full((2,), float(rank)), torch.ones(3))
        results.append(torch.cat(result).tolist())
    return results


def test_a_program_computes_while_a_rank_is_late() -> None:
    backends = ["aot_eager", *INDUCTOR]
    ranks = torch_ranks.run(compute_during_collectives, 2, arguments={"backends": backends})
    for results, own in zip(ranks, (2, 1), strict=True):  # rank 0 has doubled y
        assert results == [[own * n for n in (3, 3, 0, 0, 1, 1)]] * (1 + len(backends))


class RecordingBackend:
    """A backend that records the collectives of its forward and backward graphs."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, module: Any, inputs: Any) -> Any:
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch._aot_autograd.utils import make_boxed_func

        def record(graph: Any, _: Any) -> Any:
            names = [str(node.target) for node in graph.graph.nodes]
            self.calls += [n.split(".")[1] for n in names if n.startswith("_c10d_functional.")]
            return make_boxed_func(graph.forward)

        return aot_autograd(fw_compiler=record, bw_compiler=record)(module, inputs)


def gradients_of_collectives() -> list[Any]:
    """Return gradients of sum((1, 2, ...) * (rank + 1) * collective(x)), plain and compiled."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    calls = [
        lambda x: functional.all_reduce(x, "sum", group),
        lambda x: functional.all_gather_single_autograd(x, 0, group),
        lambda x: functional.reduce_scatter_single_autograd(x, "sum", 0, group),
        lambda x: functional.all_to_all_single_autograd(x, None, None, group),
    ]
    results = []
    for call in calls:
        gradients = []
        for backend in ("plain", "aot_eager"):
            x = torch.ones(2 * size, requires_grad=True)
            result = compile_function(lambda x, call=call: call(x) * 1, backend)(x)
            (result * torch.arange(1.0, len(result) + 1) * (rank + 1)).sum().backward()
            gradients.append(x.grad.tolist())
        assert gradients[0] == gradients[1]
        results.append(gradients[0])
    return results


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def train_losses(call: Any, rank: int) -> list[float]:
    numbers = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(call.parameters(), 0.1, foreach=False)
    values = []
    for _ in range(3):
        x, labels = torch.randn(5, 8, generator=numbers), torch.randint(0, 3, (5,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(call(x), labels)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def make_sharded(size: int) -> Any:
    model = Net()
    mesh = dist.init_device_mesh("cpu", (size,))
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh)
    return model


def train() -> dict[str, Any]:
    """Train with DDP over gloo, and with compiled DDP over ngd."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    gloo, results = dist.new_group(backend="gloo"), {}
    state = torch.get_rng_state()

    def keep(name: str, model: Any) -> None:
        torch.set_rng_state(state)
        results[name] = train_losses(model, rank)

    keep("gloo", DistributedDataParallel(Net(), process_group=gloo))
    graphs = RecordingBackend()
    for mode in ("ddp_optimizer", "no_optimization", "python_reducer"):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(optimize_ddp=mode):
            model = torch.compile(DistributedDataParallel(Net()), backend=graphs)
            backward = torch.compile(backend=graphs)
            assert not graphs.calls
            if mode == "python_reducer":
                with torch._dynamo.compiled_autograd._enable(backward):
                    keep(mode, model)
            else:
                keep(mode, model)
    results["calls"] = sorted(graphs.calls)
    torch._dynamo.reset()
    keep("fully_shard", torch.compile(make_sharded(size), backend="aot_eager"))
    return results


def check_gradients_and_train() -> tuple[list[Any], dict[str, Any]]:
    torch_ranks.join()
    return gradients_of_collectives(), train()


def test_gradients_and_training() -> None:
    ranks = torch_ranks.run(check_gradients_and_train, 2)
    # By hand: the weights of rank 0 are 1, 2, ..., and those of rank 1 are 2, 4, ...
    assert ranks[0][0] == [[3, 6, 9, 12], [3, 6, 9, 12], [1, 2, 2, 4], [1, 2, 2, 4]]
    assert ranks[1][0] == [[3, 6, 9, 12], [15, 18, 21, 24], [1, 2, 2, 4], [3, 4, 6, 8]]
    for _, results in ranks:
        # One gradient each for two weights and two biases.
        assert results.pop("calls") == ["all_reduce"] * 4 + ["wait_tensor"] * 4
        expected = results.pop("gloo")
        assert expected[0] != expected[1]
        assert results == dict.fromkeys(results, pytest.approx(expected, rel=1e-6))
        assert len(results) == 4


def count_pending_works() -> list[int]:
    """Return the largest and the last number of pending works that no call waits for.

    A barrier keeps the ranks together.
    """
    torch_ranks.join()
    name, counts = dist.group.WORLD.group_name, []
    for _ in range(5):
        for _ in range(works.MAX_OUTSTANDING):
            ops.all_reduce(torch.ones(10), "sum", name)
            counts.append(len(works.outstanding))
        dist.barrier()
    dist.destroy_process_group()
    return [max(counts), len(works.outstanding)]


def test_works_without_a_wait_are_bounded_and_end() -> None:
    for largest, last in torch_ranks.run(count_pending_works, 2):
        assert largest <= 2 * works.MAX_OUTSTANDING
        assert last == 0


def call_after_an_exit() -> str:
    """Leave on rank 1, and return the error of the program of rank 0."""
    rank, _ = torch_ranks.join()
    name = dist.group.WORLD.group_name
    call = compile_function(
        lambda x: ops.wait_tensor(ops.all_reduce(x * 2, "sum", name)), "aot_eager"
    )
    assert call(torch.ones(2)).tolist() == [4, 4]
    if rank == 1:
        os._exit(0)
    return str(harness.caught(lambda: call(torch.ones(2))))


def test_a_lost_rank_raises_in_the_program() -> None:
    with torch_ranks.job(call_after_an_exit, 2) as job:
        first, _ = job.wait(100)
    assert "RankLostError" in first.value, first
    assert "rank 1" in first.value
