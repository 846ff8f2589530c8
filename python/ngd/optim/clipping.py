# SPDX-License-Identifier: Apache-2.0
"""Clipping of gradients by the norm of all of them together."""

from __future__ import annotations

from typing import Any

from .. import Node, float32, float64, ops, trees
from .options import positive


def norm(x: Node) -> Node:
    """The Euclidean norm of all elements, at least in float32."""
    wide = x if x.dtype == float64 else ops.cast(x, float32)
    root: Node = ops.sqrt(ops.sum(ops.square(wide)))
    return root


def global_norm(gradients: Any) -> Node:
    """The Euclidean norm of all elements of a structure of nodes: float64 if one of them is."""
    leaves = trees.leaves_of(gradients)
    if not leaves or not all(isinstance(leaf, Node) for leaf in leaves):
        raise TypeError(f"optim.global_norm: expected a structure of nodes; got {gradients!r}")
    squares = [ops.square(norm(g)) for g in leaves]
    dtype = float64 if any(s.dtype == float64 for s in squares) else float32
    root: Node = ops.sqrt(ops.sum(ops.stack([ops.cast(s, dtype) for s in squares])))
    return root


def clip_by_global_norm(gradients: Any, limit: Any) -> tuple[Any, Node]:
    """Scale gradients by min(1, limit / their norm); return them, and the norm before.

    Pascanu, Mikolov and Bengio, 2013 (arXiv:1211.5063), algorithm 1. As PyTorch does, 1e-6 is added
    to the norm. The gradients are those after all_reduce, so that all ranks clip alike.
    """
    if not isinstance(limit, Node):
        limit = positive("optim.clip_by_global_norm", "limit", limit)
    total = global_norm(gradients)
    factor = ops.minimum(limit / (total + 1e-6), 1.0)
    return trees.map(lambda g: g * ops.cast(factor, g.dtype), gradients), total
