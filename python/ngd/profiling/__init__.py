# SPDX-License-Identifier: Apache-2.0
"""Profiling: the time of each instruction, its cost, and a file for Perfetto."""

from .perfetto import timeline
from .recording import Recording, profile
from .report import Report, report_of
from .rows import Peaks, Row

__all__ = ["Peaks", "Recording", "Report", "Row", "profile", "report_of", "timeline"]
