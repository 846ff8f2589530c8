# SPDX-License-Identifier: Apache-2.0
"""Tests of the pages of docs/: their Python runs, and scripts give equal results on four ranks."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ngd
from ngd.devices.cpu import target as cpu

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SCRIPT = re.compile(r"# (\w+\.py)\n")
PAGES = [
    "index",
    "install",
    "tutorial",
    "concepts",
    "choosing",
    "examples",
    "changes",
    "limitations",
    "functions",
    "data_parallel",
    "mixed_precision",
    "numerics",
    "collectives",
    "sharding",
    "memory",
    "fault_tolerance",
    "performance",
    "data",
    "errors",
    "diloco",
    "profiling",
    "metrics",
    "from_pytorch",
    "from_jax",
    "from_ngraph",
    "running",
    "training",
    "hosts",
    "slurm",
    "benchmarks",
    "ops",
]
"""The pages whose blocks run here, in one process."""

PAGES_OF_OTHER_TESTS = {
    "architecture": "project/test_architecture_program.py",
    "cli": "cli/test_cli.py",
    "elastic": "bridges/torch/test_torch_horovod.py",
    "horovod": "bridges/torch/test_torch_horovod.py",
    "jax": "bridges/jax/test_jax_collectives.py",
    "keras": "bridges/keras/test_keras_horovod.py",
    "model_parallel": "project/test_pages_of_ranks.py",
    "mxnet": "bridges/kvstore/test_kvstore_mxnet.py",
    "paddle": "bridges/paddle/test_paddle_collectives.py",
    "torch": "bridges/torch/test_torch_launchers.py",
    "torch_models": "bridges/torch/test_torch_pages.py",
}
"""The pages whose blocks need ranks, another framework or a command line, with their tests."""


def blocks(page: str) -> list[str]:
    matches = BLOCK.findall((DOCS / f"{page}.md").read_text())
    assert matches, page
    return list(matches)


@pytest.mark.filterwarnings("ignore::ngd.errors.PrecisionWarning")  # on CPUs without float16
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all blocks of a page in one namespace, except scripts."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page}
    for number, block in enumerate(blocks(page)):
        if not SCRIPT.match(block):
            exec(compile(block, f"{page}.md, block {number + 1}", "exec"), names)


def test_every_page_with_python_is_in_a_test() -> None:
    """tests/project/test_reference.py runs the blocks of every page of docs/api."""
    pages = {
        str(path.relative_to(DOCS).with_suffix(""))
        for path in DOCS.rglob("*.md")
        if path.parent.name != "api" and re.search(r"(?m)^ *```python", path.read_text())
    }
    assert pages == {*PAGES, *PAGES_OF_OTHER_TESTS}
    for page, test in PAGES_OF_OTHER_TESTS.items():
        text = (DOCS.parent / "tests" / test).read_text()
        assert f"docs/{page}.md" in text or f'"{page}.md"' in text or f'"{page}"' in text, test


@pytest.mark.long
@pytest.mark.skipif(ngd.build_info()["mode"] == "OFF", reason="built without collectives")
def test_the_script_of_the_tutorial_has_equal_results_on_four_ranks(tmp_path: Path) -> None:
    (script,) = [block for block in blocks("tutorial") if SCRIPT.match(block)]
    file = tmp_path / "train.py"
    file.write_text(script)
    outputs = []
    for ranks in (1, 4):
        launcher = [sys.executable, "-m", "ngd.launch", "-n", str(ranks), "--no-prefix", "--"]
        done = subprocess.run([*launcher, str(file)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        outputs.append([float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)])
    assert len(outputs[0]) == 5
    assert outputs[0][-1] < 0.2 < outputs[0][0]
    assert outputs[1] == pytest.approx(outputs[0], abs=5e-3)


@pytest.mark.parametrize(("number", "name"), [(0, "one_host"), (1, "open_mpi")])
def test_a_slurm_script_of_the_page_equals_the_example(number: int, name: str) -> None:
    """The page has every line of the file, except comments and the command."""
    page = re.findall(r"^```sh\n(.*?)^```$", (DOCS / "slurm.md").read_text(), re.DOTALL | re.M)
    file = DOCS.parent / "examples" / "cluster" / "slurm" / f"{name}.sbatch"
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("# ", "#!"))]
    commands = [line for line in lines if line != "#" and '"$@"' not in line]
    commands_of_page = [line for line in page[number].splitlines() if line in commands]
    assert commands_of_page == commands


@pytest.mark.skipif(
    ("conv", "onednn") not in cpu.DEVICE.kernel_table(), reason="the page names oneDNN's kernels"
)
def test_the_page_of_ops_is_up_to_date() -> None:
    """docs/reference.py was run after the last change of an op."""
    text = runpy.run_path(str(DOCS / "reference.py"))["page"]()
    assert text == (DOCS / "ops.md").read_text(), "run python docs/reference.py"


def test_the_page_of_ops_describes_every_parameter() -> None:
    missing = []
    for entry in (DOCS / "ops.md").read_text().split("\n### ")[1:]:
        name, signature = entry.split("\n", 1)[0], entry.split("```")[1].removeprefix("text\n")
        function = ast.parse(f"def {signature.removeprefix('ops.').strip()}: ...").body[0]
        assert isinstance(function, ast.FunctionDef)
        parameters = [node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)]
        rows = re.findall(r"^- `([^`]+)`", entry, re.MULTILINE)
        described = {each for row in rows for each in row.replace("*", "").split(", ")}
        missing += [f"{name}.{each}" for each in parameters if each not in described]
    assert missing == []
