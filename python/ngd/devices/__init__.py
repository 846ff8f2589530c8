# SPDX-License-Identifier: Apache-2.0
"""The devices, one file each: what it can compute, how it holds a variable, how it runs a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..comm import Group
from ..graph.graph import Graph
from .cpu.executable import CpuExecutable
from .executable import Executable, Lower
from .interpreter.device import InterpreterExecutable
from .null import NullExecutable

DEVICES: Final[dict[str, Callable[[Graph, Group, Lower], Executable]]] = {
    device.device: device for device in (CpuExecutable, InterpreterExecutable, NullExecutable)
}
"""By name, the default first."""
