# SPDX-License-Identifier: Apache-2.0
"""Horovod's names for Keras 3, on its TensorFlow, JAX and PyTorch backends.

import ngd.horovod.keras as hvd
"""

from ..calls import Adasum, Average, Max, Min, Product, Sum, barrier, join
from ..numpy import allgather_object, broadcast_object
from ..world import *  # noqa: F403
from ..world import __all__ as _of_world
from . import callbacks
from .training import (
    Compression,
    DistributedOptimizer,
    allgather,
    allreduce,
    broadcast,
    broadcast_variables,
    load_model,
    reducescatter,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "join",
    "load_model",
    "reducescatter",
    *_of_world,
]
