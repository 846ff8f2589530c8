# SPDX-License-Identifier: Apache-2.0
"""Profiling: the time and the cost of each instruction of a compiled step, and timelines."""

from .perfetto import timeline
from .recording import Recording, profile
from .report import Report, report_of
from .rows import Peaks, Row

__all__ = ["Peaks", "Recording", "Report", "Row", "profile", "report_of", "timeline"]
