# SPDX-License-Identifier: Apache-2.0
"""Python objects between ranks, as pickles."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from .. import comm
from .._util.callsite import call_site
from ..dtypes import Array
from .memory import blocks
from .world import Group, chosen, is_outside


def bytes_of(value: Any) -> Array:
    """What an object travels as."""
    return np.frombuffer(pickle.dumps(value), np.uint8)


def all_gather_object(object_list: list[Any], obj: Any, group: Group | None = None) -> None:
    """Append the objects of all ranks to a list, in their order."""
    ranks, site = chosen(group), call_site()
    if is_outside(ranks):
        return
    object_list += gathered(ranks.group, obj, site)


def gathered(group: comm.Group, value: Any, site: str) -> list[Any]:
    """The objects of all ranks."""
    mine = bytes_of(value)
    with group.under_way():
        counts = group.all_gather(np.array([mine.size]), site=site)
        whole = group.all_gather_v(mine, counts=counts, site=site)
    return [pickle.loads(part.tobytes()) for part in np.split(whole, np.cumsum(counts)[:-1])]


def broadcast_object_list(object_list: list[Any], src: int, group: Group | None = None) -> None:
    """Give every rank the objects of rank `src`, in lists of one length."""
    ranks, where, site = chosen(group), "broadcast_object_list", call_site()
    if is_outside(ranks):
        return
    root = ranks.place_of(src, where, "src")
    given = list(object_list) if root == ranks.rank else None
    found = sent_from(ranks.group, given, root, site)
    if len(found) != len(object_list):
        raise ValueError(
            f"{where}: object_list: expected {len(found)} objects, as rank {src} has; got "
            f"{len(object_list)}"
        )
    object_list[:] = found


def sent_from(group: comm.Group, value: Any, root: int, site: str) -> Any:
    """The object of the root."""
    mine = bytes_of(value)
    with group.under_way():
        size = group.broadcast(np.array([mine.size]), root, site=site)
        data = mine if group.rank == root else np.empty(int(size[0]), np.uint8)
        return pickle.loads(group.broadcast(data, root, site=site))


def scatter_object_list(
    out_object_list: list[Any],
    in_object_list: list[Any] | None = None,
    src: int = 0,
    group: Group | None = None,
) -> None:
    """Give every rank its object of those of rank `src`, as the only one of a list."""
    ranks, where, site = chosen(group), "scatter_object_list", call_site()
    if is_outside(ranks):
        return
    root = ranks.place_of(src, where, "src")
    given = None
    if root == ranks.rank:
        given = blocks(in_object_list, ranks.nranks, where, "in_object_list")
    out_object_list[:] = [sent_from(ranks.group, given, root, site)[ranks.rank]]
