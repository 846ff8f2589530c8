# SPDX-License-Identifier: Apache-2.0
"""Tests of the CPU device and its variables."""
