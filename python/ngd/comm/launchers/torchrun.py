# SPDX-License-Identifier: Apache-2.0
"""torchrun, and launchers that set only RANK and WORLD_SIZE."""

from __future__ import annotations

from typing import Final

from ...errors import InitError
from .base import Environ, Launch, Launcher, read_plain_launch
from .process_tree import process_job_key

ADDRESS: Final = ("MASTER_ADDR", "MASTER_PORT")


def is_present(environ: Environ) -> bool:
    """Return True if RANK or WORLD_SIZE is set."""
    return "RANK" in environ or "WORLD_SIZE" in environ


def read(environ: Environ) -> Launch:
    """Return the `Launch` of this rank.

    The launcher's name is "torchrun" if both MASTER_ADDR and MASTER_PORT are set, and "plain" if
    neither is set. If only one of them is set, raise InitError.
    """
    if not any(name in environ for name in ADDRESS):
        return read_plain_launch(environ, "plain", process_job_key(environ, "RANK"))
    for name in ADDRESS:
        if name not in environ:
            other = ADDRESS[name == "MASTER_ADDR"]
            raise InitError(
                f"ngd.init: expected both {other} and {name}, or neither; got {other} only. Set "
                "both."
            )
    names = (*ADDRESS, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    job_key = ":".join(["torch", *(environ.get(name, "") for name in names)])
    return read_plain_launch(environ, "torchrun", job_key)


TORCHRUN: Final = Launcher("torchrun", is_present, read, ("TORCHELASTIC_RUN_ID",))
