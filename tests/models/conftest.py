# SPDX-License-Identifier: Apache-2.0
"""Makes this folder, the examples, and the optimizers' formulas importable here."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "examples"), str(ROOT / "tests" / "optim")]
