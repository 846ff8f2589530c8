# SPDX-License-Identifier: Apache-2.0
"""From functions to functions: gradients, products with Jacobians, gradients of one's own.

Each takes a Python function that makes nodes of nodes. Where a graph is being built, what they give
adds to it; called with arrays, it is compiled as by `ngd.function`, and kept as long as the
function is the same one.

The arguments that are differentiated by become nodes of their own (`after`), so that f(x, x) has
two partial derivatives, and what a function reads beside its arguments is constant to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np

from .autodiff import UNUSED, walk_back
from .dtype import is_float
from .errors import GradientError
from .functions import Function, building, is_array, signature_of
from .ir import CONSTANT, Graph, Leaf, Node, constant_node, newest, topological
from .ops.arithmetic import add
from .ops.casting import cast
from .ops.control import scan
from .ops.creation import arange, one_hot
from .ops.custom import after, with_gradient
from .ops.loops import loops, tracing
from .ops.operands import as_node
from .ops.shape import reshape, stop_gradient, zeros
from .trees import LEAF, Structure, flatten
from .variables import constant

KEPT: Final = 512
"""So many functions made of functions are remembered, with what they have compiled."""

Maker = TypeVar("Maker", bound=Callable[..., Any])


def remembered(make: Maker) -> Maker:
    """Make the same function of the same one, with the same options: its traces are kept."""
    kept = functools.lru_cache(KEPT)(make)

    @functools.wraps(make)
    def asked(f: Any, *args: Any, **kwargs: Any) -> Any:
        if not callable(f):
            raise TypeError(f"{make.__name__}: expected a function; got {f!r}")
        hashable = all(isinstance(x, Hashable) for x in (f, *args, *kwargs.values()))
        return (kept if hashable else make)(f, *args, **kwargs)

    return asked  # type: ignore[return-value]


class Primals:
    """What a function is differentiated by: the leaves of some arguments, each its own node."""

    def __init__(self, where: str, args: Sequence[Any], argnums: int | Sequence[int]) -> None:
        numbers = [argnums] if isinstance(argnums, int) else list(argnums)
        if any(not -len(args) <= n < len(args) for n in numbers):
            raise TypeError(
                f"{where}: expected argnums among the {len(args)} positional arguments; "
                f"got {argnums}"
            )
        tree = args[numbers[0]] if isinstance(argnums, int) else tuple(args[n] for n in numbers)
        leaves, self.structure = flatten(tree)
        self.paths = self.structure.paths("the argument" if len(numbers) == 1 else "arguments")
        self.nodes = [
            after(expect_float(where, path, leaf))
            for path, leaf in zip(self.paths, leaves, strict=True)
        ]
        self.args = list(args)
        rebuilt = self.structure.rebuild(self.nodes)
        for place, n in enumerate(numbers):
            self.args[n] = rebuilt if isinstance(argnums, int) else rebuilt[place]

    def pull(self, results: Sequence[Node], dy: Sequence[Node | None]) -> list[Node | None]:
        """The adjoints of the leaves from those of some results."""
        return pulled(results, dy, self.nodes)

    def filled(self, parts: Iterable[Node | None]) -> Any:
        """Adjoints in the arguments' structure, with zeros for what nothing depends on."""
        pairs = zip(self.nodes, parts, strict=True)
        return self.structure.rebuild(
            zeros(x.shape, x.dtype) if part is None else part for x, part in pairs
        )


def pulled(
    results: Sequence[Node], dy: Sequence[Node | None], targets: Sequence[Node]
) -> list[Node | None]:
    """The adjoints of targets from those of results, of which one node may be several."""
    seeds: dict[Node, Node] = {}
    for result, part in zip(results, dy, strict=True):
        if part is not None and is_float(result.dtype):
            seeds[result] = add(seeds[result], part) if result in seeds else part
    found = walk_back(seeds, targets, beyond=False)
    return [found.get(node) for node in targets]


def expect_float(where: str, path: str, leaf: Any) -> Node:
    """A floating node to differentiate by."""
    node = leaf if isinstance(leaf, Node) else None
    if node is None and not isinstance(leaf, (bool, int, str, bytes, type(None))):
        node = constant(leaf)
    if node is None or not is_float(node.dtype):
        got = repr(leaf) if node is None else str(node.type)
        raise GradientError(
            f"{where}: {path}: expected floats to differentiate by, in arrays or as Python "
            f"floats; got {got}"
        )
    return node


def as_nodes(where: str, tree: Any) -> tuple[list[Node], Structure]:
    """What a function returned, all of it nodes."""
    leaves, structure = flatten(tree)
    return [as_node(leaf, where=f"{where}: the result") for leaf in leaves], structure


def with_aux(where: str, returned: Any, has_aux: bool) -> tuple[Any, Any]:
    """A function's result, and what it returns beside."""
    if not has_aux:
        return returned, None
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(
            f"{where}: expected a function that returns (result, aux), as has_aux says; "
            f"got {returned!r}"
        )
    return returned


@remembered
def value_and_grad(
    f: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    unused: str = "error",
) -> Function:
    """Make a function that gives the value of `f` and its gradient.

    ::

        @ngd.function(updates=True)
        def step(x, y):
            loss, gradients = ngd.value_and_grad(loss_of)(parameters, x, y)
            return loss, {v: v - 0.1 * gradients[k] for k, v in parameters.items()}

    Parameters
    ----------
    f
        Returns a floating scalar; with has_aux a pair of that and any structure.
    argnums
        Which positional argument to differentiate by, or which ones: any structure of floats.
    has_aux
        Whether `f` returns something beside the scalar, which is handed on: ((value, aux), grad).
    unused
        "error": an argument that the value does not depend on is a GradientError; "zero": its
        gradient is zeros.

    Returns
    -------
    Function
        Takes what `f` takes and gives (value, gradient), the gradient in the structure of the
        argument, or in a tuple of several. On several ranks: as `ngd.grad`.

    Raises
    ------
    GradientError
        The value is no floating scalar, an argument is no float, or an op has no gradient.
    """
    where = "value_and_grad"
    if unused not in UNUSED:
        raise ValueError(f'{where}: expected unused "error" or "zero"; got {unused!r}')

    def both(*args: Any, **kwargs: Any) -> Any:
        primals = Primals(where, args, argnums)
        returned, aux = with_aux(where, f(*primals.args, **kwargs), has_aux)
        value = as_node(returned, where=f"{where}: the value") if returned is not None else None
        if value is None or value.shape or not is_float(value.dtype):
            got = value.type if value is not None else None
            raise GradientError(f"{where}: expected a floating scalar to differentiate; got {got}")
        parts = primals.pull([value], [constant_node(np.ones((), value.dtype))])
        lacking = [p for p, part in zip(primals.paths, parts, strict=True) if part is None]
        if lacking and unused == "error":
            raise GradientError(
                f"{where}: the value (made at {value.site}) does not depend on {lacking[0]} "
                'through anything differentiable; unused="zero" would give zeros'
            )
        return ((value, aux) if has_aux else value), primals.filled(parts)

    return like(f, both, where)


def like(f: Callable[..., Any], made: Callable[..., Any], where: str) -> Function:
    """A function of the arguments of `f`; what `f` takes by position comes by position."""
    signature = signature_of(f)

    def python(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return made(*bound.args, **bound.kwargs)

    functools.update_wrapper(python, f, ("__doc__",), ())
    python.__qualname__ = f"{where}({getattr(f, '__qualname__', repr(f))})"
    python.__signature__ = signature  # type: ignore[attr-defined]
    return step_of(f, python)


def step_of(f: Callable[..., Any], python: Callable[..., Any]) -> Function:
    """A function that is made of `f`: where that is compiled itself, as that is."""
    if isinstance(f, Function):
        return Function(python, False, f.device, f.group, f.precision, f.shard, of=f)
    return Function(python, of=f)


def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Give f(*primals), and the function that multiplies a vector with its Jacobian from the left.

    The second one takes a structure as the result's, and gives a tuple: for each primal the sum of
    the derivatives of the result's elements, weighted with it. Called with arrays it is a compiled
    step, which computes `f` again, of the primals as they are then; while a graph is built it adds
    nodes to it.

    Parameters
    ----------
    f
        A function of floats, in any structures.
    primals
        Its arguments, all of which are differentiated by.
    has_aux
        Whether `f` returns (result, aux); then aux is the third thing that is given.

    Returns
    -------
    tuple
        The result, and the function; and with has_aux, aux.
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
        given = structure.match(cotangents, "vjp: the vector")
        dy = [fitted("vjp: the vector", x, y) for x, y in zip(given, results, strict=True)]
        return primals.filled(primals.pull(results, dy))

    return structure.rebuild(results), aux, pull


def fitted(where: str, given: Any, like: Node) -> Node | None:
    """A vector to multiply with, of the type of what it belongs to; None for what is no float."""
    if not is_float(like.dtype):
        return None
    node = cast(as_node(given, like, where), like.dtype)
    if node.shape != like.shape:
        raise GradientError(f"{where}: expected {like.type}, as it belongs to; got {node.type}")
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
    """Give f(*primals), and the product of its Jacobian with a vector from the right.

    It is made of two reverse passes: the vector-Jacobian product is linear in its vector, and its
    own one is this. So all ops on the way need second derivatives, and computing takes about the
    time of a gradient, while memory holds the values of the whole forward pass, as for a gradient.

    Parameters
    ----------
    f
        A function of floats, in any structures.
    primals, tangents
        Its arguments, and for each the direction in which to go: of the same structure and shapes.

    Returns
    -------
    tuple
        The result, and its derivative in that direction, of the same structure; None for a part of
        the result that is no float.
    """
    where = "jvp"
    primals, tangents = tuple(primals), tuple(tangents)
    if len(primals) != len(tangents):
        raise TypeError(
            f"{where}: expected a tangent for each primal; got {len(primals)} and {len(tangents)}"
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
        directions = [
            fitted(f"jvp: tangents: {path}", t, x)
            for path, t, x in zip(primals.paths, given, primals.nodes, strict=True)
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
    """Make a function that gives all derivatives of what `f` returns.

    Its rows are computed by a loop (`ops.scan`) of as many rounds as the result has elements, each
    a reverse pass; so the program is as large for a thousand rows as for one.

    Parameters
    ----------
    f
        Returns floats, in any structure.
    argnums
        Which positional argument to differentiate by, or which ones: any structure of floats.

    Returns
    -------
    Function
        Takes what `f` takes. It gives, in the structure of the result and within that the one of
        the argument, arrays of the result's shape followed by the argument's; zeros where nothing
        depends.

    Of several ranks these are the derivatives of the sum over ranks, as ngd.grad has it. A
    collective on the way back runs in each round, so all ranks must ask for as many rows.
    """

    def derivatives(*args: Any, **kwargs: Any) -> Any:
        primals = Primals("jacobian", args, argnums)
        results, structure = as_nodes("jacobian", f(*primals.args, **kwargs))
        for y in results:
            if not is_float(y.dtype):
                raise GradientError(f"jacobian: expected floats as a result; got {y.type}")
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
    """Make a function that gives the second derivatives of a scalar function.

    It is the `jacobian` of the gradient: a row is one more reverse pass, in one loop over all rows.

    Parameters
    ----------
    f
        Returns a floating scalar.
    argnums
        Which positional argument to differentiate by twice, or which ones: any structure of floats.

    Returns
    -------
    Function
        Takes what `f` takes. It gives, in the structure of the argument and within that the same
        again, arrays of the one's shape followed by the other's.
    """

    def gradient(*args: Any, **kwargs: Any) -> Any:
        return value_and_grad(f, argnums, unused="zero")(*args, **kwargs)[1]

    return jacobian(like(f, gradient, "hessian"), argnums)


def custom_gradient(f: Callable[..., Any]) -> Function:
    """Give a function a gradient of its own; a decorator.

    ::

        @ngd.custom_gradient
        def log1pexp(x):
            e = ops.exp(x)
            return ops.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))

    Parameters
    ----------
    f
        Returns (result, gradient). The result is any structure of nodes. `gradient` is called with
        one of adjoints in the same structure, zeros where the loss does not depend on a part. It
        returns the adjoint of the argument, in the argument's structure; where several arguments
        hold arrays or floats a tuple, of one for each of these. None stands for one, or for a part
        of one, without a gradient. It may use what `f` has computed.

    Returns
    -------
    Function
        Takes what `f` takes and gives its result.

    Raises
    ------
    GradientError
        `f` reads a floating node or variable from outside, which would get no gradient: it must be
        an argument, or stand in ops.stop_gradient. Or an adjoint is not of its argument's type.
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
            raise TypeError(f"{where}: expected it to return (result, gradient); got {returned!r}")
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
                f"{where}: it reads {node!r} (made at {node.site}) from outside, which would get "
                "no gradient: make it an argument, or read it by ops.stop_gradient"
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
                f"{self.where}: gradient: expected a tuple of {len(self.args)} adjoints; "
                f"got {made!r}"
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
    """Let a gradient compute again what `f` computes, instead of keeping it; a decorator.

    PyTorch and JAX call it checkpointing, too; `ngd.checkpoint` saves variables. The results and
    gradients are the same, bit for bit. Between the forward pass and the backward pass memory holds
    what `f` reads and what it returns, and nothing between; the backward pass takes one more
    forward pass of `f`. So a deep model of n layers, each under `remat`, keeps the layers' results
    alone.

    Parameters
    ----------
    f
        Takes and returns any structures. It may read nodes and variables from outside, and hold
        collectives, which run again, too.

    Returns
    -------
    Function
        As `f`.
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
    "value_and_grad",
    "vjp",
]
