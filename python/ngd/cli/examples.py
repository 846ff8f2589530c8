# SPDX-License-Identifier: Apache-2.0
"""`ngd examples`: list the example programs, and copy one into the current folder."""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
from pathlib import Path
from typing import Final

from .._util.links import page_url

SUMMARY: Final = "list the example programs, or copy one"
DESCRIPTION: Final = "List the example programs, or copy one of them into the current folder."
EPILOG: Final = f"""\
examples:
  ngd examples                      list the names, with one line each
  ngd examples dist_mnist_mlp       copy dist_mnist_mlp.py into the current folder

Each example is one file. A file that exists is never overwritten.

exit status:
  0    the examples were listed, or one was copied
  1    a file exists already, or a file cannot be written
  2    there is no example of this name

documentation: {page_url("cli")}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ngd examples`."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="the example to copy (default: list all examples)"
    )


def run(args: argparse.Namespace) -> int:
    """List the examples or copy one, and return the exit status."""
    folder = find_folder()
    if folder is None:
        return _fail("this installation contains no examples; install ngd with pip", 1)
    scripts = find_scripts(folder)
    if args.name is None:
        width = max(map(len, scripts), default=0)
        for name, path in scripts.items():
            print(f"{name:{width}}  {summary_of(path)}")
        return 0
    name = args.name.removesuffix(".py")
    if name not in scripts:
        return _fail(f"expected one of {', '.join(scripts)}; got {args.name!r}", 2)
    return copy_example(scripts[name], Path())


def find_folder() -> Path | None:
    """Return the folder of the examples in the installation or in the source tree, or None."""
    installed = Path(__file__).parents[1] / "examples_data"
    if installed.is_dir():
        return installed
    root = Path(__file__).resolve().parents[3]  # in a source tree, python/ngd/cli/examples.py
    is_tree = (root / "pyproject.toml").exists() and (root / "examples").is_dir()
    return root / "examples" if is_tree else None


def find_scripts(folder: Path) -> dict[str, Path]:
    """Return a dict from the name of each program in the folder, such as "gpt", to its path."""
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def summary_of(path: Path) -> str:
    """Return the first line of a file's docstring."""
    return _docstring_of(path).partition("\n")[0]


def command_of(path: Path) -> str:
    """Return the command that runs an example, such as "ngd run -n 2 gpt.py".

    It is the first command in the example's docstring with the name of the file. Folders before the
    name are removed. If there is no such command, return "ngd run -n 2 NAME".
    """
    commands = re.findall(r"^ {4,}(\S.*)$", _docstring_of(path), re.MULTILINE)
    command = next((each for each in commands if path.name in each), None)
    if command is None:
        return f"ngd run -n 2 {path.name}"
    return re.sub(rf"\S*{re.escape(path.name)}", path.name, command.partition(" #")[0]).strip()


def copy_example(path: Path, target: Path) -> int:
    """Copy an example, and return the exit status."""
    if os.path.lexists(target / path.name):
        return _fail(
            f"{path.name} exists already; nothing was copied. Remove or rename it, or change to "
            "another folder",
            1,
        )
    try:
        with open(target / path.name, "xb") as copy:
            copy.write(path.read_bytes())
    except OSError as error:
        return _fail(f"cannot write {path.name}: {error.strerror}", 1)
    print(f"wrote {path.name}")
    print(f"run it with: {command_of(path)}")
    print(f"its options: python {path.name} --help")
    return 0


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _docstring_of(path: Path) -> str:
    """Return the docstring of a Python program, or "" if it has none."""
    return ast.get_docstring(ast.parse(_text_of(path)), clean=False) or ""


def _fail(message: str, status: int) -> int:
    """Print an error message, and return `status`, the exit status of the command."""
    print(f"ngd examples: {message}", file=sys.stderr)
    return status
