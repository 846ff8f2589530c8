# SPDX-License-Identifier: Apache-2.0
"""PyTorch models as ngd programs: capture by torch.export, then one rule for each aten op."""
