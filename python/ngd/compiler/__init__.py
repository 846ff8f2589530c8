# SPDX-License-Identifier: Apache-2.0
"""From a graph or a Python function to an executable."""
