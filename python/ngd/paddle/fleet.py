# SPDX-License-Identifier: Apache-2.0
"""The part of Paddle's Fleet API that data-parallel training needs.

    from ngd.paddle import fleet

    fleet.init(is_collective=True)
    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(optimizer)

docs/paddle.md lists the supported functions and the differences.
"""

from __future__ import annotations

import socket
from typing import Any, Final, NoReturn

import numpy as np
import paddle
from paddle.distributed.fleet import DistributedStrategy

from .._util.callsite import call_site
from . import operations, world
from .objects import gather_objects
from .parallel import DataParallel

SUPPORTED: Final = {
    "find_unused_parameters",
    "fuse_grad_size_in_MB",
    "last_comm_group_size_MB",
    "hybrid_configs",
}
"""The settings of a DistributedStrategy that have an effect. All other settings must have their
defaults."""
MODEL_PARALLEL_DEGREES: Final = ("mp_degree", "pp_degree", "sharding_degree", "sep_degree")
"""The settings of `hybrid_configs` that divide a model among ranks.

The value of each setting must be 1, because ngd.paddle does not divide models.
"""
MODES: Final = ("sum", "mean", "max", "min")
"""The values of the argument `mode` of `all_reduce`, which are also ngd's names of reductions."""


class _State:
    """The state of this module: the DistributedStrategy, and the host name of each rank."""

    def __init__(self) -> None:
        self.strategy: Any = None
        """The argument `strategy` of `init` or `distributed_optimizer`; None if not given."""
        self.hosts: list[str] = []
        """The host name of each rank, in the order of the ranks; empty before `init`."""


_state: Final = _State()


def init(
    role_maker: Any = None,
    is_collective: bool = False,
    strategy: DistributedStrategy | None = None,
    log_level: int | str = "INFO",
) -> None:
    """Join the other ranks of the job.

    Corresponds to `paddle.distributed.fleet.init`.

    Parameters
    ----------
    role_maker : RoleMaker, optional
        None, or a role maker that was created with is_collective=True.
    is_collective : bool
        It must be True unless `role_maker` is given, because ngd.paddle has no parameter servers.
    strategy : DistributedStrategy, optional
        The settings. `find_unused_parameters`, `fuse_grad_size_in_MB` and `last_comm_group_size_MB`
        are used. In `hybrid_configs`, `dp_degree` must be -1 or the number of ranks, and the other
        degrees must be 1. Each other setting must have its default.
    log_level : int or str
        Ignored: nothing is logged.

    Raises
    ------
    NotImplementedError
        The call asks for parameter servers, or `strategy` has a setting that is not supported.
    """
    if not (is_collective or getattr(role_maker, "_is_collective", False)):
        raise_no_servers("fleet.init: is_collective: expected True")
    ranks = world.init_parallel_env()
    expect_supported(strategy, "fleet.init", ranks.nranks)
    _state.strategy = strategy
    _state.hosts = gather_objects(ranks.group, socket.gethostname(), call_site())


def expect_supported(strategy: Any, where: str, size: int) -> None:
    """Raise NotImplementedError if ngd.paddle does not support a setting of `strategy`.

    Settings that are not in `SUPPORTED` must have their defaults. In `hybrid_configs`, `dp_degree`
    must be -1 or `size`, the number of ranks, and the degrees that divide the model must be 1.
    """
    if strategy is None:
        return
    if not isinstance(strategy, DistributedStrategy):
        raise TypeError(
            f"{where}: strategy: expected a fleet.DistributedStrategy; got "
            f"{type(strategy).__name__}"
        )
    given, default = strategy.strategy, DistributedStrategy().strategy
    names = [field.name for field in given.DESCRIPTOR.fields]
    changed = [n for n in names if getattr(given, n) != getattr(default, n) and n not in SUPPORTED]
    if changed:
        raise NotImplementedError(
            f"{where}: strategy: expected only {', '.join(sorted(SUPPORTED))}; got "
            f"{', '.join(changed)}. Remove the others."
        )
    hybrid = strategy.hybrid_configs
    parts = [name for name in MODEL_PARALLEL_DEGREES if hybrid.get(name, 1) > 1]
    if parts or hybrid["dp_degree"] not in (-1, size):
        raise NotImplementedError(
            f"{where}: strategy: hybrid_configs: expected dp_degree {size} or -1, and the others "
            f"1; got { ({n: hybrid[n] for n in ('dp_degree', *parts)}) }"
        )


def expect_initialized() -> world.Group:
    """Return the world that `init` has joined; raise RuntimeError before a call of `init`."""
    if not _state.hosts or not world.is_initialized():
        raise RuntimeError(
            "ngd.paddle.fleet: expected an initialized fleet; got none. Call "
            "fleet.init(is_collective=True) first."
        )
    return world.group_or_world(None)


def distributed_model(model: Any) -> Any:
    """Return the layer as a DataParallel with the settings of the strategy.

    If there is only one rank, the layer itself is returned.

    Corresponds to `paddle.distributed.fleet.distributed_model`.
    """
    if expect_initialized().nranks == 1:
        return model
    strategy = _state.strategy or DistributedStrategy()
    return DataParallel(
        model,
        comm_buffer_size=strategy.fuse_grad_size_in_MB,
        last_comm_buffer_size=strategy.last_comm_group_size_MB,
        find_unused_parameters=strategy.find_unused_parameters,
    )


def distributed_optimizer(optimizer: Any, strategy: DistributedStrategy | None = None) -> Any:
    """Return the optimizer itself.

    The gradients of a `distributed_model` are averaged before the optimizer reads them. If
    `strategy` is given, it replaces the strategy of `init` for later calls of `distributed_model`.
    A model that `distributed_model` has returned already keeps its settings.

    Corresponds to `paddle.distributed.fleet.distributed_optimizer`.
    """
    expect_supported(strategy, "fleet.distributed_optimizer", expect_initialized().nranks)
    if strategy is not None:
        _state.strategy = strategy
    return optimizer


def worker_index() -> int:
    """Return the rank of this process in the world.

    Corresponds to `paddle.distributed.fleet.worker_index`.
    """
    return expect_initialized().rank


def worker_num() -> int:
    """Return the number of ranks in the world.

    Corresponds to `paddle.distributed.fleet.worker_num`.
    """
    return expect_initialized().nranks


rank, nranks, world_size = worker_index, worker_num, worker_num


def is_first_worker() -> bool:
    """Return True on rank 0.

    Corresponds to `paddle.distributed.fleet.is_first_worker`.
    """
    return worker_index() == 0


def is_worker() -> bool:
    """Return True: every rank is a worker.

    Corresponds to `paddle.distributed.fleet.is_worker`.
    """
    expect_initialized()
    return True


def is_server() -> bool:
    """Return False: there are no parameter servers.

    Corresponds to `paddle.distributed.fleet.is_server`.
    """
    expect_initialized()
    return False


def server_num() -> int:
    """Return 0: there are no parameter servers.

    Corresponds to `paddle.distributed.fleet.server_num`.
    """
    expect_initialized()
    return 0


def local_rank() -> int:
    """Return the rank of this process among those of its host.

    Corresponds to `paddle.distributed.fleet.local_rank`.
    """
    return expect_initialized().group.local_rank


def node_num() -> int:
    """Return the number of hosts.

    Corresponds to `paddle.distributed.fleet.node_num`.
    """
    expect_initialized()
    return len(set(_state.hosts))


def worker_endpoints(to_string: bool = False) -> Any:
    """Return the ranks in the form "HOST:RANK".

    The result is a list of strings, or one string with commas if `to_string` is True. RANK is the
    number of the rank and not a port: no process listens at these addresses.

    Corresponds to `paddle.distributed.fleet.worker_endpoints`.
    """
    expect_initialized()
    names = [f"{host}:{number}" for number, host in enumerate(_state.hosts)]
    return ",".join(names) if to_string else names


def barrier_worker() -> None:
    """Wait until every rank has called this function.

    Corresponds to `paddle.distributed.fleet.barrier_worker`.
    """
    expect_initialized()
    operations.barrier()


def all_reduce(input: Any, mode: str = "sum") -> Any:
    """Return the reduction of a value over the ranks, as a NumPy array.

    Corresponds to `paddle.distributed.fleet.utils.all_reduce`.

    Parameters
    ----------
    input : number, array or tensor
        The value of this rank.
    mode : str
        "sum", "mean" (of floats), "max" or "min".
    """
    if mode not in MODES:
        raise ValueError(f"fleet.all_reduce: mode: expected {', '.join(MODES)}; got {mode!r}")
    given = input.numpy() if isinstance(input, paddle.Tensor) else np.asarray(input)
    return expect_initialized().group.all_reduce(given, op=mode, site=call_site())


def raise_no_servers(what: str) -> NoReturn:
    """Raise NotImplementedError for the call `what`, which needs parameter servers."""
    raise NotImplementedError(
        f"{what}: expected collective training; got a call for parameter servers, which "
        "ngd.paddle does not have. Use fleet.init(is_collective=True) and DataParallel."
    )


def init_worker(*_: Any, **__: Any) -> NoReturn:
    """Raise NotImplementedError: there are no parameter servers."""
    raise_no_servers("fleet.init_worker")


def init_server(*_: Any, **__: Any) -> NoReturn:
    """Raise NotImplementedError: there are no parameter servers."""
    raise_no_servers("fleet.init_server")


def run_server(*_: Any, **__: Any) -> NoReturn:
    """Raise NotImplementedError: there are no parameter servers."""
    raise_no_servers("fleet.run_server")


def stop_worker(*_: Any, **__: Any) -> NoReturn:
    """Raise NotImplementedError: there are no parameter servers."""
    raise_no_servers("fleet.stop_worker")
