# SPDX-License-Identifier: Apache-2.0
"""The cases with which tests check an op: its operands and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ..dtypes import DType, Shape


class Operand(NamedTuple):
    """The random values of one input of a sample: uniform in [low, high], of the tested dtype.

    `dtype` fixes the dtype instead. `distinct` draws values that are far enough apart for finite
    differences of a maximum. `away_from_zero` keeps |x| >= 0.1, for functions with a kink at 0.
    `ascending` sorts integers.
    """

    shape: Shape
    low: float = -2.0
    high: float = 2.0
    dtype: DType | None = None
    distinct: bool = False
    away_from_zero: bool = False
    ascending: bool = False


class Sample(NamedTuple):
    """One case of an op. Every generated test runs all cases of all ops, on every device."""

    operands: tuple[Operand, ...]
    attrs: Mapping[str, Any] = MappingProxyType({})
