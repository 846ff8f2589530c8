# SPDX-License-Identifier: Apache-2.0
"""Loops around steps: a trainer, and training whose ranks meet once in many steps."""

from .local_sgd import DiLoCo, LocalSGD
from .trainer import LOG, StopSignals, Trainer, evaluate

__all__ = ["LOG", "DiLoCo", "LocalSGD", "StopSignals", "Trainer", "evaluate"]
