# SPDX-License-Identifier: Apache-2.0
"""Horovod's names for PyTorch.

import ngd.horovod.torch as hvd
"""

from ..calls import Adasum, Average, Max, Min, Product, Sum, barrier, join
from ..numpy import allgather_object, broadcast_object
from ..world import *  # noqa: F403
from ..world import __all__ as _of_world
from . import elastic
from .compression import Compression
from .operations import *  # noqa: F403
from .operations import __all__ as _of_operations
from .optimizer import DistributedOptimizer
from .state import broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "join",
    *_of_operations,
    *_of_world,
]
