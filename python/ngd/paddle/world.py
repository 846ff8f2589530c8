# SPDX-License-Identifier: Apache-2.0
"""Who takes part: the world and its groups, by paddle.distributed's names."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import paddle

from .. import comm
from ..comm.checks import position_of_world_rank
from ..comm.launchers.detect import detect
from ..comm.world import init
from ..errors import InitError

TOLD: Final = ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")
"""Where PaddlePaddle's own parts, such as DistributedBatchSampler, look for rank and size."""


class Group:
    """Ranks that communicate, with the attributes of Paddle's own.

    Attributes
    ----------
    rank
        The number of this process in it; -1 where it is no member.
    ranks, nranks
        The ranks of the world that belong to it, in its order, and how many they are.
    world_size
        nranks; -1 where this process is no member.
    id, name
        0 is the world.
    """

    backend: Final = "ngd"

    def __init__(self, group: comm.Group, ranks: Sequence[int], number: int) -> None:
        self.group = group
        """The same ranks, as ngd has them."""
        self.rank = group.rank
        self.ranks = list(ranks)
        self.nranks = len(self.ranks)
        self.world_size = self.nranks if group.is_member else -1
        self.id = number
        self.name = f"_default_pg{number}"

    def __repr__(self) -> str:
        ranks = ", ".join(map(str, self.ranks))
        return f"rank: {self.rank}, nranks: {self.nranks}, id: {self.id}, ranks: {ranks}"

    @property
    def process_group(self) -> comm.Group:
        """The same ranks, as ngd has them."""
        return self.group

    def is_member(self) -> bool:
        """Whether this process belongs to it."""
        return self.rank >= 0

    def get_group_rank(self, rank: int) -> int:
        """The number in it of a rank of the world; -1 where that, or this process, is no member."""
        return self.ranks.index(rank) if self.is_member() and rank in self.ranks else -1

    def get_global_rank(self, rank: int) -> int:
        """The rank of the world that has this number in it; -1 where this process is no member."""
        return self.ranks[rank] if self.is_member() else -1

    def place_of(self, rank: int, where: str, name: str) -> int:
        """Return the number in the group of a rank of the world, which must be a member."""
        return position_of_world_rank(rank, self.ranks, where, name)


class _Known:
    """The groups that there are, by their numbers."""

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}
        self.next = 1
        self.told = False
        """Whether `TOLD` are ngd's words."""


_known: Final = _Known()


def init_parallel_env(nccl_config: Any = None) -> Group:
    """Join the other ranks of the job; idempotent.

    PaddlePaddle's own parts are told rank and size, in this process's environment.

    Raises
    ------
    InitError
        paddle.distributed.launch has started this process, or ngd.init() finds a fault.
    """
    if nccl_config is not None:
        raise ValueError(
            f"init_parallel_env: nccl_config: expected None; got {nccl_config!r}. Leave it out: "
            "ngd does not use NCCL."
        )
    if not paddle.in_dynamic_mode():
        raise RuntimeError(
            "init_parallel_env: expected dynamic mode; got static mode. Call "
            "paddle.disable_static() first."
        )
    if is_initialized():
        return _known.groups[0]
    check_launcher()
    world = init()
    _known.groups = {0: Group(world, range(world.size), 0)}
    _known.next = 1
    os.environ.update(zip(TOLD, (str(world.rank), str(world.size)), strict=True))
    _known.told = True
    return _known.groups[0]


def check_launcher() -> None:
    """Refuse a job that Paddle's launcher has started: ngd does not know of its ranks."""
    theirs = os.environ.get(TOLD[1], "1")
    ours = detect().size
    if theirs not in ("1", str(ours)) and not _known.told:
        raise InitError(
            f"init_parallel_env: expected {theirs} ranks, as PADDLE_TRAINERS_NUM says; got {ours} "
            f"from ngd's launcher. Start the job by `ngd run -n {theirs} SCRIPT`."
        )


def is_initialized() -> bool:
    """Whether there is a world."""
    world = _known.groups.get(0)
    return world is not None and not world.group.closed


def is_available() -> bool:
    """True: there are always collectives."""
    return True


def get_rank(group: Group | None = None) -> int:
    """The number of this process in a group, or the world; -1 where it is no member."""
    if group is not None:
        return group.rank
    return chosen(None).rank if is_initialized() else detect().rank


def get_world_size(group: Group | None = None) -> int:
    """How many ranks a group, or the world, has; -1 where this process is no member."""
    if group is not None:
        return group.world_size
    return chosen(None).nranks if is_initialized() else detect().size


def get_backend(group: Group | None = None) -> str:
    """What a group communicates by: "ngd"."""
    return chosen(group).backend


def new_group(
    ranks: Sequence[int] | None = None, backend: str | None = None, timeout: Any = None
) -> Group:
    """Make a group; all ranks of the world call it alike, members or not.

    Parameters
    ----------
    ranks
        Of the world, each once; all of them by default. They are numbered in rising order.
    backend
        None, "ngd" or "gloo": there is one.
    timeout
        None: NGD_TIMEOUT is the deadline of all groups.
    """
    world = chosen(None)
    if backend not in (None, "ngd", "gloo"):
        raise ValueError(f"new_group: backend: expected None, 'ngd' or 'gloo'; got {backend!r}")
    if timeout is not None:
        raise ValueError(
            f"new_group: timeout: expected None; got {timeout!r}. Set NGD_TIMEOUT, the deadline of "
            "all groups."
        )
    wanted = sorted(world.ranks if ranks is None else ranks)
    if not wanted or len(set(wanted)) < len(wanted) or not set(wanted) <= set(world.ranks):
        raise ValueError(
            f"new_group: ranks: expected ranks from 0 to {world.nranks - 1}, each once; got "
            f"{ranks!r}"
        )
    number = _known.next
    mine = 0 if world.rank in wanted else None
    made = Group(world.group.split(mine, name=f"Paddle's group {number}"), wanted, number)
    _known.next += 1
    _known.groups[number] = made
    return made


def get_group(id: int = 0) -> Group | None:
    """The group of a number; None, and a warning, where there is none."""
    if id not in _known.groups:
        warnings.warn(f"Group {id} is not initialized.", stacklevel=2)
    return _known.groups.get(id)


def destroy_process_group(group: Group | None = None) -> None:
    """Leave a group, or all of them; all of its ranks call it. `ngd.shutdown()` ends the world."""
    world = chosen(None)
    ending = world if group is None else group
    if _known.groups.get(ending.id) is not ending:
        raise ValueError(f"destroy_process_group: expected a group that there is; got {ending!r}")
    for each in [ending] if ending.id else list(_known.groups.values()):
        del _known.groups[each.id]
        if each.id:
            each.group.close()


def chosen(group: Group | None) -> Group:
    """The group that a caller names, or the world."""
    if group is None:
        if not is_initialized():
            raise RuntimeError(
                "ngd.paddle: expected a world; got none. Call init_parallel_env() first."
            )
        return _known.groups[0]
    if not isinstance(group, Group):
        raise TypeError(f"group: expected one of ngd.paddle.new_group; got {type(group).__name__}")
    return group


def is_outside(group: Group, stacklevel: int = 3) -> bool:
    """Return whether this process is not a member: Paddle then warns, and does nothing."""
    if not group.is_member():
        warnings.warn(
            f"rank {get_rank()} is not in the group of the ranks {group.ranks}",
            stacklevel=stacklevel,
        )
    return not group.is_member()


def spawn(*_: Any, **__: Any) -> NoReturn:
    """Not here: a launcher starts the ranks."""
    raise NotImplementedError(
        "ngd.paddle.spawn: expected ranks of a launcher; got a call to start them. Run the script "
        "by `ngd run -n N SCRIPT`, or another launcher."
    )


def launch(*_: Any, **__: Any) -> NoReturn:
    """Not here: a launcher starts the ranks."""
    raise NotImplementedError(
        "ngd.paddle.launch: expected ranks of a launcher; got a call to start them. Run the script "
        "by `ngd run -n N SCRIPT`, or another launcher."
    )
