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
    """The answers of the CPU device and of the group to the queries of the passes."""

    def __init__(self, group: Group, sharing: Sharing | None = None) -> None:
        self.rank, self.size = group.rank, group.size
        self.sharing = sharing or Sharing(group, Partition(group))
        self.threads = _core.thread_count()

    def query(
        self, op: str, inputs: Sequence[Type], outputs: Sequence[Type], attrs: Mapping[str, Any]
    ) -> Verdict:
        """Return the answer of the kernel table, from the cache if it was asked before."""
        attrs_key = tuple([(k, type(v), v) for k, v in attrs.items()])
        return ask(self.threads, op, tuple(inputs), tuple(outputs), attrs_key)

    def first_fit(self, lives: list[tuple[int, int, int]]) -> list[int]:
        """Place blocks in an arena, by one walk in C++; see Target.first_fit."""
        return _core.first_fit(lives)


@lru_cache(maxsize=1 << 16)
def ask(
    threads: int,
    op: str,
    inputs: tuple[Type, ...],
    outputs: tuple[Type, ...],
    attrs: tuple[tuple[str, type, Any], ...],
) -> Verdict:
    """Return the answer of the kernel table for a number of threads.

    The answers are cached, because a step repeats the same layers, and a step for evaluation has
    layers of the step for training. 1, 1.0 and True are equal keys, but different attributes. So
    the types are part of the key.
    """
    name, reasons, _, in_place = DEVICE.query_kernel(
        op,
        [spec(t) for t in inputs],
        [spec(t) for t in outputs],
        native_attrs({name: value for name, _, value in attrs}),
    )
    return Verdict(name is not None, name or reasons, frozenset(in_place))
