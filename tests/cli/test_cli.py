# SPDX-License-Identifier: Apache-2.0
"""Tests of `ngd`: help texts, versions, and the page of the command line."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ngd
from ngd import cli
from ngd._util import links
from ngd.cli import examples

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"
DEADLINE = 60.0


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m ngd`."""
    command = [sys.executable, "-m", "ngd", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of `ngd` under "", and the parser of each subcommand."""
    parser = cli.make_parser()
    (commands,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return {"": parser, **commands.choices}


def options(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options except --help."""
    return {o for a in parser._actions for o in a.option_strings} - {"-h", "--help"}


def examples_of(text: str) -> list[str]:
    """Return the commands in a help text, without their explanations."""
    return [line.split("  ")[0] for line in re.findall(r"^  (\S.*)$", text, re.MULTILINE)]


def check_command(line: str) -> None:
    """Parse a line as the command line that it shows. A launcher may precede `ngd`."""
    words = shlex.split(line, comments=True)
    arguments = words[words.index("ngd") + 1 :]
    if not {"--help", "--version"} & set(arguments):
        args = cli.make_parser().parse_args(arguments)
        if "ngd" in arguments:  # such as `ngd run ... ngd profile ...`
            check_command(shlex.join(arguments))
        if args.command == "examples" and args.name is not None:
            assert args.name in examples.find_scripts(ROOT / "examples")


@pytest.mark.parametrize("name", ["", *cli.COMMANDS])
def test_help_is_a_sentence_and_examples(name: str) -> None:
    done = call(*name.split(), "--help")
    assert done.returncode == 0, done.stderr
    usage, description, *_, last = done.stdout.strip().split("\n\n")
    assert usage.startswith(f"usage: ngd {name}".rstrip())
    assert re.fullmatch(r"[A-Z][^.]*\.", description)
    assert len(description.split()) <= 25
    assert links.SITE in last
    assert "docs/" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("name", ["", *cli.COMMANDS])
def test_examples_of_help_are_command_lines(name: str) -> None:
    epilog = parsers()[name].epilog
    assert epilog is not None
    block = epilog.partition("examples:\n")[2].partition("\n\n")[0]
    lines = examples_of(block)
    assert len(lines) >= 2
    for line in lines:
        check_command(line)


def test_version() -> None:
    info = ngd.build_info()
    done = call("--version")
    assert done.returncode == 0
    onednn = f"oneDNN {info['onednn']}" if info["onednn"] else "without oneDNN"
    assert done.stdout == f"ngd {ngd.__version__}, mode {info['mode']}, {onednn}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "are required: COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["run"], "are required: SCRIPT\n"),
        (["profile"], "are required: SCRIPT\n"),
    ],
)
def test_wrong_command_lines(arguments: list[str], words: str) -> None:
    done = call(*arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_python_m_ngd_runs_scripts(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("import os; print('rank', os.environ['RANK'])")
    done = call("run", "-n", "2", "--no-prefix", str(tmp_path / "hello.py"))
    assert sorted(done.stdout.splitlines()) == ["rank 0", "rank 1"], done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", ["examples", "run --help", "--version"])
def test_a_closed_pipe_ends_a_command_without_a_traceback(line: str, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "ngd", *line.split()],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=DEADLINE,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    os.close(writer)
    assert done.stderr == ""
    if "-" not in line:  # argparse discards text that it cannot print
        assert done.returncode == 128 + signal.SIGPIPE


def test_a_broken_connection_is_not_a_closed_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: argparse.Namespace) -> int:
        raise BrokenPipeError("the connection to a rank")

    monkeypatch.setattr(cli.examples, "run", fail)
    with pytest.raises(BrokenPipeError, match="the connection to a rank"):
        cli.main(["examples"])


def test_pages_of_links_exist() -> None:
    pages = set()
    for path in (ROOT / "python" / "ngd").rglob("*.py"):
        pages |= set(re.findall(r"page_url\([\"'](\w+)[\"']\)", path.read_text()))
    assert {"cli", "environment", "errors"} <= pages
    assert [page for page in sorted(pages) if not (ROOT / "docs" / f"{page}.md").exists()] == []
    assert links.page_url("cli") == f"{links.SITE}cli/"


def test_the_page_names_every_option() -> None:
    page = PAGE.read_text()
    for name, parser in parsers().items():
        missing = [
            o for o in sorted(options(parser)) if f"`{o}" not in page and f" {o}`" not in page
        ]
        assert missing == [], name


def test_commands_of_the_page_are_command_lines() -> None:
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line[:2] == "$ "]
    lines = [line for line in lines if "ngd" in line.split()]
    assert len(lines) >= 10
    for line in lines:
        check_command(line)


@pytest.mark.skipif(ngd.build_info()["mode"] == "OFF", reason="built without collectives")
def test_the_program_of_the_page_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = PAGE.read_text()
    (program,) = re.findall(r"^```python\n# hello.py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "hello.py").write_text(program)
    done = call("run", "-n", "2", str(tmp_path / "hello.py"))
    assert done.returncode == 0, done.stderr
    expected = re.findall(r"^\[\d\] .*$", page, re.MULTILINE)
    assert sorted(done.stdout.splitlines()) == expected
