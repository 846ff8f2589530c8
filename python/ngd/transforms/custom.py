# SPDX-License-Identifier: Apache-2.0
"""Functions with a gradient of their own: `custom_gradient`."""

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
from .gradient import as_nodes, as_vector_like, like


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
    where = f"custom_gradient: {getattr(f, '__qualname__', repr(f))}"

    def call(*args: Any, **kwargs: Any) -> Any:
        return call_with_gradient(where, f, args, kwargs)

    return like(f, call, "custom_gradient")


def call_with_gradient(
    where: str, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call a function on nodes, and give its results the gradient that it returns."""
    since = newest()
    leaves, structure = flatten(([*args], kwargs))
    own = [after(node) if (node := tensor(x)) is not None else x for x in leaves]
    given, named = structure.rebuild(own)
    returned = f(*given, **named)
    if not isinstance(returned, tuple) or len(returned) != 2 or not callable(returned[1]):
        raise TypeError(
            f"{where}: expected it to return (result, gradient); got {returned!r}. Return a pair."
        )
    results, of_results = as_nodes(where, returned[0])
    operands = [x for x in own if isinstance(x, Node)]
    expect_closed(where, results, operands, since)
    rule = GivenGradient(where, returned[1], of_results, [*given, *named.values()])
    made = with_gradient(results, operands, rule).results if results else ()
    return of_results.rebuild(made)


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
        return as_vector_like(f"{self.where}: gradient", given, of)

    def __repr__(self) -> str:
        return self.where


__all__ = ["custom_gradient"]
