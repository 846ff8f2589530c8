# SPDX-License-Identifier: Apache-2.0
"""Compression of gradients to two bits per element, with error feedback.

This is MXNet's "2bit" compression (see its FAQ "Gradient Compression"). The *residual* of an
element is the part of its earlier values that was not sent. Let s be the sum of the gradient and
the residual, and t the threshold. If s >= t, the code 1 is sent, which means +t. If s <= -t, the
code 2 is sent, which means -t. Otherwise the code 0 is sent, which means 0. The new residual is s
minus the value that was sent. This error feedback is that of Seide et al. 2014, "1-bit stochastic
gradient descent".
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from ..dtypes import Array
from ..errors import DTypeError


class TwoBits:
    """The threshold of the compression, and the residual (unsent part) of each gradient.

    Parameters
    ----------
    parameters : mapping
        MXNet's parameters: "type", which is "2bit", and "threshold", by default 0.5.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        where = "set_gradient_compression"
        kind = parameters.get("type")
        if kind != "2bit":
            raise ValueError(f"{where}: type: expected '2bit'; got {kind!r}")
        unknown = sorted(set(parameters) - {"type", "threshold"})
        if unknown:
            raise ValueError(f"{where}: expected type and threshold; got {', '.join(unknown)}")
        self.threshold = np.float32(parameters.get("threshold", 0.5))
        if not self.threshold > 0:
            raise ValueError(f"{where}: threshold: expected a number > 0; got {self.threshold}")
        self._residuals: dict[Hashable, Array] = {}

    def encode(self, gradient_key: Hashable, gradient: Array) -> Array:
        """Return the codes of a float32 gradient, four per byte, and update the residual.

        The residual is the part of earlier gradients that was not sent. `gradient_key` identifies
        the gradient and its residual. It is the key, or in a "device" store the tuple (key, index),
        because such a store compresses each array of a key.
        """
        if gradient.dtype != np.float32:
            raise DTypeError(
                f"push: compression to two bits: expected float32; got {gradient.dtype}"
            )
        residual = self._residuals.get(gradient_key)
        residual = gradient.ravel().copy() if residual is None else residual + gradient.ravel()
        up, down = residual >= self.threshold, residual <= -self.threshold
        residual[up] -= self.threshold
        residual[down] += self.threshold
        self._residuals[gradient_key] = residual
        codes = np.zeros(-(-residual.size // 4) * 4, np.uint8)
        codes[: residual.size] = up + 2 * down
        fours = codes.reshape(-1, 4)
        packed: Array = fours[:, 0] | fours[:, 1] << 2 | fours[:, 2] << 4 | fours[:, 3] << 6
        return packed

    def total(self, packed: Array, shape: tuple[int, ...]) -> Array:
        """Return the float32 sum of several encoded arrays.

        Each row of `packed` has the codes of one array. All arrays have the shape `shape`.
        """
        size = int(np.prod(shape))
        count = np.zeros(packed.shape[1] * 4, np.int32)
        for position in range(4):
            codes = packed >> 2 * position & 3
            count[position::4] = (codes == 1).sum(0, np.int32) - (codes == 2).sum(0, np.int32)
        return (count[:size] * self.threshold).astype(np.float32).reshape(shape)
