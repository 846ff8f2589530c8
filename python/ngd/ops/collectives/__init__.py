# SPDX-License-Identifier: Apache-2.0
"""Collectives as ops of the graph."""
