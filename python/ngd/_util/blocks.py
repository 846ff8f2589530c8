# SPDX-License-Identifier: Apache-2.0
"""The open `with` blocks that do not affect a compiled step, such as `nn.training`.

An @ngd.function is traced once, and its later calls run the compiled step. The trace does not
record the blocks around a call, so later calls would ignore these blocks. To prevent this, a call
of an @ngd.function inside such a block raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_open: Final[ContextVar[tuple[str, ...]]] = ContextVar("open blocks", default=())


def open_blocks() -> tuple[str, ...]:
    """Return the names of the open blocks, starting with the outermost."""
    return _open.get()


@contextmanager
def open_block(name: str) -> Iterator[None]:
    """Add the name of a block to `open_blocks()` while this context is active."""
    token = _open.set((*_open.get(), name))
    try:
        yield
    finally:
        _open.reset(token)


@contextmanager
def suspend_block(name: str) -> Iterator[None]:
    """Remove the name of a block from `open_blocks()` while this context is active."""
    token = _open.set(tuple(each for each in _open.get() if each != name))
    try:
        yield
    finally:
        _open.reset(token)
