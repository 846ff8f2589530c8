# SPDX-License-Identifier: Apache-2.0
"""Each `raise` of ngd with a literal message has the form of docs/style.md.

The message begins with a public call and a colon, and contains "expected" and "got". EXEMPT lists
the files whose messages have another form, each with the reason, and EXEMPT_MESSAGES single ones.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

PACKAGE: Final = Path(__file__).parents[2] / "python" / "ngd"

CALL: Final = re.compile(r"(?:\{[^}]*\}|[\w.])(?:[\w.'()]|\{[^}]*\}| (?=[\w'(\{]))*: ")
EXPECTED: Final = re.compile(r"(?<!\{)\bexpected\b(?! keyword)")

EXEMPT: Final = {
    "_core/__init__.py": "the import fails before anything is called",
    "_util/caller_arrays.py": "an error within ngd that `_from_dlpack` puts into its own message",
    "ops/_reverse_mode.py": "an internal error, which names the op",
    "_util/signature_errors.py": "helpers that add the call to another message",
    "data/messages.py": "an error between the loader and its workers, which they handle",
    "cli/doctor.py": "a fault that ngd doctor has found",
    "graph/graph.py": "errors of a pass, which name the node",
    "graph/node.py": "errors of an op's author",
    "graph/registry.py": "errors of an op's author",
    "cli/mpirun.py": "messages of the command line, which begin with the option",
    "cli/run.py": "messages of the command line, which begin with the option",
    "_util/process_local.py": "the class that cannot be copied, and what to do instead",
    "metrics/serving.py": "an error between ranks, which they handle",
    "ops/_elementwise.py": "a message of NumPy after the call",
    "passes/pipeline.py": "an internal error, which names the node and its line",
    "passes/memory/plan.py": "internal errors, which name the node and its line",
    "passes/scheduling.py": "an internal error",
    "ray/elastic.py": "errors of an actor, to which the driver adds the call",
    "devices/interpreter/evaluate.py": "errors of a running step, which name the op and its line",
    "torch/compiled/rules/indexing.py": "a use without a rule, which the translation names",
    "torch/compiled/rules/registry.py": "a use without a rule, which the translation names",
    "torch/compiled/translate.py": "a use without a rule, to which it adds the call and the line",
}
"""Files with messages of another form, and the reason."""

EXEMPT_MESSAGES: Final = (
    r"module \{field\} has no attribute",  # Python's own message
    r"ngd.init: \{field\} started \{field\} ranks, but MPI sees",  # the number of a process
    r"ngd.init: rank \{field\} is process",  # the job of a process, which no argument gives
    r"this group was shut down",  # a closed group: the call in the message names itself
    r"\{field\}: this ngd.Work was dropped",  # from a destructor: no argument is wrong
    r"Work.wait: \{field\} did not complete",  # a timeout: no argument is wrong
    r"ngd.data needs Pillow",  # a missing package
    r"\{field\}\.forward$",  # NotImplementedError of a subclass
    r"\{field\}: (\{field\}|groups)$",  # the rest comes from a helper and has the form
    r"\{field\}\{field\}$",  # KeyError of a mapping
)
"""Patterns of single messages of another form, with the reason."""

PARTS: Final = {
    "begins with a call": lambda message: CALL.match(message) is not None,
    'contains "expected" once': lambda message: len(EXPECTED.findall(message)) == 1,
    'contains "got"': lambda message: re.search(r"\bgot\b", message) is not None,
}


class Site(NamedTuple):
    """A raise with a literal message."""

    path: str
    line: int
    message: str


def literal(node: ast.expr) -> str | None:
    """Return the text of a message, with {field} for each expression of an f-string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "{field}" for p in node.values)
        return "".join(map(str, parts))
    return None


def raise_sites() -> Iterator[Site]:
    """Yield all raises of the package whose message is a literal."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                message = literal(node.exc.args[0])
                if message is not None:
                    yield Site(name, node.lineno, message)


def is_checked(site: Site) -> bool:
    """Return whether a message must have the form."""
    is_exempt = site.path.startswith(tuple(EXEMPT))
    return not is_exempt and not any(re.match(p, site.message) for p in EXEMPT_MESSAGES)


SITES: Final = [s for s in raise_sites() if is_checked(s)]


def test_there_are_many_sites() -> None:
    assert len(SITES) > 400


@pytest.mark.parametrize("part", PARTS)
def test_a_message_has_the_form(part: str) -> None:
    sites = [site for site in SITES if not PARTS[part](site.message)]
    assert not sites, "\n".join(f"{s.path}:{s.line}: {s.message}" for s in sites)


@pytest.mark.parametrize("path", [path for path in EXEMPT if path.endswith(".py")])
def test_what_is_exempt_exists(path: str) -> None:
    assert (PACKAGE / path).is_file()
