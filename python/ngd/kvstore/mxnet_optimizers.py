# SPDX-License-Identifier: Apache-2.0
"""MXNet, and its optimizers on arrays."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..dtypes import Array
from .arguments import Key

INSTALL = "pip install 'mxnet==1.9.1' 'numpy<2'"


def imported() -> Any:
    """MXNet. It asks NumPy for `numpy.bool`, which 1.24 dropped, and is given it back."""
    if "mxnet" not in sys.modules:
        if int(np.__version__.partition(".")[0]) >= 2:
            raise ImportError(
                f"ngd.kvstore.mxnet: expected NumPy before 2.0, which MXNet 1.9.1 needs; got "
                f"{np.__version__}: {INSTALL}"
            )
        if "bool" not in vars(np):
            vars(np)["bool"] = bool
    try:
        import mxnet
    except ModuleNotFoundError as error:
        raise ImportError(
            f"ngd.kvstore.mxnet: expected MXNet 1.9.1; got none. Install it: {INSTALL}"
        ) from error
    return mxnet


mx = imported()


def updater_of(optimizer: Any) -> Updater:
    """What applies an optimizer of MXNet's to arrays."""
    return Updater(mx.optimizer.get_updater(optimizer))


class Updater:
    """MXNet's updater on arrays: `updater(key, gradient, value)`."""

    def __init__(self, updater: Any) -> None:
        self.updater = updater

    def __call__(self, key: Key, gradient: Array, value: Array) -> None:
        """Change `value` in place."""
        weight = lent(value)
        self.updater(key, lent(gradient), weight)
        weight.wait_to_read()

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """MXNet's pickle."""
        states: bytes = self.updater.get_states(dump_optimizer)
        return states

    def set_states(self, states: bytes) -> None:
        """See get_states."""
        self.updater.set_states(states)


def lent(array: Array) -> Any:
    """An array of MXNet's on this memory, which marks the view that it is given as read-only."""
    return mx.nd.from_numpy(array.view() if array.ndim else array.reshape(1), zero_copy=True)
