# SPDX-License-Identifier: Apache-2.0
"""The classes `Launch` and `Launcher`, and checks of the variables that all launchers set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from ...errors import InitError

Environ: TypeAlias = Mapping[str, str]
"""The environment variables of a process, by name."""

MOST: Final = 2**31 - 1
"""The largest valid number in a launcher's variable, such as RANK; a larger one is an error."""


class Launch(NamedTuple):
    """The rank, size and job of this process, from its launcher's variables."""

    launcher: str
    """The name of the launcher (`Launcher.name`).

    Two names are not of a launcher. "plain" means that RANK and WORLD_SIZE are set, but not
    MASTER_ADDR and MASTER_PORT, which torchrun sets too. "alone" means that no variable of a
    launcher is set.
    """
    rank: int
    size: int
    local_rank: int
    """The number of this rank among the ranks of its host.

    If the launcher does not give it, all ranks are assumed to be on one host.
    """
    local_size: int
    job_key: str | None
    """A key that is equal on all ranks of the job and differs between jobs; None for one rank."""

    @property
    def one_host(self) -> bool:
        """True if all ranks are on this host, or if the launcher does not give `local_size`."""
        return self.local_size == self.size


class Launcher(NamedTuple):
    """A launcher, and the functions that recognise it and read its variables."""

    name: str
    is_present: Callable[[Environ], bool]
    """A function that returns True if this launcher started the process."""
    read: Callable[[Environ], Launch]
    """A function that returns the `Launch`. It is called only if `is_present` returns True."""
    variables: tuple[str, ...] = ()
    """The names of the variables that show that this launcher started a process.

    `surroundings` (registry.py) collects these variables from all launchers except `ngd run`, and
    hashes their values. `ngd run` passes the hash to its ranks. If the hash of a process differs
    from the passed one, another launcher has started the process.
    """
    mpi: str | None = None
    """The name of the MPI library that its ranks use; "" for any library, None for no MPI."""


def expect_size(size: int, launcher: str, environ: Environ) -> None:
    """Raise InitError if NGD_EXPECT_SIZE is set and differs from the number of ranks."""
    if not environ.get("NGD_EXPECT_SIZE"):
        return
    count = read_number(environ, "NGD_EXPECT_SIZE", least=1)
    if size != count:
        raise InitError(
            f"ngd.init: NGD_EXPECT_SIZE: expected {count} ranks; got {size} "
            f"({'no launcher' if launcher == 'alone' else launcher}). Check the launcher's number "
            "of ranks and list of hosts: run ngd doctor under the same launcher."
        )


def read_plain_launch(environ: Environ, launcher: str, job_key: str) -> Launch:
    """Return the `Launch` from RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE in `environ`."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return read_launch(environ, launcher, job_key, *names)


def read_launch(
    environ: Environ,
    launcher: str,
    job_key: str,
    rank_name: str,
    size_name: str,
    local_rank_name: str,
    local_size: str | int | None,
) -> Launch:
    """Read rank, size, local rank and local size, check them, and return the `Launch`.

    `rank_name`, `size_name` and `local_rank_name` are names of environment variables. `local_size`
    is either the name of a variable, or the number itself, or None if the number is unknown. If
    `local_size` is None or a variable that is not set, all ranks are assumed to be on one host.
    """
    size = read_number(environ, size_name, least=1, because=rank_name)
    rank = read_number(environ, rank_name, least=0, because=size_name)
    if rank >= size:
        raise InitError(
            f"ngd.init: expected a rank below {size_name}={size}; got {rank_name}={rank}, which "
            "is not below it. Ranks count from 0."
        )
    if isinstance(local_size, str):
        is_set = local_size in environ
        local_size = read_number(environ, local_size, least=1) if is_set else None
    if local_size is None:
        return Launch(launcher, rank, size, rank, size, job_key)
    if local_size > size:
        raise InitError(
            f"ngd.init: expected at most {size_name}={size} ranks on this host; got {local_size}. "
            "Set both as the launcher does."
        )
    local_rank = read_number(environ, local_rank_name, least=0) if local_size > 1 else 0
    if local_rank >= local_size:
        raise InitError(
            f"ngd.init: expected a local rank below {local_size}, the number of ranks on this host "
            f"by {launcher}; got {local_rank_name}={local_rank}, which is not below it. "
            "Set both as the launcher does."
        )
    return Launch(launcher, rank, size, local_rank, local_size, job_key)


def read_number(environ: Environ, name: str, least: int, because: str | None = None) -> int:
    """Return the value of a variable as a number; raise InitError if it is invalid or missing.

    `name` is the variable, and `least` is its smallest valid value. `because` is only for the error
    message. It is the name of a second variable that launchers set together with the first, as RANK
    and WORLD_SIZE. If only the second one is set, the message advises to set both.
    """
    text = environ.get(name)
    if text is None:
        is_half_set = because is not None and because in environ
        hint = f" although {because} is" if is_half_set else ""
        remedy = "set both" if is_half_set else "set it"
        raise InitError(
            f"ngd.init: expected the variable {name}; got none: {name} is not set{hint}. Start the "
            f"ranks with a launcher, or {remedy}."
        )
    is_number = text.isascii() and text.isdecimal() and len(text) <= 2 * len(str(MOST))
    if not is_number or not least <= int(text) <= MOST:
        quoted = text if len(text) < 40 else f"{text[:40]}..."
        raise InitError(
            f"ngd.init: expected a whole number from {least} to {MOST}; got {name}={quoted!r}. "
            "Set it as the launcher does, or unset it."
        )
    return int(text)
