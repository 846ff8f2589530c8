# SPDX-License-Identifier: Apache-2.0
"""Tests that tests/stress/inject.py imports the ngd that it has built, not the installed one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path

class Editable(MetaPathFinder):  # as pip install -e makes one
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "ngd":
            return PathFinder.find_spec(name, [{other!r}] if path is None else path)

sys.meta_path.insert(0, Editable())
sys.path.insert(0, {root!r})
from tests.stress import inject
inject.PACKAGE = Path({package!r})
sys.meta_path.insert(0, inject.BuiltPackage())
import ngd._core
print(ngd.name, ngd._core.name)
"""


def test_the_built_package_is_imported_first(tmp_path: Path) -> None:
    names = "built", "installed"
    for name in names:
        core = tmp_path / name / "ngd" / "_core"
        core.mkdir(parents=True)
        for folder in (core, core.parent):
            (folder / "__init__.py").write_text(f"name = {name!r}")
    package, other = (str(tmp_path / name) for name in names)
    program = PROGRAM.format(other=other, root=str(ROOT), package=package)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": package},
    )
    assert done.stdout.split() == ["built", "built"], done.stderr
