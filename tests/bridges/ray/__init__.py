# SPDX-License-Identifier: Apache-2.0
"""Tests of DiLoCo and elastic jobs on Ray."""
