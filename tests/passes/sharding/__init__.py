# SPDX-License-Identifier: Apache-2.0
"""Tests of sharded weight updates, on several ranks."""
