# SPDX-License-Identifier: Apache-2.0
"""Arrays that show the values of variables, and to which a program may write between steps.

If the ranks of a host share a variable, its array is a copy-on-write view of their memory: a write
copies the page for this process, and the other ranks do not see it. `find_written` returns the
variables that such a write has changed. `assign_written` compares their values between the ranks,
and assigns them to the variables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from ... import _core
from ..._util.callsite import call_site
from ...comm import Group
from ...dtypes import Array
from ...errors import VariableMismatchError
from ...graph.variable import Variable
from .rank_comparison import differing_ranks, digest_of, ranks_text
from .storage import CpuStorage

MAX_CHECKED_BYTES: Final = 4096
"""The largest private variable, in bytes, that has a checksum.

A private variable is not in memory that ranks share. A program may write to its array between two
steps. `is_written` then finds that the checksum of the value has changed since the last step. For a
larger private variable there is no checksum, so `is_written` returns False. With sharded weight
updates, most of the larger variables are in shared memory."""


class VariableView:
    """The value of a variable on the CPU device as an array.

    Parameters
    ----------
    of : Variable
        The variable. A step that uses it has been compiled for the CPU device.
    group : Group
        The ranks of the step.
    """

    def __init__(self, of: Variable, group: Group) -> None:
        self.variable = of
        storage = of.storage_in_memory()
        assert isinstance(storage, CpuStorage)
        self._storage = storage
        self._is_checked = group.size > 1 and of.type.bytes <= MAX_CHECKED_BYTES
        self.array: Array
        self._remembered: tuple[int, int] | None = None
        self.show()

    def show(self) -> None:
        """Set the attribute `array` to a view of the memory that has the value now.

        Call this again after a step has moved the value to shared memory: the old array still shows
        the old memory.
        """
        self.array = self._storage.private_view()
        self.remember()

    def remember(self) -> None:
        """Store a checksum of the value after a step, so that `is_written` can find later writes.

        Only a small variable that is not in shared memory has a checksum. The array of a variable
        in shared memory is copy-on-write: `is_written` looks for the pages that a write has copied.
        """
        is_checked = self._is_checked and self.common is None
        self._remembered = self._storage.buffer.checksum() if is_checked else None

    @property
    def common(self) -> _core.CommonMemory | None:
        """The host's shared memory, if it contains the variable; None for a private variable."""
        common = self._storage.buffer.common
        return None if common is None else common[0]

    def is_written(self, copied: list[tuple[int, int]]) -> bool:
        """Return True if this process has changed the array since the last step.

        Parameters
        ----------
        copied : list of (int, int)
            The ranges of bytes of the shared memory of which this process has private copies,
            because it wrote to them.
        """
        common = self._storage.buffer.common
        if common is None:
            remembered = self._remembered
            return remembered is not None and self._storage.buffer.checksum() != remembered
        begin, end = common[1], common[1] + self.array.nbytes
        if not any(first < end and begin < last for first, last in copied):
            return False
        return self.array.tobytes() != self._storage.memory().tobytes()


def find_written(views: Iterable[VariableView]) -> list[VariableView]:
    """Return the views whose arrays this process has changed since the last step."""
    copied: dict[int, list[tuple[int, int]]] = {}
    found = []
    for view in views:
        common = view.common
        if common is not None and id(common) not in copied:
            copied[id(common)] = common.copied()
        if view.is_written(copied.get(id(common), [])):
            found.append(view)
    return found


def assign_written(where: str, views: list[VariableView], group: Group) -> None:
    """Assign to each variable the value that this process has written to the array of its view.

    All ranks of the group call this.

    Raises
    ------
    VariableMismatchError
        The ranks have written different values.
    """
    if not views:
        return
    values = [np.array(view.array) for view in views]
    expect_equal(where, [view.variable for view in views], values, group)
    for view, value in zip(views, values, strict=True):
        view.variable.assign(value)
    for view in views:
        if view.common is not None:
            view.common.discard_copies()
        view.remember()


def expect_equal(where: str, variables: list[Variable], values: list[Array], group: Group) -> None:
    """Raise a VariableMismatchError if the ranks are about to assign different values."""
    if group.size == 1:
        return
    names = ", ".join(repr(of.name) for of in variables[:3])
    site = f"{call_site()} (after writes to {names}{', ...' if len(variables) > 3 else ''})"
    digests = [digest_of(value) for value in values]
    for of, differing in zip(variables, differing_ranks(group, digests, site), strict=True):
        if differing:
            raise VariableMismatchError(
                f"{where}: expected the same write to {of.name!r} on all ranks; got other values "
                f"on {ranks_text(differing)}. Write equal values on all ranks, or call "
                "torch.distributed.broadcast before."
            )
