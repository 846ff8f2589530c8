# SPDX-License-Identifier: Apache-2.0
"""The table of frameworks, of what .ci/clusters has just run.

    python .ci/frameworks.py FOLDER    # NAME.xml (JUnit's) and NAME.txt (pip freeze) of each stage

Prints the table of docs/frameworks.md: framework, versions, and what the tests said.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

FRAMEWORKS = {
    "tensorflow": "Keras on TensorFlow",
    "jax": "JAX",
    "keras-jax": "Keras on JAX",
    "torch": "Keras on PyTorch",
    "paddle": "PaddlePaddle",
    "mxnet": "MXNet",
    "ray": "Ray",
}
PACKAGES = ("tensorflow", "torch", "jax", "keras", "paddlepaddle", "mxnet", "ray")


def row(name: str, tests: Path, packages: Path) -> str:
    """One line of the table."""
    found = dict(line.split("==") for line in packages.read_text().split() if "==" in line)
    versions = ", ".join(f"{each} {found[each]}" for each in PACKAGES if each in found)
    suite = ElementTree.parse(tests).getroot().find("testsuite")
    assert suite is not None
    count = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    passed = count["tests"] - failed - count["skipped"]
    python = "{}.{}".format(*sys.version_info)
    said = f"{passed} | {failed} | {count['skipped']}"
    return f"| {FRAMEWORKS[name]} | {versions} | {python} | {said} |"


def main() -> None:
    """Print what there is."""
    folder = Path(sys.argv[1])
    print("| framework | versions | Python | passed | failed | skipped |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in FRAMEWORKS:
        if (folder / f"{name}.xml").exists():
            print(row(name, folder / f"{name}.xml", folder / f"{name}.txt"))


if __name__ == "__main__":
    main()
