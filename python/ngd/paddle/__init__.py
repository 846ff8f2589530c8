# SPDX-License-Identifier: Apache-2.0
"""The API of `paddle.distributed` for PaddlePaddle's CPU tensors, on ngd's collectives.

    import ngd.paddle as dist

    dist.init_parallel_env()
    model = dist.DataParallel(model)

docs/paddle.md lists the supported functions and the differences.
"""

from .._util.links import page_url as _page_url

try:
    import paddle as _paddle  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "paddle":
        raise
    raise ImportError(
        "ngd.paddle: expected PaddlePaddle; got none. Install it: pip install paddlepaddle"
    ) from None
except ImportError as error:
    if "dnnl" not in str(error):
        raise
    raise ImportError(
        "ngd.paddle: expected one library libdnnl.so.3 in the process; got that of PaddlePaddle "
        "and that of this build of ngd. Install a wheel of ngd, or build it with "
        f"--config-settings=cmake.define.NGD_ONEDNN=OFF. See {_page_url('paddle')}"
    ) from error

from paddle.distributed import ParallelEnv, ReduceOp

from . import fleet, functional
from .objects import all_gather_object, broadcast_object_list, scatter_object_list
from .operations import (
    P2POp,
    Task,
    all_gather,
    all_reduce,
    alltoall,
    alltoall_single,
    barrier,
    batch_isend_irecv,
    broadcast,
    gather,
    irecv,
    isend,
    recv,
    reduce,
    reduce_scatter,
    scatter,
    send,
    wait,
)
from .parallel import DataParallel
from .world import (
    Group,
    destroy_process_group,
    get_backend,
    get_group,
    get_rank,
    get_world_size,
    init_parallel_env,
    is_available,
    is_initialized,
    launch,
    new_group,
    spawn,
)

__all__ = [
    "DataParallel",
    "Group",
    "P2POp",
    "ParallelEnv",
    "ReduceOp",
    "Task",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "alltoall",
    "alltoall_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "fleet",
    "functional",
    "gather",
    "get_backend",
    "get_group",
    "get_rank",
    "get_world_size",
    "init_parallel_env",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "launch",
    "new_group",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "scatter_object_list",
    "send",
    "spawn",
    "wait",
]
