# SPDX-License-Identifier: Apache-2.0
"""The division of a host's CPUs among its ranks, for `ngd run --bind`."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

CHOICES: Final = ("core", "numa", "none")
SYSTEM: Final = Path("/sys/devices/system")
"""The folder in which the kernel describes CPUs and NUMA nodes."""

Item = TypeVar("Item")


def cores_of_ranks(
    how: str, ranks: int, allowed: Collection[int], quota: int, system: Path = SYSTEM
) -> list[list[int]]:
    """Return the CPUs of each rank.

    A CPU is what Linux schedules on: a hyperthread of a core.

    Parameters
    ----------
    how : str
        The way to divide the CPUs:

        - "core": each rank gets neighbouring cores with all their hyperthreads. It gets single
          hyperthreads instead if there are more ranks than cores, or more allowed CPUs than
          `quota`. If there are more ranks than usable CPUs, several ranks share one CPU.
        - "numa": each rank gets whole NUMA nodes. If there are more ranks than nodes, equal numbers
          of ranks share a node.
        - "none": each rank gets all allowed CPUs.
    ranks : int
        The number of ranks.
    allowed : collection of ints
        The CPUs of the affinity mask.
    quota : int
        The number of CPUs that the cgroup quota allows. With "core", all ranks together get at most
        this number of CPUs, first one of every core. "numa" and "none" ignore the quota.

    Returns
    -------
    list of lists of ints
        The CPUs of each rank, in ascending order.
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
        # Take one hyperthread of every core before the second hyperthread of any core.
        width = max(map(len, cores))
        cpus = [core[i] for i in range(width) for core in cores if i < len(core)][:quota]
        cores = [[cpu] for cpu in cpus]
    if ranks <= len(cores):
        return [sorted(chain(*_share(cores, rank, ranks))) for rank in range(ranks)]
    if ranks <= len(cpus):
        return [sorted(_share(cpus, rank, ranks)) for rank in range(ranks)]
    return [[cpus[rank * len(cpus) // ranks]] for rank in range(ranks)]


def format_cpus(cpus: Collection[int]) -> str:
    """Return CPUs in the kernel's list format, such as "0-3,8"."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def parse_cpus(text: str) -> set[int]:
    """Return the CPUs in a text in the kernel's list format, such as "0-3,8"."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def _share(items: list[Item], rank: int, ranks: int) -> list[Item]:
    """Divide `items` into `ranks` parts, whose lengths differ by at most 1; return part `rank`."""
    return items[rank * len(items) // ranks : (rank + 1) * len(items) // ranks]


def _cores(allowed: Collection[int], system: Path) -> list[list[int]]:
    """Return the allowed CPUs of each core, ordered by package and core."""
    cpus_of_core: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(allowed):
        topology = system / "cpu" / f"cpu{cpu}" / "topology"
        try:
            package = int((topology / "physical_package_id").read_text())
            core = int((topology / "core_id").read_text())
        except (OSError, ValueError):
            package, core = 0, cpu
        cpus_of_core.setdefault((package, core), []).append(cpu)
    return [cpus_of_core[key] for key in sorted(cpus_of_core)]


def _nodes(allowed: Collection[int], system: Path) -> list[list[int]]:
    """Return the allowed CPUs of each NUMA node; one node if the kernel lists none."""
    nodes = []
    folders = (system / "node").glob("node[0-9]*")
    for folder in sorted(folders, key=lambda path: int(path.name.removeprefix("node"))):
        try:
            cpus = parse_cpus((folder / "cpulist").read_text())
        except (OSError, ValueError):
            continue
        usable = sorted(cpus & set(allowed))
        if usable:
            nodes.append(usable)
    return nodes or [sorted(allowed)]
