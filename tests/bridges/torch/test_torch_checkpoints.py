# SPDX-License-Identifier: Apache-2.0
"""Tests of state dicts of sharded models, and of checkpoints. Both need the device of a group."""

from __future__ import annotations

import json
import sys
import warnings
from datetime import timedelta
from typing import Any

import pytest

from tests.support import harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import (  # noqa: E402
    FullyShardedDataParallel,
    ShardedStateDictConfig,
    StateDictType,
    fully_shard,
)

from tests.bridges.torch import torch_ranks  # noqa: E402

pytestmark = harness.needs_ranks
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
FROM_RANK_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def make_net(seed: int) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


def check_equal(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(got[name], value), name


def full_state(model: Any) -> dict[str, Any]:
    """Return the full state of a sharded model, gathered by PyTorch from the local shards."""
    return {name: value.full_tensor() for name, value in model.state_dict().items()}


def broadcast_a_state_dict() -> None:
    """Load a state dict that only rank 0 has, in the way in which large models are loaded."""
    rank, size = torch_ranks.join()
    model = fully_shard(make_net(rank), mesh=dist.init_device_mesh("cpu", (size,)))
    expected = make_net(100).state_dict()
    state = make_net(100).state_dict() if rank == 0 else {}
    set_model_state_dict(model, state, options=FROM_RANK_0)
    check_equal(full_state(model), expected)
    got = get_model_state_dict(model, options=WHOLE)
    if rank == 0:
        check_equal(got, expected)


def test_a_state_dict_is_broadcast_from_rank_0() -> None:
    torch_ranks.run(broadcast_a_state_dict, 2)


def shard_a_state_dict() -> None:
    """Change the sharded state dict of a FullyShardedDataParallel, and load it again."""
    torch_ranks.join()
    model = FullyShardedDataParallel(make_net(0), device_id=torch.device("cpu"))
    with (
        FullyShardedDataParallel.state_dict_type(
            model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()
        ),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # PyTorch recommends another class
        state = model.state_dict()
        for value in state.values():
            for shard in value.local_shards():
                shard.tensor.mul_(2)
        model.load_state_dict(state)
    expected = {name: 2 * value for name, value in make_net(0).state_dict().items()}
    with FullyShardedDataParallel.summon_full_params(model):
        got = {name: value.detach().clone() for name, value in model.module.named_parameters()}
    check_equal(got, expected)


def test_a_changed_sharded_state_dict_can_be_loaded() -> None:
    torch_ranks.run(shard_a_state_dict, 2)


def save_in_the_background() -> None:
    """Save a checkpoint while the ranks run collectives, and load it into another model."""
    _, size = torch_ranks.join()
    folder = f"{sys.argv[-1]}/checkpoint"
    mesh = dist.init_device_mesh("cpu", (size,))
    model, other = (fully_shard(make_net(seed), mesh=mesh) for seed in (1, 2))
    saved = dcp.async_save(model.state_dict(), checkpoint_id=folder, process_group=dist.new_group())
    for _ in range(20):
        dist.all_reduce(total := torch.ones(3))
        assert total.tolist() == [size] * 3
    saved.result(timeout=60)
    dist.barrier()
    state = other.state_dict()
    dcp.load(state, checkpoint_id=folder)
    other.load_state_dict(state)
    check_equal(full_state(other), make_net(1).state_dict())


def test_a_checkpoint_is_saved_in_the_background() -> None:
    torch_ranks.run(save_in_the_background, 2)


def devices_of_group() -> list[Any]:
    torch_ranks.join()
    group = dist.group.WORLD
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=9))
    devices = [str(device) for device in group._device_types]
    default = str(dist.distributed_c10d._get_pg_default_device(group))
    with pytest.raises(RuntimeError, match=r"expected CPU tensors .*; got cuda"):
        group._get_backend(torch.device("cuda"))
    return json.loads(json.dumps([devices, default, group._get_backend("cpu") is group]))


def test_a_group_is_for_tensors_of_the_cpu() -> None:
    assert torch_ranks.run(devices_of_group, 2) == [[["cpu"], "cpu", True]] * 2
