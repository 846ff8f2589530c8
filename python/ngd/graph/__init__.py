# SPDX-License-Identifier: Apache-2.0
"""Graphs: ops, nodes, variables, and how they are printed, copied and rewritten."""
