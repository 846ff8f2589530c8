# SPDX-License-Identifier: Apache-2.0
"""The record of the ranks that share a variable, and of the step that began the sharing."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ... import _core
from ..._util.callsite import call_site
from ...comm import Group
from ...dtypes import Array, Type
from ...errors import GroupClosedError
from ...passes.partition import Partition, shard_bounds, shard_lengths


@dataclass(frozen=True)
class SharingRecord:
    """The ranks that share a variable (keep one copy of it together), and where this began.

    `site` is the call site of the step that began the sharing.
    """

    group: Group
    partition: Partition
    site: str
    process: int = field(default_factory=os.getpid)

    @property
    def is_over(self) -> bool:
        """True if the sharing has ended, because a group of ranks is closed or has failed.

        The property checks three groups: all ranks that share the variable, the ranks of this host,
        and the counterparts, which are the ranks with this rank's index on their hosts.
        """
        groups = (self.group, self.partition.host_ranks, self.partition.counterparts)
        return any(g.closed or g.communicator.is_over for g in groups if isinstance(g, Group))

    def span(self, of: Type) -> tuple[int, int]:
        """Return (begin, end), in bytes, of this rank's shard of a variable of type `of`.

        The ranks of one host divide the whole variable into these shards.
        """
        begin, end = self.partition.slice(of.count)
        return begin * of.dtype.itemsize, end * of.dtype.itemsize

    def gathered(self, part: Array, value_type: Type) -> Array:
        """Return the whole value of a variable of which each rank has a part. All ranks call this.

        First the counterparts, which are the ranks with the same index on each host, gather the
        parts of one shard. Then the ranks of each host gather the shards. An error in one of these
        collectives aborts the group of all ranks, because ranks of other hosts may wait for ranks
        that the error has stopped.
        """
        site, groups = call_site(), (self.partition.counterparts, self.partition.host_ranks)
        begin, end = self.partition.slice(value_type.count)
        communicating = [g for g in groups if isinstance(g, Group) and g.size > 1]
        with _core.AbortOnError([g.communicator for g in communicating], [self.group.abort], False):
            for ranks in communicating:
                count = end - begin if ranks is self.partition.counterparts else value_type.count
                counts = shard_lengths(shard_bounds(count, ranks.size))
                part = ranks.all_gather_v(part, counts=counts, site=site)
        return part.reshape(value_type.shape)

    def map_privately(self, memory: _core.CommonMemory) -> None:
        """Map the host's common memory a second time in this process, copy on write.

        A write of this process to the new mapping changes a private copy of the page. Other ranks
        do not see it.
        """
        host = self.partition.host_ranks
        assert isinstance(host, Group)
        host.communicator.map_privately(memory)

    def expect_process(self, name: str) -> None:
        """Raise a GroupClosedError if this process is a forked child of a rank.

        A forked child must not read shared memory. It takes no part in the barriers of the ranks,
        so a rank may write to the memory while the child reads.
        """
        if os.getpid() != self.process:
            raise GroupClosedError(
                f"variable {name!r}: expected a read by a rank, because the ranks share it since "
                f"the step compiled at {self.site}; got one by a forked child. Read it before the "
                "fork, or start a new program (spawn)."
            )
