# SPDX-License-Identifier: Apache-2.0
"""Training between hosts on Ray, which may lose hosts and find others (pip install ray).

DiLoCo (diloco.py) lets hosts train apart, and averages now and then. `run_elastic` (elastic.py)
starts a data-parallel job by mpirun on the hosts that there are, and again where they change.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("ray") is None:
    raise ImportError("ngd.ray: expected Ray; got none. Install it: pip install 'ngd-runtime[ray]'")

from .diloco import DiLoCo
from .elastic import run_elastic

__all__ = ["DiLoCo", "run_elastic"]
