# SPDX-License-Identifier: Apache-2.0
"""Tests of `ngd examples`: the list, the copies, and that it overwrites no file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ngd.cli import examples

ROOT = Path(__file__).parents[2]
DEADLINE = 60.0
PROGRAMS = sorted(examples.find_scripts(ROOT / "examples"))


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `ngd examples` in a folder."""
    command = [sys.executable, "-m", "ngd", "examples", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, cwd=folder)


def test_the_installation_has_the_examples_of_the_tree() -> None:
    folder = examples.find_folder()
    assert folder is not None
    assert {p.name: p.read_text() for p in folder.glob("*.py")} == {
        p.name: p.read_text() for p in (ROOT / "examples").glob("*.py")
    }


def test_the_list_has_all_examples(tmp_path: Path) -> None:
    done = call(tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [name for name, _ in lines] == PROGRAMS
    assert "dist_mnist_mlp" in PROGRAMS
    assert all(summary[0].isupper() for _, summary in lines)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_is_copied(tmp_path: Path, name: str) -> None:
    done = call(tmp_path, name)
    assert done.returncode == 0, done.stderr
    copies = {path.name for path in tmp_path.iterdir()}
    assert f"{name}.py" in copies
    for copy in copies:
        assert (tmp_path / copy).read_bytes() == (ROOT / "examples" / copy).read_bytes()
    *wrote, run, options = done.stdout.splitlines()
    assert {line.removeprefix("wrote ") for line in wrote} == copies
    assert run.startswith("run it with: ")
    assert f" {name}.py" in run
    assert "examples/" not in run
    assert options == f"its options: python {name}.py --help"


def test_a_copy_runs_alone(tmp_path: Path) -> None:
    assert call(tmp_path, "dist_mnist_mlp.py").returncode == 0
    done = subprocess.run(
        [sys.executable, "dist_mnist_mlp.py", "--help"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "--epochs" in done.stdout


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "gpt.py").write_text("mine")
    done = call(tmp_path, "gpt")
    assert done.returncode == 1
    assert "gpt.py exists already; nothing was copied" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["gpt.py"]
    assert (tmp_path / "gpt.py").read_text() == "mine"


def test_a_dangling_link_is_kept(tmp_path: Path) -> None:
    (tmp_path / "gpt.py").symlink_to(tmp_path / "elsewhere")
    assert call(tmp_path, "gpt").returncode == 1
    assert not (tmp_path / "elsewhere").exists()


def test_an_unknown_name_is_an_error(tmp_path: Path) -> None:
    done = call(tmp_path, "dance")
    assert done.returncode == 2
    assert "expected one of diloco, dist_mnist_mlp" in done.stderr
    assert "got 'dance'" in done.stderr


def test_one_file_is_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "a.py").write_text('"""A.\n\n    mpirun python there/a.py -x  # two\n"""\n')
    (source / "b.py").write_text("import a\n")
    assert examples.copy_example(source / "a.py", target) == 0
    assert {path.name for path in target.iterdir()} == {"a.py"}
    assert "run it with: mpirun python a.py -x\n" in capsys.readouterr().out
    assert examples.copy_example(source / "b.py", target) == 0
    assert capsys.readouterr().out.startswith("wrote b.py\nrun it with: ngd run -n 2 b.py\n")
    (target / "b.py").write_text("mine")
    assert examples.copy_example(source / "b.py", target) == 1
    assert "b.py exists already" in capsys.readouterr().err
    assert (target / "b.py").read_text() == "mine"


def test_an_installation_has_the_examples_next_to_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "__file__", str(tmp_path / "a" / "ngd" / "cli" / "examples.py"))
    assert examples.find_folder() is None
    (tmp_path / "a" / "ngd" / "examples_data").mkdir(parents=True)
    assert examples.find_folder() == tmp_path / "a" / "ngd" / "examples_data"
