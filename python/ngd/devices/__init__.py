# SPDX-License-Identifier: Apache-2.0
"""The devices. Each of them compiles graphs, holds the values of variables, and runs steps."""

from __future__ import annotations

from typing import Any, Final

from .cpu.executable import CpuDevice
from .device import Device
from .executable import Executable
from .interpreter.device import InterpreterDevice
from .null import NullDevice

DEVICES: Final[dict[str, Device[Any]]] = {
    device.name: device for device in (CpuDevice(), InterpreterDevice(), NullDevice())
}
"""The devices by name, the default first."""

__all__ = ["DEVICES", "Device", "Executable"]
