# SPDX-License-Identifier: Apache-2.0
"""Tests that the recipes for HPC sites agree with pyproject.toml and CMake, and of shell scripts.

The tests do not run Spack or Apptainer. A test records the calls that the recipe makes to Spack.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

tomllib = pytest.importorskip("tomllib")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CMAKE = (ROOT / "CMakeLists.txt").read_text()
FIND = (ROOT / "cmake" / "NgdFind.cmake").read_text()
MODES = re.search(r'MATCHES "\^\((.*)\)\$"', FIND)
SCRIPTS = sorted((ROOT / "examples" / "cluster" / "slurm").glob("*.sbatch"))


class Spec:
    """A concrete spec with one value for each variant."""

    def __init__(self, mode: str, onednn: bool) -> None:
        self.variants = {"mode": types.SimpleNamespace(value=mode)}
        self.onednn = onednn

    def satisfies(self, text: str) -> bool:
        assert text == "+onednn", text
        return self.onednn


@pytest.fixture(scope="module")
def recipe() -> Any:
    """Return the class of the recipe. Its `said` has the calls that it makes to Spack."""
    said: dict[str, list[tuple[Any, ...]]] = {}
    package = types.ModuleType("spack.package")
    names = ("variant", "depends_on", "conflicts", "version", "license")
    for name in names:
        calls = said.setdefault(name, [])
        setattr(package, name, lambda *a, calls=calls, **k: calls.append((a, k)))
    package.__all__ = names  # type: ignore[attr-defined]
    python = types.ModuleType("spack_repo.builtin.build_systems.python")
    python.PythonPackage = type("PythonPackage", (), {})  # type: ignore[attr-defined]
    stubs = {"spack": types.ModuleType("spack"), "spack.package": package, python.__name__: python}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
            stubs[name] = types.ModuleType(name)
        for name, module in stubs.items():
            patch.setitem(sys.modules, name, module)
        spec = importlib.util.spec_from_file_location(
            "recipe", ROOT / "packaging" / "spack" / "package.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    module.PyNgdRuntime.said = said
    return module.PyNgdRuntime


def test_modes_of_the_recipe_equal_those_of_the_build(recipe: Any) -> None:
    assert MODES is not None
    (mode,) = [k for a, k in recipe.said["variant"] if a == ("mode",)]
    assert sorted(value.upper() for value in mode["values"]) == sorted(MODES[1].split("|"))
    default = re.search(r"set\(NGD_DISTRIBUTED_ENABLE (\w+) CACHE", CMAKE)
    assert default is not None
    assert mode["default"].upper() == default[1]


@pytest.mark.parametrize("mode", ["mlsl", "ompi", "off"])
@pytest.mark.parametrize("onednn", [True, False])
def test_spack_sets_options_of_the_build(recipe: Any, mode: str, onednn: bool) -> None:
    settings = recipe.config_settings(recipe(), Spec(mode, onednn), "/prefix")
    assert settings == {
        "cmake.define.NGD_DISTRIBUTED_ENABLE": mode.upper(),
        "cmake.define.NGD_ONEDNN": "ON" if onednn else "OFF",
    }
    for name in settings:
        option = name.removeprefix("cmake.define.")
        assert re.search(rf"(option|set)\({option} ", CMAKE), option


def test_packages_of_the_recipe_equal_those_of_pip(recipe: Any) -> None:
    """They have equal minimum versions. For NumPy, the recipe has the newer one, to build with."""
    requirements = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    least: dict[str, str] = {"python": PROJECT["project"]["requires-python"].removeprefix(">=")}
    for line in requirements:
        name, version = re.match(r"([\w-]+)[>=]=([\d.]+)", line).groups()  # type: ignore[union-attr]
        python = not name.startswith("onednn")
        least.setdefault(f"py-{name.replace('_', '-')}" if python else "onednn", version)
    assert PROJECT["build-system"]["requires"][3] == "numpy>=2.0"
    said = dict(
        re.match(r"([\w-]+)@?([\d.]*)", a[0]).groups() for a, _ in recipe.said["depends_on"]
    )  # type: ignore[union-attr]
    versions = {name: said[name] for name in least}
    shortened = {"py-numpy": "2", "onednn": "3"}
    assert versions == {**least, **shortened}
    open_mpi = re.search(r"needs Open MPI >= ([\d.]+)", FIND)
    assert open_mpi is not None
    assert said["openmpi"] == open_mpi[1]
    assert f"find_package(dnnl {said['onednn']} CONFIG" in FIND


def test_the_apptainer_definition_builds_the_package() -> None:
    text = (ROOT / "packaging" / "apptainer" / "ngd.def").read_text()
    assert re.findall(r"^Stage: (\w+)$", text, re.MULTILINE) == ["build", "final"]
    assert len(re.findall(r"^From: ", text, re.MULTILINE)) == 2
    used = set(re.findall(r"\{\{ (\w+) \}\}", text))
    assert used == set(re.findall(r"^    (\w+)=", text, re.MULTILINE)) == {"base", "mode"}
    assert MODES is not None
    mode = re.search(r"^    mode=(\w+)$", text, re.MULTILINE)
    assert mode is not None
    assert mode[1] in MODES[1].split("|")
    assert "--config-settings=cmake.define.NGD_DISTRIBUTED_ENABLE={{ mode }}" in text
    for extra in re.findall(r"/src\[(\w+)\]", text):
        assert extra in PROJECT["project"]["optional-dependencies"]


def test_the_apptainer_scripts_are_valid_shell() -> None:
    text = (ROOT / "packaging" / "apptainer" / "ngd.def").read_text()
    scripts = re.findall(
        r"^%(?:post|environment|test|runscript)\n((?: .*\n|\n)+)", text, re.MULTILINE
    )
    assert len(scripts) == 5
    for script in scripts:
        subprocess.run(["sh", "-n"], input=script, text=True, check=True, timeout=10)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_batch_scripts_request_a_signal_and_requeue(script: Path) -> None:
    """They request a signal, and requeue at the exit code with which ngd's examples end."""
    text = script.read_text()
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=10)
    for words in ("#SBATCH --requeue", "#SBATCH --signal=", "#SBATCH --open-mode=append"):
        assert words in text
    assert '[ "$code" -ne 75 ] || scontrol requeue "$SLURM_JOB_ID"' in text
    assert "NGD_EXPECT_SIZE=$SLURM_NTASKS" in text


def test_batch_scripts_exist() -> None:
    assert [script.name for script in SCRIPTS] == [
        "mpich.sbatch",
        "one_host.sbatch",
        "open_mpi.sbatch",
    ]
