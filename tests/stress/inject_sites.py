# SPDX-License-Identifier: Apache-2.0
"""The sites of ngd's extension module that allocate or call the system, from its disassembly.

A site is a line of ngd's source together with the call that it makes: an allocation, directly or by
library code, or a system call. For an inlined call, the line is the innermost frame of ngd. Library
code is code without a line of ngd, such as templates of the standard library that were compiled
into the module. A line that calls allocating library code is an allocation.
"""

from __future__ import annotations

import bisect
import os
import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

# The functions that can fail, in the order of FUNCTIONS in inject.cpp.
FUNCTIONS = (
    *("allocate", "aligned_alloc", "mmap", "madvise", "memfd_create", "ftruncate", "fallocate"),
    *("fcntl", "fstat", "socket", "bind", "listen", "accept4", "connect", "sendmsg", "recvmsg"),
    *("poll", "getsockopt", "setsockopt", "getrlimit", "getrusage", "opendir"),
    *("sched_getaffinity", "sched_setaffinity", "sysconf", "futex_wait", "futex_wake"),
    *("pidfd_open", "getrandom", "pthread_create", "open", "read", "send", "recv"),
)
SYSTEM = {*FUNCTIONS, "syscall"} - {"allocate", "futex_wait", "futex_wake", "pidfd_open"}

# Functions of libstdc++ that can allocate.
ALLOCATES = re.compile(
    r"operator new|::basic_(o|i)?stringstream\(|::str\(|basic_stringbuf|__ostream_insert"
    r"|basic_ostream<.*(operator<<|_M_insert|put)|basic_istream<.*operator>>|std::getline"
    r"|basic_filebuf<.*::(open|basic_filebuf)\(|std::(runtime_error|invalid_argument|logic_error)::"
    r"(runtime_error|invalid_argument|logic_error)|filesystem::.*(directory_iterator|_M_split_cmpts"
    r"|operator/=|_List\(|operator\+\+)|_M_start_thread|basic_string<.*::(_M_|append|assign|reserve"
    r"|resize|push_back|basic_string|replace|insert)"
)
# Calls with failures that inject.cpp does not know. The module must not have any.
UNKNOWN = re.compile(
    r"^(malloc|calloc|realloc|reallocarray|posix_memalign|memalign|valloc|strdup|mremap|openat|fopen64|readv|write|writev"
    r"|creat|dup[23]?|pipe2?|eventfd|epoll_\w+|signalfd|timerfd_\w+|socketpair|fork|vfork|clone"
    r"|posix_spawnp?|shm_open|fopen|fdopen|accept|sendto|sendmmsg|recvfrom|recvmmsg|select"
    r"|pselect|ppoll|thrd_create)$"
)
# Functions that are not library code, and do not lead to it.
IRRELEVANT = re.compile(r"^_?Py|^__pyx_|^_ZN3ngd|^_ZNK3ngd|@plt$")
# Functions that run when the module is loaded, before a fault can be armed.
AT_LOAD = re.compile(r"^_GLOBAL__sub_I|^__pyx_pymod_exec|^PyInit_|__pyx_(import|init)_")


@dataclass
class Call:
    """A call instruction."""

    begin: int
    end: int
    inside: str
    target: str
    source: str = ""  # such as "src/cpp/comm/grouped.cpp:70"; "" for library code


@dataclass
class Sites:
    """All sites by number, and the calls of ngd's lines by address, with their sites."""

    names: list[str] = field(default_factory=list)
    listed: set[int] = field(default_factory=set)  # the other sites call nothing that can fail
    ends: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


def disassemble(module: Path) -> list[Call]:
    """Return every call instruction of the module."""
    command = ["objdump", "-d", "-w", "--no-show-raw-insn", "-j", ".text", str(module)]
    calls: list[Call] = []
    function, is_after_call = "", False
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("0") and line.endswith(">:\n"):
                function = line[line.index("<") + 1 : -3]
                continue
            address, _, instruction = line.partition(":\t")
            if not instruction:
                continue
            position = int(address, 16)
            if is_after_call:
                calls[-1].end = position
            is_after_call = instruction.startswith(("call ", "callq ", "bnd call "))
            if is_after_call:
                target = re.search(r"<([^>+]+)(\+0x[0-9a-f]+)?>$", instruction.strip())
                name = target[1] if target and "*" not in instruction else ""
                calls.append(Call(position, 0, function, name))
    return [call for call in calls if call.end]


def demangle(names: list[str]) -> list[str]:
    """Return the names that c++filt prints."""
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True)
    return text.stdout.splitlines()


class GeneratedFile:
    """Cython's output. It gives the line of a .pyx or .pxi file for each of its lines."""

    MARK = re.compile(r'^\s*/\* "([^"]+)":(\d+)$')

    def __init__(self, path: Path) -> None:
        self.lines: list[int] = []
        self.names: list[str] = []
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if mark := self.MARK.match(line):
                self.lines.append(number)
                self.names.append(f"{mark[1].split('/')[-1]}:{mark[2]}")

    def name(self, line: int) -> str:
        index = bisect.bisect_right(self.lines, line) - 1
        return self.names[index] if index >= 0 else f"line {line}"


def find_sources(module: Path, calls: list[Call], root: Path) -> None:
    """Set the source line of each call."""
    addresses = "\n".join(hex(call.begin) for call in calls)
    answer = subprocess.run(
        ["addr2line", "-a", "-i", "-e", str(module)],
        input=addresses,
        capture_output=True,
        text=True,
    )
    generated: dict[str, GeneratedFile] = {}
    # A compiler's cache may have compiled the file in another copy of the tree.
    own_path = re.compile(r"(src/cpp|python/ngd/_core)/(?!.*\.\.).*")
    number = -1
    for line in answer.stdout.splitlines():
        if line.startswith("0x"):
            number += 1
            continue
        if calls[number].source:
            continue
        name, _, position = line.partition(" (")[0].rpartition(":")
        path = os.path.normpath(name)
        base = os.path.basename(path)
        if base in ("_core.cxx", "_core.cpp", "_core.pyx.cxx") and position.isdecimal():
            if base not in generated:
                generated[base] = GeneratedFile(next((root / "build/inject").rglob(base)))
            calls[number].source = generated[base].name(int(position))
        elif (own := own_path.search(path)) and (root / own[0]).exists():
            calls[number].source = f"{own[0]}:{position}"


def find(module: Path, root: Path) -> Sites:
    """Return the sites of the module, which was built from the tree at `root`."""
    calls = disassemble(module)
    imports = sorted({call.target for call in calls if call.target.endswith("@plt")})
    plain = {
        name: text.removesuffix("@plt")
        for name, text in zip(imports, demangle(imports), strict=True)
    }
    unknown = sorted({text for text in plain.values() if UNKNOWN.match(text)})
    if unknown:
        raise SystemExit(f"inject.cpp does not know {', '.join(unknown)}, which the module calls")
    allocating = {name for name, text in plain.items() if ALLOCATES.search(text)}
    targets = allocating | {name for name, text in plain.items() if text in SYSTEM}
    calls = [c for c in calls if c.target in targets or not IRRELEVANT.search(c.target)]
    find_sources(module, calls, root)
    callers: dict[str, set[str]] = defaultdict(set)  # library functions, by their callees
    for call in calls:
        if not call.source:
            callers[call.target].add(call.inside)
    queue = list(allocating)
    while queue:
        new = callers[queue.pop()] - allocating
        allocating |= new
        queue += new
    sites = Sites()
    known: dict[str, int] = {}
    for call in calls:
        if not call.source:
            continue
        system = plain.get(call.target, "")
        what = "allocate" if call.target in allocating else system if system in SYSTEM else ""
        if AT_LOAD.search(call.inside):
            what = ""
        if ".from_py:" in call.source:  # it lets bad_alloc pass through C
            raise SystemExit(f"{call.inside}: a conversion of Cython's own; values.hpp has ours")
        name = f"{call.source} {what}".strip()
        if name not in known:
            known[name] = len(sites.names)
            sites.names.append(name)
        if what:
            sites.listed.add(known[name])
        sites.ends.append(call.end)
        sites.begins.append(call.begin if what else 0)
        sites.numbers.append(known[name])
    return sites


if __name__ == "__main__":
    import sys

    result = find(Path(sys.argv[1]), Path(sys.argv[2]))
    print(*sorted(result.names[n] for n in result.listed), sep="\n")
