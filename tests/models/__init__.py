# SPDX-License-Identifier: Apache-2.0
"""Known networks, compared with torchvision, timm and transformers."""
