# SPDX-License-Identifier: Apache-2.0
"""The texts of types and attributes, as graphs and messages print them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ..dtypes import SHORT_NAMES, Type

UNPRINTED: Final = {"local"}
"""The names of attributes that are not printed, because they change neither the value of a node nor
the program. `local` marks a constant whose value may differ between ranks."""


def print_types(types: Type | tuple[Type, ...]) -> str:
    """Return the text of the type of a result, or of the types of several."""
    return ", ".join(map(str, types)) if isinstance(types, tuple) else str(types)


def print_attrs(attrs: Mapping[str, Any]) -> str:
    """Return the text of all attributes of a node, in the order of their names."""
    shown = sorted(attrs.items())
    return "".join(f" {key}={print_attr(value)}" for key, value in shown if key not in UNPRINTED)


def print_attr(value: Any) -> str:
    """Return the text of an attribute. For a large array it is only the number of values."""
    if isinstance(value, np.ndarray):
        return str(value.tolist()) if value.size <= 4 else f"<{value.size} values>"
    if isinstance(value, np.dtype):
        return SHORT_NAMES[value]
    if isinstance(value, tuple):
        return f"({','.join(map(str, value))})"
    return f'"{value}"' if isinstance(value, str) else str(value)
