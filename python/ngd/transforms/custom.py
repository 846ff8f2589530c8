# SPDX-License-Identifier: Apache-2.0
"""Functions with a user-defined gradient: `custom_gradient`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..compiler.functions import Function
from ..compiler.trace_keys import is_array
from ..dtypes import is_float
from ..errors import GradientError
from ..graph.leaves import CONSTANT, Leaf
from ..graph.node import Node, newest
from ..graph.variable import constant
from ..ops._creation import zeros
from ..ops._custom import after, with_gradient
from ..ops._shape import stop_gradient
from ..trees import LEAF, Structure, flatten
from .gradient import as_nodes, as_vector_like, function_like


def custom_gradient(f: Callable[..., Any]) -> Function:
    """Define the gradient of a function; a decorator.

    Parameters
    ----------
    f : function
        A function that returns (result, gradient). The result is a structure of nodes of any shape.
        `gradient` is a function of the adjoints of the result, which have the structure of the
        result. If the loss does not depend on a node of the result, the adjoint of this node is an
        array of zeros. `gradient` returns the adjoint of the argument, in the structure of the
        argument. If several arguments contain arrays or floats, `gradient` returns a tuple with one
        adjoint for each of these arguments. An adjoint of None means that there is no gradient.
        `gradient` may use values that `f` has computed.

    Returns
    -------
    Function
        Takes the arguments of `f` and returns its result.

    Raises
    ------
    GradientError
        `f` reads a floating node or variable that is not an argument, which would get no gradient.
        Make it an argument, or wrap it in ops.stop_gradient. Or an adjoint does not have the shape
        of its argument.

    Examples
    --------
    >>> @ngd.custom_gradient
    ... def log1pexp(a):
    ...     e = ops.exp(a)
    ...     return ops.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))
    >>> ngd.grad(lambda a: ops.sum(log1pexp(a)))(np.zeros(2))
    array([0.5, 0.5])
    """
    where = f"custom_gradient: {getattr(f, '__qualname__', repr(f))}"

    def call(*args: Any, **kwargs: Any) -> Any:
        return call_with_gradient(where, f, args, kwargs)

    return function_like(f, call, "custom_gradient")


def call_with_gradient(
    where: str, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call `f` on nodes, and return the result with the user's gradient.

    `f` returns (result, gradient function). The nodes that are returned have the values of the
    result, and the gradient function is their gradient rule.
    """
    since = newest()
    leaves, structure = flatten(([*args], kwargs))
    inner_leaves = [after(node) if (node := tensor(x)) is not None else x for x in leaves]
    inner_args, inner_kwargs = structure.rebuild(inner_leaves)
    returned = f(*inner_args, **inner_kwargs)
    if not isinstance(returned, tuple) or len(returned) != 2 or not callable(returned[1]):
        raise TypeError(
            f"{where}: expected it to return (result, gradient); got {returned!r}. Return a pair."
        )
    results, of_results = as_nodes(where, returned[0])
    operands = [x for x in inner_leaves if isinstance(x, Node)]
    expect_closed(where, results, operands, since)
    rule = UserGradient(where, returned[1], of_results, [*inner_args, *inner_kwargs.values()])
    outputs = with_gradient(results, operands, rule).results if results else ()
    return of_results.rebuild(outputs)


def expect_closed(
    where: str, results: Sequence[Node], operands: Sequence[Node], since: int
) -> None:
    """Raise GradientError if a function reads a float node or variable that is not its argument.

    Such a value would get no gradient. `since` is the number that `newest()` returned before the
    call of the function: nodes with a smaller id existed before the call.
    """
    visited = set(operands)
    stack = list(results)
    while stack:
        node = stack.pop()
        if (
            node in visited
            or node.op is CONSTANT
            or node.op is stop_gradient
            or not is_float(node.dtype)
        ):
            continue
        visited.add(node)
        if node.id < since or isinstance(node.op, Leaf):
            raise GradientError(
                f"{where}: expected a function that reads only its arguments; got one that reads "
                f"{node!r} (made at {node.site}), which would get no gradient. Make it an "
                "argument, "
                "or read it by ops.stop_gradient."
            )
        stack += node.inputs


def tensor(leaf: Any) -> Node | None:
    """Return a leaf of the arguments as a node, if the leaf is an array or a float.

    Return None for another leaf, such as an int, a bool or a string. The user's function gets such
    a leaf as a Python value.
    """
    if isinstance(leaf, Node):
        return leaf
    return constant(leaf) if is_array(leaf) or type(leaf) is float else None


class UserGradient:
    """The gradient rule of `custom_gradient`, which calls the user's gradient function.

    `results` is the nested structure of the results of the user's function. `args` are the
    arguments of this function, in which nodes replace the arrays.
    """

    def __init__(
        self, where: str, gradient: Callable[[Any], Any], results: Structure, args: Sequence[Any]
    ) -> None:
        self.where, self.gradient, self.results = where, gradient, results
        trees = [flatten(arg) for arg in args]
        self.args = [t for t in trees if any(isinstance(leaf, Node) for leaf in t[0])]

    def __call__(
        self, results: Sequence[Node], operands: Sequence[Node], dy: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        """Return None for each of `results`, followed by the adjoint of each of `operands`.

        `operands` and `results` are the arguments and results of the user's function. The op
        `with_gradient` reads both lists, so the backward pass needs an adjoint or None for each
        entry. If a result gets None, the backward pass does not differentiate the ops that
        computed it. The user's gradient function computes the adjoints of `operands` from
        `dy`, the adjoints of the results.
        """
        cotangents = [
            zeros(y.shape, y.dtype) if part is None else part
            for y, part in zip(results, dy, strict=True)
        ]
        returned = self.gradient(self.results.rebuild(cotangents))
        parts = (returned,) if len(self.args) == 1 else returned
        if not isinstance(parts, tuple) or len(parts) != len(self.args):
            raise TypeError(
                f"{self.where}: gradient: expected a tuple of {len(self.args)} adjoints; got "
                f"{returned!r}. Return one per argument, None for none."
            )
        adjoints: list[Any] = []
        for part, (leaves, structure) in zip(parts, self.args, strict=True):
            is_none = part is None and structure is not LEAF
            part_leaves = leaves if is_none else structure.match(part, f"{self.where}: gradient")
            pairs = zip(leaves, part_leaves, strict=True)
            adjoints += [None if is_none else d for leaf, d in pairs if isinstance(leaf, Node)]
        of_operands = [self.adjoint(d, x) for d, x in zip(adjoints, operands, strict=True)]
        return [*(None for _ in results), *of_operands]

    def adjoint(self, value: Any, of: Node) -> Node | None:
        """Return the user's adjoint `value` as a node, cast to the dtype of its operand `of`.

        Return None, for no gradient, if `value` is None or the operand is not floating.
        """
        if value is None:
            return None
        return as_vector_like(f"{self.where}: gradient", value, of)

    def __repr__(self) -> str:
        return self.where


__all__ = ["custom_gradient"]
