# SPDX-License-Identifier: Apache-2.0
"""JAX's `map`, `fori_loop`, `while_loop` and `switch`, built on the ops `scan` and `cond`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import trees
from ...dtypes import INTEGERS, int64
from ...errors import DTypeError
from ...graph.node import Node
from ...graph.registry import public
from .._arithmetic import clip
from .._casting import cast
from .._creation import arange
from .._operands import Value, as_node
from .branches import cond
from .loops import scan

__all__ = ["fori_loop", "map", "switch", "while_loop"]


@public
def fori_loop(lower: int, upper: int, body: Callable[[Any, Any], Any], init: Any) -> Any:
    """Repeat a function for i from lower to upper - 1, as jax.lax.fori_loop.

    Parameters
    ----------
    lower, upper : int
        The bounds, as ints.
    body : callable
        It takes i, an int64 node, and the carry, and returns the next carry. It is called once.
    init : node, array, or a structure of them
        The first carry.

    Returns
    -------
    Any
        The last carry.

    Raises
    ------
    TypeError
        A bound is not an int. If a bound is a node, use ops.while_loop.
    ShapeError, DTypeError
        The body returns a carry of another type.

    Examples
    --------
    ::

        >>> def f(x):
        ...     return ops.fori_loop(0, 5, lambda i, total: total + x**i, 0.0 * x)
        >>> ngd.function(f)(np.array(2.0))
        array(31.)
    """
    for bound in (lower, upper):
        if not isinstance(bound, (int, np.integer)):
            raise TypeError(
                f"fori_loop: expected ints that are known when the graph is built; got {bound!r}. "
                "ops.while_loop repeats until a condition is false."
            )
    count = max(int(upper) - int(lower), 0)
    carry, _ = scan(lambda c, i: (body(i, c), None), init, arange(count) + int(lower))
    return carry


@public
def while_loop(
    condition: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    *,
    max_iterations: int,
) -> Any:
    """Repeat a function while a condition is true, as jax.lax.while_loop.

    The loop is a scan over max_iterations iterations, so that it has a gradient. Once the condition
    is false, the remaining iterations compute only the condition, and keep the carry.

    Parameters
    ----------
    condition : callable
        It takes the carry, and returns a bool scalar. It is called once, with nodes.
    body : callable
        It takes the carry, and returns the next carry. It is called once, with nodes.
    init : node, array, or a structure of them
        The first carry.
    max_iterations : int
        The largest number of iterations. Memory for the gradient grows with it.

    Returns
    -------
    Any
        The first carry for which the condition is false, or the carry after max_iterations
        iterations.

    Raises
    ------
    ShapeError, DTypeError
        The body returns a carry of another type, or the condition is not a bool scalar.

    Examples
    --------
    ::

        >>> def f(x):
        ...     return ops.while_loop(lambda c: c < 100, lambda c: c * 2, x, max_iterations=20)
        >>> ngd.function(f)(np.array(3.0))
        array(192.)
    """

    def step(carry: Any, _: Any) -> tuple[Any, None]:
        return cond(condition(carry), body, lambda c: c, carry), None

    last, _ = scan(step, init, length=max_iterations)
    return last


@public
def map(function: Callable[[Any], Any], xs: Any) -> Any:
    """Apply a function to each slice along axis 0, one after the other, as jax.lax.map.

    The function is traced once. If elementwise ops and matmul can express the same computation,
    they are faster, because they compute all slices at once.

    Parameters
    ----------
    function : callable
        It takes a slice, and returns a result. It is called once, with nodes.
    xs : node, array, or a structure of them
        The arrays to slice, of one size along axis 0.

    Returns
    -------
    Any
        The results, stacked along a new axis 0.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.map(ops.sum, x))(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([3., 7.])
    """
    _, results = scan(lambda _, x: ((), function(x)), (), xs)
    return results


@public
def switch(index: Value, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """Compute one of several functions, as jax.lax.switch.

    Parameters
    ----------
    index : node or array
        An integer scalar. It is clamped to [0, len(branches) - 1].
    branches : sequence of callable
        Functions of the operands, at least one. Each is called once. All return the same structure,
        dtypes and shapes.
    operands : node, array, or a structure of them
        The arguments of the functions.

    Returns
    -------
    Any
        The result of the chosen function. A step computes only this function.

    Raises
    ------
    ValueError
        There is no branch.
    DTypeError
        The index is not an integer scalar.

    Examples
    --------
    ::

        >>> def f(i, x):
        ...     return ops.switch(i, [lambda x: x, lambda x: -x, lambda x: x * x], x)
        >>> ngd.function(f)(2, np.array(3.0))
        array(9.)
    """
    functions = list(branches)
    if not functions:
        raise ValueError("switch: expected at least one branch; got none")
    requested = as_node(index, where="switch: index")
    if requested.shape or requested.dtype not in INTEGERS:
        raise DTypeError(
            f"switch: expected an integer scalar as index; got {requested.type}. Cast it: "
            "index.astype('int64')."
        )
    clamped = clip(cast(requested, int64), 0, len(functions) - 1)

    leaves, structure = trees.flatten(list(operands))
    nodes = [as_node(leaf, where="switch: operands") for leaf in leaves]
    return _choose_function(clamped, functions, structure.rebuild(nodes))


def _choose_function(
    index: Node, functions: Sequence[Callable[..., Any]], operands: Sequence[Any], first: int = 0
) -> Any:
    """Return the result of functions[index - first], which the step chooses when it runs.

    `functions` is a slice of the list of all functions, and `first` is the position of this slice
    in the list. A `cond` chooses between the two halves of the slice. Further conds choose within
    each half.
    """
    if len(functions) == 1:
        return functions[0](*operands)
    half = len(functions) // 2
    return cond(
        index < first + half,
        lambda *inner: _choose_function(index, functions[:half], inner, first),
        lambda *inner: _choose_function(index, functions[half:], inner, first + half),
        *operands,
    )
