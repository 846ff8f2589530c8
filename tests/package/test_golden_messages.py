# SPDX-License-Identifier: Apache-2.0
"""Tests of error messages. golden_messages.txt has triggers, each with its message.

    python tests/package/test_golden_messages.py      write the messages of all triggers

To add a message, add a line `>>> EXPRESSION` and an empty line to the file, and run this command.
Read the new messages as a user who has not seen ngd before. NAMESPACE has the names of a trigger.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import ngd
from ngd import checkpoint, data, metrics, nn, ops, optim, train, trees

ROOT: Final = Path(__file__).parents[2]
GOLDEN: Final = Path(__file__).with_name("golden_messages.txt")
FEWEST: Final = 120
MOST_WITHOUT_FIX: Final = 5
ALLOWED: Final = (
    r"expected (?:[^;]* )?(?:among |one of |in \[|>= |below |at least |at most |or )[^;]*; got"
)
"""The form of a message that lists the allowed values, and needs no other fix."""
VERBS: Final = (
    "Add",
    "Call",
    "Ask",
    "Build",
    "Cast",
    "Choose",
    "Compile",
    "Concatenate",
    "Convert",
    "Copy",
    "Derive",
    "Download",
    "Give",
    "Install",
    "Keep",
    "Leave",
    "Load",
    "Make",
    "Move",
    "Name",
    "Pass",
    "Put",
    "Raise",
    "Reduce",
    "Remove",
    "Replace",
    "Reshape",
    "Return",
    "Run",
    "See",
    "Save",
    "Set",
    "Start",
    "Store",
    "Take",
    "Transpose",
    "Use",
    "Write",
)
"""The verbs that begin a fix."""


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables, and restore them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def with_environment(call: Callable[[], Any], **values: str) -> Any:
    """Return the result of a call with these environment variables."""
    with environment(**values):
        return call()


def namespace(folder: Path) -> dict[str, Any]:
    """Return the names that a trigger may use."""
    x, y = ngd.placeholder("x", (2, 3)), ngd.placeholder("y", (4, 5))
    tokens, mask = ngd.placeholder("tokens", (2,), "int64"), ngd.placeholder("mask", (2, 3), "bool")
    w = ngd.variable("w", np.ones(3, np.float32))
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    sampler = data.Sampler(8, 4, rank=0, size=1)
    loader = data.Loader(data.Arrays(np.arange(8)), sampler)
    modules = (np, ngd, checkpoint, data, metrics, nn, ops, optim, train, trees)
    names = {module.__name__.split(".")[-1]: module for module in modules}
    names["np"] = names.pop("numpy")
    return names | {
        "array": np.ones((2, 3), np.float32),
        "folder": folder,
        "group": ngd.init(),
        "loader": loader,
        "mask": mask,
        "model": model,
        "sampler": sampler,
        "step": ngd.compile([x], [x + 1]),
        "tokens": tokens,
        "w": w,
        "with_environment": with_environment,
        "x": x,
        "y": y,
    }


def message_of(trigger: str, folder: Path) -> str:
    """Return the class and the message of the error that a trigger raises."""
    names = namespace(folder)
    code = compile(trigger, "train.py", "eval")
    try:
        eval(code, names)
    except Exception as error:
        return f"{type(error).__name__}: {normalized(str(error), folder)}"
    return "no error"


def normalized(message: str, folder: Path) -> str:
    """Return a message without the paths, lines and numbers that differ between runs."""
    message = message.replace(str(folder), "folder")
    message = re.sub(rf"{re.escape(__file__)}:\d+", "model.py:1", message)
    message = re.sub(r"0x[0-9a-f]{6,}", "0x7f", message)
    return re.sub(r"\(process \d+\)", "(process 4711)", message)


def entries(text: str) -> list[tuple[str, str]]:
    """Return the triggers and messages of the golden file."""
    blocks = [block for block in text.split("\n\n") if block.startswith(">>> ")]
    pairs = [block.strip().partition("\n") for block in blocks]
    return [(trigger.removeprefix(">>> "), message) for trigger, _, message in pairs]


ENTRIES: Final = entries(GOLDEN.read_text()) if GOLDEN.exists() else []


def has_fix(message: str) -> bool:
    """Return whether a message has a fix, or lists the allowed values."""
    hint = rf"Did you mean|`\w+` is (?:called|an argument of)|{'|'.join(VERBS)}"
    verb = rf"[.:;,] (?:or )?(?:{hint})\b"
    return bool(re.search(verb, message, re.IGNORECASE) or re.search(ALLOWED, message))


@pytest.mark.parametrize(("trigger", "message"), ENTRIES, ids=[t for t, _ in ENTRIES])
def test_a_message_is_the_golden_one(trigger: str, message: str, tmp_path: Path) -> None:
    assert message_of(trigger, tmp_path) == message


def test_there_are_enough_messages() -> None:
    assert len({message for _, message in ENTRIES}) >= FEWEST


@pytest.mark.parametrize("message", [m for _, m in ENTRIES], ids=[t for t, _ in ENTRIES])
def test_a_message_names_the_call_the_expectation_and_the_value(message: str) -> None:
    _, _, text = message.partition(": ")
    assert re.match(r"[\w<][^:]*(?::\d+)?: ", text), "no call"
    assert len(re.findall(r"\bexpected\b", text)) == 1, "expected one expectation"
    assert re.search(r"\bgot\b", text), "not what came"


def test_most_messages_have_a_fix() -> None:
    without = [message for _, message in ENTRIES if not has_fix(message)]
    assert len(without) <= MOST_WITHOUT_FIX, "\n".join(without)


def test_the_prose_check_reports_nothing(tmp_path: Path) -> None:
    page = tmp_path / "messages.md"
    page.write_text("\n\n".join(message for _, message in ENTRIES))
    check = [sys.executable, str(ROOT / ".ci" / "prose.py"), os.path.relpath(page, ROOT)]
    result = subprocess.run(check, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stdout


def main() -> None:
    """Write the golden file with the messages of all its triggers."""
    head, _, rest = GOLDEN.read_text().partition("\n\n")
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(trigger, message_of(trigger, Path(folder))) for trigger, _ in entries(rest)]
    blocks = [f">>> {trigger}\n{message}" for trigger, message in pairs]
    GOLDEN.write_text("\n\n".join([head, *blocks]) + "\n")


if __name__ == "__main__":
    main()
