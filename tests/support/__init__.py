# SPDX-License-Identifier: Apache-2.0
"""Modules that tests of several folders share."""
