# SPDX-License-Identifier: Apache-2.0
"""Tests of NGD_LOG=json: each line is an object with the rank and the job."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ngd.logs import JsonFormatter, as_json
from tests.support import harness

PLACE = {"rank": 3, "size": 4, "job": "0123abcd", "host": "node7"}

PROGRAM = """
import logging, sys, ngd
world = ngd.init()
logging.getLogger("ngd").warning("rank %d\\nis here", world.rank)
print("plain")
print()
print('{"of": "the user"}')
print('{"cut": ')
sys.stdout.flush()
print("to stderr", file=sys.stderr, flush=True)
if world.rank == 1:
    raise ValueError("no good")
"""


def streams_of_job(folder: Path, *options: str, **env: str) -> tuple[list[str], list[str]]:
    """Return the two output streams of a job of two ranks, in which one rank fails."""
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "ngd.launch", "-n", "2", *options, str(folder / "program.py")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NGD_TIMEOUT": "60", **env},
    )
    assert done.returncode == 1, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_a_record_is_one_line() -> None:
    record = logging.LogRecord("a.b", logging.WARNING, "file", 1, "%s\n\u00e9", ("text",), None)
    record.created = 1_700_000_000.25
    line = JsonFormatter(PLACE).format(record)
    assert line == (
        '{"time": "2023-11-14T22:13:20.250000+00:00", "level": "WARNING", "logger": "a.b", '
        '"message": "text\\n\\u00e9", "rank": 3, "size": 4, "job": "0123abcd", "host": "node7"}'
    )


def test_an_exception_is_a_field() -> None:
    try:
        raise KeyError("missing")
    except KeyError:
        record = logging.LogRecord("a", logging.ERROR, "", 1, "failed", None, sys.exc_info())
    fields = json.loads(JsonFormatter(PLACE).format(record))
    assert fields["message"] == "failed"
    assert fields["exception"].startswith("Traceback (most recent call last):\n")
    assert fields["exception"].endswith("KeyError: 'missing'")


def test_rank_and_job_are_those_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NGD_JOB": "k", "RANK": "2", "WORLD_SIZE": "5"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NGD_SURROUNDINGS", raising=False)
    record = logging.LogRecord("a", logging.INFO, "", 1, "m", None, None)
    fields = json.loads(JsonFormatter().format(record))
    assert (fields["rank"], fields["size"]) == (2, 5)
    assert fields["job"] not in ("k", None)
    monkeypatch.setenv("WORLD_SIZE", "two")
    fields = json.loads(JsonFormatter().format(record))
    assert (fields["rank"], fields["size"], fields["job"]) == (None, None, None)


@pytest.mark.parametrize("text", [b'{"a": 1}', b'{"a": {"b": "c"}}'])
def test_a_json_object_is_unchanged(text: bytes) -> None:
    assert as_json(text + b"\r\n", "stdout", PLACE) == text + b"\n"


@pytest.mark.parametrize("text", [b"12", b"[1]", b"{a}", b"{", b"\xff text"])
def test_other_text_becomes_a_message(text: bytes) -> None:
    fields = json.loads(as_json(text + b"\n", "stderr", PLACE))
    assert fields["message"] == text.decode(errors="backslashreplace")
    assert fields["logger"] == "stderr"
    assert {name: fields[name] for name in PLACE} == PLACE


@harness.needs_ranks
def test_all_output_of_a_job_is_json(tmp_path: Path) -> None:
    out, err = streams_of_job(tmp_path, NGD_LOG="json")
    out_records: list[dict[str, Any]] = [json.loads(line) for line in out]
    assert [each for each in out_records if "message" not in each] == [{"of": "the user"}] * 2
    printed = sorted((m["rank"], m["message"]) for m in out_records if "message" in m)
    assert printed == [(0, "plain"), (0, '{"cut":'), (1, "plain"), (1, '{"cut":')]
    err_records: list[dict[str, Any]] = [json.loads(line) for line in err]
    assert {each["size"] for each in err_records} == {2}
    assert len({each["job"] for each in err_records}) == 1
    by_logger = {
        name: [each for each in err_records if each["logger"] == name] for name in ("ngd", "stderr")
    }
    warnings_of_ngd = [each for each in by_logger["ngd"] if each["level"] == "WARNING"]
    assert sorted((m["rank"], m["message"]) for m in warnings_of_ngd) == [
        (0, "rank 0\nis here"),
        (1, "rank 1\nis here"),
    ]
    assert {m["rank"] for m in by_logger["stderr"] if m["message"] == "to stderr"} == {0, 1}
    (failed,) = [each for each in by_logger["ngd"] if each["level"] == "CRITICAL"]
    assert (failed["rank"], failed["message"]) == (1, "uncaught ValueError: no good")
    assert failed["exception"].endswith("ValueError: no good")
    (launcher,) = [each for each in err_records if each["logger"] == "ngd.run"]
    assert launcher["rank"] is None
    assert launcher["message"].startswith("rank 1 returned 1")


@harness.needs_ranks
def test_lines_without_prefixes_are_unchanged(tmp_path: Path) -> None:
    out, _ = streams_of_job(tmp_path, "--no-prefix", NGD_LOG="json")
    assert sorted(out) == sorted(["", "plain", '{"cut": ', '{"of": "the user"}'] * 2)


@harness.needs_ranks
def test_the_default_format_is_text(tmp_path: Path) -> None:
    out, err = streams_of_job(tmp_path)
    assert "[0] plain" in out
    assert "[1] ValueError: no good" in err


@pytest.mark.parametrize(
    ("command", "code", "begin"),
    [
        (["-c", "import ngd; ngd.init()"], 1, "ngd.errors.InitError"),
        (["-m", "ngd.launch", "-n", "1", "true"], 2, "ngd run"),
    ],
)
def test_an_unknown_format_is_an_error(command: list[str], code: int, begin: str) -> None:
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NGD_LOG": "xml"},
    )
    assert done.returncode == code
    assert f"{begin}: NGD_LOG: expected one of text, json; got 'xml'" in done.stderr


def test_invalid_json_is_text() -> None:
    line = b'{"a":' + b"[" * 20000 + b"]" * 20000 + b"}"
    assert json.loads(as_json(line, "stdout", PLACE))["message"] == line.decode()


def test_errors_of_the_command_are_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ngd.launch", "-n", "0", "nothing.py"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NGD_LOG": "json"},
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["message"] == "-n 0: at least one rank is needed"
