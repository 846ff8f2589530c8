# SPDX-License-Identifier: Apache-2.0
"""Where the time of steps goes: profile, report and timeline."""

from .perfetto import timeline
from .recording import Recording, profile
from .report import Peaks, Report, Row, report_of

__all__ = ["Peaks", "Recording", "Report", "Row", "profile", "report_of", "timeline"]
