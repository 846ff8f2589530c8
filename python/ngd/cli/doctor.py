# SPDX-License-Identifier: Apache-2.0
"""`ngd doctor`: check the installation and the machine, and suggest fixes.

Under a launcher, every rank reports its cores, and rank 0 prints the report. Without a launcher, a
self-test starts two ranks, checks that they can communicate, and measures the speed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import resource
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from .._util import config
from .._util.links import page_url
from ..comm import Group
from ..comm.calls import build_info
from ..comm.communicator import load_mpi, mpis
from ..comm.cores import available_cores, thread_count
from ..comm.launchers.base import Launch
from ..comm.launchers.detect import detect
from ..comm.world import init
from ..errors import Error, InitError
from . import binding
from .environment import rank_environment

SUMMARY: Final = "check this installation and this machine, and suggest fixes"
DESCRIPTION: Final = "Check this installation and this machine, and suggest a fix per problem."
EPILOG: Final = f"""\
examples:
  ngd doctor                        check this host, with a test of 2 ranks
  ngd doctor --json                 the same, for a program to read
  mpirun -np 4 ngd doctor           check where the ranks of a launcher run

exit status:
  0    everything works; there may be warnings
  1    something does not work

documentation: {page_url("cli")}
"""

FIX_OF_VARIABLES: Final = f"{page_url('environment')} lists the values"
SELF_TEST_SECONDS: Final = 60.0
LEAST_SEGMENT: Final = 256 << 20
"""The least size of the shared memory segment of one rank, in bytes.

A rank maps the segments of all ranks of its host into its address space. So RLIMIT_AS, the limit of
the address space, must be larger than this size times the number of ranks of the host.
src/cpp/comm/shm/segment.cpp has the same number as `kSmallest`.
"""
SLOW_US: Final = 100.0
"""The time of an all-reduce of 8 bytes, in microseconds, above which a warning is reported.

With two ranks on separate cores, the all-reduce takes a few microseconds. A time above the limit
shows that ranks share a core, or that other programs use the cores of the ranks.
"""
REPORT_BYTES: Final = 4096
"""The size, in bytes, of the buffer in which a rank sends its report as JSON to the other ranks.

A longer report raises a ValueError.
"""
UNLIMITED: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    topic: str
    level: str
    """The level: "ok", "warning" (it works, but not well) or "trouble" (it does not work)."""
    text: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ngd doctor`."""
    parser.add_argument("--json", action="store_true", help="print the findings as a JSON object")
    parser.add_argument(
        "--no-self-test", action="store_true", help="do not start 2 ranks to test communication"
    )


def run(args: argparse.Namespace) -> int:
    """Run all checks, print the findings, and return 1 if something does not work, else 0."""
    findings = [*_build(), *_mpi(), *_switches(), *_memory()]
    os.environ.setdefault("NGD_TIMEOUT", "30")
    me: Launch | None = None
    try:
        me = detect()
    except InitError as error:
        fix = "start the ranks with mpirun, srun, torchrun or ngd run, or set the missing variables"
        findings.append(Finding("launcher", "trouble", str(error), fix))
    is_launch_valid = not any(
        f.topic in ("switches", "launcher") and f.level == "trouble" for f in findings
    )
    if is_launch_valid and me is not None and me.launcher != "alone":
        findings += _job(me)
    elif is_launch_valid:
        findings.append(Finding("launcher", "ok", "none: this process is the only rank"))
        findings += _cores()
        if not args.no_self_test and build_info()["mode"] != "OFF":
            findings.append(_self_test())
    trouble = any(f.level == "trouble" for f in findings)
    if me is None or me.rank == 0:
        _print(findings, args.json)
    return int(trouble)


def _print(findings: list[Finding], as_json: bool) -> None:
    """Print the findings as one line of JSON, or as lines of text and a final verdict."""
    if as_json:
        trouble = any(f.level == "trouble" for f in findings)
        print(json.dumps({"ok": not trouble, "findings": [asdict(f) for f in findings]}))
        return
    width = max(len(f.topic) for f in findings)
    for finding in findings:
        mark = "" if finding.level == "ok" else f"{finding.level.upper()}: "
        print(f"{finding.topic:{width}}  {mark}{finding.text}")
        if finding.fix:
            print(f"{'':{width}}  -> {finding.fix}")
    print(verdict(findings))


def verdict(findings: list[Finding]) -> str:
    """Return the last line of the report: how many problems and warnings there are."""
    counts = {
        word: sum(f.level == level for f in findings)
        for level, word in (("trouble", "problem"), ("warning", "warning"))
    }
    parts = [f"{n} {word}{'s' if n > 1 else ''}" for word, n in counts.items() if n]
    return f"Found {' and '.join(parts)}." if parts else "No problems found."


def _build() -> Iterator[Finding]:
    """Yield a finding on the build of ngd, and one on its kernels (oneDNN and SIMD level)."""
    info = build_info()
    text = f"ngd {info['version']}, mode {info['mode']}, Python {platform.python_version()}"
    yield Finding("build", "ok", text)
    kernels = f"oneDNN {info['onednn'] or 'none'}, SIMD level {info['simd']}"
    if info["onednn"] is None:
        fix = "reinstall without NGD_ONEDNN=OFF, where oneDNN supports this machine"
        yield Finding("kernels", "warning", f"{kernels}: matrix products are slower", fix)
    elif info["simd"] == "baseline" and platform.machine() == "x86_64":
        capped = "NGD_SIMD" in os.environ
        fix = "unset NGD_SIMD" if capped else "use a CPU with AVX2"
        yield Finding("kernels", "warning", f"{kernels}: own kernels are slower", fix)
    else:
        yield Finding("kernels", "ok", kernels)


def _mpi() -> Iterator[Finding]:
    """Yield at most one finding on mpirun.

    It is "ok" if ngd was not built for MPI, or if mpirun has the same version as the MPI library
    that ngd finds.
    """
    info = build_info()
    path = shutil.which("mpirun")
    mpirun = version_of_mpirun(path) if path else None
    if info["mode"] != "OMPI":
        if mpirun:
            yield Finding("mpirun", "ok", f"{' '.join(mpirun)} at {path}; it may start the ranks")
        return
    names = " or ".join({"openmpi": "Open MPI", "mpich": "MPICH"}[each] for each in mpis())
    fix = f"put the mpirun of {names} first on the PATH; if it is in a venv, activate that"
    if path is None:
        yield Finding("mpirun", "trouble", f"built for {names}, but no mpirun is on the PATH", fix)
        return
    if mpirun is None:
        yield Finding("mpirun", "trouble", f"{path} does not report its MPI version", fix)
        return
    try:
        library = load_mpi("openmpi" if mpirun[0] == "Open MPI" else "mpich")
    except InitError as error:
        yield Finding("mpirun", "trouble", f"{path} is {' '.join(mpirun)}; {error}", fix)
        return
    loaded = re.search(r"\d+(\.\d+)+", library)
    version = loaded[0] if loaded else "?"
    text = f"{' '.join(mpirun)} at {path}; the library that ngd finds is {mpirun[0]} {version}"
    if mpirun[1].split(".")[0] != version.split(".")[0]:
        yield Finding("mpirun", "trouble", f"{text}: they do not work together", fix)
    elif mpirun[1] != version:
        yield Finding("mpirun", "warning", text, fix)
    else:
        yield Finding("mpirun", "ok", text)


def version_of_mpirun(path: str) -> tuple[str, str] | None:
    """Return name and version from `mpirun --version`, such as ("Open MPI", "5.0.1").

    The other names are "MPICH" and "Intel MPI". Return None for any other output.
    """
    try:
        completed = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    for name, pattern in (
        ("Open MPI", r"Open MPI\)? v?([\d.]+)"),
        ("Intel MPI", r"Intel\(R\) MPI Library.*?Version ([\d.]+)"),
        ("MPICH", r"HYDRA[\s\S]*?Version:\s+([\d.]+)"),
    ):
        match = re.search(pattern, completed.stdout + completed.stderr)
        if match:
            return name, match[1]
    return None


def _switches() -> Iterator[Finding]:
    """Report the NGD_ variables in the environment, including misspelt names and invalid values."""
    names = sorted(name for name in os.environ if name.startswith("NGD_") and name != "NGD_JOB")
    text = ", ".join(f"{name}={os.environ[name]}" for name in names) or "no NGD_ variable is set"
    yield Finding("switches", "ok", text)
    for name, meant in config.misspelt_names().items():
        text = f"{name} has no effect"
        yield Finding("switches", "warning", text, f"did you mean {meant}?")
    mode, problems = build_info()["mode"], []
    for check in (*config.CHECKS, lambda: config.communicator(mode), thread_count):
        try:
            check()
        except Error as error:
            problems.append(str(error))
    for problem in dict.fromkeys(problems):
        yield Finding("switches", "trouble", problem, FIX_OF_VARIABLES)


def _memory() -> Iterator[Finding]:
    """Report the limits of memory that matter for shared memory.

    Shared memory is made of memfds, so /dev/shm and RLIMIT_MEMLOCK do not matter.
    """
    gib = 1 << 30
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    limit = _cgroup_memory()
    text = f"{physical / gib:.1f} GiB"
    if limit < physical:
        text += f", of which the cgroup allows {limit / gib:.1f}, including shared memory"
    yield Finding("memory", "ok", f"{text}; /dev/shm is not used")
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        ranks = max(0, address_space // LEAST_SEGMENT - 2)
        level = "warning" if ranks >= 2 else "trouble"
        text = f"RLIMIT_AS is {address_space / gib:.1f} GiB: room for {ranks} ranks on this host"
        yield Finding("memory", level, text, "ulimit -v unlimited")
    file_size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if file_size != resource.RLIM_INFINITY:
        level = "warning" if file_size >= max(4 * gib, physical + gib) else "trouble"
        text = f"RLIMIT_FSIZE is {file_size >> 20} MiB, which limits shared memory too"
        yield Finding("memory", level, text, "ulimit -f unlimited")
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors < 256:
        text = f"RLIMIT_NOFILE is {descriptors}; each rank needs 3 per rank of its host"
        yield Finding("memory", "warning", text, "ulimit -n 1024")
    refused = _refused_by_the_kernel()
    if refused:
        fix = f"allow {refused} in the container's seccomp profile, or use a newer kernel"
        yield Finding("memory", "trouble", f"the kernel refuses {refused}", fix)


def _refused_by_the_kernel() -> str:
    """Return the first system call that ngd needs and the kernel refuses, with its error.

    Return an empty text if the kernel refuses none.
    """
    call = "memfd_create"
    try:
        memory = os.memfd_create("ngd-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with contextlib.closing(os.fdopen(memory, "wb")):
            call = "fallocate"
            os.posix_fallocate(memory, 0, 4096)
        call = "pidfd_open"
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"{call} ({error.strerror})"
    return ""


def _cgroup_memory() -> int:
    """Return the least memory limit among this process's cgroup and its parents, in bytes."""
    least = UNLIMITED
    try:
        lines = Path("/proc/self/cgroup").read_text(errors="replace").splitlines()
    except OSError:  # a kernel without cgroups, or no /proc
        return least
    paths = {line.split(":")[1]: line.split(":", 2)[2] for line in lines}
    root = Path("/sys/fs/cgroup")
    for folder, path, name in (
        (root, paths.get("", "/"), "memory.max"),
        (root / "memory", paths.get("memory", "/"), "memory.limit_in_bytes"),
    ):
        # In a container, the path may be that of the host, while the limit of the container is at
        # the root of the mounted hierarchy. So all parents are read.
        inside = [folder / path.lstrip("/"), *(folder / path.lstrip("/")).parents]
        for candidate in inside:
            if candidate.is_relative_to(folder):
                with contextlib.suppress(OSError, ValueError):
                    least = min(least, int((candidate / name).read_text()))
    return least


def _cores() -> Iterator[Finding]:
    """Yield a finding on the CPUs of this process and the number of threads of its kernels."""
    allowed = os.sched_getaffinity(0)
    text = f"{binding.format_cpus(allowed)} ({len(allowed)} of {len(reachable_cores())})"
    if available_cores() < len(allowed):
        text += f", of which the cgroup's quota allows {available_cores()}"
    text += f"; kernels use {thread_count()} threads"
    if thread_count() > available_cores():
        fix = "use a smaller NGD_THREADS, or unset it"
        yield Finding("cores", "warning", f"{text}: more threads than cores", fix)
    else:
        yield Finding("cores", "ok", text)


def reachable_cores() -> set[int]:
    """Return the cores of this process's cpuset, on which it could run without a binding."""
    affinity = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(max(max(affinity) + 1, os.cpu_count() or 1)))
        return os.sched_getaffinity(0)
    except OSError:
        return affinity
    finally:
        os.sched_setaffinity(0, affinity)


def _job(me: Launch) -> Iterator[Finding]:
    """Yield findings about the launcher, the cores of each rank, and the speed of an all-reduce.

    This rank joins the world to get the facts. If that fails, yield the error as a finding.
    """
    text = f"{me.launcher}: rank {me.rank} of {me.size}, {me.local_size} of them on this host"
    yield Finding("launcher", "ok", text)
    try:
        world = init()
        reports = _gather(world, _report(world))
        speed = measure(world)
    except Error as error:
        fix = f"read {page_url('errors')} and {page_url('launchers')}"
        yield Finding("ranks", "trouble", str(error), fix)
        return
    for report in reports:
        yield Finding(f"rank {report['rank']}", *judge(report, reports, me.launcher))
    if me.size > 1:
        yield Finding("all_reduce", *_judge_speed(speed, me.size))


def _report(world: Group) -> dict[str, Any]:
    """Return a dict with the host, CPUs, threads and communicator of this rank."""
    return {
        "rank": world.rank,
        "host": config.host() or socket.gethostname(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "of": len(reachable_cores()),
        "quota": available_cores(),
        "threads": thread_count(),
        "local_size": world.local_size,
        "communicator": world.communicator.name,
    }


def _gather(world: Group, report: dict[str, Any]) -> list[dict[str, Any]]:
    """Exchange the reports of all ranks, and return them on every rank, in the order of ranks."""
    text = json.dumps({**report, "cpus": binding.format_cpus(report["cpus"])}).encode()
    texts = np.zeros((world.size, REPORT_BYTES), np.uint8)
    texts[world.rank, : len(text)] = np.frombuffer(text, np.uint8)
    texts = world.all_reduce(texts, op="max")
    reports = [json.loads(bytes(row).rstrip(b"\0")) for row in texts]
    return [{**each, "cpus": binding.parse_cpus(each["cpus"])} for each in reports]


def judge(
    report: dict[str, Any], reports: list[dict[str, Any]], launcher: str
) -> tuple[str, str, str]:
    """Judge the cores of one rank, and return the level, text and fix of the `Finding`.

    The level is "warning" in these cases, and otherwise "ok":

    - The rank has more threads than cores.
    - Some cores of the host are in no rank's affinity mask, and the rank has fewer cores than a
      fair share: the number of cores of the host divided by the number of ranks of the host.
    - Some cores of the host are in no rank's affinity mask, and the rank's only core is also the
      only core of another rank.
    """
    cpus, threads, ranks = report["cpus"], report["threads"], report["local_size"]
    text = (
        f"on {report['host']}, over {report['communicator']}, core"
        f"{'s' if len(cpus) > 1 else ''} {binding.format_cpus(cpus)} ({len(cpus)} of "
        f"{report['of']}), {threads} thread{'s' if threads > 1 else ''}"
    )
    fair_share = max(1, report["of"] // ranks)
    neighbours = [r for r in reports if r["host"] == report["host"] and r is not report]
    num_unused = report["of"] - len(set().union(*(r["cpus"] for r in neighbours), cpus))
    with_mpirun = launcher == "openmpi"
    fix = (
        f"mpirun --map-by slot:PE={fair_share}, or --bind-to none"
        if with_mpirun
        else "bind to more"
    )
    if threads > len(cpus):
        return "warning", f"{text}: more threads than cores", f"use a smaller NGD_THREADS; or {fix}"
    if len(cpus) < fair_share and num_unused > 0:
        return "warning", f"{text}, and no rank may use {num_unused} of the cores", fix
    if num_unused > 0 and any(r["cpus"] == cpus for r in neighbours) and len(cpus) == 1:
        return "warning", f"{text}, which it shares with another rank", fix
    return "ok", text, ""


def measure(group: Group) -> dict[str, float]:
    """Return the median time of an all-reduce of 8 bytes, and the bandwidth of one of 16 MiB.

    "latency_us" is the time in microseconds, and "gbytes_per_s" is the bandwidth in 1e9 bytes per
    second.
    """
    times: dict[int, list[float]] = {2: [], 4 << 20: []}
    for count, seconds in times.items():
        buffer, result = np.empty(count, np.float32), np.empty(count, np.float32)
        for _ in range(200 if count == 2 else 7):
            buffer[:] = group.rank + 1  # a buffer that is not rewritten would stay in a cache
            group.barrier()
            start = time.perf_counter()
            group.all_reduce(buffer, op="sum", out=result)
            seconds.append(time.perf_counter() - start)
            if result[0] != group.size * (group.size + 1) // 2:
                raise RuntimeError(f"all_reduce: a sum of {result[0]} over {group.size} ranks")
    small, large = (statistics.median(each[2:]) for each in times.values())
    return {"latency_us": small * 1e6, "gbytes_per_s": (16 << 20) / large / 1e9}


def _judge_speed(measured: dict[str, float], ranks: int) -> tuple[str, str, str]:
    """Return the level, text and fix of a finding on the measured speed of collectives."""
    text = (
        f"{ranks} ranks: {measured['latency_us']:.1f} us for 8 bytes, "
        f"{measured['gbytes_per_s']:.3g} GB/s at 16 MiB"
    )
    if measured["latency_us"] > SLOW_US and ranks <= available_cores():
        fix = "look for other programs on these cores, and for ranks that share one"
        return "warning", f"{text}: slow", fix
    return "ok", text, ""


RANK_OF_SELF_TEST: Final = """\
import json
from ngd.cli import doctor
print(json.dumps(doctor.measure(doctor.init())))
"""
"""The Python program of a rank of the self-test.

A rank runs this program with `python -c`. `python -m ngd.cli.doctor` would run the module twice:
the package ngd.cli imports the module, and Python then runs the module again as __main__.
"""


def _self_test() -> Finding:
    """Start two ranks that measure an all-reduce; return the result as a `Finding`.

    Both ranks have ended when this function returns, even if it fails.
    """
    job = secrets.token_hex(16)
    command = [sys.executable, "-c", RANK_OF_SELF_TEST]
    ranks: list[subprocess.Popen[str]] = []
    fix = f"read {page_url('errors')}"
    try:
        for rank in range(2):
            env = rank_environment(rank, 2, job, 0, 0, os.environ) | {"NGD_COMM": "shm"}
            process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            ranks.append(process)
        end = time.monotonic() + SELF_TEST_SECONDS
        outputs = [each.communicate(timeout=max(0.1, end - time.monotonic())) for each in ranks]
    except subprocess.TimeoutExpired:
        text = f"two ranks did not end within {SELF_TEST_SECONDS:.0f} s"
        return Finding("self-test", "trouble", text, fix)
    finally:
        for each in ranks:
            if each.poll() is None:
                each.kill()
                each.communicate()
    for rank, each in enumerate(ranks):
        if each.returncode != 0:
            reason = error_of(outputs[rank][1]) or f"it returned {each.returncode}"
            return Finding("self-test", "trouble", f"rank {rank} of two failed: {reason}", fix)
    return Finding("self-test", *_judge_speed(json.loads(outputs[0][0]), 2))


def error_of(stderr: str) -> str:
    """Return the line with the class and message of the last error that Python printed.

    Return the last line of `stderr` if it has no such line.
    """
    lines = stderr.strip().splitlines()
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return (errors or lines or [""])[-1]
