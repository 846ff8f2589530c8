# SPDX-License-Identifier: Apache-2.0
"""All tests of ngd; those of `ngd.x` are in the folder `x`."""
