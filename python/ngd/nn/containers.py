# SPDX-License-Identifier: Apache-2.0
"""Modules that contain modules."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from .module import Module


class ModuleList(Module):
    """A list of modules, whose names are "0", "1" and so on.

    Parameters
    ----------
    modules : iterable of Module, optional
        The first modules of the list.

    Examples
    --------
    >>> layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    >>> len(layers)
    3
    >>> list(layers.parameters())[:2]
    ['0.weight', '0.bias']
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> None:
        """Add a module at the end.

        Parameters
        ----------
        module : Module
            The module. If the list had n modules, the name of the new module is str(n).
        """
        if not isinstance(module, Module):
            raise TypeError(
                f"nn.{type(self).__name__}: expected modules; got {module!r}. Derive a class from "
                "nn.Module for a function."
            )
        setattr(self, str(len(self)), module)

    def extend(self, modules: Iterable[Module]) -> None:
        """Add several modules at the end.

        Parameters
        ----------
        modules : iterable of Module
            The modules in order.
        """
        for module in modules:
            self.append(module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, number: int) -> Module:
        return list(self._modules.values())[number]


class Sequential(ModuleList):
    """Modules that are applied one after the other.

    Parameters
    ----------
    *modules : Module
        The modules in order. Each one takes the result of the one before it.

    Notes
    -----
    Input: the input of the first module. Output: the output of the last module. The documentation
    of these two modules gives the shapes.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
    >>> images = ngd.placeholder("images", (32, 784))
    >>> model(images).shape
    (32, 10)
    """

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        """Apply the modules in order, and return the result of the last one.

        Parameters
        ----------
        x : Node
            The input of the first module.
        """
        for module in self:
            x = module(x)
        return x


class ModuleDict(Module):
    """A dict of modules, whose names are the keys.

    Parameters
    ----------
    modules : mapping from str to Module, optional
        The first entries.

    Examples
    --------
    >>> heads = nn.ModuleDict({"classes": nn.Linear(64, 10), "boxes": nn.Linear(64, 4)})
    >>> list(heads.keys())
    ['classes', 'boxes']
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        self.update(modules or {})

    def __setitem__(self, key: str, module: Module) -> None:
        if not isinstance(module, Module):
            raise TypeError(
                f"nn.ModuleDict: {key!r}: expected a module; got {module!r}. Derive one from "
                "nn.Module."
            )
        setattr(self, key, module)

    def __getitem__(self, key: str) -> Module:
        return self._modules[key]

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def keys(self) -> KeysView[str]:
        """Return the names of the modules, as dict.keys."""
        return self._modules.keys()

    def values(self) -> ValuesView[Module]:
        """Return the modules, as dict.values."""
        return self._modules.values()

    def items(self) -> ItemsView[str, Module]:
        """Return pairs of a name and its module, as dict.items."""
        return self._modules.items()

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add modules by name, and replace those with the same names.

        Parameters
        ----------
        modules : mapping from str to Module
            The new entries.
        """
        for key, module in modules.items():
            self[key] = module

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)
