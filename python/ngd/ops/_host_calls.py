# SPDX-License-Identifier: Apache-2.0
"""ngd.call_host and ngd.print, which call Python functions from a compiled step."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from .. import _core
from ..comm import world
from ..dtypes import Array, Type, as_dtype, as_int, int64, parse_shape
from ..graph import notes
from ..graph.node import Node
from ..trees import flatten
from ._custom import after
from ._host import HostFunction, invoke
from ._host import call_host as _call_host
from ._operands import as_node

_core.set_host_invoke(invoke)


FUNCTION_ADVICE: Final = "Give a function of NumPy arrays."
"""The advice in the error message if the first argument of call_host is not a function."""


def call_host(
    function: Callable[..., Any],
    types: Any,
    *nodes: Any,
    gradient: Callable[..., Any] | None = None,
) -> Any:  # long because each argument is described
    """Call a Python function on NumPy arrays whenever the compiled step runs.

    Use it for an operation that ngd does not have. It is slow: the compiled step waits for Python
    each time. The results of the function must depend only on its arguments. Do not rely on side
    effects, because the compiled step may leave out a call if it does not use the results.

    Parameters
    ----------
    function : callable
        Takes one read-only array per node. Returns one array, or a tuple of arrays if `types` has
        several types. It must not call collectives.
    types : (shape, dtype), Node, or a structure of these
        The shapes and dtypes of the results. A node stands for its own type.
    *nodes : Node or array_like
        The arguments.
    gradient : callable, optional
        Takes the arrays of the arguments and the adjoint of each result. Returns the adjoint of
        each floating argument: an array, or a tuple of arrays if there are several.

    Returns
    -------
    structure of Node
        The results in the structure of `types`.

    Raises
    ------
    TypeError
        When the compiled step runs: the function returned another number of arrays, an array of
        another shape, or floats for an integer type.
    GradientError
        The result is differentiated and there is no `gradient`.

    Notes
    -----
    Results are cast to the declared dtype, as numpy.can_cast allows with "same_kind". So float64 is
    cast to a declared float32, and a value out of its range becomes infinite.

    An exception of the function ends the call of the compiled step, which raises it. The other
    ranks of the step raise RemoteRankError.

    Examples
    --------
    >>> import math
    >>> x = ngd.placeholder("x", (3,), "float64")
    >>> gamma = ngd.call_host(np.vectorize(math.gamma), x, x)
    >>> ngd.compile(x, gamma)(np.array([1.0, 4.0, 5.0]))
    array([ 1.,  6., 24.])
    """
    if not callable(function):
        raise TypeError(
            f"call_host: expected a function first; got {function!r}. {FUNCTION_ADVICE}"
        )
    leaves, structure = flatten(types, _is_type)
    results = tuple(_as_type(leaf) for leaf in leaves)
    if not results:
        raise TypeError(
            f"call_host: expected the types of the results; got {types!r}. Give at least one."
        )
    operands = [as_node(node, where="call_host") for node in nodes]
    host = HostFunction(function, tuple(n.type for n in operands), results, gradient)
    return structure.rebuild(_call_host(operands, host).results)


def print(x: Any, name: str = "", *, rank: int | None = None, first_only: bool = False) -> Node:
    """Print the value of a node in each call of the compiled step, and return the node.

    Parameters
    ----------
    x : Node
        The node.
    name : str, optional
        The text before the value.
    rank : int, optional
        The only rank that prints. By default each rank prints.
    first_only : bool, default False
        Print in the first call only.

    Returns
    -------
    Node
        `x`. Use this node in place of `x`. If you do not use this node, x is printed only if the
        compiled step computes x anyway. An unused print in the body of ops.scan or in a branch of
        ops.cond never prints.

    Notes
    -----
    Python runs in each call of the compiled step, as with call_host. Remove prints before you
    measure.

    Examples
    --------
    >>> x = ngd.placeholder("x", (2,))
    >>> step = ngd.compile(x, ngd.print(x * 2, "twice"))
    >>> values = step(np.array([1, 2], np.float32))  # prints "twice = [2. 4.]"
    """
    node = as_node(x, where="print")
    if not isinstance(name, str):
        raise TypeError(f"print: name: expected a text; got {name!r}")
    if not isinstance(first_only, bool):
        raise TypeError(f"print: first_only: expected True or False; got {first_only!r}")
    if rank is not None:
        rank = as_int(rank, "print", "rank")
    function = HostFunction(Printer(name, rank, first_only), (node.type,), PRINT_RESULT)
    notes.add(node, notes.Print(function))
    return after(node, _call_host([node], function))


PRINT_RESULT: Final = (Type(int64, ()),)
"""The result types of a print. Its only result is an int64 whose value has no meaning."""


class Printer:
    """The function that a compiled step calls for ngd.print: it prints an array."""

    def __init__(self, name: str, rank: int | None, first_only: bool) -> None:
        self.name, self.rank, self.first_only = name, rank, first_only
        self.is_done = False
        self.__qualname__ = f"print({name!r})"

    def __call__(self, value: Array) -> int:
        """Print an array, if this rank and this call should print. The result has no meaning."""
        if (self.first_only and self.is_done) or self.rank not in (None, world.rank()):
            return 0
        self.is_done = True
        text = np.array2string(value, threshold=100)
        builtins.print(f"{self.name} = {text}" if self.name else text, flush=True)
        return 0


def _is_type(leaf: Any) -> bool:
    """Return True if a value has the form (shape, dtype), by which users declare result types."""
    return (
        isinstance(leaf, tuple)
        and len(leaf) == 2
        and isinstance(leaf[0], (tuple, list))
        and all(isinstance(length, int) for length in leaf[0])
        and not isinstance(leaf[1], (tuple, list))
    )


def _as_type(leaf: Any) -> Type:
    """Return the Type of one result of call_host, as the user declared it in `leaf`.

    `leaf` is a Type, a pair (shape, dtype), or a node whose type the result has.
    """
    if isinstance(leaf, (Node, Type)):
        return leaf.type if isinstance(leaf, Node) else leaf
    if not _is_type(leaf):
        raise TypeError(
            f"call_host: expected types as (shape, dtype) or nodes; got {leaf!r}. Write for "
            'example ((2, 3), "float32").'
        )
    shape, dtype = leaf
    wanted = as_dtype(dtype, "call_host: types")
    return Type(wanted, parse_shape(tuple(shape), "call_host: types", wanted.itemsize))


__all__ = ["call_host", "print"]
