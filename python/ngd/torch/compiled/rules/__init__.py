# SPDX-License-Identifier: Apache-2.0
"""Rules that build ngd nodes for the aten ops of an exported PyTorch graph, by family."""

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
"""The modules with the rules, in the order in which docs/torch_ops.md lists their ops."""

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
