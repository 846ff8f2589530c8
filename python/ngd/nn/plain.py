# SPDX-License-Identifier: Apache-2.0
"""Search for modules and variables in plain containers, such as a list in an attribute.

A module registers its attributes that are modules or declarations (nn.Parameter, nn.Buffer). It
does not register values inside a plain container. So it raises TypeError for a plain container with
a module, declaration or variable that no module has registered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque)


class ContainedValue(NamedTuple):
    """A module, declaration or variable found in a list, dict or other type of CONTAINERS.

    A declaration is an nn.Parameter or nn.Buffer. `path` starts with the name of the attribute, for
    example "layers[0]". `value` is the module, declaration or variable. `container` is the type of
    the attribute's value, for example list.
    """

    path: str
    value: Any
    container: type


def find_in(key: str, container: Any, kinds: tuple[type, ...]) -> Iterator[ContainedValue]:
    """Search a container, and the containers in it, for instances of the types `kinds`.

    Yield a ContainedValue for each instance: its path, the instance and the type of `container`.
    `key` is the name of the attribute that has the container.
    """
    stack, visited = [(key, container)], set[int]()
    while stack:
        path, inner = stack.pop()
        if id(inner) in visited:
            continue
        visited.add(id(inner))
        for index, value in inner.items() if isinstance(inner, dict) else enumerate(inner):
            if isinstance(value, kinds):
                yield ContainedValue(f"{path}[{index!r}]", value, type(container))
            elif isinstance(value, CONTAINERS):
                stack.append((f"{path}[{index!r}]", value))


def plain_container_error(owner: str, item: ContainedValue, module: str | None) -> TypeError:
    """Return the error for a module or variable in a plain container, such as a list.

    `owner` is the name of the class of the module that has the container. If the value in the
    container is a module, `module` is its class with arguments, such as "Linear(3, 4, bias=True)".
    Otherwise `module` is None.
    """
    key = item.path.partition("[")[0]
    kind = item.container.__name__
    if module is not None:
        class_name = "nn.ModuleDict" if issubclass(item.container, dict) else "nn.ModuleList"
        fix = f"Write self.{key} = {class_name}(...); containers in it are such modules too"
        expected = f"modules in an {class_name}"
    else:
        fix = "Make each of them an attribute of its own, an nn.Parameter or nn.Buffer"
        expected = "declarations as attributes"
    what = f"a plain {kind} with {module or repr(item.value)} at {item.path}"
    return TypeError(
        f"{owner}.{key}: expected {expected}; got {what}, which parameters() and state_dict() "
        f"do not find. {fix}."
    )
