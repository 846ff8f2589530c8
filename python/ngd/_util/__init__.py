# SPDX-License-Identifier: Apache-2.0
"""Helpers that know nothing of graphs and ranks: call sites, messages, settings, arrays."""
