# SPDX-License-Identifier: Apache-2.0
"""Tests of the world, groups, launchers, failures and collectives on arrays."""
