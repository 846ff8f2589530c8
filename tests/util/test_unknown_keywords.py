# SPDX-License-Identifier: Apache-2.0
"""Tests that every public callable with **options names an unknown keyword in a TypeError."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import nn, optim

PACKAGES = (
    "ngd",
    "ngd.checkpoint",
    "ngd.data",
    "ngd.horovod.keras",
    "ngd.horovod.numpy",
    "ngd.horovod.tensorflow",
    "ngd.horovod.torch",
    "ngd.jax",
    "ngd.kvstore",
    "ngd.logs",
    "ngd.metrics",
    "ngd.nn",
    "ngd.ops",
    "ngd.optim",
    "ngd.paddle",
    "ngd.ray",
    "ngd.torch",
    "ngd.train",
    "ngd.trees",
)
UNKNOWN = "learning_ratee"


def has_options(thing: Any) -> bool:
    """Return True if a callable accepts any keyword."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


def public_callables() -> Iterator[tuple[str, Any]]:
    """Return the public callables and methods of packages whose frameworks are installed."""
    for package in PACKAGES:
        try:
            module = importlib.import_module(package)
        except ImportError:
            continue
        for name in getattr(module, "__all__", dir(module)):
            thing = getattr(module, name)
            if name.startswith("_") or not callable(thing):
                continue
            if not getattr(thing, "__module__", "ngd").startswith("ngd"):
                continue
            if not getattr(thing, "_is_protocol", False):
                yield f"{package}.{name}", thing
            if inspect.isclass(thing):
                for key, method in inspect.getmembers(thing, callable):
                    if key == "__call__" or not key.startswith("_"):
                        yield f"{package}.{name}.{key}", method


FOUND = sorted({name for name, thing in public_callables() if has_options(thing)})

X = ngd.placeholder("x", (2,))
ARRAY = np.zeros(2, np.float32)


def compiled(**options: Any) -> Any:
    return ngd.compile([X], [X + 1])(ARRAY, **options)


def function(**options: Any) -> Any:
    return ngd.function(lambda x: x)(ARRAY, **options)


def trace(**options: Any) -> Any:
    return ngd.function(lambda x: x).trace(ARRAY, **options)


def group(**options: Any) -> Any:
    return optim.AdamW(groups=[optim.ParameterGroup("*", **options)])


def of_horovod(name: str, **options: Any) -> Any:
    module = importlib.import_module(name.rpartition(".")[0])
    module.init()
    tensor: Any = ARRAY
    if "torch" in name:
        tensor = importlib.import_module("torch").zeros(2)
    if "tensorflow" in name:
        tensor = importlib.import_module("tensorflow").zeros(2)
    many = "grouped" in name
    return getattr(module, name.rpartition(".")[2])([tensor] if many else tensor, **options)


ARGUMENTS: dict[str, Callable[..., Any]] = {
    "ngd.Executable.__call__": compiled,
    "ngd.Function.__call__": function,
    "ngd.Function.trace": trace,
    "ngd.optim.ParameterGroup": group,
    **{f"ngd.nn.ConvTranspose{n}d": partial(getattr(nn, f"ConvTranspose{n}d"), 3, 3, 3)
       for n in (1, 2, 3)},
}  # fmt: skip
"""Calls of callables that need more than one number."""

FORWARDING = (".forward", ".__call__")
"""Methods of modules that pass their arguments to the `forward` of a subclass."""


def call(name: str) -> Callable[..., Any]:
    if name in ARGUMENTS:
        return ARGUMENTS[name]
    if ".horovod." in name:
        return partial(of_horovod, name)
    module, _, key = name.rpartition(".")
    return partial(getattr(importlib.import_module(module), key), 0.1)


def is_of_modules(name: str) -> bool:
    return name.startswith("ngd.nn.") and name.endswith(FORWARDING)


def test_the_search_finds_known_callables() -> None:
    assert {"ngd.optim.Optimizer", "ngd.nn.ConvTranspose2d"} <= set(FOUND)
    assert "ngd.horovod.numpy.allreduce" in FOUND


@pytest.mark.parametrize("name", [n for n in FOUND if not is_of_modules(n)])
def test_an_unknown_keyword_is_named(name: str) -> None:
    with pytest.raises(TypeError, match=UNKNOWN):
        call(name)(**{UNKNOWN: 1})


@pytest.mark.parametrize("name", nn.__all__)
def test_modules_refuse_unknown_keywords(name: str) -> None:
    """object.__init__ ignores all arguments if the class defines __new__."""
    kind = getattr(nn, name)
    if not (inspect.isclass(kind) and issubclass(kind, nn.Module)):
        return
    with pytest.raises(TypeError, match=UNKNOWN):
        kind(3, 3, 3, **{UNKNOWN: 1}) if "Transpose" in name else kind(**{UNKNOWN: 1})


@pytest.mark.parametrize("name", [n for n in dir(ngd.ops) if callable(getattr(ngd.ops, n))])
def test_ops_refuse_unknown_keywords(name: str) -> None:
    op = getattr(ngd.ops, name)
    if name.startswith("_") or inspect.isclass(op):
        return
    with pytest.raises(TypeError):
        op(X, X, X, **{UNKNOWN: 1})
