# SPDX-License-Identifier: Apache-2.0
"""Measure the time of `import ngd` in fresh interpreters, and print one line of JSON.

python benchmarks/import_time.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

PROGRAM = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
TURNS = 9


def seconds(module: str) -> float:
    """Return the seconds that a fresh interpreter needs to import a module."""
    command = [sys.executable, "-c", PROGRAM.format(module)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Print the medians of ngd and of numpy, the largest part of it, measured in turns."""
    turns = [(seconds("ngd"), seconds("numpy")) for _ in range(TURNS)]
    ngd, numpy = (round(statistics.median(t), 3) for t in zip(*turns, strict=True))
    print(json.dumps({"import ngd": ngd, "import numpy": numpy, "bar": 0.25}))


if __name__ == "__main__":
    main()
