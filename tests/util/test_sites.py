# SPDX-License-Identifier: Apache-2.0
"""Tests of the call site that a message shows."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import re
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from ngd._util import callsite as sites
from ngd._util.callsite import Owner
from ngd.graph import node as ir

STANDARD_LIBRARY = Path(json.__file__).parents[1]
PASS_ON = "def call(function, *args):\n    return function(*args)\n"


def in_file(name: str) -> Callable[..., Any]:
    """Return a function that is defined in a file of this name, and that calls another function."""
    names: dict[str, Any] = {}
    exec(compile(PASS_ON, name, "exec"), names)
    return names["call"]  # type: ignore[no-any-return]


LIBRARY = in_file("/home/me/.venv/lib/python3.12/site-packages/lightning/loops.py")


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        (ngd.__file__, Owner.NGD),
        (ops.__file__, Owner.NGD),
        (contextlib.__file__, Owner.LIBRARY),
        (f"{STANDARD_LIBRARY}/concurrent/futures/thread.py", Owner.LIBRARY),
        ("<frozen runpy>", Owner.LIBRARY),
        (np.__file__, Owner.LIBRARY),
        ("/usr/lib/python3/dist-packages/yaml/loader.py", Owner.LIBRARY),
        (f"{sysconfig.get_path('scripts')}/pytest", Owner.LIBRARY),
        (f"{sysconfig.get_path('scripts')}/train.py", Owner.USER),
        (__file__, Owner.USER),
        ("train.py", Owner.USER),
        ("/home/me/site-packages-of-mine/train.py", Owner.USER),
        ("<stdin>", Owner.USER),
        ("<string>", Owner.USER),
        ("/tmp/ipykernel_4711/1234.py", Owner.USER),
    ],
)
def test_files_are_classified_as_user_or_library_code(file: str, owner: Owner) -> None:
    assert sites.owner(file) is owner


def test_libraries_are_skipped() -> None:
    x = ngd.placeholder("x", (3,))
    made, here = [ops.exp(x), LIBRARY(ops.exp, x), LIBRARY(LIBRARY, ops.exp, x)], line()
    assert {node.site for node in made} == {f"{__file__}:{here}"}
    through_functools = functools.singledispatch(ops.exp)
    assert through_functools(x).site == f"{__file__}:{line()}"


def test_in_an_installed_program_the_nearest_line_outside_of_ngd_is_shown() -> None:
    found: list[str] = []
    body = "def target(call, op, x, found):\n    found.append(call(op, x).site)\n"
    names: dict[str, Any] = {}
    exec(compile(body, "/usr/lib/python3/dist-packages/trainer.py", "exec"), names)
    x = ngd.placeholder("x", (3,))
    thread = threading.Thread(target=names["target"], args=(LIBRARY, ops.exp, x, found))
    thread.start()
    thread.join()
    assert found == [f"{LIBRARY.__code__.co_filename}:2"]  # type: ignore[attr-defined]


def test_an_explicit_call_site_is_used() -> None:
    x = ngd.placeholder("x", (3,))
    with sites.at_site("elsewhere:1"):
        assert (x + 1).site == "elsewhere:1"
    assert (x + 1).site == f"{__file__}:{line()}"


def test_messages_show_the_call_site() -> None:
    x = ngd.placeholder("x", (3,))
    positive, here = LIBRARY(ir.Node.__gt__, x, 0), line()
    with pytest.raises(TypeError, match=f"made at {re.escape(__file__)}:{here}"):
        bool(positive)
