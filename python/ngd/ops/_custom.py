# SPDX-License-Identifier: Apache-2.0
"""Ops that compute nothing: `after` orders computations, `with_gradient` replaces a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from ..dtypes import ALL, Array, Type, int64
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ..graph.traits import Kernel
from ._operands import unchanged_operand


class After(Op):
    """The value of x, which is available only after the other operands have been computed.

    For example, rematerialisation copies an op, to compute its result a second time. The compiler
    would merge the copy with the original op if both had the same operands. So the copy reads
    after(x, *others) instead of each operand x.
    """

    name = "after"
    public = False
    kernel = Kernel(is_view=True)
    dtypes = ALL

    def __call__(self, x: Node, *others: Node) -> Node:
        return self.node((x, *others))

    def infer(self, x: Type, *others: Type) -> Type:
        return x

    def is_uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        return inputs[0].uniform

    def simplify(self, node: Node) -> Node | None:
        return unchanged_operand(node) if len(node.inputs) == 1 else None

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy, *(None for _ in node.inputs[1:]))

    def reference(self, x: Array, *others: Array) -> Array:
        return x

    def samples(self) -> Iterable[Sample]:
        yield Sample((Operand((2, 3)),))
        yield Sample((Operand((2, 3)), Operand((), 0, 3, dtype=int64)))
        yield Sample((Operand(()), Operand((4,), 0, 3, dtype=int64), Operand((0,), dtype=int64)))


after: Final[After] = register(After())


class Rule(Protocol):
    """A protocol for functions that return the adjoints of a with_gradient node's operands."""

    def __call__(
        self, results: Sequence[Node], operands: Sequence[Node], dy: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        """Return the adjoints of the operands of a with_gradient node, which are nodes or None.

        The user's function reads `operands` and computes `results`. The with_gradient node reads
        (*results, *operands), and returns `results` unchanged. This method returns None for each
        entry of `results`, followed by the adjoint of each entry of `operands`, or None for an
        operand without gradient. `dy` has the adjoint of each entry of `results` as the node
        returns it, or None if the loss does not depend on this entry.
        """
        ...


class WithGradient(Op):
    """The results of a user's function that has a gradient rule of its own.

    The function reads operands and computes values by other ops. A with_gradient node reads
    (*values, *operands) and returns the values unchanged. In the backward pass, the rule returns
    None for each value and the adjoint of each operand. So the gradients of the function's own ops
    are not used. Attributes of a node: count, the number of values; rule, the `Rule`.
    """

    name = "with_gradient"
    public = False
    dtypes = ()
    smooth = False

    def __call__(self, results: Sequence[Node], operands: Sequence[Node], rule: Rule) -> Node:
        return self.node((*results, *operands), {"count": len(results), "rule": rule})

    def infer(self, *inputs: Type, count: int, rule: Rule) -> tuple[Type, ...]:
        return inputs[:count]

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return self.name, {}

    def is_uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        return all(node.uniform for node in inputs[: attrs["count"]])

    def expand(self, *inputs: Node, count: int, rule: Rule) -> tuple[Node, ...]:
        return inputs[:count]

    def grad(self, node: Node, dy: Sequence[Node | None]) -> Sequence[Node | None]:
        count: int = node.attrs["count"]
        rule: Rule = node.attrs["rule"]
        return rule(node.inputs[:count], node.inputs[count:], dy)

    def reference(self, *inputs: Array, count: int, rule: Rule) -> tuple[Array, ...]:
        return inputs[:count]

    def samples(self) -> Iterable[Sample]:
        integers = [Operand((3,), dtype=int64), Operand((2, 2), dtype=int64)]
        yield Sample((integers[0], integers[1]), {"count": 1, "rule": no_gradient})
        yield Sample((*integers, integers[0]), {"count": 2, "rule": no_gradient})


def no_gradient(
    results: Sequence[Node], operands: Sequence[Node], dy: Sequence[Node | None]
) -> Sequence[Node | None]:
    """Return None for each operand. This is the gradient rule of the test samples of with_gradient.

    The operands of these samples are integers, which have no gradient.
    """
    return [None for _ in (*results, *operands)]


with_gradient: Final[WithGradient] = register(WithGradient())
