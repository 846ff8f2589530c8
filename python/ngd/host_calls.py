# SPDX-License-Identifier: Apache-2.0
"""ngd.call_host: NumPy code inside a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _core
from .dtype import Type, as_dtype, lengths
from .ir import Node
from .ops.host import HostFunction, invoke
from .ops.host import call_host as _call_host
from .ops.operands import as_node
from .trees import flatten

_core.set_host_invoke(invoke)


def call_host(
    function: Callable[..., Any],
    types: Any,
    *nodes: Any,
    gradient: Callable[..., Any] | None = None,
) -> Any:
    """Call a Python function on NumPy arrays inside a step.

    Use it for an operation that ngd does not have. It is slow: Python runs in every step, and the
    step waits for it. The function must depend on its arguments only, because a step may leave out
    a call whose results it does not use.

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
        In the step: the function returned an array of another shape or dtype.
    GradientError
        The result is differentiated and there is no `gradient`.

    Notes
    -----
    An exception of the function leaves the step. The other ranks of the step raise RemoteRankError.

    Examples
    --------
    >>> import math
    >>> x = ngd.placeholder("x", (3,), "float64")
    >>> gamma = ngd.call_host(np.vectorize(math.gamma), x, x)
    >>> ngd.compile(x, gamma)(np.array([1.0, 4.0, 5.0]))
    array([ 1.,  6., 24.])
    """
    if not callable(function):
        raise TypeError(f"call_host: expected a function first; got {function!r}")
    leaves, structure = flatten(types, _is_type)
    results = tuple(_as_type(leaf) for leaf in leaves)
    if not results:
        raise TypeError(f"call_host: expected the types of the results; got {types!r}")
    operands = [as_node(node, where="call_host") for node in nodes]
    host = HostFunction(function, tuple(n.type for n in operands), results, gradient)
    return structure.rebuild(_call_host(operands, host).results)


def _is_type(leaf: Any) -> bool:
    """Return True for a pair of a shape and a dtype."""
    return (
        isinstance(leaf, tuple)
        and len(leaf) == 2
        and isinstance(leaf[0], (tuple, list))
        and all(isinstance(length, int) for length in leaf[0])
        and not isinstance(leaf[1], (tuple, list))
    )


def _as_type(leaf: Any) -> Type:
    if isinstance(leaf, (Node, Type)):
        return leaf.type if isinstance(leaf, Node) else leaf
    if not _is_type(leaf):
        raise TypeError(
            f"call_host: expected types as (shape, dtype) or nodes; got {leaf!r}. Write for "
            'example ((2, 3), "float32").'
        )
    shape, dtype = leaf
    wanted = as_dtype(dtype, "call_host: types")
    return Type(wanted, lengths(tuple(shape), "call_host: types", wanted.itemsize))


__all__ = ["call_host"]
