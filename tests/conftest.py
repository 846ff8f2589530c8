# SPDX-License-Identifier: Apache-2.0
"""For all tests: verify after every pass, and let Open MPI run as root in a container."""

from __future__ import annotations

import os

os.environ.setdefault("NGD_CHECK", "1")
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
