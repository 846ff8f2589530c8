# SPDX-License-Identifier: Apache-2.0
"""The tests of `ngd.compile` and `ngd.function`."""
