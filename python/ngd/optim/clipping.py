# SPDX-License-Identifier: Apache-2.0
"""Gradient clipping by the norm of all gradients together, the global norm."""

from __future__ import annotations

from typing import Any

from .. import ops, trees
from ..dtypes import float32, float64
from ..graph.node import Node
from .options import positive


def norm(x: Node) -> Node:
    """Return the Euclidean norm of all elements of x: float64 if x is float64, else float32."""
    converted = x if x.dtype == float64 else ops.cast(x, float32)
    return ops.sqrt(ops.sum(ops.square(converted)))


def global_norm(gradients: Any) -> Node:
    """Return the Euclidean norm of all elements of several nodes together.

    Parameters
    ----------
    gradients : structure of Node
        Nodes in nested dicts, lists, tuples or dataclasses. Each node has floats of any shape.

    Returns
    -------
    Node
        A scalar: float64 if one of the nodes is float64, and float32 otherwise.

    Examples
    --------
    >>> optim.global_norm([ngd.constant([3.0]), ngd.constant([4.0])]).shape
    ()
    """
    leaves = trees.leaves_of(gradients)
    if not leaves or not all(isinstance(leaf, Node) for leaf in leaves):
        raise TypeError(
            f"optim.global_norm: expected a structure of nodes; got {gradients!r}. Pass the "
            "gradients of ngd.grad."
        )
    squares = [ops.square(norm(g)) for g in leaves]
    dtype = float64 if any(s.dtype == float64 for s in squares) else float32
    return ops.sqrt(ops.sum(ops.stack([ops.cast(s, dtype) for s in squares])))


def clip_by_global_norm(gradients: Any, max_norm: Any) -> tuple[Any, Node]:
    """Scale gradients so that their global norm is at most `max_norm`.

    Parameters
    ----------
    gradients : structure of Node
        The gradients, of any shape, in nested dicts, lists, tuples or dataclasses. They must be
        equal on all ranks, as after all_reduce, so that all ranks scale by the same factor.
    max_norm : float or Node
        The maximum norm, > 0.

    Returns
    -------
    clipped : structure of Node
        The gradients times min(1, max_norm / (norm + 1e-6)), in the structure of `gradients`.
    norm : Node
        The global norm of `gradients`.

    Notes
    -----
    Pascanu, Mikolov and Bengio, 2013 (arXiv:1211.5063), algorithm 1. The 1e-6 is PyTorch's.

    Examples
    --------
    >>> parameters = model.parameters()
    >>> gradients, norm = optim.clip_by_global_norm(ngd.grad(loss, parameters), 1.0)
    """
    if not isinstance(max_norm, Node):
        max_norm = positive("optim.clip_by_global_norm", "max_norm", max_norm)
    total = global_norm(gradients)
    factor = ops.minimum(max_norm / (total + 1e-6), 1.0)
    return trees.map(lambda g: g * ops.cast(factor, g.dtype), gradients), total
