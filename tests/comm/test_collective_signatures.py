# SPDX-License-Identifier: Apache-2.0
"""Tests that a collective has one signature on ngd, ngd.Group, ngd.ops and ngd.jax."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import ngd
from ngd import ops

NAMES = {
    "all_reduce": ("x", "op"),
    "reduce": ("x", "root", "op"),
    "all_gather": ("x",),
    "all_gather_v": ("x", "counts"),
    "gather": ("x", "root"),
    "reduce_scatter": ("x", "op"),
    "scatter": ("x", "root"),
    "broadcast": ("x", "root"),
    "all_to_all": ("x",),
    "all_to_all_v": ("x", "send_counts", "receive_counts"),
    "send": ("x", "to", "tag"),
    "recv": ("source", "tag", "shape", "dtype"),
    "barrier": (),
}
"""The parameters that each collective has on every surface, in this order."""
POSITIONAL = {"x", "root", "to", "source", "tag", "send_counts", "receive_counts"}
DEFAULTS = {"root": 0, "tag": 0, "axis": 0, "async_op": False, "group": None, "algorithm": "auto"}


def signature_of_callable(function: Any) -> dict[str, tuple[bool, Any]]:
    """Return for each parameter whether it is positional, and its default."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: (p.kind is p.POSITIONAL_OR_KEYWORD, p.default) for p in parameters}


def signature_in_source(function: ast.FunctionDef) -> dict[str, tuple[bool, Any]]:
    """Return the same for a function of ngd.jax, which cannot be imported without JAX."""
    arguments = function.args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + list(arguments.defaults)
    pairs = [(a, d, True) for a, d in zip(arguments.args, defaults, strict=True)]
    pairs += [
        (a, d, False) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]  # type: ignore[misc]
    empty = inspect.Parameter.empty
    return {a.arg: (at, empty if d is None else ast.literal_eval(d)) for a, d, at in pairs}


def surfaces(name: str) -> dict[str, dict[str, tuple[bool, Any]]]:
    tree = ast.parse((Path(ngd.__file__).parent / "jax" / "__init__.py").read_text())
    in_jax = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    signatures = {"ngd": signature_of_callable(getattr(ngd, name))}
    signatures["Group"] = signature_of_callable(getattr(ngd.Group, name))
    del signatures["Group"]["self"]
    if name != "barrier":
        signatures["ops"] = signature_of_callable(getattr(ops, name))
    if name in in_jax:
        signatures["jax"] = signature_in_source(in_jax[name])
    return signatures


@pytest.mark.parametrize("name", NAMES)
def test_one_signature_on_every_surface(name: str) -> None:
    for surface, parameters in surfaces(name).items():
        shared = tuple(p for p in parameters if p in NAMES[name])
        assert shared == NAMES[name], surface
        for parameter, (is_positional, default) in parameters.items():
            assert is_positional is (parameter in POSITIONAL), (surface, parameter)
            if default is not inspect.Parameter.empty and parameter in DEFAULTS:
                assert default == DEFAULTS[parameter], (surface, parameter)
        assert ("group" in parameters) is (surface != "Group"), surface
        assert ("async_op" in parameters) is (surface != "ops"), surface


def test_jax_has_the_collectives_that_it_can_differentiate() -> None:
    with_jax = {name for name in NAMES if "jax" in surfaces(name)}
    assert with_jax == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "all_to_all",
        "send",
        "recv",
    }


def test_gather_of_numpy_is_take() -> None:
    x = ngd.placeholder("x", (4,))
    with pytest.raises(TypeError, match=r"'indices'.*Use ops\.take\(x, indices, axis\) to take"):
        ops.gather(x, indices=[0])
    with pytest.raises(TypeError, match=r"got \[0\]\. Use ops\.take\(x, indices, axis\)"):
        ops.gather(x, [0])
