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
    after(x, *others) instead of each operand x. `others` are nodes that are computed shortly before
    the result of the copy is needed.
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
    """A protocol for gradient rules, the functions that compute the gradient of `WithGradient`."""

    def __call__(
        self, results: Sequence[Node], operands: Sequence[Node], dy: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        """Return one adjoint or None per result, followed by one per operand.

        The rule belongs to a function that reads `operands` and computes `results`. `dy` has one
        adjoint per result, or None for a result that the loss does not depend on. The rule derives
        the adjoints of `operands` from `dy`. It returns None for an operand without gradient. An
        adjoint that it returns for a result passes through the ops that computed the result. With
        None for the result, these ops are not differentiated.
        """
        ...


class WithGradient(Op):
    """The results of a function that has a gradient rule of its own.

    The function reads the nodes `operands` and computes the nodes `results` by other ops. A node of
    this op has the inputs (*results, *operands) and returns the results unchanged. In the backward
    pass, the rule returns the adjoints of all inputs. It usually returns None for the results, so
    that the ops of the function are not differentiated.

    Attributes of a node: `count`, the number of results, and `rule`, the gradient rule.
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
    """Return None as the adjoint of each of `results` and `operands`.

    This is the gradient rule in the cases that tests run (`WithGradient.samples`). The operands of
    these cases are integers, which have no gradient.
    """
    return [None for _ in (*results, *operands)]


with_gradient: Final[WithGradient] = register(WithGradient())
