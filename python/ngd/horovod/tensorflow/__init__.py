# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for TensorFlow 2. It corresponds to `horovod.tensorflow`.

    import ngd.horovod.tensorflow as hvd

`ngd.horovod.tensorflow.keras` is `ngd.horovod.keras`.
"""

from ..common import *  # noqa: F403
from ..common import __all__ as _in_common
from ..keras import DistributedOptimizer
from ..numpy import allgather_object, broadcast_object
from .operations import *  # noqa: F403
from .operations import __all__ as _of_operations

__all__ = [
    "DistributedOptimizer",
    "allgather_object",
    "broadcast_object",
    *_in_common,
    *_of_operations,
]
