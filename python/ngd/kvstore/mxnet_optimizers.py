# SPDX-License-Identifier: Apache-2.0
"""The import of MXNet, and updaters that apply MXNet's optimizers to NumPy arrays."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..dtypes import Array
from .arguments import Key

INSTALL = "pip install 'mxnet==1.9.1' 'numpy<2'"


def import_mxnet() -> Any:
    """Import MXNet and return the module.

    MXNet uses `numpy.bool`, which NumPy 1.24 removed. If MXNet is not imported yet and `numpy.bool`
    is absent, this function defines `numpy.bool` for the whole process, and it stays defined.
    """
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


mx = import_mxnet()


def updater_of(optimizer: Any) -> Updater:
    """Return an updater that applies an optimizer of MXNet to NumPy arrays.

    The call `updater(key, gradient, value)` changes `value` in place.
    """
    return Updater(mx.optimizer.get_updater(optimizer))


class Updater:
    """A function on NumPy arrays: it converts them and calls a function on MXNet arrays.

    The call `updater(key, gradient, value)` changes `value` in place.

    Parameters
    ----------
    updater : callable
        The function on MXNet arrays, with the same arguments. An example is MXNet's updater of an
        optimizer.
    """

    def __init__(self, updater: Any) -> None:
        self.updater = updater

    def __call__(self, key: Key, gradient: Array, value: Array) -> None:
        """Update `value` in place."""
        weight = as_mxnet(value)
        self.updater(key, as_mxnet(gradient), weight)
        weight.wait_to_read()

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """Return the optimizer state as a pickle of MXNet."""
        states: bytes = self.updater.get_states(dump_optimizer)
        return states

    def set_states(self, states: bytes) -> None:
        """Set the optimizer state from a result of `get_states`."""
        self.updater.set_states(states)


def as_mxnet(array: Array) -> Any:
    """Return an MXNet array with the memory of a NumPy array.

    MXNet's `from_numpy` makes its argument read-only. This function passes a new view of `array`,
    so `array` itself stays writable. If `array` has no dimensions, the result has the shape (1,).
    """
    return mx.nd.from_numpy(array.view() if array.ndim else array.reshape(1), zero_copy=True)
