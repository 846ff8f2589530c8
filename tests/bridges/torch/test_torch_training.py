# SPDX-License-Identifier: Apache-2.0
"""Compare DistributedDataParallel and fully_shard over "ngd" with "gloo" and with one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import digits, harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import (  # noqa: E402
    default_hooks,
    powerSGD_hook,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from tests.bridges.torch import torch_ranks  # noqa: E402

pytestmark = harness.needs_ranks
STEPS, BATCH = 10, 4

Net = Any
Batches = list[tuple[Any, Any]]


class Block(nn.Module):  # type: ignore[misc,name-defined]
    """Two convolutions with batch norm, and a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Any) -> Any:
        return torch.relu(x + self.body(x))


def resnet() -> Net:
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
    return nn.Sequential(nn.Conv2d(3, 8, 3), Block(8), nn.MaxPool2d(2), Block(8), *head)


class Transformer(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def images(rank: int) -> Batches:
    numbers = torch.Generator().manual_seed(rank)
    draw = lambda: torch.randn(BATCH, 3, 10, 10, generator=numbers)  # noqa: E731
    return [(draw(), torch.randint(0, 5, (BATCH,), generator=numbers)) for _ in range(STEPS)]


def sentences(rank: int) -> Batches:
    numbers = torch.Generator().manual_seed(rank)
    draw = lambda top, *shape: torch.randint(0, top, shape, generator=numbers)  # noqa: E731
    return [(draw(50, BATCH, 7), draw(5, BATCH)) for _ in range(STEPS)]


CASES: dict[str, tuple[Callable[[], Net], Callable[[int], Batches]]] = {
    "resnet": (resnet, images),
    "transformer": (Transformer, sentences),
}


def make_model(case: str) -> Net:
    torch.manual_seed(0)
    return CASES[case][0]()


def train(model: Net, batches: Batches) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for x, labels in batches:
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def data_parallel(case: str, rank: int) -> dict[str, dict[str, list[float]]]:
    """Train over both backends, with one bucket, many buckets, and communication hooks."""
    batches = CASES[case][1](rank)
    losses: dict[str, dict[str, list[float]]] = {}
    for name, group in (("ngd", dist.group.WORLD), ("gloo", dist.new_group(backend="gloo"))):
        in_one = DistributedDataParallel(make_model(case), process_group=group)
        in_many = DistributedDataParallel(
            make_model(case), process_group=group, bucket_cap_mb=0.005, find_unused_parameters=True
        )
        hooked = DistributedDataParallel(make_model(case), process_group=group)
        hooked.register_comm_hook(group, default_hooks.allreduce_hook)
        low_rank = DistributedDataParallel(make_model(case), process_group=group)
        state = powerSGD_hook.PowerSGDState(group, 1, start_powerSGD_iter=2)
        low_rank.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        models = {"one": in_one, "many": in_many, "hook": hooked, "low rank": low_rank}
        losses[name] = {how: train(model, batches) for how, model in models.items()}
    return losses


def losses_of_sharded(dtype: str, rank: int, size: int) -> list[float]:
    mesh = dist.init_device_mesh("cpu", (size,))
    policy = MixedPrecisionPolicy(reduce_dtype=getattr(torch, dtype))
    model = make_model("transformer")
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return train(model, sentences(rank))


def losses_of_one_process(ranks: int) -> list[list[float]]:
    """Return the losses of each rank when one process averages the gradients of all ranks."""
    model = make_model("transformer")
    batches = [sentences(rank) for rank in range(ranks)]
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses: list[list[float]] = [[] for _ in range(ranks)]
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(ranks):
            x, labels = batches[rank][step]
            loss = nn.functional.cross_entropy(model(x), labels)
            (loss / ranks).backward()
            losses[rank].append(loss.item())
        optimizer.step()
    return losses


def train_all() -> dict[str, Any]:
    rank, size = torch_ranks.join()
    losses: dict[str, Any] = {case: data_parallel(case, rank) for case in CASES}
    return losses | {
        dtype: losses_of_sharded(dtype, rank, size) for dtype in ("float32", "bfloat16")
    }


# Two terms have one sum. With three terms, gloo adds in another order. The rounding differs, and
# the steps amplify it.
@pytest.mark.parametrize(("ranks", "tolerance"), [(2, 0.0), (3, 1e-4)])
def test_losses_equal_gloo_and_one_process(ranks: int, tolerance: float) -> None:
    expected = losses_of_one_process(ranks)
    for rank, losses in enumerate(torch_ranks.run(train_all, ranks)):
        for case in CASES:
            for how, mine in losses[case]["ngd"].items():
                theirs = losses[case]["gloo"][how]
                assert mine == pytest.approx(theirs, rel=tolerance, abs=0.0), (case, how)
        assert losses["float32"] == pytest.approx(expected[rank], rel=1e-4)
        assert losses["bfloat16"] == pytest.approx(expected[rank], rel=2e-2)


def learn_digits() -> float:
    """Train a network for digits on all ranks and in one process, and return the difference.

    The network is smooth, so that rounding cannot select another branch.
    """
    rank, size = torch_ranks.join()
    torch.manual_seed(rank)  # DistributedDataParallel broadcasts the weights of rank 0
    convolution = [nn.Conv2d(1, 8, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()]
    net = nn.Sequential(*convolution, nn.Linear(8 * 9, digits.CLASSES))
    model = DistributedDataParallel(net)
    reference = copy.deepcopy(net)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (model, reference)]
    for step in range(20):
        images, labels = map(torch.tensor, digits.batch(step, 16 * size))
        images = images.reshape(-1, 1, 8, 8)
        mine = slice(16 * rank, 16 * (rank + 1))
        for each, part, optimizer in zip(
            (model, reference), (mine, slice(None)), optimizers, strict=True
        ):
            optimizer.zero_grad()
            nn.functional.cross_entropy(each(images[part]), labels[part]).backward()
            optimizer.step()
    pairs = zip(net.parameters(), reference.parameters(), strict=True)
    return max(float((p - q).abs().max() / q.abs().max()) for p, q in pairs)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_learn_digits_as_one_process(ranks: int) -> None:
    assert max(torch_ranks.run(learn_digits, ranks)) < 1e-5


def train_in_a_mesh() -> list[float]:
    """Train with tensor parallelism over one axis of a mesh and replicas over the other axis.

    Return the differences of the loss to one process.
    """
    torch_ranks.join()
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    reference = copy.deepcopy(net)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(net, mesh["model"], plan)
    model = DistributedDataParallel(net, device_mesh=mesh["data"])
    numbers = torch.Generator().manual_seed(1)
    halves = [torch.randn(5, 6, generator=numbers) for _ in range(2)]
    losses = []
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, foreach=False) for m in (model, reference)]
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(halves[mesh.get_local_rank("data")]).square().mean()
        loss.backward()
        expected = sum(reference(half).square().mean() for half in halves) / 2
        expected.backward()
        for optimizer in optimizers:
            optimizer.step()
        dist.all_reduce(mine := loss.detach().clone(), op=dist.ReduceOp.AVG)
        losses.append(abs(mine.item() - expected.item()))
    return losses


def test_tensor_parallelism_in_a_mesh_equals_one_process() -> None:
    for differences in torch_ranks.run(train_in_a_mesh, 4):
        assert max(differences) < 1e-5
