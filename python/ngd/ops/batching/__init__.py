# SPDX-License-Identifier: Apache-2.0
"""Batching rules: how each op computes on operands with a leading batch axis. ngd.vmap uses them.

`rewrite.py` rewrites a graph by the rules. The other files hold the rules, one family of ops per
file, and enter them in the table of `rewrite.py` when they are imported.
"""

from . import axes, control_flow, gathering, products, random_draws, user_functions

__all__ = ["axes", "control_flow", "gathering", "products", "random_draws", "user_functions"]
