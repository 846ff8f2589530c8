# SPDX-License-Identifier: Apache-2.0
"""What follows a heavy op, into its kernel: a bias, then post-operations.

relu(a @ b + bias) becomes one product. Which post-operations a kernel takes, its op's block says
(`posts`); in two bytes the separate ops would round each, so they stay apart. A post-operation
leaves nothing of what it is applied to, so it goes where nobody else reads that: gelu and silu do
in a step that does not train them, whose gradients read it.

Those that are made of other ops, as gelu is, go before they are expanded (fuse_composites). Equal
nodes are merged before: else one of two could lose what the other one is read for.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from ..dtype import float32, float64
from ..ir import REGISTRY, Graph, Node
from .patterns import Match, Pattern, Rule, apply_rules
from .simplify import simplify
from .target import Target

HEAVY: Final = Pattern("heavy", trait=lambda op: op.heavy, read_once=True)
RESHAPED: Final = Pattern("view", lambda op: op.view, (HEAVY,), read_once=True)


def same_type(match: Match) -> bool:
    """Whether the op behind neither broadcasts the result nor rounds it once more."""
    behind = match["behind"]
    read = match.get("view", match["heavy"])
    whole = read.type.count == match["heavy"].type.count
    return whole and behind.type == read.type and behind.dtype in (float32, float64)


def with_bias(match: Match) -> Node | None:
    """The heavy op with a bias."""
    return match["heavy"].op.with_bias(match["heavy"], match["bias"])


def post_of(behind: Node) -> str:
    """What a heavy op's kernel calls the op behind."""
    return behind.op.lower(**behind.attrs)[0]


def takes_post(match: Match) -> bool:
    """Whether the heavy op's kernel can apply the op behind."""
    return same_type(match) and post_of(match["behind"]) in match["heavy"].op.posts


def with_post(match: Match) -> Node:
    """The heavy op with one more post-operation, and the view of it, if there is one."""
    heavy = match["heavy"]
    post = (*heavy.attrs.get("post", ()), post_of(match["behind"]))
    made = heavy.op.node(heavy.inputs, {**heavy.attrs, "post": post})
    return match["view"].with_inputs((made,)) if "view" in match else made


RULES: Final = (
    Rule(
        Pattern("behind", lambda op: op.adds, (HEAVY, Pattern("bias")), any_order=True),
        same_type,
        with_bias,
    ),
    Rule(Pattern("behind", operands=(HEAVY,)), takes_post, with_post),
    Rule(Pattern("behind", operands=(RESHAPED,)), takes_post, with_post),
)


def fuse_post_operations(graph: Graph, target: Target) -> Graph:
    """Apply the rules."""
    return apply_rules(graph, RULES, target)


@cache
def known() -> frozenset[str]:
    """What kernels of heavy ops apply."""
    return frozenset(post for op in REGISTRY.values() for post in op.posts)


def fuse_composites(graph: Graph, target: Target) -> Graph:
    """Apply the rules to a graph that has such ops, while it has them."""
    if not any(node.op.expands and post_of(node) in known() for node in graph.nodes):
        return graph
    return fuse_post_operations(simplify(graph, target), target)
