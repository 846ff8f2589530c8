# SPDX-License-Identifier: Apache-2.0
"""`ngd.TopK`: compression of an all-reduce that sends only the elements of largest magnitude."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Final

import numpy as np

from .. import _core
from ..dtypes import Array, float32, float64

TOP_K: Final = ("sum", "mean")
"""The reductions (argument `op` of an all-reduce) that `TopK` supports."""


class TopK:
    """Compression that sends only the elements of the largest magnitude.

    The elements that are not sent are added to the array of the next call (error feedback), so they
    are sent later. TopK supports op="sum" and "mean" of float32 and float64.

    Parameters
    ----------
    ratio : float
        The fraction of the elements to send, in (0, 1]. The number of sent elements is rounded up,
        so it is at least one. Each sent element takes the bytes of its value and 4 bytes for its
        index. In an array of 2**32 elements or more, the index takes 8 bytes.

    Notes
    -----
    A TopK stores the residual of one array: for each element, the amount that it has not sent yet.
    For several arrays, use one TopK per array. A TopK `top` makes them: `top[key]` is another TopK,
    for the array with that key. It has the ratio of `top` and its own residual, and is created at
    the first use of the key. If `top` is passed with a list of arrays, the arrays use top[0],
    top[1] and so on.

    The result of an all-reduce is the sum or mean of the sent elements, added in the order of
    ranks. See Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory" (NeurIPS 2018), Algorithm
    1, and Lin et al., "Deep Gradient Compression" (ICLR 2018), section 3.

    Examples
    --------
    >>> top = ngd.TopK(0.5)
    >>> gradient = np.array([0.0, 3.0])
    >>> ngd.all_reduce(gradient, op="mean", compression=top["layer1.weight"])
    array([0., 3.])
    """

    def __init__(self, ratio: float) -> None:
        if not 0 < ratio <= 1:
            raise ValueError(
                f"TopK: expected a ratio in (0, 1]; got {ratio}. Write ngd.TopK(ratio=0.01) for 1 "
                "% of the elements."
            )
        self.ratio = ratio
        self._residual: Array | None = None
        self._next: tuple[_core.Call, Array] | None = None
        self._parts: dict[Hashable, TopK] = {}

    def __getitem__(self, key: Hashable) -> TopK:
        """Return the TopK of one array, which the caller identifies by `key`.

        It is created at the first use of `key`, and has the same ratio and its own residual.
        """
        return self._parts.setdefault(key, TopK(self.ratio))

    def __repr__(self) -> str:
        return f"<ngd.TopK {self.ratio}>"

    @property
    def residual(self) -> Array | None:
        """A copy of the residual: for each element, the amount that was not sent yet.

        It has the shape of the array in the calls of all_reduce. None before the first call.
        """
        memory = self._memory()
        return None if memory is None else memory.copy()

    def reset(self) -> None:
        """Delete the residual: for each element, the amount that was not sent yet.

        Also delete the TopKs that `__getitem__` has created, one per key.
        """
        self._residual = self._next = None
        self._parts.clear()

    def check(self, op: str, source: Array) -> None:
        """Raise ValueError for an op or dtype that TopK does not support.

        Also raise ValueError if the residual of earlier calls has another shape or dtype than
        `source`.
        """
        if op not in TOP_K or source.dtype not in (float32, float64):
            raise ValueError(
                "all_reduce: expected op='sum' or 'mean' of float32 or float64 for ngd.TopK; got "
                f"op={op!r} and {source.dtype}"
            )
        memory = self._memory()
        if memory is not None and (memory.shape, memory.dtype) != (source.shape, source.dtype):
            raise ValueError(
                f"all_reduce: expected, for this ngd.TopK, a {memory.dtype} array of shape "
                f"{memory.shape}; got a {source.dtype} one of {source.shape}. Use top[key], with a "
                "key for every array"
            )

    def choose(self, source: Array) -> tuple[tuple[Array, Array], Array]:
        """Choose the elements to send from the sum of `source` and the residual.

        Return ((indices, values), residual), and do not change `source`. The indices are those of
        the elements to send, in the flattened array and in ascending order. The new residual is
        `source` plus the old residual, with zeros at these indices.
        """
        total, memory = source.flatten(), self._memory()
        if memory is not None:
            total += memory.ravel()
        count = min(total.size, max(1, math.ceil(self.ratio * total.size)))
        order = (
            np.argpartition(np.abs(total), total.size - count) if count else np.empty(0, np.intp)
        )
        indices = np.sort(order[total.size - count :])
        values = total[indices]
        total[indices] = 0
        chosen = indices.astype(np.uint32 if total.size < 2**32 else np.uint64), values
        return chosen, total.reshape(source.shape)

    def keep(self, residual: Array, call: _core.Call) -> None:
        """Store the new residual, together with the collective that sends the chosen elements.

        `call` is this collective, which has not started yet. An error may still prevent its start.
        Then the chosen elements are not sent, and the old residual remains valid. So the old
        residual is kept until the next use of this TopK. If `call` was started by then, the new
        residual replaces the old one.
        """
        self._next = call, residual

    def _memory(self) -> Array | None:
        """Return the residual, the amounts that are not sent yet, or None if there is no residual.

        It is the residual of the last call of `keep` whose collective has started.
        """
        if self._next is not None and self._next[0].started:
            self._residual = self._next[1]
            self._next = None
        return self._residual
