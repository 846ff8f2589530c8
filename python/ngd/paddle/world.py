# SPDX-License-Identifier: Apache-2.0
"""The world and its groups under the names of `paddle.distributed`."""

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

RANK_VARIABLES: Final = ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")
"""Two environment variables: the rank of this process, and the number of ranks.

Parts of PaddlePaddle, such as DistributedBatchSampler, read these variables.
"""


class Group:
    """A group of ranks, with the attributes of Paddle's groups.

    Corresponds to `paddle.distributed.communication.group.Group`.

    Attributes
    ----------
    rank : int
        The rank of this process in the group; -1 if it is not a member.
    ranks : list of int
        The ranks of the world that belong to the group, in the order of the group.
    nranks : int
        The number of ranks in the group.
    world_size : int
        `nranks`, or -1 if this process is not a member.
    id : int
        The number of the group; 0 is the world.
    name : str
        The name of the group.
    """

    backend: Final = "ngd"

    def __init__(self, group: comm.Group, ranks: Sequence[int], number: int) -> None:
        self.group = group
        """The ngd.Group with the same ranks, which does the communication."""
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
        """The ngd.Group with the same ranks: the attribute `group` under Paddle's name."""
        return self.group

    def is_member(self) -> bool:
        """Return True if this process belongs to the group."""
        return self.rank >= 0

    def get_group_rank(self, rank: int) -> int:
        """Return the rank in this group of the process with rank `rank` in the world.

        The result is -1 if that process or this process is not a member.
        """
        return self.ranks.index(rank) if self.is_member() and rank in self.ranks else -1

    def get_global_rank(self, rank: int) -> int:
        """Return the rank in the world of the member whose rank in this group is `rank`.

        The result is -1 if this process is not a member.
        """
        return self.ranks[rank] if self.is_member() else -1

    def group_rank_of(self, rank: int, where: str, name: str) -> int:
        """Return the rank in this group of the process with rank `rank` in the world.

        Raise ValueError if that process is not a member; `get_group_rank` returns -1 instead. The
        message shows `where`, the public call, and `name`, the argument.
        """
        return position_of_world_rank(rank, self.ranks, where, name)


class _Groups:
    """The groups that exist in this process."""

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}
        """All groups by number, including groups that do not have this rank. Number 0 is the
        world."""
        self.next_id = 1
        self.has_set_variables = False
        """True if ngd has set the environment variables `RANK_VARIABLES`."""


_groups: Final = _Groups()


def init_parallel_env(nccl_config: Any = None) -> Group:
    """Join the other ranks of the job and return the world. Later calls return the same world.

    The rank and the number of ranks are also stored in environment variables of this process, for
    other parts of PaddlePaddle.

    Corresponds to `paddle.distributed.init_parallel_env`.

    Parameters
    ----------
    nccl_config
        It must be None.

    Raises
    ------
    InitError
        paddle.distributed.launch has started this process, or ngd.init() has failed.
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
        return _groups.groups[0]
    check_launcher()
    world = init()
    _groups.groups = {0: Group(world, range(world.size), 0)}
    _groups.next_id = 1
    os.environ.update(zip(RANK_VARIABLES, (str(world.rank), str(world.size)), strict=True))
    _groups.has_set_variables = True
    return _groups.groups[0]


def check_launcher() -> None:
    """Raise InitError if `paddle.distributed.launch` has started this job.

    Paddle's launcher sets PADDLE_TRAINERS_NUM to the number of ranks, but ngd cannot connect these
    ranks. The error is raised if this number is neither 1 nor the number of ranks that ngd has
    detected. A number that ngd itself has set is accepted. Start the job by `ngd run` instead.
    """
    paddle_size = os.environ.get(RANK_VARIABLES[1], "1")
    ngd_size = detect().size
    if paddle_size not in ("1", str(ngd_size)) and not _groups.has_set_variables:
        raise InitError(
            f"init_parallel_env: expected {paddle_size} ranks, as PADDLE_TRAINERS_NUM says; got "
            f"{ngd_size} from ngd's launcher. Start the job by `ngd run -n {paddle_size} SCRIPT`."
        )


def is_initialized() -> bool:
    """Return True if this process has joined a world that is not closed.

    Corresponds to `paddle.distributed.is_initialized`.
    """
    world = _groups.groups.get(0)
    return world is not None and not world.group.closed


def is_available() -> bool:
    """Return True: collectives are always available.

    Corresponds to `paddle.distributed.is_available`.
    """
    return True


def get_rank(group: Group | None = None) -> int:
    """Return the rank of this process in a group, by default the world; -1 if it is not a member.

    Corresponds to `paddle.distributed.get_rank`.
    """
    if group is not None:
        return group.rank
    return group_or_world(None).rank if is_initialized() else detect().rank


def get_world_size(group: Group | None = None) -> int:
    """Return the number of ranks in a group, by default the world; -1 if this rank is not a member.

    Corresponds to `paddle.distributed.get_world_size`.
    """
    if group is not None:
        return group.world_size
    return group_or_world(None).nranks if is_initialized() else detect().size


def get_backend(group: Group | None = None) -> str:
    """Return the name of the backend of a group, "ngd".

    Corresponds to `paddle.distributed.get_backend`.
    """
    return group_or_world(group).backend


def new_group(
    ranks: Sequence[int] | None = None, backend: str | None = None, timeout: Any = None
) -> Group:
    """Create a group of some ranks of the world.

    All ranks of the world call this function with the same `ranks`, including ranks that are not
    members.

    Corresponds to `paddle.distributed.new_group`.

    Parameters
    ----------
    ranks : sequence of int, optional
        The ranks of the world that belong to the group, each once; by default all. The group
        numbers its ranks in ascending order of the ranks of the world, for any order of `ranks`.
    backend : str, optional
        None, "ngd" or "gloo". The group always communicates by ngd.
    timeout
        It must be None: NGD_TIMEOUT sets the timeout of all groups.
    """
    world = group_or_world(None)
    if backend not in (None, "ngd", "gloo"):
        raise ValueError(f"new_group: backend: expected None, 'ngd' or 'gloo'; got {backend!r}")
    if timeout is not None:
        raise ValueError(
            f"new_group: timeout: expected None; got {timeout!r}. Set NGD_TIMEOUT, the deadline of "
            "all groups."
        )
    members = sorted(world.ranks if ranks is None else ranks)
    if not members or len(set(members)) < len(members) or not set(members) <= set(world.ranks):
        raise ValueError(
            f"new_group: ranks: expected ranks from 0 to {world.nranks - 1}, each once; got "
            f"{ranks!r}"
        )
    number = _groups.next_id
    color = 0 if world.rank in members else None
    new = Group(world.group.split(color, name=f"Paddle's group {number}"), members, number)
    _groups.next_id += 1
    _groups.groups[number] = new
    return new


def get_group(id: int = 0) -> Group | None:
    """Return the group with the number `id`; warn and return None if it does not exist.

    Corresponds to `paddle.distributed.get_group`.
    """
    if id not in _groups.groups:
        warnings.warn(f"Group {id} is not initialized.", stacklevel=2)
    return _groups.groups.get(id)


def destroy_process_group(group: Group | None = None) -> None:
    """Leave a group, or all groups if `group` is the world. All ranks of the group call it.

    `group` is by default the world. This function only removes groups of `ngd.paddle`: ngd's own
    world stays connected until `ngd.shutdown()`.

    Corresponds to `paddle.distributed.destroy_process_group`.
    """
    world = group_or_world(None)
    target = world if group is None else group
    if _groups.groups.get(target.id) is not target:
        raise ValueError(f"destroy_process_group: expected an existing group; got {target!r}")
    for each in [target] if target.id else list(_groups.groups.values()):
        del _groups.groups[each.id]
        if each.id:
            each.group.close()


def group_or_world(group: Group | None) -> Group:
    """Return the group, or the world if `group` is None."""
    if group is None:
        if not is_initialized():
            raise RuntimeError(
                "ngd.paddle: expected a world; got none. Call init_parallel_env() first."
            )
        return _groups.groups[0]
    if not isinstance(group, Group):
        raise TypeError(f"group: expected one of ngd.paddle.new_group; got {type(group).__name__}")
    return group


def is_outside(group: Group, stacklevel: int = 3) -> bool:
    """Return True and warn if this process is not a member of the group; otherwise return False.

    Paddle's functions warn in the same case.
    """
    if not group.is_member():
        warnings.warn(
            f"rank {get_rank()} is not in the group of the ranks {group.ranks}",
            stacklevel=stacklevel,
        )
    return not group.is_member()


def spawn(*_: Any, **__: Any) -> NoReturn:
    """Raise NotImplementedError: use `ngd run`, mpirun, srun or torchrun to start the ranks."""
    raise NotImplementedError(
        "ngd.paddle.spawn: expected ranks of a launcher; got a call to start them. Run the script "
        "by `ngd run -n N SCRIPT`, or another launcher."
    )


def launch(*_: Any, **__: Any) -> NoReturn:
    """Raise NotImplementedError: use `ngd run`, mpirun, srun or torchrun to start the ranks."""
    raise NotImplementedError(
        "ngd.paddle.launch: expected ranks of a launcher; got a call to start them. Run the script "
        "by `ngd run -n N SCRIPT`, or another launcher."
    )
