# SPDX-License-Identifier: Apache-2.0
"""`ngd.send` and `ngd.recv`, messages between two ranks. calls.py has the collectives."""

from __future__ import annotations

from typing import Any

from .._util.callsite import call_site
from ..dtypes import Shape
from . import world
from .group import Group


def send(
    x: Any, to: int, tag: int = 0, *, async_op: bool = False, group: Group | None = None
) -> Any:
    """Send an array to one rank, which receives it with ngd.recv.

    The call returns when the other rank has received the array. A rank receives the arrays of
    another rank in the order in which they were sent. A different tag, dtype or number of elements
    in the two calls is an error.

    Parameters
    ----------
    x : array_like
        The array to send, of any shape.
    to : int
        The rank that receives the array.
    tag : int, default 0
        A number that must be equal in the send and in the receive.
    async_op, group
        The same as in ngd.all_reduce.

    Returns
    -------
    None or Work
        A Work if `async_op` is True.

    Examples
    --------
    >>> if ngd.world_size() > 1 and ngd.rank() == 0:
    ...     ngd.send(np.arange(4), to=1)
    """
    return world.group_or_world(group).send(x, to, tag, async_op=async_op, site=call_site())


def recv(
    source: int,
    tag: int = 0,
    *,
    out: Any = None,
    shape: Shape | None = None,
    dtype: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """Receive an array that one rank sends with ngd.send.

    Parameters
    ----------
    source : int
        The rank that sends the array.
    tag : int, default 0
        A number that must be equal in the send and in the receive.
    out : array, optional
        The array for the result.
    shape, dtype : tuple of ints and dtype, optional
        The shape and dtype of the result. Both are required if there is no `out`.
    async_op, group
        The same as in ngd.all_reduce.

    Returns
    -------
    numpy.ndarray, `out`, or Work
        The received array.

    Examples
    --------
    >>> if ngd.rank() == 1:
    ...     received = ngd.recv(0, shape=(4,), dtype=np.int64)
    """
    return world.group_or_world(group).recv(
        source, tag, out=out, shape=shape, dtype=dtype, async_op=async_op, site=call_site()
    )
