# SPDX-License-Identifier: Apache-2.0
"""The root of the tree, and the path by which programs find the packages of the tests."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]

PYTHONPATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
"""The value of PYTHONPATH for a program that imports `tests` and is not started by pytest."""


def import_file(file: str) -> ModuleType:
    """Import a file of the tests as a module of its package."""
    return importlib.import_module(".".join(Path(file).relative_to(ROOT).with_suffix("").parts))
