# SPDX-License-Identifier: Apache-2.0
"""Types and attributes as the compiled part takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ..dtypes import SHORT_NAMES, Type

NAMES: Final = {dtype: dtype.name for dtype in SHORT_NAMES}


def spec(type: Type) -> tuple[str, tuple[int, ...]]:
    """A type as the compiled part takes it."""
    return NAMES[type.dtype], type.shape


def native_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as the compiled part takes them: dtypes by name, None left out."""
    return {
        key: value.name if isinstance(value, np.dtype) else value
        for key, value in attrs.items()
        if value is not None
    }
