# SPDX-License-Identifier: Apache-2.0
"""Loops and branches."""
