# SPDX-License-Identifier: Apache-2.0
"""Tests of the public names of ngd.ops, at run time and for type checkers."""

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


def test_every_public_op_is_in_ngd_ops() -> None:
    offered = {name for name, op in OPS.items() if op.public}
    assert offered <= set(ops.__all__)
    for name in ops.__all__:
        assert getattr(ops, name) is PUBLIC[name], name
        assert PUBLIC[name] is OPS[name] if name in offered else callable(PUBLIC[name])
    hidden = {name for name in OPS if name not in ops.__all__}
    assert {op.name for op in OPS.values() if isinstance(op, Leaf)} <= hidden
    assert not any(hasattr(ops, name) for name in hidden)


def test_type_checkers_see_every_family() -> None:
    assert set(exported_names()) == {function.__module__ for function in PUBLIC.values()}


def test_type_checkers_see_the_names_that_exist_at_run_time() -> None:
    names = [name for family in exported_names().values() for name in family]
    assert sorted(names) == dir(ops) == ops.__all__ == sorted(PUBLIC)


def test_each_family_exports_the_functions_that_it_defines() -> None:
    for module, names in exported_names().items():
        defined = {name for name, function in PUBLIC.items() if function.__module__ == module}
        assert set(names) == defined, module


def test_every_module_of_ops_is_imported() -> None:
    folder = Path(ops.__file__).parent
    files = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py")]
    modules = {".".join(("ngd.ops", *file.parts)).removesuffix(".__init__") for file in files}
    assert modules <= set(sys.modules)


def exported_names() -> dict[str, list[str]]:
    """Return `__all__` of each family, parsed from the files as type checkers do."""
    folder = Path(ops.__file__).parent
    stars = [
        statement.module
        for statement in ast.parse(Path(ops.__file__).read_text()).body
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"
    ]
    return {
        f"ngd.ops.{module}": literal_all(folder.joinpath(*module.split(".")).with_suffix(".py"))
        for module in stars
        if module is not None
    }


def literal_all(path: Path) -> list[str]:
    """Return the list `__all__` of a file."""
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(statement.value)]
    raise AssertionError(f"{path} has no __all__")


class OpWithUsedName(Op):
    """An op whose name is already used."""

    name = "stack"


def stack() -> None:
    """Another function with that name."""


@pytest.mark.parametrize("enter", [lambda: register(OpWithUsedName()), lambda: public(stack)])
def test_a_name_cannot_be_registered_twice(enter: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="called stack"):
        enter()
    assert "stack" not in OPS
