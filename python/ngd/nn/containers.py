# SPDX-License-Identifier: Apache-2.0
"""Modules that hold others."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from .module import Module


class ModuleList(Module):
    """Modules by number: their names are "0", "1", ..."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> None:
        """Add a module at the end."""
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__}: expected modules; got {module!r}")
        setattr(self, str(len(self)), module)

    def extend(self, modules: Iterable[Module]) -> None:
        """Add several modules at the end."""
        for module in modules:
            self.append(module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, number: int) -> Module:
        return list(self._modules.values())[number]


class Sequential(ModuleList):
    """Modules one behind the other, as torch.nn.Sequential: Sequential(first, second, ...)."""

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        """The last module's value."""
        for module in self:
            x = module(x)
        return x


class ModuleDict(Module):
    """Modules by name."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        self.update(modules or {})

    def __setitem__(self, key: str, module: Module) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"ModuleDict: {key!r}: expected a module; got {module!r}")
        setattr(self, key, module)

    def __getitem__(self, key: str) -> Module:
        return self._modules[key]

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self._modules.keys()

    def values(self) -> ValuesView[Module]:
        """Return the modules."""
        return self._modules.values()

    def items(self) -> ItemsView[str, Module]:
        """Return the names with their modules."""
        return self._modules.items()

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add modules by name, or replace them."""
        for key, module in modules.items():
            self[key] = module

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)
