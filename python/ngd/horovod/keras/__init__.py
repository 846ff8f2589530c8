# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for Keras 3, on the TensorFlow, JAX and PyTorch backends.

    import ngd.horovod.keras as hvd

It corresponds to `horovod.keras`.
"""

from ..common import *  # noqa: F403
from ..common import __all__ as _in_common
from ..numpy import allgather_object, broadcast_object
from . import callbacks
from .training import *  # noqa: F403
from .training import __all__ as _of_training

__all__ = [
    "allgather_object",
    "broadcast_object",
    "callbacks",
    *_in_common,
    *_of_training,
]
