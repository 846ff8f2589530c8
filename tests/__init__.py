# SPDX-License-Identifier: Apache-2.0
"""The tests of ngd. The tests of the package `ngd.x` are in the folder `x`."""
