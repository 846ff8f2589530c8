# SPDX-License-Identifier: Apache-2.0
"""Groups of torch.distributed over several hosts, which NGD_HOST makes of this one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

import ngd  # noqa: E402
from tests.bridges.torch import torch_ranks  # noqa: E402
from tests.bridges.torch.test_torch_training import fresh, sentences, train  # noqa: E402

pytestmark = harness.needs_mpi


def sums_in_groups(rank: int) -> list[Any]:
    """Sums of powers of two, small and long, over the axes of a mesh and over odd groups."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("host", "place"))
    groups = [mesh.get_group("host"), mesh.get_group("place")]
    # Torch asks their members only, of which two have both.
    made = [(ranks, dist.new_group(ranks)) for ranks in ([0, 1, 3], [1, 2, 3])]
    groups += [group for ranks, group in made if rank in ranks]
    tensors = [torch.full((count,), 2.0**rank) for count in (3, 100_000) for _ in groups]
    works = [
        dist.all_reduce(t, group=groups[i % len(groups)], async_op=True)
        for i, t in enumerate(tensors)
    ]
    # What was submitted first is waited for last.
    for work in reversed(works):
        work.wait()
    assert all(bool((tensor == tensor[0]).all()) for tensor in tensors)
    return [[group.communicator.name for group in groups], [tensor[0].item() for tensor in tensors]]


def sharded(meshes: list[DeviceMesh], rank: int) -> list[float]:
    """Losses of a transformer whose parameters are spread over a mesh."""
    losses = []
    for mesh in meshes:
        model = fresh("transformer")
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        losses.append(train(model, sentences(rank)))
    return losses


def work_together() -> dict[str, Any]:
    rank, _ = torch_ranks.join()
    assert ngd.init().communicator.name == "hierarchical"
    found: dict[str, Any] = {"sums": sums_in_groups(rank)}
    across = [[0, 2], [1, 3]]
    for backend in ("ngd", "gloo"):
        pair, _ = dist.new_subgroups_by_enumeration(across, backend=backend)
        here, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]], backend=backend)
        names = {"mesh_dim_names": ("replicas", "shards"), "mesh": [[0, 1], [2, 3]]}
        meshes = [
            DeviceMesh.from_group(pair, "cpu"),
            DeviceMesh.from_group([pair, here], "cpu", **names),
        ]
        found[backend] = sharded(meshes, rank)
    dist.destroy_process_group()
    return found


def test_groups_over_hosts() -> None:
    """A mesh, groups that overlap, fully_shard over hosts and with replicas on them."""
    outcomes = torch_ranks.run(work_together, 4, **torch_ranks.on_hosts(4))
    for rank, found in enumerate(outcomes):
        groups = [[rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1]]
        groups += [ranks for ranks in ([0, 1, 3], [1, 2, 3]) if rank in ranks]
        names, sums = found["sums"]
        assert names == ["mpi", "shm", *["mpi"] * (len(groups) - 2)]
        assert sums == [sum(2.0**r for r in ranks) for ranks in groups] * 2
        assert found["ngd"] == found["gloo"]  # two terms have one sum


def fail_together() -> dict[str, str]:
    """Ranks 1 and 2 are on two hosts; rank 2 brings another tensor."""
    rank, _ = torch_ranks.join()
    pair = dist.new_group([1, 2])
    if rank == 0:
        return {}
    return harness.caught(lambda: dist.all_reduce(torch.ones(3 + rank), group=pair))


def test_errors_over_hosts_name_global_ranks() -> None:
    with torch_ranks.job(fail_together, 3, **torch_ranks.on_hosts(3)) as job:
        for outcome in job.wait(60)[1:]:
            assert outcome.value["error"] == "CollectiveMismatchError"
            message = outcome.value["message"]
            assert "rank 1" in message
            assert "rank 2" in message
            assert message.endswith("(in the group of the global ranks [1, 2])")
            assert outcome.value["ranks"] == [1, 2]
