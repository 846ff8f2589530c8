# SPDX-License-Identifier: Apache-2.0
"""All derivatives of a function: `jacobian`, and `hessian` for the second ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..compiler.functions import Function
from ..dtypes import is_float
from ..errors import GradientError
from ..graph.node import Node
from ..ops._creation import arange, one_hot, zeros
from ..ops._shape import reshape
from ..ops.control.loops import scan
from ..ops.control.tracing import loops, tracing
from .gradient import Primals, as_nodes, like, remembered, value_and_grad


@remembered
def jacobian(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Function:
    """Make a function that returns the derivatives of all elements of the result of `f`.

    Parameters
    ----------
    f : function
        Takes and returns floats, in any structure and of any shape.
    argnums : int or tuple of ints, default 0
        The positional arguments to differentiate by. Each is a structure of floats.

    Returns
    -------
    Function
        Takes the arguments of `f`. It returns arrays of the result's shape followed by the
        argument's shape, in the structure of the result and within it that of the argument.

    Notes
    -----
    A loop (`ops.scan`) computes the rows, one reverse pass per element of the result. The size of
    the program does not depend on their number.

    On several ranks these are the derivatives of the sum over ranks, as in `ngd.grad`. A collective
    in the reverse pass runs in each iteration, so all ranks need the same number of rows.

    Examples
    --------
    >>> ngd.jacobian(lambda a: a * a)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """

    def derivatives(*args: Any, **kwargs: Any) -> Any:
        primals = Primals("jacobian", args, argnums)
        results, structure = as_nodes("jacobian", f(*primals.args, **kwargs))
        for y in results:
            if not is_float(y.dtype):
                raise GradientError(
                    f"jacobian: expected floats as a result; got {y.type}. Cast it."
                )
        return structure.rebuild(rows(primals, y) for y in results)

    return like(f, derivatives, "jacobian")


def rows(primals: Primals, y: Node) -> Any:
    """The derivatives of all elements of a node, in the structure of the arguments."""
    count, depends, around = y.type.count, [False for _ in primals.nodes], loops()

    def row(carry: Any, place: Node) -> tuple[Any, list[Node]]:
        seed = reshape(one_hot(place, count, y.dtype), y.shape)
        with tracing(around):  # a rule that draws again draws what it drew: no loop of the user's
            parts = primals.pull([y], [seed])
        depends[:] = [part is not None for part in parts]
        return carry, [part for part in parts if part is not None]

    _, stacked = scan(row, (), arange(count))
    found = iter(stacked)
    return primals.structure.rebuild(
        reshape(next(found), (*y.shape, *x.shape)) if of else zeros((*y.shape, *x.shape), x.dtype)
        for x, of in zip(primals.nodes, depends, strict=True)
    )


@remembered
def hessian(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Function:
    """Make a function that returns the second derivatives of a scalar function.

    It is the `jacobian` of the gradient. One loop computes all rows, and each row is a reverse
    pass.

    Parameters
    ----------
    f : function
        Takes floats of any shape and returns a floating scalar.
    argnums : int or tuple of ints, default 0
        The positional arguments to differentiate by twice. Each is a structure of floats.

    Returns
    -------
    Function
        Takes the arguments of `f`. It returns arrays of one argument's shape followed by the
        other's, in the structure of the argument and within it the same structure again.

    Examples
    --------
    >>> ngd.hessian(lambda a: ops.sum(a * a))(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 2.]])
    """

    def gradient(*args: Any, **kwargs: Any) -> Any:
        return value_and_grad(f, argnums, unused="zero")(*args, **kwargs)[1]

    return jacobian(like(f, gradient, "hessian"), argnums)


__all__ = ["hessian", "jacobian"]
