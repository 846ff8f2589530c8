# SPDX-License-Identifier: Apache-2.0
"""Tests of `ngd.compile` and `ngd.function`."""
