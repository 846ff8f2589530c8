# SPDX-License-Identifier: Apache-2.0
"""Starts a program as ranks on several hosts, for the stress suites between hosts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.paths import PYTHONPATH

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

START_SECONDS = 60.0
"""The seconds in which all ranks of a job must start."""

if TYPE_CHECKING:
    from namespaces import Hosts


def start(
    hosts: Hosts,
    per_host: Sequence[int],
    words: Sequence[str],
    folder: Path,
    options: Iterable[str] = (),
) -> subprocess.Popen[bytes]:
    """Run a command line as ranks. Their output goes to folder/output.

    mpirun does not get LD_PRELOAD of this process; `words` can set it for the ranks.
    """
    from namespaces import OPEN_MPI

    # mpirun's agent passes the line to a shell of the other hosts, which must not split it.
    script = folder / "rank.sh"
    script.write_text("#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in words) + "\n")
    script.chmod(0o700)
    inherited = {name: text for name, text in os.environ.items() if name != "LD_PRELOAD"}
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [*hosts.mpirun(per_host, ["PYTHONPATH"], options), str(script)],
            env={**inherited, **OPEN_MPI, "PYTHONPATH": PYTHONPATH},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def meet(folder: Path, ranks: int) -> None:
    """Wait until all ranks have started, because their interpreters start at different speeds."""
    (folder / f"{os.getpid()}.here").touch()
    limit = time.monotonic() + START_SECONDS
    while len(list(folder.glob("*.here"))) < ranks and time.monotonic() < limit:
        time.sleep(0.02)


def last_words(folder: Path) -> str:
    """Return the end of the output of the ranks and mpirun."""
    return (folder / "output").read_text(errors="replace")[-1500:]
