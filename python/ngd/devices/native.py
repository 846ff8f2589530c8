# SPDX-License-Identifier: Apache-2.0
"""Types and attributes in the form that the C++ core takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ..dtypes import SHORT_NAMES, Type

NAMES: Final = {dtype: dtype.name for dtype in SHORT_NAMES}


def spec(type: Type) -> tuple[str, tuple[int, ...]]:
    """Return a type as the C++ core takes it: the name of the dtype, and the shape."""
    return NAMES[type.dtype], type.shape


def native_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes in the form that the C++ core takes.

    A dtype is replaced by its name. Attributes with the value None are left out.
    """
    return {
        key: value.name if isinstance(value, np.dtype) else value
        for key, value in attrs.items()
        if value is not None
    }
