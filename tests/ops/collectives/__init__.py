# SPDX-License-Identifier: Apache-2.0
"""Tests of collectives in a graph, on several ranks."""
