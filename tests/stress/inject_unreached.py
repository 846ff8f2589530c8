# SPDX-License-Identifier: Apache-2.0
"""A table of the sites that inject.py does not reach, with reasons. It is printed and checked.

A row has a file, a part of a line of its source, and the reason. Some allocations cannot fail,
because they are never made. Some are called only by XLA, which no rank here has. Both kinds do not
count as sites. The other sites can fail in another environment.
"""

from __future__ import annotations

from pathlib import Path

RESERVED = "there is room: it was reserved before"
SHORT = "the text stands in the string itself"
SHRINKS = "a string that gets shorter asks for nothing"

CANNOT_FAIL = (
    ("program.pxi", "blocks.push_back(life)", RESERVED),
    ("program.pxi", "sources.push_back(", RESERVED),
    ("program.pxi", "destinations.push_back(", RESERVED),
    ("values.cpp", "result.push_back(convert(", RESERVED),
    ("executor.cpp", "bound_.emplace_back()", RESERVED),
    ("first_fit.cpp", "offsets.push_back(", RESERVED),
    ("shape.cpp", "short_name_of(type.dtype)", SHORT),
    ("shape.cpp", "text += '['", SHORT),
    ("program.cpp", "print_program(out, body", SHORT),
    ("collective.cpp", "std::string text(name_of(collective.kind))", SHORT),
    ("random.cpp", "std::string(short_name_of(dtype))", SHORT),
    ("pending_collectives.cpp", "started_.push_back(&pending)", RESERVED),
    ("pending_collectives.cpp", "if (!attrs.has(name))", SHORT),
    ("program.cpp", "return std::string(memory)", SHORT),
    ("kernel_body.cpp", "query.attrs.has(attribute)", SHORT),
    ("kernel_body.cpp", "query.attrs.integers(attribute)", SHORT),
    ("conv.cpp", 'Offer::refuse("oneDNN is slow")', SHORT),
    ("cgroup.cpp", "name.resize(", SHRINKS),
    ("first_fault.cpp", 'operand + " "', SHORT),
    ("indices.cpp", "std::to_string(element", SHORT),
)

XLA = "XLA alone calls it"

CALLED_BY_OTHERS = (("bridges/xla.cpp", "", XLA),)

CGROUP = "is asked only where a memory cgroup has a limit"
FORKED = "the ranks here are forked, and start no threads of OpenMP"
AFTER = "comes only after another fault"
CALLER = "the CPU's queue is the caller, and nothing runs later"
BRIDGE = "is called only by the PyTorch bridge, for parameters with one copy per host"
NOT_YET = "no kernel asks for a list of real numbers yet"

UNREACHED = (
    ("headroom.cpp", "names.swap_limit", CGROUP),
    ("headroom.cpp", "names.swap_usage", CGROUP),
    ("headroom.cpp", "names.reclaimable", CGROUP),
    ("headroom.cpp", "the memory cgroup", CGROUP),
    ("threads.cpp", "pthread_create(", FORKED),
    ("threads.cpp", "threads.push_back(", FORKED),
    ("engine.hpp", "one_thread_primitives_ = std::make_unique", FORKED),
    ("threads.cpp", "sched_setaffinity(", "MPI's thread asks for it"),
    ("liveness.cpp", "ThreadLiveness", "ranks are threads in tests of C++ only"),
    ("executor.cpp", "checked_value_.resize(", "the host can address the CPU's memory"),
    ("pending_collectives.cpp", "started_.reserve(", CALLER),
    ("cpu_device.cpp", "std::make_unique<CpuEvent>()", CALLER),
    ("copy_on_write.cpp", "", BRIDGE),
    ("shm_communicator.cpp", "make_unique<CopyOnWriteMapping>", BRIDGE),
    ("segment.cpp", "MADV_REMOVE", AFTER),
    ("segment.cpp", "::fallocate(", AFTER),
    ("attrs.cpp", "get<std::vector<double>>", NOT_YET),
    ("attrs.cpp", "result.push_back(to_double", NOT_YET),
)


Table = tuple[tuple[str, str, str], ...]


def reasons(names: dict[int, str], table: Table, root: Path) -> tuple[dict[int, str], list[str]]:
    """Return the reasons of the sites that a table names, and the findings about the table."""
    reasons_by_site: dict[int, str] = {}
    stale = set(table)
    for number, name in names.items():
        position = name.split(" ")[0]
        text = source_line(root, position)
        for line in table:
            if position.rpartition(":")[0].endswith(line[0]) and line[1] in text:
                reasons_by_site[number] = line[2]
                stale.discard(line)
    return reasons_by_site, [
        f"inject_unreached.py: no site is {line[:2]}" for line in sorted(stale)
    ]


def source_line(root: Path, position: str) -> str:
    """Return the source line at a position such as "src/cpp/base/shape.cpp:23".

    Cython's files have names without a folder.
    """
    name, _, number = position.rpartition(":")
    path = root / name if "/" in name else root / "python/ngd/_core" / name
    lines = path.read_text().splitlines() if path.exists() else []
    return lines[int(number) - 1] if int(number) <= len(lines) else ""
