# SPDX-License-Identifier: Apache-2.0
"""`import ngd` takes nothing optional along. (How long it takes: benchmarks/import_time.py.)"""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys
before = set(sys.modules)
import ngd
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_import_takes_only_what_is_needed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    packages = {name.partition(".")[0] for name in json.loads(done.stdout)}
    own = {name for name in packages if not name.startswith(("_cython_", "cython_runtime"))}
    assert own - set(sys.stdlib_module_names) == {"ngd", "numpy", "ml_dtypes"}
