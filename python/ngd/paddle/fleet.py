# SPDX-License-Identifier: Apache-2.0
"""What of Paddle's Fleet data-parallel training needs.

from ngd.paddle import fleet

fleet.init(is_collective=True)
model = fleet.distributed_model(model)
optimizer = fleet.distributed_optimizer(optimizer)
"""

from __future__ import annotations

import socket
from typing import Any, Final, NoReturn

import numpy as np
import paddle
from paddle.distributed.fleet import DistributedStrategy

from .._util.callsite import call_site
from . import operations, world
from .objects import gathered
from .parallel import DataParallel

SERVED: Final = {
    "find_unused_parameters",
    "fuse_grad_size_in_MB",
    "last_comm_group_size_MB",
    "hybrid_configs",
}
"""The switches of a strategy that have a meaning here."""
IN_PARTS: Final = ("mp_degree", "pp_degree", "sharding_degree", "sep_degree")
MODES: Final = ("sum", "mean", "max", "min")


class _State:
    """What `init` has been told, and has found."""

    def __init__(self) -> None:
        self.strategy: Any = None
        self.hosts: list[str] = []


_state: Final = _State()


def init(
    role_maker: Any = None,
    is_collective: bool = False,
    strategy: DistributedStrategy | None = None,
    log_level: int | str = "INFO",
) -> None:
    """Join the other ranks of the job.

    Parameters
    ----------
    role_maker
        None, or one that was made with is_collective=True.
    is_collective
        True: there are no servers.
    strategy
        Switches; one that has no meaning here is refused by name.
    log_level
        Nothing is logged.

    Raises
    ------
    NotImplementedError
        Servers, or a switch, that are not here.
    """
    if not (is_collective or getattr(role_maker, "_is_collective", False)):
        no_servers("fleet.init: is_collective: expected True")
    ranks = world.init_parallel_env()
    expect_served(strategy, "fleet.init", ranks.nranks)
    _state.strategy = strategy
    _state.hosts = gathered(ranks.group, socket.gethostname(), call_site())


def expect_served(strategy: Any, where: str, size: int) -> None:
    """Refuse a switch that was turned and has no meaning here."""
    if strategy is None:
        return
    if not isinstance(strategy, DistributedStrategy):
        raise TypeError(
            f"{where}: strategy: expected a fleet.DistributedStrategy; got "
            f"{type(strategy).__name__}"
        )
    given, usual = strategy.strategy, DistributedStrategy().strategy
    names = [field.name for field in given.DESCRIPTOR.fields]
    turned = [n for n in names if getattr(given, n) != getattr(usual, n) and n not in SERVED]
    if turned:
        raise NotImplementedError(
            f"{where}: strategy: expected only {', '.join(sorted(SERVED))}; got "
            f"{', '.join(turned)}. Remove the others."
        )
    hybrid = strategy.hybrid_configs
    parts = [name for name in IN_PARTS if hybrid.get(name, 1) > 1]
    if parts or hybrid["dp_degree"] not in (-1, size):
        raise NotImplementedError(
            f"{where}: strategy: hybrid_configs: expected dp_degree {size} or -1, and the others "
            f"1; got { ({n: hybrid[n] for n in ('dp_degree', *parts)}) }"
        )


def begun() -> world.Group:
    """The world that `init` has joined."""
    if not _state.hosts or not world.is_initialized():
        raise RuntimeError(
            "ngd.paddle.fleet: expected an initialized fleet; got none. Call "
            "fleet.init(is_collective=True) first."
        )
    return world.chosen(None)


def distributed_model(model: Any) -> Any:
    """The layer as a DataParallel, as the strategy says; where there is one rank, the layer."""
    if begun().nranks == 1:
        return model
    strategy = _state.strategy or DistributedStrategy()
    return DataParallel(
        model,
        comm_buffer_size=strategy.fuse_grad_size_in_MB,
        last_comm_buffer_size=strategy.last_comm_group_size_MB,
        find_unused_parameters=strategy.find_unused_parameters,
    )


def distributed_optimizer(optimizer: Any, strategy: DistributedStrategy | None = None) -> Any:
    """The optimizer: the gradients of a `distributed_model` are averaged before it sees them."""
    expect_served(strategy, "fleet.distributed_optimizer", begun().nranks)
    if strategy is not None:
        _state.strategy = strategy
    return optimizer


def worker_index() -> int:
    """The number of this process in the world."""
    return begun().rank


def worker_num() -> int:
    """How many ranks there are."""
    return begun().nranks


rank, nranks, world_size = worker_index, worker_num, worker_num


def is_first_worker() -> bool:
    """Whether this is rank 0."""
    return worker_index() == 0


def is_worker() -> bool:
    """True: all ranks are."""
    begun()
    return True


def is_server() -> bool:
    """False: there are none."""
    begun()
    return False


def server_num() -> int:
    """0: there are none."""
    begun()
    return 0


def local_rank() -> int:
    """The number of this process among those of its host."""
    return begun().group.local_rank


def node_num() -> int:
    """How many hosts there are."""
    begun()
    return len(set(_state.hosts))


def worker_endpoints(to_string: bool = False) -> Any:
    """The ranks as "HOST:RANK", in a list or joined by commas; nobody listens there."""
    begun()
    names = [f"{host}:{number}" for number, host in enumerate(_state.hosts)]
    return ",".join(names) if to_string else names


def barrier_worker() -> None:
    """Return when every rank has come."""
    begun()
    operations.barrier()


def all_reduce(input: Any, mode: str = "sum") -> Any:
    """The reduction of numbers, or of an array, over the ranks, as a NumPy array.

    Parameters
    ----------
    input
        A number, an array, or a tensor.
    mode
        "sum", "mean" of floats, "max" or "min".
    """
    if mode not in MODES:
        raise ValueError(f"fleet.all_reduce: mode: expected {', '.join(MODES)}; got {mode!r}")
    given = input.numpy() if isinstance(input, paddle.Tensor) else np.asarray(input)
    return begun().group.all_reduce(given, op=mode, site=call_site())


def no_servers(what: str) -> NoReturn:
    """Refuse what needs parameter servers."""
    raise NotImplementedError(
        f"{what}: expected collective training; got a call for parameter servers, which "
        "ngd.paddle does not have. Use fleet.init(is_collective=True) and DataParallel."
    )


def init_worker(*_: Any, **__: Any) -> NoReturn:
    """Not here: there are no servers."""
    no_servers("fleet.init_worker")


def init_server(*_: Any, **__: Any) -> NoReturn:
    """Not here: there are no servers."""
    no_servers("fleet.init_server")


def run_server(*_: Any, **__: Any) -> NoReturn:
    """Not here: there are no servers."""
    no_servers("fleet.run_server")


def stop_worker(*_: Any, **__: Any) -> NoReturn:
    """Not here: there are no servers."""
    no_servers("fleet.stop_worker")
