# SPDX-License-Identifier: Apache-2.0
"""The tests of sharded weight updates, on several ranks."""
