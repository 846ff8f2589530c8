# SPDX-License-Identifier: Apache-2.0
"""The order in which terms of several ranks are added (docs/adr/0006-order-of-reduction.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Term = TypeVar("Term")


def sum_in_order(terms: Sequence[Term], add: Callable[[Term, Term], Term]) -> Term:
    """Return the sum of the ranks' terms: a tree whose left half is a power of two."""
    if len(terms) == 1:
        return terms[0]
    left = 1 << (len(terms) - 1).bit_length() - 1
    return add(sum_in_order(terms[:left], add), sum_in_order(terms[left:], add))
