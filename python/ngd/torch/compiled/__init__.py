# SPDX-License-Identifier: Apache-2.0
"""PyTorch models as ngd programs: capture by torch.export, then one rule for each aten op."""

from .coverage import Coverage
from .step import CompiledStep, compile_step

__all__ = ["CompiledStep", "Coverage", "compile_step"]
