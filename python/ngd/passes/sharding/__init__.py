# SPDX-License-Identifier: Apache-2.0
"""Passes that divide the updates of variables among ranks."""
