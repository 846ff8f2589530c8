# SPDX-License-Identifier: Apache-2.0
"""Which nodes no step may store in two bytes: what is made in a block keeps that it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from .dtype import as_dtype, float32
from .errors import DTypeError

WIDE: Final[ContextVar[bool]] = ContextVar("wide", default=False)
"""What is made now stays float32, whatever a step's precision."""


@contextmanager
def precision(dtype: Any) -> Iterator[None]:
    """Keep what is made in the block float32 in steps of another precision, gradients included.

    ::

        with ngd.precision("float32"):
            scores = features @ weights

    Products of the block multiply float32, and what it computes is not rounded. The block changes
    nothing in a step of float32; see `precision` of ngd.compile.

    Raises
    ------
    DTypeError
        `dtype` is not float32.
    """
    if as_dtype(dtype, "precision") != float32:
        raise DTypeError(
            f"precision: expected float32: two bytes are asked for by compile(precision=...); "
            f"got {dtype!r}"
        )
    with wide(True):
        yield


@contextmanager
def wide(value: bool) -> Iterator[None]:
    """Make what stays float32, or what need not."""
    token = WIDE.set(value)
    try:
        yield
    finally:
        WIDE.reset(token)
