# SPDX-License-Identifier: Apache-2.0
"""The loop over slices, and the loops and choices that are made of it, with JAX's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import trees
from ...dtypes import INTEGERS, int64
from ...errors import DTypeError, ShapeError
from ...graph.node import Node
from ...graph.registry import public
from .._arithmetic import clip
from .._casting import cast
from .._creation import arange
from .._operands import Value, as_node
from .bodies import Loop, cond
from .tracing import loops, tracing


@public
def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Run a function once per slice of some tensors, and carry values from one call to the next.

    The result is that of this loop, whose body is traced only once:

        carry = init
        for t in range(length):
            carry, ys[t] = body(carry, xs[t])

    A collective in the body runs in each iteration, or once if it depends neither on the carry nor
    on the slice.

    The gradient computes each iteration again from its carry. It keeps the carries of all
    iterations and the results of matrix products, convolutions and attention. With
    `ngd.remat(body)` it keeps only the carries.

    Parameters
    ----------
    body : callable
        It takes the carry and a slice, and returns the next carry and a result, or None as the
        result. It may read nodes and variables from outside. Random draws differ in each iteration,
        except if their seed or offset depends on the carry or the slice.
    init : node, array, or a structure of them
        The first carry. The body returns the same structure, dtypes and shapes.
    xs : node, array, or a structure of them, optional
        Iteration t reads slice t along axis 0. If it is None, the body gets None as its slice, and
        `length` is needed.
    length : int, optional
        The number of iterations, which may be 0. The default is the extent of axis 0 of `xs`.
    reverse : bool, default False
        Run from the last slice to the first. The results keep the order of the slices.

    Returns
    -------
    tuple
        The last carry, and the results of all iterations, stacked along a new axis 0.

    Raises
    ------
    ShapeError, DTypeError
        The extents of `xs` differ, or the body returns a carry of another type.
    CompileError
        The body contains a send or a receive.

    Examples
    --------
    ::

        >>> add = lambda total, x: (total + x, total)
        >>> ngd.function(lambda x: ops.scan(add, 0.0, x)[0])(np.array([1.0, 2.0, 3.0]))
        array(6.)
    """
    return _traced(body, init, xs, length, reverse)


def _traced(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    length: int | None,
    reverse: bool,
) -> tuple[Any, Any]:
    """Trace the body of a scan, and return the last carry and the stacked results."""
    if not callable(body):
        raise TypeError(
            f"scan: body: expected a function; got {body!r}. Give a function of a carry and a "
            "slice that returns (carry, result)."
        )
    initial, structure = trees.flatten(init)
    tensors, slice_structure = trees.flatten(xs) if xs is not None else ([], None)
    given = [as_node(value, where="scan: init") for value in initial]
    read = [as_node(value, where="scan: xs") for value in tensors]
    loop = Loop(rounds(read, length), reverse)
    carry = structure.rebuild([loop.carry(node) for node in given])
    slices = [loop.slice(node) for node in read]
    with tracing((*loops(), loop)):
        returned = body(carry, slice_structure.rebuild(slices) if slice_structure else None)
    next, made = expect_pair(returned)
    loop.next = next_carries(structure, given, next)
    leaves, made_structure = trees.flatten(made) if made is not None else ([], None)
    loop.made = [as_node(leaf, where="scan: what the body makes") for leaf in leaves]
    results = loop.node().results if loop.next or loop.made else ()
    last, stacked = results[: len(given)], results[len(given) : len(given) + len(leaves)]
    return structure.rebuild(last), made_structure.rebuild(stacked) if made_structure else None


def expect_pair(returned: Any) -> tuple[Any, Any]:
    """Return the pair that the body of a scan returned: the next carry, and a result."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(
            f"scan: expected the body to return a pair; got {returned!r}. Return "
            "(carry, result), with None as the result of a loop that only carries."
        )
    return returned


def next_carries(structure: trees.Structure, given: Sequence[Node], carry: Any) -> list[Node]:
    """The carried values that a body returns, of the types that it was given."""
    leaves = structure.match(carry, "scan: the carry that the body returns")
    nodes = []
    for path, before, leaf in zip(structure.paths("carry"), given, leaves, strict=True):
        node = as_node(leaf, before, where=f"scan: {path}")
        if node.type != before.type:
            raise (DTypeError if node.dtype != before.dtype else ShapeError)(
                f"scan: expected the body to return {path} as it was given, {before.type}; "
                f"got {node.type} (made at {node.site}). Cast or reshape it."
            )
        nodes.append(node)
    return nodes


def rounds(tensors: Sequence[Node], length: int | None) -> int:
    """Return the number of iterations of a loop."""
    extents = [node.shape[0] if node.shape else None for node in tensors]
    wanted = length if length is not None or not extents else extents[0]
    if wanted is None:
        found = "a scalar" if extents else "neither"
        raise ShapeError(f"scan: expected a length, or xs with an axis to go along; got {found}")
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
        raise ShapeError(f"scan: expected a length >= 0; got {wanted!r}")
    for node, extent in zip(tensors, extents, strict=True):
        if extent != wanted:
            raise ShapeError(
                f"scan: expected xs of {wanted} slices each; got {node.type} (made at "
                f"{node.site}). Slice xs, or change length."
            )
    return wanted


@public
def fori_loop(lower: int, upper: int, body: Callable[[Any, Any], Any], init: Any) -> Any:
    """Repeat a function for i from lower to upper - 1, as jax.lax.fori_loop.

    Parameters
    ----------
    lower, upper
        Ints that are known when the graph is built.
    body
        (i, carry) -> next carry. It is called once, with nodes; i is int64.
    init
        The first carry: a node or an array, or a nested structure of them.

    Returns
    -------
    Any
        The last carry.

    Raises
    ------
    TypeError
        A bound is not an int. ops.while_loop ends by a condition.
    ShapeError, DTypeError
        The body returns other types than it was given.

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
    """Repeat a function while a condition is true, at most max_iterations times.

    As jax.lax.while_loop, with a bound, so that it has a gradient. The iterations after the end
    compute the condition only.

    Parameters
    ----------
    condition
        carry -> bool scalar. It is called once, with nodes.
    body
        carry -> next carry. It is called once, with nodes.
    init
        The first carry: a node or an array, or a nested structure of them.
    max_iterations
        The largest number of iterations. Memory for the gradient grows with it.

    Returns
    -------
    Any
        The carry for which the condition was false, or that of the last iteration.

    Raises
    ------
    ShapeError, DTypeError
        The body returns other types than it was given, or the condition is not a bool scalar.

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

    The function is traced once. Elementwise ops and matmul compute all slices at once and are
    faster, where they can say the same.

    Parameters
    ----------
    function
        slice -> result. It is called once, with nodes.
    xs
        A node or an array, or a nested structure of them, of one extent along axis 0.

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
    index
        An integer scalar. It is clamped to [0, len(branches) - 1].
    branches
        Functions of the operands, at least one. They are called once each, and return the same
        structure, dtypes and shapes.
    operands
        Nodes, arrays, or nested structures of them.

    Returns
    -------
    Any
        What the chosen function returns. Only that one is computed.

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
    chosen = as_node(index, where="switch: index")
    if chosen.shape or chosen.dtype not in INTEGERS:
        raise DTypeError(
            f"switch: expected an integer scalar as index; got {chosen.type}. Cast it: "
            "index.astype('int64')."
        )
    place = clip(cast(chosen, int64), 0, len(functions) - 1)

    def among(low: int, high: int, *given: Any) -> Any:
        if high - low == 1:
            return functions[low](*given)
        middle = (low + high) // 2
        return cond(
            place < middle,
            lambda *inner: among(low, middle, *inner),
            lambda *inner: among(middle, high, *inner),
            *given,
        )

    leaves, structure = trees.flatten(list(operands))
    nodes = [as_node(leaf, where="switch: operands") for leaf in leaves]
    return among(0, len(functions), *structure.rebuild(nodes))
