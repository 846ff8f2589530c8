# SPDX-License-Identifier: Apache-2.0
"""The comparison of arrays between ranks by digests, to find ranks that differ from most ranks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ...comm import Group
from ...dtypes import Array


def agree(group: Group, digests: list[bytes], site: str) -> bool:
    """Return whether all ranks of a group pass the same digests to this call.

    All ranks of the group call this.
    """
    return not any(differing_ranks(group, digests, site))


def differing_ranks(group: Group, digests: list[bytes], site: str) -> list[tuple[int, ...]]:
    """Compare a list of digests between the ranks of a group, which all call this.

    Return one tuple per index of the list: the ranks whose digest at this index differs from that
    of most ranks. For example, return [(), (2,)] if only the second digest of rank 2 differs.
    """
    own_digests = np.frombuffer(b"".join(digests), np.uint64)
    everywhere = group.all_gather(own_digests[None], site=site)
    differing = []
    for column in everywhere.T.tolist():
        usual, _ = Counter(column).most_common(1)[0]
        differing.append(tuple(rank for rank, digest in enumerate(column) if digest != usual))
    return differing


def ranks_text(ranks: Sequence[int]) -> str:
    """Return a text for a message that lists ranks by number, such as "ranks 0, 2"."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def digest_of(value: Array) -> bytes:
    """Return a digest of the bits of an array of any dtype."""
    row = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return hashlib.blake2b(row.data, digest_size=8).digest()
