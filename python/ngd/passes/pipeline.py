# SPDX-License-Identifier: Apache-2.0
"""The pipeline: every pass that runs, in order, from the user's graph to the memory plan.

A pass is a function from a graph, a target and the options to a graph. A pass that runs twice is
listed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from .._util import config
from ..errors import CompileError
from ..graph.graph import Graph
from .collective_order import order_collectives, split_collectives
from .expansion import expand
from .fusion.elementwise import fuse_elementwise
from .fusion.matmuls import fuse_products
from .fusion.post_operations import fuse_post_operations, has_composites
from .fusion.reductions import fuse_reductions, share_sums
from .layouts import assign_layouts
from .memory.plan import Plan
from .memory.planner import plan_memory
from .options import CompileOptions
from .precision import drop_unread, has_low_precision, lower_precision
from .recompute import plan_within_limit
from .scheduling import schedule
from .sharding.updates import shard_updates
from .simplification import simplify
from .target import Target

Pass: TypeAlias = Callable[[Graph, Target, CompileOptions], Graph]


def was_changed(graph: Graph, options: CompileOptions, changed: bool) -> bool:
    """Return whether the previous pass has changed the graph."""
    return changed


class When(NamedTuple):
    """A group of passes that run only if a condition holds."""

    condition: Callable[[Graph, CompileOptions, bool], bool]
    """A function (graph, options, changed) that returns True if the passes are to run. `changed` is
    True if the previous pass has changed the graph."""
    passes: tuple[Pass, ...]


Entry: TypeAlias = Pass | When

PER_OP: Final[tuple[Entry, ...]] = (
    order_collectives,
    When(has_composites, (simplify, fuse_post_operations)),
    expand,
    simplify,
    shard_updates,
    assign_layouts,
    When(was_changed, (simplify,)),
    fuse_post_operations,
)
"""The passes before the fusion of elementwise ops. They order collectives, replace ops for which
the device has no kernel, simplify the graph, shard weight updates, and choose layouts. They also
fuse biases and ops such as activations into the matmuls and convolutions before them."""

FUSION: Final[tuple[Entry, ...]] = (
    share_sums,
    fuse_elementwise,
    fuse_reductions,
    When(has_low_precision, (lower_precision, fuse_elementwise, drop_unread)),
    fuse_products,
    split_collectives,
)
"""The passes that fuse ops to kernels, and split collectives into start and wait. With a
`memory_limit`, they run several times: on the graph, and on each graph with recomputed values that
`plan_within_limit` tries until a plan is small enough."""

HIDING: Final = (fuse_post_operations, fuse_products)
"""The passes after which the result of a fused matmul or other heavy op is no longer in memory, so
that it cannot be checked for NaN and infinity. NGD_CHECK_FINITE=1 omits these passes."""

BODY_OPTIONS: Final = CompileOptions()
"""The options to compile the bodies of loops and branches. Bodies compute in float32, even if the
rest of the step computes in 16-bit floats (docs/mixed_precision.md)."""


def run(graph: Graph, target: Target, options: CompileOptions) -> Plan:
    """Return the plan of a graph, after all passes.

    With NGD_CHECK=1 the graph is verified after every pass. With a memory limit, the values of a
    step take at most that many bytes, or CompileError is raised.
    """
    graph.verify() if config.check() else graph.verify_leaves()
    graph = run_passes(graph, target, options, PER_OP)
    plan_of = partial(fuse_and_plan, target=target, options=options)
    if options.memory_limit is None:
        return plan_of(graph)
    return plan_within_limit(graph, target, options, options.memory_limit, plan_of)


def fuse_and_plan(graph: Graph, target: Target, options: CompileOptions) -> Plan:
    """Fuse ops, order the nodes and plan the memory; with NGD_CHECK=1, verify the plan."""
    graph = run_passes(graph, target, options, FUSION)
    plan_body = partial(run, target=target, options=BODY_OPTIONS)
    plan = plan_memory(schedule(graph, target), target, plan_body)
    if config.check():
        plan.verify()
    return plan


def run_passes(
    graph: Graph, target: Target, options: CompileOptions, entries: tuple[Entry, ...]
) -> Graph:
    """Run passes in order. An entry is a pass, or passes that run on a condition (`When`)."""
    changed = False
    for entry in entries:
        before = graph
        for each in passes_of(entry, graph, options, changed):
            graph = run_pass(each, graph, target, options)
        changed = graph is not before
    return graph


def passes_of(
    entry: Entry, graph: Graph, options: CompileOptions, changed: bool
) -> tuple[Pass, ...]:
    """Return the passes that run for one entry of PER_OP or FUSION.

    The tuple is empty if the condition of the entry does not hold (`When`), or if
    NGD_CHECK_FINITE=1 omits the passes (HIDING).
    """
    passes = entry.passes if isinstance(entry, When) else (entry,)
    if config.check_finite() and not set(HIDING).isdisjoint(passes):
        return ()
    if isinstance(entry, When) and not entry.condition(graph, options, changed):
        return ()
    return passes


def run_pass(each: Pass, graph: Graph, target: Target, options: CompileOptions) -> Graph:
    """Run one pass; with NGD_CHECK=1, verify the graph that it returns."""
    after = each(graph, target, options)
    if config.check():
        after.verify()
        expect_equal_types(graph, after)
    return after


def expect_equal_types(before: Graph, after: Graph) -> None:
    """Raise a CompileError if a pass has changed the type of an output.

    `Graph.verify` checks the types of the values that the step stores in variables.
    """
    for old, new in zip(before.outputs, after.outputs, strict=True):
        if old.type != new.type:
            raise CompileError(f"{new.op.name} at {new.site}: a pass has made {new.type} of {old}")


def listed_passes() -> Iterator[tuple[Pass, bool]]:
    """Yield the passes in their order, each with True if it runs only on a condition."""
    for entry in (*PER_OP, *FUSION):
        if isinstance(entry, When):
            yield from ((each, True) for each in entry.passes)
        else:
            yield entry, False
