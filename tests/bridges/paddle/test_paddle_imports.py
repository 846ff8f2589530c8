# SPDX-License-Identifier: Apache-2.0
"""Tests of the import errors of ngd.paddle: a missing PaddlePaddle, or another oneDNN."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def last_line_of(program: str, folder: Path) -> str:
    """Return the last line of a program that fails."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); {program}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    message = last_line_of("sys.modules['paddle'] = None; import ngd.paddle", tmp_path)
    assert message.startswith("ImportError: ngd.paddle: expected PaddlePaddle")
    assert message.endswith("pip install paddlepaddle")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("libphi_core.so: undefined symbol: dnnl_x_create_v2", "cmake.define.NGD_ONEDNN=OFF"),
        ("libfoo.so.1: cannot open shared object file", "ImportError: libfoo.so.1: cannot open"),
    ],
)
def test_an_import_error_of_another_onednn_has_a_fix(text: str, part: str, tmp_path: Path) -> None:
    (tmp_path / "paddle.py").write_text(f"raise ImportError({text!r})")
    assert part in last_line_of("import ngd.paddle", tmp_path)


def test_an_import_error_after_paddle_names_paddle(tmp_path: Path) -> None:
    finder = (
        "import importlib.abc\n"
        "class Clash(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'ngd._core._core':\n"
        "            raise ImportError('_core.so: undefined symbol: dnnl_x')\n"
        "sys.meta_path.insert(0, Clash())\n"
    )
    assert "/paddle/" in last_line_of(f"exec({finder!r}); import ngd", tmp_path)
