# SPDX-License-Identifier: Apache-2.0
"""Batching rules: how each op computes on operands with a leading batch axis. ngd.vmap uses them.

`rewrite.py` has the dict of all rules, and the class that applies them to a graph. Each other file
has the rules of similar ops, for example of matmuls and convolutions. Its import adds the rules to
the dict.
"""

from . import axes, control_flow, gathering, products, random_draws, user_functions

__all__ = ["axes", "control_flow", "gathering", "products", "random_draws", "user_functions"]
