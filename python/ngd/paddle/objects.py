# SPDX-License-Identifier: Apache-2.0
"""Collectives on Python objects, which are sent as pickles."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from .. import comm
from .._util.callsite import call_site
from ..dtypes import Array
from .memory import blocks
from .world import Group, group_or_world, is_outside


def bytes_of(value: Any) -> Array:
    """Return the pickle of an object as an array of bytes."""
    return np.frombuffer(pickle.dumps(value), np.uint8)


def all_gather_object(object_list: list[Any], obj: Any, group: Group | None = None) -> None:
    """Append the objects of all ranks to `object_list`, in the order of the ranks.

    Corresponds to `paddle.distributed.all_gather_object`.

    Parameters
    ----------
    object_list : list
        The list that gets the objects.
    obj : object
        The object of this rank. It must be picklable.
    group : Group, optional
        The ranks; by default the world.
    """
    ranks, site = group_or_world(group), call_site()
    if is_outside(ranks):
        return
    object_list += gather_objects(ranks.group, obj, site)


def gather_objects(group: comm.Group, value: Any, site: str) -> list[Any]:
    """Return the list of the objects of all ranks."""
    pickled = bytes_of(value)
    with group.collectives_scope():
        counts = group.all_gather(np.array([pickled.size]), site=site)
        all_pickles = group.all_gather_v(pickled, counts=counts, site=site)
    return [pickle.loads(part.tobytes()) for part in np.split(all_pickles, np.cumsum(counts)[:-1])]


def broadcast_object_list(object_list: list[Any], src: int, group: Group | None = None) -> None:
    """Replace the elements of `object_list` on all ranks by those of rank `src`.

    The lists must have the same length on all ranks.

    Corresponds to `paddle.distributed.broadcast_object_list`.

    Parameters
    ----------
    object_list : list
        The objects to send, or the list to overwrite.
    src : int
        The rank of the world that sends.
    group : Group, optional
        The ranks; by default the world.
    """
    ranks, where, site = group_or_world(group), "broadcast_object_list", call_site()
    if is_outside(ranks):
        return
    root = ranks.group_rank_of(src, where, "src")
    objects = list(object_list) if root == ranks.rank else None
    received = broadcast_pickled(ranks.group, objects, root, site)
    if len(received) != len(object_list):
        raise ValueError(
            f"{where}: object_list: expected {len(received)} objects, as rank {src} has; got "
            f"{len(object_list)}"
        )
    object_list[:] = received


def broadcast_pickled(group: comm.Group, value: Any, root: int, site: str) -> Any:
    """Send the root's object to all ranks as a pickle, and return it on every rank."""
    pickled = bytes_of(value)
    with group.collectives_scope():
        size = group.broadcast(np.array([pickled.size]), root, site=site)
        data = pickled if group.rank == root else np.empty(int(size[0]), np.uint8)
        return pickle.loads(group.broadcast(data, root, site=site))


def scatter_object_list(
    out_object_list: list[Any],
    in_object_list: list[Any] | None = None,
    src: int = 0,
    group: Group | None = None,
) -> None:
    """Overwrite `out_object_list` by one element: the object that rank `src` sends to this rank.

    Corresponds to `paddle.distributed.scatter_object_list`.

    Parameters
    ----------
    out_object_list : list
        The list that gets the object of this rank.
    in_object_list : list, optional
        On `src`: one object per rank. It is ignored on the other ranks.
    src : int
        The rank of the world that sends.
    group : Group, optional
        The ranks; by default the world.
    """
    ranks, where, site = group_or_world(group), "scatter_object_list", call_site()
    if is_outside(ranks):
        return
    root = ranks.group_rank_of(src, where, "src")
    objects = None
    if root == ranks.rank:
        objects = blocks(in_object_list, ranks.nranks, where, "in_object_list")
    out_object_list[:] = [broadcast_pickled(ranks.group, objects, root, site)[ranks.rank]]
