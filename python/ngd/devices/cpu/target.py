# SPDX-License-Identifier: Apache-2.0
"""The CPU device as the target of the passes: its kernel table, and the ranks of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from ... import _core
from ...comm import Group
from ...dtypes import Type
from ...passes import Sharing, Verdict
from ...passes.partition import Partition
from ..native import native_attrs, spec

DEVICE: Final = _core.Device("CPU")


class CpuTarget:
    """The object that passes ask about kernels of the CPU, the number of threads and the ranks."""

    def __init__(self, group: Group, sharing: Sharing | None = None) -> None:
        self.rank, self.size = group.rank, group.size
        self.sharing = sharing or Sharing(group, Partition(group))
        self.threads = _core.thread_count()

    def query(
        self, op: str, inputs: Sequence[Type], outputs: Sequence[Type], attrs: Mapping[str, Any]
    ) -> Verdict:
        """Return the kernel for an op on these types, or the reasons for its absence; cached."""
        attrs_key = tuple([(k, type(v), v) for k, v in attrs.items()])
        return ask(self.threads, op, tuple(inputs), tuple(outputs), attrs_key)

    def first_fit(self, lives: list[tuple[int, int, int]]) -> list[int]:
        """Return the byte offset in the arena for each block of memory; see Target.first_fit.

        A block is (first instruction, last instruction, bytes). The offsets are computed in C++.
        """
        return _core.first_fit(lives)


@lru_cache(maxsize=1 << 16)
def ask(
    threads: int,
    op: str,
    inputs: tuple[Type, ...],
    outputs: tuple[Type, ...],
    attrs: tuple[tuple[str, type, Any], ...],
) -> Verdict:
    """Return the kernel for an op on these types, or the reasons for its absence.

    The results are cached, because a step repeats the same layers, and a step for evaluation has
    layers of the step for training. `attrs` has the name, the Python type and the value of each
    attribute. Without the types, attributes with the values 1, 1.0 and True would be one key of the
    cache, but they differ.
    """
    name, reasons, _, in_place = DEVICE.query_kernel(
        op,
        [spec(t) for t in inputs],
        [spec(t) for t in outputs],
        native_attrs({name: value for name, _, value in attrs}),
    )
    return Verdict(name is not None, name or reasons, frozenset(in_place))
