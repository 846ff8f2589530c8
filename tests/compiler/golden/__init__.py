# SPDX-License-Identifier: Apache-2.0
"""Printed graphs and programs."""
