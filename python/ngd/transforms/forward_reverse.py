# SPDX-License-Identifier: Apache-2.0
"""Products of a Jacobian with vectors: `jvp` (forward mode) and `vjp` (reverse mode)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..compiler.functions import Function, building
from ..dtypes import is_float
from ..ops._creation import zeros
from ..ops._custom import after
from .gradient import Primals, as_nodes, as_vector_like, pulled, remembered, step_of, with_aux


def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return f(*primals), and a function for vector-Jacobian products.

    Called with arrays, that function is a compiled step, which computes `f` again with the current
    values. While a graph is built, it adds nodes to the graph.

    Parameters
    ----------
    f : function
        Takes and returns floats, in any structure and of any shape.
    *primals : structure of arrays
        Its arguments, by all of which it is differentiated.
    has_aux : bool, default False
        If `f` returns (result, aux), aux is the third element of the tuple.

    Returns
    -------
    tuple
        The result, and the function. It takes a structure like the result's. It returns, per
        primal, the derivatives of the result's elements, weighted with that structure and summed.
        With has_aux, aux is the third element.

    Examples
    --------
    >>> y, pull_back = ngd.vjp(lambda a: a * a, np.array([1.0, 2.0]))
    >>> pull_back(np.array([1.0, 10.0]))
    (array([ 2., 40.]),)
    """
    if building(primals):
        returned, aux, pull = pulled_back(f, primals, has_aux)
    else:
        returned, aux = forward_of(f, has_aux)(primals)
        backward = backward_of(f, has_aux)
        pull = functools.partial(backward, primals)
    return (returned, pull, aux) if has_aux else (returned, pull)


def pulled_back(
    f: Callable[..., Any], args: Sequence[Any], has_aux: bool
) -> tuple[Any, Any, Callable[[Any], Any]]:
    """The result of a function on nodes, aux, and what pulls adjoints back through it."""
    primals = Primals("vjp", args, tuple(range(len(args))))
    returned, aux = with_aux("vjp", f(*primals.args), has_aux)
    results, structure = as_nodes("vjp", returned)

    def pull(cotangents: Any) -> Any:
        given = structure.match(cotangents, "vjp: cotangents")
        dy = [as_vector_like("vjp: cotangents", x, y) for x, y in zip(given, results, strict=True)]
        return primals.filled(primals.pull(results, dy))

    return structure.rebuild(results), aux, pull


@remembered
def forward_of(f: Callable[..., Any], has_aux: bool) -> Function:
    """The step that computes what a function returns, and aux."""

    def forward(primals: Any) -> Any:
        return with_aux("vjp", f(*primals), has_aux)

    return step_of(f, forward)


@remembered
def backward_of(f: Callable[..., Any], has_aux: bool) -> Function:
    """The step that pulls adjoints back."""

    def backward(primals: Any, cotangents: Any) -> Any:
        return pulled_back(f, primals, has_aux)[2](cotangents)

    return step_of(f, backward)


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """Return f(*primals), and its derivative in a direction (Jacobian-vector product).

    Parameters
    ----------
    f : function
        Takes and returns floats, in any structure and of any shape.
    primals : sequence
        Its arguments.
    tangents : sequence
        The direction of each argument, of the same structure and shapes.

    Returns
    -------
    tuple
        The result, and its derivative, of the same structure. The derivative of a part that is not
        floating is None.

    Notes
    -----
    It consists of two reverse passes, since the vector-Jacobian product is linear in its vector. So
    all ops need second derivatives. The time is about that of a gradient. As for a gradient, memory
    holds the values of the whole forward pass.

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
    made = step.__wrapped__ if building((primals, tangents)) else step
    return made(primals, tangents)


@remembered
def forward_mode(f: Callable[..., Any]) -> Function:
    """The step that computes a function, and its derivative in a direction."""

    def forward(args: Any, tangents: Any) -> Any:
        primals = Primals("jvp", args, tuple(range(len(args))))
        results, structure = as_nodes("jvp", f(*primals.args))
        given = primals.structure.match(tangents, "jvp: tangents")
        paths = primals.structure.paths("tangents")
        directions = [
            as_vector_like(f"jvp: {path}", t, x)
            for path, t, x in zip(paths, given, primals.nodes, strict=True)
        ]
        floats = [y for y in results if is_float(y.dtype)]
        weights = [after(zeros(y.shape, y.dtype)) for y in floats]
        products = primals.pull(floats, weights)
        reached = [i for i, product in enumerate(products) if product is not None]
        slopes = pulled(
            [products[i] for i in reached],  # type: ignore[misc]
            [directions[i] for i in reached],
            weights,
        )
        of = dict(zip(floats, slopes, strict=True))
        derivatives = [
            zeros(y.shape, y.dtype) if y in of and of[y] is None else of.get(y) for y in results
        ]
        return structure.rebuild(results), structure.rebuild(derivatives)

    return step_of(f, forward)


__all__ = ["jvp", "vjp"]
