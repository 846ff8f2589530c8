# SPDX-License-Identifier: Apache-2.0
"""The tests of collectives in graphs, on several ranks."""
