# SPDX-License-Identifier: Apache-2.0
"""The open `with` blocks in which a call of an @ngd.function is an error, such as `nn.training`.

An @ngd.function is traced once, and its later calls run the compiled step. The compiled step does
not depend on the `with` blocks around a call, so a block such as `nn.training` would have no effect
on later calls. To prevent this, a call of an @ngd.function inside such a block raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_open: Final[ContextVar[tuple[str, ...]]] = ContextVar("open blocks", default=())


def open_blocks() -> tuple[str, ...]:
    """Return the names of the open `with` blocks, such as "nn.training", the outermost first."""
    return _open.get()


@contextmanager
def open_block(name: str) -> Iterator[None]:
    """Add the name of a `with` block to `open_blocks()` while this context is active.

    `nn.training` uses this context, so a call of an @ngd.function in its block raises an error.
    """
    token = _open.set((*_open.get(), name))
    try:
        yield
    finally:
        _open.reset(token)


@contextmanager
def suspend_block(name: str) -> Iterator[None]:
    """Remove the name of a `with` block from `open_blocks()` while this context is active.

    At its end, `open_blocks()` is as before it, with or without the name. `nn.evaluation`
    removes the name of `nn.training`. So code in a block of `nn.evaluation` may call an
    @ngd.function, even if an outer block of `nn.training` is open.
    """
    token = _open.set(tuple(each for each in _open.get() if each != name))
    try:
        yield
    finally:
        _open.reset(token)
