# SPDX-License-Identifier: Apache-2.0
"""Tests that compare known networks with torchvision, timm and transformers."""
