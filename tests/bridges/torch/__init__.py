# SPDX-License-Identifier: Apache-2.0
"""Tests of the PyTorch backend and of compiled PyTorch models."""
