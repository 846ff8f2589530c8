# SPDX-License-Identifier: Apache-2.0
"""Products that elementwise kernels take a block at a time, and that are stored nowhere.

The gradient of a layer's weights is such a product, and the update of the weights such a kernel: in
a step whose batch is small beside the layer, to write the gradient and to read it again takes a
tenth of the product's time. Which kernels take a product, its op says (`hands_to`), and the device
says where that pays.

What is multiplied has to live until the kernel runs; so it may have no more bytes than the product,
inputs and variables left out, which live anyway. A kernel is the only reader of a product that it
takes, so this makes no circle.
"""

from __future__ import annotations

from typing import Final

from ..dtype import Type
from ..ir import Graph, Leaf, Node, Op
from .elementwise import FusedElementwise, dense_operands
from .patterns import uses
from .schedule import source_of
from .target import Target, query_node

FACTORS: Final = 2
"""They stand before what else the kernel reads."""


class FusedProduct(Op):
    """An elementwise kernel that takes a product; attrs: its own, the product's, product.

    `product` is the number that the product has among what the program reads.
    """

    def __init__(self, product: Node, kernel: Node) -> None:
        assert isinstance(kernel.op, FusedElementwise)
        self.name = product.op.hands_to  # type: ignore[misc]
        self.product, self.kernel = product, kernel.op
        self.members = (*product.op.made_of(product), *kernel.op.made_of(kernel))

    def infer(self, *inputs: Type, **attrs: object) -> Type | tuple[Type, ...]:
        """The types of the kernel's results."""
        return self.kernel.infer()

    def made_of(self, node: Node) -> tuple[tuple[str, str], ...]:
        """The product and the ops of the kernel."""
        return self.members


def fuse_products(graph: Graph, target: Target) -> Graph:
    """Let elementwise kernels take products: see the head of this file."""
    counts = uses(graph)

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        made = node.with_inputs(inputs)
        if isinstance(node.op, FusedElementwise):
            for number, operand in enumerate(node.inputs):
                if counts[operand] == 1 and may_take(node, operand):
                    fused = taking(made, number)
                    if query_node(target, fused).accepted:
                        return fused
        return made

    return graph.rewrite(change)


def may_take(kernel: Node, product: Node) -> bool:
    """Whether a kernel reads a product element by element, and its factors may live for longer."""
    if not product.op.hands_to or product not in dense_operands(kernel):
        return False
    kept = {source_of(factor) for factor in product.inputs[:FACTORS]}
    bytes_kept = sum(factor.type.bytes for factor in kept if not isinstance(factor.op, Leaf))
    return len(product.inputs) == FACTORS and bytes_kept <= product.type.bytes


def taking(kernel: Node, number: int) -> Node:
    """A kernel that takes the product which it reads as that operand."""
    product, others = kernel.inputs[number], list(kernel.inputs)
    del others[number]
    _, own = product.op.lower(**product.attrs)
    attrs = {**own, **kernel.attrs, "product": number}
    return FusedProduct(product, kernel).node((*product.inputs, *others), attrs)


__all__ = ["FusedProduct", "fuse_products"]
