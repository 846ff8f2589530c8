# SPDX-License-Identifier: Apache-2.0
"""Tests of groups of torch.distributed on several hosts. NGD_HOST divides the ranks into hosts."""

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
from tests.bridges.torch.test_torch_training import make_model, sentences, train  # noqa: E402

pytestmark = harness.needs_mpi


def sums_in_groups(rank: int) -> list[Any]:
    """Sum powers of two in short and long tensors over the axes of a mesh and two other groups."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("host", "place"))
    groups = [mesh.get_group("host"), mesh.get_group("place")]
    # PyTorch requires this call only of the members. Two ranks are members of both groups.
    subgroups = [(ranks, dist.new_group(ranks)) for ranks in ([0, 1, 3], [1, 2, 3])]
    groups += [group for ranks, group in subgroups if rank in ranks]
    tensors = [torch.full((count,), 2.0**rank) for count in (3, 100_000) for _ in groups]
    works = [
        dist.all_reduce(t, group=groups[i % len(groups)], async_op=True)
        for i, t in enumerate(tensors)
    ]
    # The first work is waited for last.
    for work in reversed(works):
        work.wait()
    assert all(bool((tensor == tensor[0]).all()) for tensor in tensors)
    return [[group.communicator.name for group in groups], [tensor[0].item() for tensor in tensors]]


def losses_of_sharded(meshes: list[DeviceMesh], rank: int) -> list[float]:
    """Return losses of a transformer whose parameters are sharded over a mesh."""
    losses = []
    for mesh in meshes:
        model = make_model("transformer")
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        losses.append(train(model, sentences(rank)))
    return losses


def run_on_two_hosts() -> dict[str, Any]:
    rank, _ = torch_ranks.join()
    assert ngd.init().communicator.name == "hierarchical"
    results: dict[str, Any] = {"sums": sums_in_groups(rank)}
    pairs = [[0, 2], [1, 3]]
    for backend in ("ngd", "gloo"):
        pair, _ = dist.new_subgroups_by_enumeration(pairs, backend=backend)
        host_group, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]], backend=backend)
        names = {"mesh_dim_names": ("replicas", "shards"), "mesh": [[0, 1], [2, 3]]}
        meshes = [
            DeviceMesh.from_group(pair, "cpu"),
            DeviceMesh.from_group([pair, host_group], "cpu", **names),
        ]
        results[backend] = losses_of_sharded(meshes, rank)
    dist.destroy_process_group()
    return results


def test_groups_over_hosts_have_the_right_sums() -> None:
    """Check a mesh, overlapping groups, fully_shard over hosts, and replicas on other hosts."""
    outcomes = torch_ranks.run(run_on_two_hosts, 4, **torch_ranks.on_hosts(4))
    for rank, results in enumerate(outcomes):
        groups = [[rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1]]
        groups += [ranks for ranks in ([0, 1, 3], [1, 2, 3]) if rank in ranks]
        names, sums = results["sums"]
        assert names == ["mpi", "shm", *["mpi"] * (len(groups) - 2)]
        assert sums == [sum(2.0**r for r in ranks) for ranks in groups] * 2
        assert results["ngd"] == results["gloo"]  # two terms have only one sum


def mismatch_over_hosts() -> dict[str, str]:
    """Call with different tensors on ranks 1 and 2, which are on different hosts."""
    rank, _ = torch_ranks.join()
    pair = dist.new_group([1, 2])
    if rank == 0:
        return {}
    return harness.caught(lambda: dist.all_reduce(torch.ones(3 + rank), group=pair))


def test_errors_over_hosts_name_global_ranks() -> None:
    with torch_ranks.job(mismatch_over_hosts, 3, **torch_ranks.on_hosts(3)) as job:
        for outcome in job.wait(60)[1:]:
            assert outcome.value["error"] == "CollectiveMismatchError"
            message = outcome.value["message"]
            assert "rank 1" in message
            assert "rank 2" in message
            assert message.endswith("(in the group of the global ranks [1, 2])")
            assert outcome.value["ranks"] == [1, 2]
