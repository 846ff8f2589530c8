# SPDX-License-Identifier: Apache-2.0
"""The order in which the terms of the ranks are added (docs/adr/0006-order-of-reduction.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Term = TypeVar("Term")


def sum_in_order(terms: Sequence[Term], add: Callable[[Term, Term], Term]) -> Term:
    """Return the sum of the ranks' terms, added as a binary tree.

    The left subtree of n > 1 terms has the first k terms. Here k is the largest power of two that
    is less than n, for example 2 for n = 3 and n = 4. The right subtree has the other terms.
    """
    if len(terms) == 1:
        return terms[0]
    num_left = 1 << (len(terms) - 1).bit_length() - 1
    return add(sum_in_order(terms[:num_left], add), sum_in_order(terms[num_left:], add))
