# SPDX-License-Identifier: Apache-2.0
"""The names that all modules of ngd.horovod export: reductions, ranks and process sets."""

from .calls import Adasum, Average, Max, Min, Product, Sum, barrier, join
from .world import *  # noqa: F403
from .world import __all__ as _of_world

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "barrier",
    "join",
    *_of_world,
]
