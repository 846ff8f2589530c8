# SPDX-License-Identifier: Apache-2.0
"""The environment switches that Python reads, one function each.

src/cpp/base/config.hpp has those of the core.
"""

from __future__ import annotations

import os

from .errors import CompileError, InitError

COMMUNICATORS = ("auto", "self", "shm", "mpi")
DEVICES: list[str] = []
"""The names of the devices, the default first; ngd/devices fills it."""


def device(name: str | None, where: str) -> str:
    """Return the device that the caller names, or NGD_DEVICE, or the default; checked."""
    chosen = name or os.environ.get("NGD_DEVICE", "") or DEVICES[0]
    if chosen not in DEVICES:
        raise CompileError(f"{where}: expected a device among {', '.join(DEVICES)}; got {chosen!r}")
    return chosen


def communicator() -> str:
    """NGD_COMM: which of the built communicators a run uses."""
    name = os.environ.get("NGD_COMM", "") or "auto"
    if name not in COMMUNICATORS:
        raise InitError(f"NGD_COMM: expected one of {', '.join(COMMUNICATORS)}; got {name!r}")
    return name


def host() -> str | None:
    """NGD_HOST: what this rank's host is called; ranks of the same name share memory."""
    return os.environ.get("NGD_HOST") or None


def check_finite() -> bool:
    """NGD_CHECK_FINITE: a step fails where a value begins that is no finite number."""
    return os.environ.get("NGD_CHECK_FINITE", "0") not in ("", "0")


def check() -> bool:
    """NGD_CHECK: verify the graph after every pass."""
    return os.environ.get("NGD_CHECK", "0") not in ("", "0")
