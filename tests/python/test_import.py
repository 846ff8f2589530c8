# SPDX-License-Identifier: Apache-2.0
"""`import ngd` is quick and takes nothing optional along."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys, time
before = set(sys.modules)
start = time.process_time()  # other processes do not count
import ngd
print(json.dumps([time.process_time() - start, sorted(set(sys.modules) - before)]))
"""


def test_import_is_quick_and_takes_only_what_is_needed() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    seconds, modules = json.loads(done.stdout)
    assert seconds < 0.25
    packages = {name.partition(".")[0] for name in modules}
    own = {name for name in packages if not name.startswith(("_cython_", "cython_runtime"))}
    assert own - set(sys.stdlib_module_names) == {"ngd", "numpy", "ml_dtypes"}
