# SPDX-License-Identifier: Apache-2.0
"""Tests of the modules at the root of the package, and of properties of all modules."""
