# SPDX-License-Identifier: Apache-2.0
"""The public names of ngd.ops: from the registry, for programs that run and for those that read."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ngd import ops
from ngd.graph.leaves import Leaf
from ngd.graph.node import Op
from ngd.graph.registry import OPS, PUBLIC, public, register


def test_every_public_op_stands_in_ngd_ops() -> None:
    offered = {name for name, op in OPS.items() if op.public}
    assert offered <= set(ops.__all__)
    for name in ops.__all__:
        assert getattr(ops, name) is PUBLIC[name], name
        assert PUBLIC[name] is OPS[name] if name in offered else callable(PUBLIC[name])
    hidden = {name for name in OPS if name not in ops.__all__}
    assert {op.name for op in OPS.values() if isinstance(op, Leaf)} <= hidden
    assert not any(hasattr(ops, name) for name in hidden)


def test_type_checkers_are_told_of_every_family() -> None:
    tree = ast.parse(Path(ops.__file__).read_text())
    told = {f"ngd.ops.{n.module}" for n in ast.walk(tree) if is_star(n)}  # type: ignore[attr-defined]
    assert told == {function.__module__ for function in PUBLIC.values()}


def test_every_module_of_ops_is_imported() -> None:
    folder = Path(ops.__file__).parent
    files = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py")]
    modules = {".".join(("ngd.ops", *file.parts)).removesuffix(".__init__") for file in files}
    assert modules <= set(sys.modules)


def is_star(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


class Twin(Op):
    """A name that is taken."""

    name = "stack"


def stack() -> None:
    """Another one."""


@pytest.mark.parametrize("enter", [lambda: register(Twin()), lambda: public(stack)])
def test_no_name_is_given_twice(enter: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="called stack"):
        enter()
    assert "stack" not in OPS
