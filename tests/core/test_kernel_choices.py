# SPDX-License-Identifier: Apache-2.0
"""Tests of the kernels that the CPU chooses, against a stored file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ngd import _core

GOLDEN = Path(__file__).with_name("kernel_choices.txt")
MACHINES = {
    "baseline, 1 thread": ("baseline", "1", "SSE41"),
    "avx2, 2 threads": ("avx2", "2", "AVX2"),
    "avx512, 16 threads": ("avx512", "16", "AVX512_CORE"),
}
VARIABLES = ("NGD_SIMD", "NGD_THREADS", "ONEDNN_MAX_CPU_ISA")


def golden(machine: str) -> list[str]:
    """Return the lines of a section of the file."""
    section = GOLDEN.read_text().split(f"[{machine}]\n")[1]
    return section.split("\n[")[0].splitlines()


@pytest.mark.parametrize("machine", MACHINES)
def test_the_cpu_chooses_the_same_kernels_as_before(machine: str) -> None:
    if not _core.build_info()["onednn"]:
        pytest.skip("built without oneDNN: other kernels are chosen")
    environment = os.environ | dict(zip(VARIABLES, MACHINES[machine], strict=True))
    simd = [sys.executable, "-c", "from ngd import _core; print(_core.build_info()['simd'])"]
    done = subprocess.run(simd, env=environment, capture_output=True, text=True, check=True)
    if done.stdout.strip() != environment["NGD_SIMD"]:
        pytest.skip("this CPU has no such SIMD level")
    program = [sys.executable, "-m", "tests.core.kernel_choices"]
    run = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == golden(machine)
