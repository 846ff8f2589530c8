# SPDX-License-Identifier: Apache-2.0
"""Tests that `import ngd` imports no optional package. (benchmarks/import_time.py measures it.)"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ngd._core import _core

PROGRAM = """
import json, sys
before = set(sys.modules)
import ngd
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_import_loads_no_optional_package() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    packages = {name.partition(".")[0] for name in json.loads(done.stdout)}
    own = {name for name in packages if not name.startswith(("_cython_", "cython_runtime"))}
    assert own - set(sys.stdlib_module_names) == {"ngd", "numpy", "ml_dtypes"}


PT_TLS = 7
"""The type of a program header of ELF files: thread-local variables."""


def program_headers(file: Path) -> list[int]:
    """Return the types of the program headers of a 64-bit ELF file."""
    data = file.read_bytes()
    (offset,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    return [struct.unpack_from("<I", data, offset + i * size)[0] for i in range(count)]


@pytest.mark.parametrize(
    "file", sorted(Path(_core.__file__).parent.glob("*.so")), ids=lambda f: f.name
)
def test_the_compiled_parts_have_no_thread_local_variables(file: Path) -> None:
    """The C library ends a process that has no memory for them when a thread first uses one."""
    headers = program_headers(file)
    assert headers
    assert PT_TLS not in headers
