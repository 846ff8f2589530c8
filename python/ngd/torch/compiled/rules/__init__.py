# SPDX-License-Identifier: Apache-2.0
"""Rules that translate the aten ops of an exported PyTorch graph into ngd nodes.

Each module has the rules of one kind of op, such as `pooling`.
"""

from types import ModuleType
from typing import Final

from . import (
    attention,
    creation,
    elementwise,
    indexing,
    losses,
    norms,
    pooling,
    products,
    random,
    recurrent,
    reductions,
    shapes,
)
from .registry import RULES, Call, Draws, Rule, Sample, T, UnsupportedOpError, rule_of

FAMILIES: Final[tuple[ModuleType, ...]] = (
    elementwise,
    shapes,
    indexing,
    reductions,
    products,
    attention,
    norms,
    pooling,
    recurrent,
    losses,
    creation,
    random,
)
"""The modules with the rules that translate aten ops, in the order of docs/torch_ops.md."""

__all__ = [
    "FAMILIES",
    "RULES",
    "Call",
    "Draws",
    "Rule",
    "Sample",
    "T",
    "UnsupportedOpError",
    "rule_of",
]
