# SPDX-License-Identifier: Apache-2.0
"""Gradients of nodes and of Python functions: ngd.grad and ngd.value_and_grad.

The gradient of a function is a function, too. While a graph is built, a call of it adds nodes to
the graph. If it is called with arrays, it is compiled as by `ngd.function`, and the compiled step
is cached as long as the function exists.

The primals are the leaves of those arguments with respect to which a function is differentiated.
Each primal becomes a separate node, made by the op `after`, which here returns its operand
unchanged. So in a call f(x, x), each of the two arguments has its own partial derivative. No
gradient is computed for other values that a function reads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, overload

import numpy as np

from ..compiler.functions import Function, signature_of
from ..dtypes import is_float
from ..errors import GradientError
from ..graph.leaves import constant_node
from ..graph.node import Node
from ..graph.variable import constant
from ..ops._arithmetic import add
from ..ops._casting import cast
from ..ops._creation import zeros
from ..ops._custom import after
from ..ops._operands import as_node
from ..ops._reverse_mode import UNUSED, gradients, walk_back
from ..trees import Structure, flatten

MAX_CACHED: Final = 512
"""The maximum number of functions that `cached_transformation` caches per transformation."""

Maker = TypeVar("Maker", bound=Callable[..., Any])
Key = TypeVar("Key")


def cached_transformation(make: Maker) -> Maker:
    """Cache the results of a transformation such as `grad`.

    If the transformation is called again, with a function and options that compare equal (==), it
    returns the same Function as before. The code compiled for this Function is then reused.
    """
    cached_make = functools.lru_cache(MAX_CACHED)(make)

    @functools.wraps(make)
    def cached(f: Any, *args: Any, **kwargs: Any) -> Any:
        if not callable(f):
            raise TypeError(
                f"{make.__name__}: expected a function; got {f!r}. Give a function of arrays."
            )
        hashable = all(isinstance(x, Hashable) for x in (f, *args, *kwargs.values()))
        return (cached_make if hashable else make)(f, *args, **kwargs)

    return cached  # type: ignore[return-value]


class Primals:
    """The values with respect to which a function is differentiated, each as a separate node.

    The values are the leaves of the arguments that `argnums` selects. `nodes` has the nodes, and
    `paths` their names in messages. `args` has all arguments of the function, in which the nodes
    replace the leaves. `structure` is the structure of the selected arguments.
    """

    def __init__(self, where: str, args: Sequence[Any], argnums: int | Sequence[int]) -> None:
        numbers = [argnums] if isinstance(argnums, int) else list(argnums)
        if any(not -len(args) <= n < len(args) for n in numbers):
            raise TypeError(
                f"{where}: expected argnums below {len(args)}, the number of positional arguments; "
                f"got {argnums}. Arguments count from 0."
            )
        if len({n % len(args) for n in numbers}) < len(numbers):
            raise ValueError(
                f"{where}: expected each argument once in argnums; got {argnums}. "
                "Remove the repeated numbers."
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
        for index, n in enumerate(numbers):
            self.args[n] = rebuilt if isinstance(argnums, int) else rebuilt[index]

    def pull(self, results: Sequence[Node], dy: Sequence[Node | None]) -> list[Node | None]:
        """Return the adjoint of each primal; None if no result depends on the primal.

        `dy` has the adjoint of each node in `results`.
        """
        return pull_back(results, dy, self.nodes)

    def rebuild_adjoints(self, parts: Iterable[Node | None]) -> Any:
        """Return the adjoints in the structure of the arguments that `argnums` selects.

        `parts` has the adjoint of each primal. None is replaced by an array of zeros.
        """
        pairs = zip(self.nodes, parts, strict=True)
        return self.structure.rebuild(
            zeros(x.shape, x.dtype) if part is None else part for x, part in pairs
        )


def pull_back(
    results: Sequence[Node], dy: Sequence[Node | None], targets: Sequence[Node]
) -> list[Node | None]:
    """Return the adjoint of each node in `targets`; None if the results do not depend on it.

    `dy` has the adjoint of each result. A node may occur twice among the results. Its adjoints are
    then added.
    """
    seeds: dict[Node, Node] = {}
    for result, part in zip(results, dy, strict=True):
        if part is not None and is_float(result.dtype):
            seeds[result] = add(seeds[result], part) if result in seeds else part
    adjoints = walk_back(seeds, targets, past_targets=False)
    return [adjoints.get(node) for node in targets]


def expect_float(where: str, path: str, leaf: Any) -> Node:
    """Return a leaf as a node of floats; raise GradientError if the leaf has another type."""
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
    """Return the leaves of a function's result as nodes, and the structure of the result."""
    leaves, structure = flatten(tree)
    return [as_node(leaf, where=f"{where}: the result") for leaf in leaves], structure


def as_vector_like(where: str, value: Any, like: Node) -> Node | None:
    """Return `value`, a tangent or adjoint of the node `like`, as a node of the type of `like`.

    Return None if `like` is not floating. Raise GradientError if the shapes differ.
    """
    if not is_float(like.dtype):
        return None
    node = cast(as_node(value, like, where), like.dtype)
    if node.shape != like.shape:
        raise GradientError(
            f"{where}: expected {like.type}, the type of the value to which it belongs; got "
            f"{node.type}. Reshape or cast it."
        )
    return node


def with_aux(where: str, returned: Any, has_aux: bool) -> tuple[Any, Any]:
    """Return (result, auxiliary output) from the value that a function returned.

    The auxiliary output is None if `has_aux` is False. If it is True, the value must be a pair.
    """
    if not has_aux:
        return returned, None
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(
            f"{where}: expected a function that returns (result, aux), as has_aux says; got "
            f"{returned!r}. Return a pair, or leave has_aux out."
        )
    return returned


@cached_transformation
def value_and_grad(
    f: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    unused: str = "error",
) -> Function:
    """Make a function that returns the value of `f` and its gradient.

    Parameters
    ----------
    f : function
        A function of arrays of any shape that returns a floating scalar. With has_aux it returns a
        pair of the scalar and any value.
    argnums : int or tuple of ints, default 0
        The positional arguments with respect to which `f` is differentiated, each at most once.
        Each is an array of floats, or a nested dict, list, tuple or dataclass of such arrays.
    has_aux : bool, default False
        If `f` returns (scalar, aux), the function returns ((value, aux), gradient).
    unused : {"error", "zero"}
        The treatment of an argument on which the value does not depend. "error" raises
        GradientError. "zero" returns a gradient of zeros.

    Returns
    -------
    Function
        A function of the arguments of `f` that returns (value, gradient). The gradient has the
        structure of the argument, or is a tuple for several arguments. On several ranks, the
        gradient is defined as in the notes of `ngd.grad`.

    Raises
    ------
    GradientError
        The value is not a floating scalar, an argument is not floating, or an op has no gradient.

    Examples
    --------
    >>> square = ngd.value_and_grad(lambda a: ops.sum(a * a))
    >>> value, gradient = square(np.array([1.0, 2.0]))
    >>> float(value), gradient
    (5.0, array([2., 4.]))
    """
    expect_unused("value_and_grad", unused)

    def both(*args: Any, **kwargs: Any) -> Any:
        differentiate = Differentiation("value_and_grad", f, argnums, has_aux, unused)
        value, aux, gradient = differentiate(args, kwargs)
        return ((value, aux) if has_aux else value), gradient

    return function_like(f, both, "value_and_grad")


@cached_transformation
def gradient_of(
    f: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    unused: str = "error",
) -> Function:
    """Return the function that computes the gradient of `f`. `ngd.grad` returns it."""
    expect_unused("grad", unused)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        differentiate = Differentiation("grad", f, argnums, has_aux, unused)
        _, aux, gradient = differentiate(args, kwargs)
        return (gradient, aux) if has_aux else gradient

    return function_like(f, gradient, "grad")


def expect_unused(where: str, unused: str) -> None:
    """Raise ValueError if the option `unused` is neither "error" nor "zero"."""
    if unused not in UNUSED:
        raise ValueError(f'{where}: expected unused "error" or "zero"; got {unused!r}')


class Differentiation(NamedTuple):
    """A function that computes the value and the gradient of `f` on nodes.

    The fields are the options of ngd.grad, and `where`, the name of the public function that the
    user called, for messages.
    """

    where: str
    f: Callable[..., Any]
    argnums: int | tuple[int, ...]
    has_aux: bool
    unused: str

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Node, Any, Any]:
        """Call `f` on the arguments. Return its value, its auxiliary output, and the gradient.

        The auxiliary output is None if `has_aux` is False.
        """
        where = self.where
        primals = Primals(where, args, self.argnums)
        returned, aux = with_aux(where, self.f(*primals.args, **kwargs), self.has_aux)
        value = as_node(returned, where=f"{where}: the value") if returned is not None else None
        if value is None or value.shape or not is_float(value.dtype):
            got = value.type if value is not None else None
            raise GradientError(
                f"{where}: expected a floating scalar to differentiate; got {got}. Reduce it "
                "first, by ngd.ops.mean or ngd.ops.sum."
            )
        parts = primals.pull([value], [constant_node(np.ones((), value.dtype))])
        lacking = [p for p, part in zip(primals.paths, parts, strict=True) if part is None]
        if lacking and self.unused == "error":
            raise GradientError(
                f"{where}: expected a result that depends on {lacking[0]} through differentiable "
                f"ops; got one (made at {value.site}) that does not. Leave the argument out, or "
                'pass unused="zero" to get zeros.'
            )
        return value, aux, primals.rebuild_adjoints(parts)


@overload
def grad(loss: Node, wrt: Node, *, unused: str = "error") -> Node: ...
@overload
def grad(loss: Node, wrt: list[Node], *, unused: str = "error") -> list[Node]: ...
@overload
def grad(loss: Node, wrt: Mapping[Key, Node], *, unused: str = "error") -> dict[Key, Node]: ...
@overload
def grad(
    loss: Callable[..., Any],
    *,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    unused: str = "error",
) -> Function: ...
@overload
def grad(loss: Node, wrt: Any, *, unused: str = "error") -> Any: ...
def grad(
    loss: Any,
    wrt: Any = None,
    *,
    argnums: int | tuple[int, ...] | None = None,
    has_aux: bool = False,
    unused: str = "error",
) -> Any:  # long because each argument is described
    """Return the gradient of a loss node, or make the function that computes a gradient.

    Parameters
    ----------
    loss : Node or callable
        A floating scalar: the loss of this rank. Or a function that returns such a scalar, or with
        has_aux a pair of the scalar and any value.
    wrt : Node or structure of Node
        If `loss` is a node: the node or nodes with respect to which it is differentiated. A
        structure is a nested dict, list, tuple or dataclass.
    argnums : int or tuple of int, default 0
        If `loss` is a function: the positional arguments with respect to which it is
        differentiated. Each is an array of floats, or a structure of such arrays.
    has_aux : bool, default False
        If the function returns (scalar, aux), the gradient function returns (gradient, aux).
    unused : {"error", "zero"}
        The treatment of a node or an argument on which the loss does not depend. "error" raises
        GradientError. "zero" returns a gradient of zeros.

    Returns
    -------
    structure of Node, or Function
        The gradients in the structure of `wrt`. If `loss` is a function, a function of the same
        arguments that returns the gradient in the structure of the argument, or a tuple for several
        arguments.

    Raises
    ------
    GradientError
        The loss is not a floating scalar. A node of `wrt`, or an argument in `argnums`, is not
        floating. Or an op between that node or argument and the loss has no gradient. The message
        has the op's file and line.

    Notes
    -----
    On several ranks, the result is the gradient of the sum of all ranks' losses with respect to
    this rank's nodes or arguments. If the loss depends on no collective, this is the gradient of
    this rank's loss only: average the gradient with `ops.all_reduce`. No gradient flows through
    integers, bools and stop_gradient.

    Examples
    --------
    >>> slope = ngd.grad(lambda x: ops.sum(x * x))
    >>> slope(np.array([1.0, 2.0]))
    array([2., 4.])
    """
    if not isinstance(has_aux, bool):
        raise TypeError(f"grad: has_aux: expected True or False; got {has_aux!r}")
    if isinstance(loss, Node) or not callable(loss):
        if argnums is not None or has_aux:
            raise TypeError(
                f"grad: expected argnums and has_aux only with a function; got {loss!r}. Give the "
                "nodes to differentiate by: ngd.grad(loss, wrt)."
            )
        return gradients(loss, wrt, unused=unused)
    if wrt is not None:
        raise TypeError(
            f"grad: expected argnums with a function; got {wrt!r} as wrt. Write "
            "ngd.grad(f, argnums=0)."
        )
    return gradient_of(loss, 0 if argnums is None else argnums, has_aux, unused=unused)


def function_like(f: Callable[..., Any], call: Callable[..., Any], where: str) -> Function:
    """Return a Function that has the signature of `f` and passes its arguments to `call`.

    Arguments are passed by position if `f` can take them by position. `call` also gets the default
    values of the arguments that the caller leaves out.
    """
    signature = signature_of(f)

    def python(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return call(*bound.args, **bound.kwargs)

    functools.update_wrapper(python, f, ("__doc__",), ())
    python.__qualname__ = f"{where}({getattr(f, '__qualname__', repr(f))})"
    python.__signature__ = signature  # type: ignore[attr-defined]
    return step_of(f, python)


def step_of(f: Callable[..., Any], python: Callable[..., Any]) -> Function:
    """Return an ngd.Function that compiles `python`, a Python function that calls `f`.

    If `f` itself is a Function, the result has the options of `f`, such as device and group.
    """
    if isinstance(f, Function):
        return Function(python, False, f.device, f.group, f.precision, f.shard, of=f)
    return Function(python, of=f)


__all__ = ["grad", "value_and_grad"]
