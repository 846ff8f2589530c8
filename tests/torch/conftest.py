# SPDX-License-Identifier: Apache-2.0
"""Makes harness.py importable here too."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "distributed")]
