# SPDX-License-Identifier: Apache-2.0
"""The golden files: printed graphs and programs."""
