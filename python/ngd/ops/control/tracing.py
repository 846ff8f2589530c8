# SPDX-License-Identifier: Apache-2.0
"""The loops whose bodies are being traced, and the seeds of the random draws in these bodies.

A body is traced once, so a draw in it has one seed and one offset for all iterations. To give each
iteration its own numbers, STRIDE times the number of the iteration is added to the offset. Seed and
offset are the two elements of one tensor, the seed tensor. The seed tensors of all iterations are
computed before the loop and stacked; the loop reads this stack slice by slice. The gradient of the
loop reads the same slices, so it draws the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Final, Protocol

import numpy as np

from ...dtypes import int64
from ...graph.leaves import constant_node
from ...graph.node import Node, topological
from ...graph.registry import public
from .._arithmetic import add, multiply
from .._creation import arange
from .._shape import expand_dims

__all__ = ["iterations"]

STRIDE: Final = 2**40
"""The number by which the offset of a random draw grows from one iteration to the next."""
MAX_ITERATIONS: Final = 2**63 // STRIDE
"""The maximum number of iterations with random draws: their offsets must fit in int64."""


class Loop(Protocol):
    """A protocol for the loop whose body is being traced; ScanBuilder implements it."""

    length: int

    @property
    def inputs(self) -> Sequence[Node]:
        """The inputs of the body that change between iterations: carried values and slices."""
        ...

    def slice(self, tensor: Node) -> Node:
        """Add a tensor that is read slice by slice; return the body input for its slice."""
        ...


_loops: ContextVar[tuple[Loop, ...]] = ContextVar("loops", default=())


def loops() -> tuple[Loop, ...]:
    """Return the loops whose bodies are being traced: an inner loop comes after the outer one."""
    return _loops.get()


@contextmanager
def tracing(loops: tuple[Loop, ...]) -> Iterator[None]:
    """Set the loops whose bodies are being traced, for the code in the `with` block.

    The function `loops` returns the argument `loops` in this block.
    """
    token = _loops.set(loops)
    try:
        yield
    finally:
        _loops.reset(token)


@public
def iterations() -> int:
    """Return how often the code that is being traced runs per step.

    This is the product of the lengths of all ops.scan loops whose bodies are being traced, and 1
    outside of loops.

    Programs that choose the offsets of their random draws need this number. `ops.scan` adds
    t * 2^40 to the offset of a draw in iteration t. So a draw with the offset k * 2^40 in a loop of
    10 iterations uses the offsets k * 2^40 to (k + 9) * 2^40, and the next draw must have at least
    the offset (k + 10) * 2^40.

    Returns
    -------
    int
        The number of iterations.

    Examples
    --------
    ::

        >>> ops.iterations()
        1
    """
    return prod(loop.length for loop in loops())


def per_iteration(seed: Node) -> Node:
    """Return a seed tensor that differs in each iteration of the loops that are being traced.

    `seed` is a tensor of two integers, the seed and the offset. The offset grows by STRIDE from one
    iteration to the next one. If `seed` depends on a carried value or a slice of a loop, the caller
    chooses the seed of each iteration of this loop. The offset then grows only in the loops inside
    this loop.
    """
    enclosing = loops()
    if not enclosing:
        return seed
    read = set(topological([seed]))
    depth = max(
        (i + 1 for i, loop in enumerate(enclosing) if not read.isdisjoint(loop.inputs)), default=0
    )
    lengths = [loop.length for loop in enclosing[depth:]]
    if prod(lengths) > MAX_ITERATIONS:
        raise ValueError(
            f"scan: expected at most {MAX_ITERATIONS} iterations in a loop with random draws; "
            f"got {prod(lengths)}. Give the draw an offset that depends on the slice."
        )
    for i, loop in enumerate(enclosing[depth:]):
        stride = np.array([0, STRIDE * prod(lengths[i + 1 :])], int64)
        numbers = expand_dims(arange(loop.length), 1)
        seed = loop.slice(add(seed, multiply(numbers, constant_node(stride))))
    return seed
