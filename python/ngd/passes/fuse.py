# SPDX-License-Identifier: Apache-2.0
"""Fusion of bias and relu into the matrix product."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from ..dtype import float32, float64
from ..ir import Graph, Node
from .target import Target, query_node


def uses(graph: Graph) -> Counter[Node]:
    """How often each node is read, the graph's own outputs and updates counted."""
    reads = [graph.roots, *[node.inputs for node in graph.nodes]]
    return Counter(chain.from_iterable(reads))


def fuse_matmul(graph: Graph, target: Target) -> Graph:
    """relu(a @ b + bias) becomes one product with a bias and a post-operation."""
    counts = uses(graph)
    readers: dict[Node, int] = {}

    def only_reader(node: Node) -> bool:
        return readers.get(node, 0) == 1

    def with_bias(node: Node) -> Node | None:
        if node.dtype not in (float32, float64):
            return None
        for product, bias in (node.inputs, node.inputs[::-1]):
            if (
                product.op.name == "matmul"
                and len(product.inputs) == 2
                and only_reader(product)
                and product.type == node.type
                and bias.shape == product.shape[-1:]
            ):
                return product.op.node((*product.inputs, bias), product.attrs)
        return None

    def with_relu(node: Node) -> Node | None:
        product = node.inputs[0]
        if product.op.name != "matmul" or node.dtype not in (float32, float64):
            return None
        if not only_reader(product) or product.attrs.get("post") or product.type != node.type:
            return None
        return product.op.node(product.inputs, {**product.attrs, "post": "relu"})

    rules = {"add": with_bias, "relu": with_relu}

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        new = node.with_inputs(inputs)
        rule = rules.get(node.op.name)
        fused = None if rule is None else rule(new)
        if fused is not None and query_node(target, fused).accepted:
            new = fused
        readers[new] = counts[node]
        return new

    return graph.rewrite(change)


__all__ = ["fuse_matmul"]
