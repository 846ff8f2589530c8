# SPDX-License-Identifier: Apache-2.0
"""The `with` block whose nodes stay float32 in a step of 16-bit precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from .._util.blocks import open_block

KEEPS_FLOAT32: Final[ContextVar[bool]] = ContextVar("keeps float32", default=False)
"""A context variable, True in a `with` block of `full_precision`. Mixed precision does not convert
nodes that are made in this block to 16-bit floats."""


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute the values of a `with` block in float32, even in a step of 16-bit precision.

    Matrix products in the block multiply float32 values, and values that are computed in the block
    are not rounded to 16 bits. The same holds for the gradients of these values. In a float32 step
    the block changes nothing.

    Examples
    --------
    >>> with ngd.full_precision():
    ...     scores = features @ weights

    See Also
    --------
    ngd.compile : its `precision` asks for 16-bit floats.
    """
    with open_block("ngd.full_precision"), keep_float32(True):
        yield


@contextmanager
def keep_float32(value: bool) -> Iterator[None]:
    """Set `keeps_float32` of the nodes that are made in the `with` block to `value`.

    If it is True, mixed precision does not convert the node to 16-bit floats.
    """
    token = KEEPS_FLOAT32.set(value)
    try:
        yield
    finally:
        KEEPS_FLOAT32.reset(token)
