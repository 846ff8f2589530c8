# SPDX-License-Identifier: Apache-2.0
"""Helpers that do not depend on graphs and ranks: call sites, messages, settings, arrays."""
