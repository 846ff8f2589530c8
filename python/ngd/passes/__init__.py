# SPDX-License-Identifier: Apache-2.0
"""From the user's graph to a scheduled, planned list of instructions: the pipeline, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from .._util import config
from ..errors import CompileError
from ..graph.graph import Graph
from .collective_order import order_collectives, split_collectives
from .expansion import expand
from .fingerprint import computation
from .fusion.elementwise import fuse_elementwise
from .fusion.matmuls import fuse_products
from .fusion.post_operations import fuse_composites, fuse_post_operations
from .fusion.reductions import fuse_reductions, share_sums
from .layouts import assign_layouts
from .memory.planner import Plan, Step, plan_memory
from .op_costs import cost_of_graph
from .precision import in_two_bytes, lower_precision
from .recompute import within
from .scheduling import Schedule, schedule
from .sharding.updates import update_in_slices
from .simplification import simplify
from .target import Target, Verdict

PIPELINE: Final[tuple[Callable[[Graph, Target], Graph], ...]] = (
    order_collectives,
    fuse_composites,
    expand,
    simplify,
    update_in_slices,
    assign_layouts,
    fuse_post_operations,
    share_sums,
    fuse_elementwise,
    fuse_reductions,
    lower_precision,
    fuse_products,
    split_collectives,
)
"""Graph to graph; `schedule` and `plan_memory` follow."""


FIRST: Final = PIPELINE.index(share_sums)
"""What goes before sees each op; from here on they are fused."""


HIDING: Final = (fuse_composites, fuse_post_operations, fuse_products)
"""The passes that put several ops into one kernel that cannot be run op by op."""


def run(graph: Graph, target: Target, memory_limit: int | None = None) -> Plan:
    """Run the whole pipeline; with NGD_CHECK=1 the graph is verified after every pass.

    With a limit, what a step computes takes so many bytes at most, or there is a CompileError.
    """
    graph.verify() if config.check() else graph.verify_leaves()
    graph = passed(graph, target, PIPELINE[:FIRST])
    if memory_limit is None:
        return planned(graph, target)
    return within(graph, target, memory_limit, partial(planned, target=target))


def passed(graph: Graph, target: Target, passes: Sequence[Callable[..., Graph]]) -> Graph:
    """What passes make of a graph."""
    if config.check_finite():
        passes = [each for each in passes if each not in HIDING]
    for step in passes:
        before, graph = graph, step(graph, target)
        if config.check():
            graph.verify()
            expect_types_of(before, graph)
    return graph


def planned(graph: Graph, target: Target) -> Plan:
    """The rest of the pipeline."""
    graph = passed(graph, target, PIPELINE[FIRST:])
    plan = plan_memory(schedule(graph, target), target, partial(run, target=target))
    if config.check():
        plan.verify()
    return plan


def expect_types_of(before: Graph, after: Graph) -> None:
    """Check that a pass has kept the types of what the step gives; verify() sees to the updates."""
    for old, new in zip(before.outputs, after.outputs, strict=True):
        if old.type != new.type:
            raise CompileError(f"{new.op.name} at {new.site}: a pass has made {new.type} of {old}")


__all__ = [
    "PIPELINE",
    "Plan",
    "Schedule",
    "Step",
    "Target",
    "Verdict",
    "computation",
    "cost_of_graph",
    "in_two_bytes",
    "plan_memory",
    "run",
    "schedule",
]
