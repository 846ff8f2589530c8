# SPDX-License-Identifier: Apache-2.0
"""Test cases of ops. A case has the operands and attributes with which a test calls an op."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ..dtypes import DType, Shape


class Operand(NamedTuple):
    """The random values of one input of a test case of an op, uniform in [low, high].

    They have the dtype `dtype` or, if it is None, the dtype that the test checks. If `distinct` is
    True, floats are so far apart that a test with finite differences does not change which of them
    is the maximum. If `away_from_zero` is True, floats have |x| >= 0.1, for functions with a kink
    at 0, and integers are not 0. If `ascending` is True, integers are sorted.
    """

    shape: Shape
    low: float = -2.0
    high: float = 2.0
    dtype: DType | None = None
    distinct: bool = False
    away_from_zero: bool = False
    ascending: bool = False


class Sample(NamedTuple):
    """One test case of an op: the operands and attributes with which tests call the op.

    Every generated test runs all cases of all ops, on every device.
    """

    operands: tuple[Operand, ...]
    attrs: Mapping[str, Any] = MappingProxyType({})
