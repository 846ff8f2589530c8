# SPDX-License-Identifier: Apache-2.0
"""Modules and variables in plain containers, in which a module does not look for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque)


class Held(NamedTuple):
    """A value in a plain container, its path, and the type of the outermost container."""

    path: str
    value: Any
    container: type


def find_in(key: str, container: Any, kinds: tuple[type, ...]) -> Iterator[Held]:
    """Yield the values of some kinds in a container, and in the containers in it."""
    waiting, seen = [(key, container)], set[int]()
    while waiting:
        path, inner = waiting.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        for index, value in inner.items() if isinstance(inner, dict) else enumerate(inner):
            if isinstance(value, kinds):
                yield Held(f"{path}[{index!r}]", value, type(container))
            elif isinstance(value, CONTAINERS):
                waiting.append((f"{path}[{index!r}]", value))


def refusal(owner: str, item: Held, module: str | None) -> TypeError:
    """Return the error for a value that a module does not find in a plain container.

    `module` describes the value if it is a module.
    """
    key = item.path.partition("[")[0]
    kind = item.container.__name__
    if module is not None:
        wanted = "nn.ModuleDict" if issubclass(item.container, dict) else "nn.ModuleList"
        fix = f"Write self.{key} = {wanted}(...); containers in it are such modules too"
        expected = f"modules in an {wanted}"
    else:
        fix = "Make each of them an attribute of its own, an nn.Parameter or nn.Buffer"
        expected = "declarations as attributes"
    what = f"a plain {kind} with {module or repr(item.value)} at {item.path}"
    return TypeError(
        f"{owner}.{key}: expected {expected}; got {what}, which parameters() and state_dict() "
        f"do not find. {fix}."
    )
