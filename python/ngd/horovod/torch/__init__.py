# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for PyTorch.

Replace `import horovod.torch as hvd` by `import ngd.horovod.torch as hvd`.
"""

from ..common import *  # noqa: F403
from ..common import __all__ as _in_common
from ..numpy import allgather_object, broadcast_object
from . import elastic
from .compression import Compression
from .operations import *  # noqa: F403
from .operations import __all__ as _of_operations
from .optimizer import DistributedOptimizer
from .state import broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    *_in_common,
    *_of_operations,
]
