# SPDX-License-Identifier: Apache-2.0
"""Facts about the world that need no collective, and errors that all ranks raise together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import numpy as np

from .._util.callsite import call_site
from ..errors import CollectiveError, RemoteRankError
from . import Group
from . import world as distributed
from .launchers import environment

MOST_BYTES: Final = 4096
"""The bytes of an exception's text that the other ranks get."""


def is_initialized() -> bool:
    """Return True if this process has joined the world and not left it.

    Examples
    --------
    >>> ngd.init()
    >>> ngd.is_initialized()
    True
    """
    return distributed.living_world() is not None


def rank() -> int:
    """Return the number of this rank in the world, from 0.

    Before the world is joined, the number is the launcher's, and no other rank is waited for. An
    elastic job numbers its ranks again when it makes a new world.

    Raises
    ------
    InitError
        The launcher's environment variables contradict each other.

    Examples
    --------
    >>> if ngd.rank() == 0:
    ...     print(loss)
    """
    world = distributed.living_world()
    return environment.launched_rank_and_size()[0] if world is None else world.rank


def world_size() -> int:
    """Return the number of ranks in the world.

    Before the world is joined, the number is the launcher's, and no other rank is waited for.

    Raises
    ------
    InitError
        The launcher's environment variables contradict each other.

    Examples
    --------
    >>> samples_per_rank = 1024 // ngd.world_size()
    """
    world = distributed.living_world()
    return environment.launched_rank_and_size()[1] if world is None else world.size


@contextmanager
def raise_together(*, group: Group | None = None) -> Iterator[None]:
    """Raise an exception on all ranks if one rank raises in the block.

    Use it around work that can fail on one rank only, such as reading a file. Without it the other
    ranks would wait for that rank in their next collective. All ranks of the group enter the block.

    Parameters
    ----------
    group : Group, optional
        The ranks. The default is the world.

    Raises
    ------
    Exception
        On a rank that raised in the block: its own exception.
    RemoteRankError
        On the other ranks. It names the first rank that raised and has the text of its exception.
        The group stays usable.

    Examples
    --------
    >>> with ngd.raise_together():
    ...     images = read_images(folder) if ngd.rank() == 0 else None
    """
    ranks, site = distributed.chosen(group), call_site()
    try:
        yield
    except Exception as error:
        with suppress(CollectiveError):  # of a closed group: the other ranks have an error already
            _exchange(ranks, f"{type(error).__name__}: {error}", site)
        raise
    raised = _exchange(ranks, "", site)
    if raised:
        first = min(raised)
        remote = RemoteRankError(
            f"raise_together: expected the block to succeed on all ranks; rank {first} raised "
            f"{raised[first]} (block at {site}). Correct that on rank {first}."
        )
        remote.ranks = tuple(sorted(raised))
        raise remote


def _exchange(ranks: Group, text: str, site: str) -> dict[int, str]:
    """Return the texts that are not empty, by the numbers of the ranks in the world."""
    mine = text.encode(errors="replace")[:MOST_BYTES]
    number = np.array([rank(), len(mine)], np.int64)
    site = f"raise_together() at {site}"
    heads = ranks.all_gather(number.reshape(1, 2), site=site)
    counts = [int(length) for length in heads[:, 1]]
    if not any(counts):
        return {}
    together = ranks.all_gather_v(np.frombuffer(mine, np.uint8), counts=counts, site=site)
    parts = np.split(together, np.cumsum(counts)[:-1])
    return {
        int(number): part.tobytes().decode(errors="replace")
        for (number, length), part in zip(heads, parts, strict=True)
        if length
    }


__all__ = ["is_initialized", "raise_together", "rank", "world_size"]
