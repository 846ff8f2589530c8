# SPDX-License-Identifier: Apache-2.0
"""A block whose nodes stay float32 in steps of a 16-bit precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from .._util.blocks import opened

WIDE: Final[ContextVar[bool]] = ContextVar("wide", default=False)
"""True if nodes that are made now stay float32 in every step."""


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute in float32 in a block, in steps of a 16-bit precision too.

    The block's matrices are multiplied in float32 and its values are not rounded. The same holds
    for the gradients of its values. In a float32 step the block changes nothing.

    Examples
    --------
    >>> with ngd.full_precision():
    ...     scores = features @ weights

    See Also
    --------
    ngd.compile : its `precision` asks for 16-bit floats.
    """
    with opened("ngd.full_precision"), wide(True):
        yield


@contextmanager
def wide(value: bool) -> Iterator[None]:
    """Set whether nodes that are made in the block stay float32."""
    token = WIDE.set(value)
    try:
        yield
    finally:
        WIDE.reset(token)
