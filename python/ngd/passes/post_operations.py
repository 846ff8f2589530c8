# SPDX-License-Identifier: Apache-2.0
"""What follows a heavy op, into its kernel: a bias, then post-operations.

relu(a @ b + bias) becomes one product. Which post-operations a kernel takes, its op's block says
(`posts`); in two bytes the separate ops would round each, so they stay apart.
"""

from __future__ import annotations

from typing import Final

from ..dtype import float32, float64
from ..ir import Graph, Node
from .patterns import Match, Pattern, Rule, apply_rules
from .target import Target

HEAVY: Final = Pattern("heavy", trait=lambda op: op.heavy, read_once=True)


def same_type(match: Match) -> bool:
    """Whether the op behind neither broadcasts the result nor rounds it once more."""
    behind = match["behind"]
    return behind.type == match["heavy"].type and behind.dtype in (float32, float64)


def with_bias(match: Match) -> Node | None:
    """The heavy op with a bias."""
    return match["heavy"].op.with_bias(match["heavy"], match["bias"])


def takes_post(match: Match) -> bool:
    """Whether the heavy op's kernel can apply the op behind."""
    return same_type(match) and match["behind"].op.post in match["heavy"].op.posts


def with_post(match: Match) -> Node:
    """The heavy op with one more post-operation."""
    heavy, behind = match["heavy"], match["behind"]
    post = (*heavy.attrs.get("post", ()), behind.op.post)
    return heavy.op.node(heavy.inputs, {**heavy.attrs, "post": post})


RULES: Final = (
    Rule(
        Pattern("behind", lambda op: op.adds, (HEAVY, Pattern("bias")), any_order=True),
        same_type,
        with_bias,
    ),
    Rule(Pattern("behind", lambda op: bool(op.post), (HEAVY,)), takes_post, with_post),
)


def fuse_post_operations(graph: Graph, target: Target) -> Graph:
    """Apply the rules."""
    return apply_rules(graph, RULES, target)
