# SPDX-License-Identifier: Apache-2.0
"""Horovod's names for TensorFlow 2.

    import ngd.horovod.tensorflow as hvd

`ngd.horovod.tensorflow.keras` is `ngd.horovod.keras`.
"""

from ..calls import Adasum, Average, Max, Min, Product, Sum, barrier, join
from ..keras import DistributedOptimizer
from ..numpy import allgather_object, broadcast_object
from ..world import *  # noqa: F403
from ..world import __all__ as _of_world
from .operations import *  # noqa: F403
from .operations import __all__ as _of_operations

__all__ = [
    "Adasum",
    "Average",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "join",
    *_of_operations,
    *_of_world,
]
