# SPDX-License-Identifier: Apache-2.0
"""The environment switches that Python reads, one function each.

src/cpp/base/config.hpp has those of the core.
"""

from __future__ import annotations

import os

from .errors import CompileError, InitError

LOOPBACK = "127.0.0.1"
LOGS = ("text", "json")
COMMUNICATORS = ("auto", "self", "shm", "mpi")
MPIS = ("openmpi", "mpich")
DEVICES: list[str] = []
"""The names of the devices, the default first; ngd/devices fills it."""


def device(name: str | None, where: str) -> str:
    """Return the device that the caller names, or NGD_DEVICE, or the default; checked."""
    chosen = name or os.environ.get("NGD_DEVICE", "") or DEVICES[0]
    if chosen not in DEVICES:
        wanted = f"{', '.join(DEVICES[:-1])} or {DEVICES[-1]}"
        if name:
            raise CompileError(f"{where}: device: expected {wanted}; got {chosen!r}")
        raise InitError(f"NGD_DEVICE: expected {wanted}; got {chosen!r}")
    return chosen


def communicator() -> str:
    """NGD_COMM: which of the built communicators a run uses."""
    name = os.environ.get("NGD_COMM", "") or "auto"
    if name not in COMMUNICATORS:
        raise InitError(f"NGD_COMM: expected one of {', '.join(COMMUNICATORS)}; got {name!r}")
    return name


def mpi() -> str | None:
    """NGD_MPI: which MPI a run uses of those that ngd was built for; None where nothing is said."""
    name = os.environ.get("NGD_MPI", "")
    if name and name not in MPIS:
        raise InitError(f"NGD_MPI: expected one of {', '.join(MPIS)}; got {name!r}")
    return name or None


def host() -> str | None:
    """NGD_HOST: what this rank's host is called; ranks of the same name share memory."""
    return os.environ.get("NGD_HOST") or None


def check_finite() -> bool:
    """NGD_CHECK_FINITE: a step fails where a value begins that is no finite number."""
    return os.environ.get("NGD_CHECK_FINITE", "0") not in ("", "0")


def check() -> bool:
    """NGD_CHECK: verify the graph after every pass."""
    return os.environ.get("NGD_CHECK", "0") not in ("", "0")


def metrics() -> tuple[str, int] | None:
    """NGD_METRICS: the address and the port at which the metrics of this host are served."""
    text = os.environ.get("NGD_METRICS", "")
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 1 << 16):
        raise InitError(f"NGD_METRICS: expected PORT or HOST:PORT, PORT < 65536; got {text!r}")
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)


def log_as_json() -> bool:
    """NGD_LOG: whether what ngd logs is JSON, a line an object."""
    how = os.environ.get("NGD_LOG", "") or LOGS[0]
    if how not in LOGS:
        raise InitError(f"NGD_LOG: expected one of {', '.join(LOGS)}; got {how!r}")
    return how == "json"
