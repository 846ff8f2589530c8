# SPDX-License-Identifier: Apache-2.0
"""The compiler driver: `ngd.compile` for graphs, and `ngd.function` for Python functions."""
