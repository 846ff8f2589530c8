# SPDX-License-Identifier: Apache-2.0
"""Tests that numbers are read and printed correctly in a locale with a decimal comma."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import locale
import numpy as np
import ngd
from ngd import ops

locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
assert locale.localeconv()["decimal_point"] == ","

for dtype in ("float16", "bfloat16", "float32", "float64"):
    x = ngd.placeholder("x", (3,), dtype)
    for device in ("CPU", "INTERPRETER"):
        step = ngd.compile([x], [x * 0.5 + 1.25, ops.exp(x) * 1e-3], device=device)
        half, _ = step(np.arange(3).astype(x.dtype))
        np.testing.assert_array_equal(half.astype("f8"), [1.25, 1.75, 2.25])
        assert "0,5" not in str(step)
assert ngd._core.timeout_seconds() == 2.5
"""


@pytest.fixture(scope="module")
def german(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with a German locale, which is made here because few machines have it."""
    folder = tmp_path_factory.mktemp("locales")
    command = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(Path(folder, "de_DE.UTF-8"))]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("no localedef on this machine")
    if result.returncode not in (0, 1):  # 1 means success with warnings
        pytest.skip(f"localedef made no de_DE: {result.stderr.strip()}")
    env = {**os.environ, "LOCPATH": str(folder)}
    use = "import locale; locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8')"
    if subprocess.run([sys.executable, "-c", use], env=env, capture_output=True).returncode:
        pytest.skip("localedef made no whole de_DE")
    return env


def test_numbers_in_a_locale_with_a_decimal_comma(german: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**german, "NGD_TIMEOUT": "2.5"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
