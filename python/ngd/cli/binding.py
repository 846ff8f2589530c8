# SPDX-License-Identifier: Apache-2.0
"""Which cores each rank of a host may run on: `ngd run --bind`."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

CHOICES: Final = ("core", "numa", "none")
SYSTEM: Final = Path("/sys/devices/system")

Item = TypeVar("Item")


def cores_of_ranks(
    how: str, ranks: int, allowed: Collection[int], quota: int, system: Path = SYSTEM
) -> list[list[int]]:
    """Return the CPUs of each rank.

    Parameters
    ----------
    how
        "core": neighbouring cores of its own for each rank, hyperthreads of one core together where
        the cores suffice; where even the CPUs do not, ranks share. "numa": whole memory nodes, or
        one that ranks share, in equal blocks. "none": all that are allowed.
    allowed
        The CPUs of the affinity mask.
    quota
        How many of them the cgroup's quota pays for: ranks are not spread over more.
    """
    if how == "none":
        return [sorted(allowed) for _ in range(ranks)]
    if how == "numa":
        nodes = _nodes(allowed, system)
        if ranks > len(nodes):
            return [nodes[rank * len(nodes) // ranks] for rank in range(ranks)]
        return [sorted(chain(*_share(nodes, rank, ranks))) for rank in range(ranks)]
    cores = _cores(allowed, system)
    cpus = [cpu for core in cores for cpu in core]
    if quota < len(cpus):
        # One hyperthread of every core comes before the second of any.
        width = max(map(len, cores))
        cpus = [core[i] for i in range(width) for core in cores if i < len(core)][:quota]
        cores = [[cpu] for cpu in cpus]
    if ranks <= len(cores):
        return [sorted(chain(*_share(cores, rank, ranks))) for rank in range(ranks)]
    if ranks <= len(cpus):
        return [sorted(_share(cpus, rank, ranks)) for rank in range(ranks)]
    return [[cpus[rank * len(cpus) // ranks]] for rank in range(ranks)]


def text_of(cpus: Collection[int]) -> str:
    """CPUs as the kernel lists them: "0-3,8"."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def listed(text: str) -> set[int]:
    """The CPUs of "0-3,8": the way back."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def _share(items: list[Item], rank: int, ranks: int) -> list[Item]:
    return items[rank * len(items) // ranks : (rank + 1) * len(items) // ranks]


def _cores(allowed: Collection[int], system: Path) -> list[list[int]]:
    """The allowed CPUs, those of one core together, neighbours beside one another."""
    found: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(allowed):
        topology = system / "cpu" / f"cpu{cpu}" / "topology"
        try:
            package = int((topology / "physical_package_id").read_text())
            core = int((topology / "core_id").read_text())
        except (OSError, ValueError):
            package, core = 0, cpu
        found.setdefault((package, core), []).append(cpu)
    return [found[key] for key in sorted(found)]


def _nodes(allowed: Collection[int], system: Path) -> list[list[int]]:
    """The allowed CPUs of each memory node; a kernel that tells of none has one."""
    nodes = []
    folders = (system / "node").glob("node[0-9]*")
    for folder in sorted(folders, key=lambda path: int(path.name.removeprefix("node"))):
        try:
            cpus = listed((folder / "cpulist").read_text())
        except (OSError, ValueError):
            continue
        mine = sorted(cpus & set(allowed))
        if mine:
            nodes.append(mine)
    return nodes or [sorted(allowed)]
