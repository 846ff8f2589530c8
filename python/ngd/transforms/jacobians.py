# SPDX-License-Identifier: Apache-2.0
"""All first and all second derivatives of a function: `jacobian` and `hessian`."""

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
from .gradient import Primals, as_nodes, cached_transformation, function_like, value_and_grad


@cached_transformation
def jacobian(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Function:
    """Make a function that returns the derivatives of all elements of the result of `f`.

    Parameters
    ----------
    f : function
        A function of floats that returns floats, in any structure and of any shape.
    argnums : int or tuple of ints, default 0
        The positional arguments with respect to which `f` is differentiated. Each is an array of
        floats, or a structure (nested dict, list, tuple or dataclass) of such arrays.

    Returns
    -------
    Function
        A function of the arguments of `f`. If result and argument are single arrays, it returns one
        array, whose shape is the shape of the result followed by the shape of the argument.
        Otherwise it returns one such array for each leaf of the result and each leaf of the
        argument: a structure like the result, in which each leaf is a structure like the argument.

    Notes
    -----
    A row has the derivatives of one element of the result. A loop (`ops.scan`) computes the rows,
    with one backward pass per row. The size of the program does not depend on the number of rows.

    On several ranks, the sum of all ranks' results is differentiated with respect to this rank's
    arguments, as in `ngd.grad`. A collective in the backward pass runs in each iteration, so all
    ranks need the same number of rows.

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

    return function_like(f, derivatives, "jacobian")


def rows(primals: Primals, y: Node) -> Any:
    """Return the derivatives of all elements of y, in the structure of the primals.

    A loop computes one row of the Jacobian per element of y.
    """
    count, depends, outer_loops = y.type.count, [False for _ in primals.nodes], loops()

    def row(carry: Any, index: Node) -> tuple[Any, list[Node]]:
        seed = reshape(one_hot(index, count, y.dtype), y.shape)
        # A gradient rule that recomputes random draws must draw the numbers of the forward pass,
        # which is outside of this loop.
        with tracing(outer_loops):
            parts = primals.pull([y], [seed])
        depends[:] = [part is not None for part in parts]
        return carry, [part for part in parts if part is not None]

    _, stacked = scan(row, (), arange(count))
    jacobians = iter(stacked)
    return primals.structure.rebuild(
        reshape(next(jacobians), (*y.shape, *x.shape))
        if used
        else zeros((*y.shape, *x.shape), x.dtype)
        for x, used in zip(primals.nodes, depends, strict=True)
    )


@cached_transformation
def hessian(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Function:
    """Make a function that returns the second derivatives of a scalar function.

    They are the `jacobian` of the gradient. A loop runs one backward pass per row of the Hessian.

    Parameters
    ----------
    f : function
        A function of floats of any shape that returns a floating scalar.
    argnums : int or tuple of ints, default 0
        The positional arguments with respect to which `f` is differentiated twice. Each is an array
        of floats, or a structure (nested dict, list, tuple or dataclass) of such arrays.

    Returns
    -------
    Function
        A function of the arguments of `f`. If the argument is a single array, it returns one array.
        For example, an argument of shape (2, 3) gives the shape (2, 3, 2, 3). Otherwise it returns
        one array for each pair of leaves of the argument, with the shape of the first leaf followed
        by that of the second. The arrays are in a structure like the argument, in which each leaf
        is again a structure like the argument.

    Examples
    --------
    >>> ngd.hessian(lambda a: ops.sum(a * a))(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 2.]])
    """

    def gradient(*args: Any, **kwargs: Any) -> Any:
        return value_and_grad(f, argnums, unused="zero")(*args, **kwargs)[1]

    return jacobian(function_like(f, gradient, "hessian"), argnums)


__all__ = ["hessian", "jacobian"]
