# SPDX-License-Identifier: Apache-2.0
"""The root of the tree, and how programs that tests start find the tests' packages."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]

PYTHONPATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
"""The variable for a program that imports `tests`, and that pytest has not started."""


def import_file(file: str) -> ModuleType:
    """Import a file of the tests from its package."""
    return importlib.import_module(".".join(Path(file).relative_to(ROOT).with_suffix("").parts))
