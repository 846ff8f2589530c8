# SPDX-License-Identifier: Apache-2.0
"""Training on the hosts of a Ray cluster, which may lose hosts and get new ones.

`DiLoCo` (diloco.py) lets hosts train independently and averages their weights from time to time.
`run_elastic` (elastic.py) starts a data-parallel job by mpirun on the available hosts, and starts
it again when the hosts change. Install Ray by `pip install 'ngd-runtime[ray]'`.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("ray") is None:
    raise ImportError("ngd.ray: expected Ray; got none. Install it: pip install 'ngd-runtime[ray]'")

from .diloco import DiLoCo
from .elastic import run_elastic

__all__ = ["DiLoCo", "run_elastic"]
