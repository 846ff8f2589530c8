# SPDX-License-Identifier: Apache-2.0
"""Passes that compute several ops in one kernel."""
