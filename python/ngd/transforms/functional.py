# SPDX-License-Identifier: Apache-2.0
"""Function transformations: Jacobian products, custom gradients and rematerialisation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from ..compiler.functions import Function, building, is_array
from ..dtypes import is_float
from ..errors import GradientError
from ..graph.graph import Graph
from ..graph.leaves import CONSTANT, Leaf
from ..graph.node import Node, newest, topological
from ..graph.variable import constant
from ..ops._casting import cast
from ..ops._creation import arange, one_hot, zeros
from ..ops._custom import after, with_gradient
from ..ops._operands import as_node
from ..ops._shape import reshape, stop_gradient
from ..ops.control.loops import scan
from ..ops.control.tracing import loops, tracing
from ..trees import LEAF, Structure, flatten
from .gradient import (
    Primals,
    as_nodes,
    like,
    pulled,
    remembered,
    step_of,
    value_and_grad,
    with_aux,
)


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
        dy = [fitted("vjp: cotangents", x, y) for x, y in zip(given, results, strict=True)]
        return primals.filled(primals.pull(results, dy))

    return structure.rebuild(results), aux, pull


def fitted(where: str, given: Any, like: Node) -> Node | None:
    """A vector to multiply with, of the type of what it belongs to; None for what is no float."""
    if not is_float(like.dtype):
        return None
    node = cast(as_node(given, like, where), like.dtype)
    if node.shape != like.shape:
        raise GradientError(
            f"{where}: expected {like.type}, the type of the value to which it belongs; got "
            f"{node.type}. Reshape or cast it."
        )
    return node


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
            fitted(f"jvp: {path}", t, x)
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


def custom_gradient(f: Callable[..., Any]) -> Function:
    """Define the gradient of a function; a decorator.

    Parameters
    ----------
    f : function
        Returns (result, gradient). The result is a structure of nodes of any shape. `gradient`
        takes adjoints in the same structure, which are zeros if the loss does not depend on a part.
        It returns the adjoint of the argument in the argument's structure, or a tuple if several
        arguments contain arrays or floats. None means that there is no gradient. `gradient` may use
        values that `f` has computed.

    Returns
    -------
    Function
        Takes the arguments of `f` and returns its result.

    Raises
    ------
    GradientError
        `f` reads a floating node or variable from outside, which would get no gradient. Make it an
        argument, or wrap it in ops.stop_gradient. An adjoint of another type than its argument is
        the same error.

    Examples
    --------
    >>> @ngd.custom_gradient
    ... def log1pexp(a):
    ...     e = ops.exp(a)
    ...     return ops.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))
    >>> ngd.grad(lambda a: ops.sum(log1pexp(a)))(np.zeros(2))
    array([0.5, 0.5])
    """
    name = getattr(f, "__qualname__", repr(f))
    where = f"custom_gradient: {name}"

    def call(*args: Any, **kwargs: Any) -> Any:
        since = newest()
        leaves, structure = flatten(([*args], kwargs))
        own = [after(node) if (node := tensor(x)) is not None else x for x in leaves]
        given, named = structure.rebuild(own)
        returned = f(*given, **named)
        if not isinstance(returned, tuple) or len(returned) != 2 or not callable(returned[1]):
            raise TypeError(
                f"{where}: expected it to return (result, gradient); got {returned!r}. Return a "
                "pair."
            )
        results, of_results = as_nodes(where, returned[0])
        operands = [x for x in own if isinstance(x, Node)]
        expect_closed(where, results, operands, since)
        rule = GivenGradient(where, returned[1], of_results, [*given, *named.values()])
        made = with_gradient(results, operands, rule).results if results else ()
        return of_results.rebuild(made)

    return like(f, call, "custom_gradient")


def expect_closed(
    where: str, results: Sequence[Node], operands: Sequence[Node], since: int
) -> None:
    """Refuse what a function reads beside its arguments, and what would have a gradient."""
    seen = set(operands)
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if (
            node in seen
            or node.op is CONSTANT
            or node.op is stop_gradient
            or not is_float(node.dtype)
        ):
            continue
        seen.add(node)
        if node.id < since or isinstance(node.op, Leaf):
            raise GradientError(
                f"{where}: expected a function that reads only its arguments; got one that reads "
                f"{node!r} (made at {node.site}), which would get no gradient. Make it an "
                "argument, "
                "or read it by ops.stop_gradient."
            )
        waiting += node.inputs


def tensor(leaf: Any) -> Node | None:
    """A node of what is or becomes one in a trace; None for what is fixed there."""
    if isinstance(leaf, Node):
        return leaf
    return constant(leaf) if is_array(leaf) or type(leaf) is float else None


class GivenGradient:
    """The rule of `custom_gradient`; `args` are the arguments, with nodes for their arrays."""

    def __init__(
        self, where: str, gradient: Callable[[Any], Any], results: Structure, args: Sequence[Any]
    ) -> None:
        self.where, self.gradient, self.results = where, gradient, results
        trees = [flatten(arg) for arg in args]
        self.args = [t for t in trees if any(isinstance(leaf, Node) for leaf in t[0])]

    def __call__(
        self, results: Sequence[Node], operands: Sequence[Node], dy: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        """Ask the user's function."""
        whole = [
            zeros(y.shape, y.dtype) if part is None else part
            for y, part in zip(results, dy, strict=True)
        ]
        made = self.gradient(self.results.rebuild(whole))
        parts = (made,) if len(self.args) == 1 else made
        if not isinstance(parts, tuple) or len(parts) != len(self.args):
            raise TypeError(
                f"{self.where}: gradient: expected a tuple of {len(self.args)} adjoints; got "
                f"{made!r}. Return one per argument, None for none."
            )
        adjoints: list[Any] = []
        for part, (leaves, structure) in zip(parts, self.args, strict=True):
            none = part is None and structure is not LEAF
            found = leaves if none else structure.match(part, f"{self.where}: gradient")
            pairs = zip(leaves, found, strict=True)
            adjoints += [None if none else d for leaf, d in pairs if isinstance(leaf, Node)]
        wanted = [self.adjoint(d, x) for d, x in zip(adjoints, operands, strict=True)]
        return [*(None for _ in results), *wanted]

    def adjoint(self, given: Any, of: Node) -> Node | None:
        """One adjoint, of its operand's type."""
        if given is None:
            return None
        return fitted(f"{self.where}: gradient", given, of)

    def __repr__(self) -> str:
        return self.where


def remat(f: Callable[..., Any]) -> Function:
    """Recompute the values of `f` in the backward pass instead of storing them; a decorator.

    PyTorch and JAX also call this checkpointing; `ngd.checkpoint` saves variables. Results and
    gradients are equal up to rounding. Between the forward and the backward pass, memory holds only
    the inputs and results of `f`. The backward pass runs the forward pass of `f` once more.

    Parameters
    ----------
    f : function
        Takes and returns any structure of arrays of any shape. It may read nodes and variables from
        outside. Its collectives run again too.

    Returns
    -------
    Function
        Takes the arguments of `f` and returns its result.

    Examples
    --------
    >>> block = ngd.remat(lambda a: ops.tanh(ops.exp(a)))
    >>> ngd.grad(lambda a: ops.sum(block(a)))(np.zeros(1)).shape
    (1,)
    """
    name = getattr(f, "__qualname__", repr(f))

    def call(*args: Any, **kwargs: Any) -> Any:
        since = newest()
        returned = f(*args, **kwargs)
        leaves, structure = flatten(returned)
        results = [leaf for leaf in leaves if isinstance(leaf, Node)]
        if not results:
            return returned
        operands = read_from_outside(results, since)
        made = iter(with_gradient(results, operands, ComputedAgain(name)).results)
        return structure.rebuild(next(made) if isinstance(x, Node) else x for x in leaves)

    return like(f, call, "remat")


def read_from_outside(results: Sequence[Node], since: int) -> list[Node]:
    """What was there before some function ran, or comes from outside the graph, and is read."""
    read: dict[Node, None] = {}
    for node in chain(results, chain.from_iterable(n.inputs for n in topological(results))):
        if node.op is not CONSTANT and (node.id < since or isinstance(node.op, Leaf)):
            read[node] = None
    inner = topological(results, stop=read)
    used = chain(results, chain.from_iterable(n.inputs for n in inner))
    return list(dict.fromkeys(node for node in used if node in read))


def go_on_last(operands: Sequence[Node], parts: Sequence[Node | None]) -> list[Node | None]:
    """The same adjoints; those with which the backward pass goes on wait for the others.

    So what was computed again is done with before the layers below compute theirs: the gradients of
    weights, which nobody else waits for, would else keep it until the end.
    """
    there = [part for part in parts if part is not None]
    made = []
    for x, part in zip(operands, parts, strict=True):
        others = [other for other in there if other is not part]
        while x.op is after:
            x = x.inputs[0]
        if part is None or not others or isinstance(x.op, Leaf):
            made.append(part)
        else:
            made.append(after(part, *others))
    return made


class ComputedAgain:
    """The rule of `remat`: compute the results anew, then go back through that.

    What is between operands and results is found in the graph, which may be a copy by now: that of
    a loop's body. There, what the loop computes once comes from outside, so that a result may be
    reached from no operand. Then nothing is computed again.
    """

    follows_graph = True
    """The rule reads only the nodes that it is called with (ops/batching/user_functions.py)."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(
        self, results: Sequence[Node], operands: Sequence[Node], dy: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        """The adjoints of what was read from outside."""
        inner = topological(results, stop=operands)
        if any(isinstance(node.op, Leaf) and node.op is not CONSTANT for node in inner):
            return [*dy, *(None for _ in operands)]
        known = [part for part in dy if part is not None]
        again = {x: after(x, *known) for x in operands}
        first = list(dict.fromkeys(x.results[0] for x in operands))

        def change(node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
            if not any(result in again for result in node.results):
                return node.with_inputs(inputs)
            replaced = tuple(again.get(result, result) for result in node.results)
            return replaced if node.several else replaced[0]

        graph = Graph((), tuple(results)).rewrite(change, [*first, *inner])
        found = dict(zip(again, pulled(graph.outputs, dy, [*again.values()]), strict=True))
        return [*(None for _ in results), *go_on_last(operands, [found[x] for x in operands])]

    def __repr__(self) -> str:
        return f"remat({self.name})"


__all__ = [
    "custom_gradient",
    "hessian",
    "jacobian",
    "jvp",
    "remat",
    "vjp",
]
