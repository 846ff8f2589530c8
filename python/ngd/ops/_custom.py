# SPDX-License-Identifier: Apache-2.0
"""What only differentiation and the order of computation see; no kernel has to do with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from ..dtypes import ALL, Array, Type, int64
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ..graph.traits import Kernel
from ._operands import unchanged


class After(Op):
    """after(x, others): x itself; what is made of it waits until the others are there.

    Two such nodes of one x are two, also where ops on them are equal: so what is computed again
    later is not merged with what was computed before.
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
        return unchanged(node) if len(node.inputs) == 1 else None

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
    """A gradient that is given beside what it is the gradient of."""

    def __call__(
        self, results: Sequence[Node], operands: Sequence[Node], dy: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        """The adjoints of the results, then those of the operands, given some of the results'."""
        ...


class WithGradient(Op):
    """Results of a function, whose gradient is another one than that of the ops they are made of.

    Operands: the results, then what the gradient is handed to. Attrs: count, of the results; rule,
    which makes the adjoints.
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
        whole = [Operand((3,), dtype=int64), Operand((2, 2), dtype=int64)]
        yield Sample((whole[0], whole[1]), {"count": 1, "rule": no_gradient})
        yield Sample((*whole, whole[0]), {"count": 2, "rule": no_gradient})


def no_gradient(
    results: Sequence[Node], operands: Sequence[Node], dy: Sequence[Node | None]
) -> Sequence[Node | None]:
    """The rule of samples: of integers there is none."""
    return [None for _ in (*results, *operands)]


with_gradient: Final[WithGradient] = register(WithGradient())
