# SPDX-License-Identifier: Apache-2.0
"""The passes of the compiler: from the user's graph to a schedule and a memory plan."""

from .fingerprint import computation
from .memory.plan import Instruction, Plan
from .memory.planner import plan_memory
from .op_costs import cost_of_graph
from .options import CompileOptions
from .pipeline import run
from .precision import lower_precision
from .scheduling import Schedule, schedule
from .target import Sharing, Target, Verdict

__all__ = [
    "CompileOptions",
    "Instruction",
    "Plan",
    "Schedule",
    "Sharing",
    "Target",
    "Verdict",
    "computation",
    "cost_of_graph",
    "lower_precision",
    "plan_memory",
    "run",
    "schedule",
]
