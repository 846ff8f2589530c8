# SPDX-License-Identifier: Apache-2.0
"""Products of a Jacobian with vectors: `jvp` and `vjp`.

The primals are the arguments of a function. Its Jacobian J has the derivatives of all results with
respect to all primals.

`vjp` computes J^T u for cotangents u, which have the structure of the results. This is the reverse
mode: one backward pass from the results to the primals.

`jvp` computes J t for tangents t, which have the structure of the primals. It takes two backward
passes: the function u -> J^T u is linear, and its Jacobian is J^T. So its vector-Jacobian product
with the vector t is (J^T)^T t = J t (Townsend, 2017,
https://j-towns.github.io/2017/06/12/A-new-trick.html).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..compiler.functions import Function, building
from ..dtypes import is_float
from ..ops._creation import zeros
from ..ops._custom import after
from .gradient import (
    Primals,
    as_nodes,
    as_vector_like,
    cached_transformation,
    pull_back,
    step_of,
    with_aux,
)


def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return f(*primals), and a function for vector-Jacobian products.

    If `vjp` is called with arrays, the function for products is a compiled step, which computes `f`
    again with the current values of variables. While a graph is built, the function for products
    adds nodes to the graph.

    Parameters
    ----------
    f : function
        A function of floats that returns floats, in any structure and of any shape.
    *primals : structure of arrays
        The arguments of `f`, which is differentiated with respect to all of them.
    has_aux : bool, default False
        True if `f` returns a pair (result, aux). The auxiliary output aux is not differentiated.

    Returns
    -------
    tuple
        The result of `f`, and the function for vector-Jacobian products. With has_aux, aux is the
        third element. The function takes cotangents u in the structure of the result. It returns
        J^T u for the Jacobian J of `f`: a tuple with one entry per primal, in the structure of the
        primal.

    Examples
    --------
    >>> y, pull_back = ngd.vjp(lambda a: a * a, np.array([1.0, 2.0]))
    >>> pull_back(np.array([1.0, 10.0]))
    (array([ 2., 40.]),)
    """
    if building(primals):
        returned, aux, pull = result_and_pullback(f, primals, has_aux)
    else:
        returned, aux = forward_of(f, has_aux)(primals)
        backward = backward_of(f, has_aux)
        pull = functools.partial(backward, primals)
    return (returned, pull, aux) if has_aux else (returned, pull)


def result_and_pullback(
    f: Callable[..., Any], args: Sequence[Any], has_aux: bool
) -> tuple[Any, Any, Callable[[Any], Any]]:
    """Call f on nodes. Return its result, its auxiliary output, and a function.

    The function takes cotangents of the result and returns the adjoints of the arguments.
    """
    primals = Primals("vjp", args, tuple(range(len(args))))
    returned, aux = with_aux("vjp", f(*primals.args), has_aux)
    results, structure = as_nodes("vjp", returned)

    def pull(cotangents: Any) -> Any:
        values = structure.match(cotangents, "vjp: cotangents")
        dy = [as_vector_like("vjp: cotangents", x, y) for x, y in zip(values, results, strict=True)]
        return primals.rebuild_adjoints(primals.pull(results, dy))

    return structure.rebuild(results), aux, pull


@cached_transformation
def forward_of(f: Callable[..., Any], has_aux: bool) -> Function:
    """Return a compiled function from the primals to the pair (result of f, auxiliary output).

    The auxiliary output is None if `has_aux` is False.
    """

    def forward(primals: Any) -> Any:
        return with_aux("vjp", f(*primals), has_aux)

    return step_of(f, forward)


@cached_transformation
def backward_of(f: Callable[..., Any], has_aux: bool) -> Function:
    """Return a compiled function of primals and cotangents.

    The compiled function returns the vector-Jacobian product of f.
    """

    def backward(primals: Any, cotangents: Any) -> Any:
        return result_and_pullback(f, primals, has_aux)[2](cotangents)

    return step_of(f, backward)


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """Return f(*primals), and the Jacobian-vector product: the derivative of f along tangents.

    Parameters
    ----------
    f : function
        A function of floats. Its result has any structure and any shapes.
    primals : sequence
        The arguments of `f`.
    tangents : sequence
        The change of each argument along which `f` is differentiated, in the same structure and
        shapes as the primals.

    Returns
    -------
    tuple
        The result, and its derivative in the same structure. A leaf of the result that is not
        floating has the derivative None.

    Notes
    -----
    Two backward passes compute the derivative. The first one computes J^T u for the Jacobian J of
    `f` and a vector u. J^T u is linear in u, and its Jacobian with respect to u is J^T. The second
    one differentiates J^T u with respect to u, and so computes J t for the tangents t. Therefore
    each op needs a second derivative. The time is about the time of a gradient. As for a gradient,
    memory holds the values of the whole forward pass.

    Examples
    --------
    >>> ngd.jvp(lambda a: a * a, [np.array([1.0, 2.0])], [np.array([1.0, 1.0])])
    (array([1., 4.]), array([2., 4.]))
    """
    where = "jvp"
    primals, tangents = tuple(primals), tuple(tangents)
    if len(primals) != len(tangents):
        raise TypeError(
            f"{where}: expected a tangent for each primal; got {len(primals)} and {len(tangents)}. "
            "Give one per primal."
        )
    step = forward_mode(f)
    call = step.__wrapped__ if building((primals, tangents)) else step
    return call(primals, tangents)


@cached_transformation
def forward_mode(f: Callable[..., Any]) -> Function:
    """Return a compiled function of primals and tangents.

    The compiled function returns the result of f, and the derivative of f along the tangents.
    """

    def forward(args: Any, tangents: Any) -> Any:
        primals = Primals("jvp", args, tuple(range(len(args))))
        results, structure = as_nodes("jvp", f(*primals.args))
        tangent_leaves = primals.structure.match(tangents, "jvp: tangents")
        paths = primals.structure.paths("tangents")
        directions = [
            as_vector_like(f"jvp: {path}", t, x)
            for path, t, x in zip(paths, tangent_leaves, primals.nodes, strict=True)
        ]
        floats = [y for y in results if is_float(y.dtype)]
        weights = [after(zeros(y.shape, y.dtype)) for y in floats]
        products = primals.pull(floats, weights)
        connected = [i for i, product in enumerate(products) if product is not None]
        float_derivatives = pull_back(
            [products[i] for i in connected],  # type: ignore[misc]
            [directions[i] for i in connected],
            weights,
        )
        slopes = dict(zip(floats, float_derivatives, strict=True))
        derivatives = [
            zeros(y.shape, y.dtype) if y in slopes and slopes[y] is None else slopes.get(y)
            for y in results
        ]
        return structure.rebuild(results), structure.rebuild(derivatives)

    return step_of(f, forward)


__all__ = ["jvp", "vjp"]
