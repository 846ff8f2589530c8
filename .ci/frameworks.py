# SPDX-License-Identifier: Apache-2.0
"""Update the table of docs/frameworks.md with the results of .ci/clusters.

    python .ci/frameworks.py FOLDER PAGE

FOLDER has a JUnit file NAME.xml and a `pip freeze` NAME.txt per stage. The rows of these stages
are replaced, the other rows stay, and the table is printed.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

FRAMEWORKS = {
    "torch": "PyTorch; Keras on PyTorch",
    "tensorflow": "TensorFlow; Keras on TensorFlow",
    "keras-jax": "Keras on JAX",
    "jax": "JAX",
    "paddle": "PaddlePaddle",
    "mxnet": "MXNet",
    "horovod": "Horovod's names beside Horovod",
    "ray": "Ray",
    "ray-elastic": "Ray; Horovod's elastic training",
}
PACKAGES = ("tensorflow", "torch", "jax", "keras", "paddlepaddle", "mxnet", "horovod", "ray")
WORKS = {
    "collectives": r"random_calls|send_and_recv|objects|collectives_of_tensors",
    "gradients through them": r"gradients(_are_of|_go|_flow|_and|$)|_have_gradients",
    "ranks train as one process": r"one_process|train_as_one|in_a_function|fit_on|equal_numpy",
    "lost and mistaken ranks are named": r"leaves|lost|killed|differ|rais|errors_|without_a_commit",
}
"""Columns, and patterns of test names. A cell has the number of passed tests, or "no"."""
HEAD = ["framework", "versions", "Python", *WORKS, "tests passed", "failed"]


def row(name: str, tests: Path, packages: Path) -> str:
    """Return a row of the table."""
    found = dict(line.split("==") for line in packages.read_text().split() if "==" in line)
    versions = ", ".join(f"{each} {found[each]}" for each in PACKAGES if each in found)
    passed: list[str] = []
    failed: list[str] = []
    for case in ElementTree.parse(tests).getroot().iter("testcase"):
        outcomes = {child.tag for child in case}
        if "skipped" not in outcomes:
            is_failed = outcomes & {"failure", "error"}
            (failed if is_failed else passed).append(str(case.get("name")).partition("[")[0])

    def cell(pattern: str) -> str:
        if any(re.search(pattern, test) for test in failed):
            return "no"
        return str(sum(bool(re.search(pattern, test)) for test in passed) or "-")

    python = "{}.{}".format(*sys.version_info)
    cells = [FRAMEWORKS[name], versions, python, *map(cell, WORKS.values())]
    return f"| {' | '.join([*cells, str(len(passed)), str(len(failed))])} |"


def main() -> None:
    """Update the table of the page."""
    folder, page = map(Path, sys.argv[1:])
    lines = page.read_text().splitlines()
    head = f"| {' | '.join(HEAD)} |"
    begin = lines.index(head) + 2
    end = next(i for i in range(begin, len(lines) + 1) if "".join(lines[i : i + 1]) == "")
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines[begin:end]}
    for name, title in FRAMEWORKS.items():
        if (folder / f"{name}.xml").exists():
            rows[title] = row(name, folder / f"{name}.xml", folder / f"{name}.txt")
    table = [rows[title] for title in FRAMEWORKS.values() if title in rows]
    print("\n".join([*lines[begin - 2 : begin], *table]))
    lines[begin:end] = table
    page.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
