# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks, meshes, and handles of asynchronous collectives."""

from .compression import TopK
from .group import Group
from .mesh import Mesh
from .statistics import CallStats, CommStats, comm_stats, compare_ranks
from .uneven import join
from .work import Work

__all__ = [
    "CallStats",
    "CommStats",
    "Group",
    "Mesh",
    "TopK",
    "Work",
    "comm_stats",
    "compare_ranks",
    "join",
]
