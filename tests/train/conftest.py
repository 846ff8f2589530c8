# SPDX-License-Identifier: Apache-2.0
"""Makes lines.py importable for the tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
