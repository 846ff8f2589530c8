# SPDX-License-Identifier: Apache-2.0
"""Batching rules: how each op computes on operands with a leading batch axis. ngd.vmap uses them.

`rewrite.py` rewrites a graph by the rules, and the other files hold the rules of one family of ops
each.
"""
