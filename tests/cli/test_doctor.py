# SPDX-License-Identifier: Apache-2.0
"""Tests of `ngd doctor`: a healthy host, and each problem that it finds, with its fix."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ngd
from ngd.cli import doctor

DEADLINE = 120.0
MODE = ngd.build_info()["mode"]
LAUNCHED = re.compile(r"(RANK|WORLD_SIZE|LOCAL_.*|(MASTER_|OMPI_COMM_|PMIX?_|PRTE_|SLURM_|NGD_).*)")
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
COMMAND = [sys.executable, "-m", "ngd", "doctor"]

needs_ranks = pytest.mark.skipif(MODE == "OFF", reason="built with NGD_DISTRIBUTED_ENABLE=OFF")


def has_open_mpi() -> bool:
    version = doctor.version_of_mpirun(MPIRUN) if MPIRUN else None
    return version is not None and version[0] == "Open MPI"


needs_mpirun = pytest.mark.skipif(not has_open_mpi(), reason="needs Open MPI's mpirun")


def clean_environment() -> dict[str, str]:
    environ = {k: v for k, v in os.environ.items() if not LAUNCHED.fullmatch(k)}
    if MPIRUN:
        environ["PATH"] = f"{Path(MPIRUN).parent}:{environ.get('PATH', '')}"
    return environ


def examine(
    *arguments: str, before: tuple[str, ...] = (), **environ: str
) -> tuple[int, list[dict[str, Any]]]:
    """Run `ngd doctor --json`, and return its exit code and its findings."""
    done = subprocess.run(
        [*before, *COMMAND, "--json", *arguments],
        env=clean_environment() | environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] == (done.returncode == 0)
    return done.returncode, report["findings"]


def single_finding(findings: list[dict[str, Any]], topic: str, level: str) -> dict[str, Any]:
    """Return the only finding of this topic and level."""
    (finding,) = [f for f in findings if f["topic"] == topic and f["level"] == level]
    return finding


@needs_ranks
def test_a_healthy_host() -> None:
    code, findings = examine()
    assert code == 0, findings
    topics = {f["topic"] for f in findings}
    assert {"build", "kernels", "switches", "memory", "launcher", "cores", "self-test"} <= topics
    assert single_finding(findings, "build", "ok")["text"].startswith(
        f"ngd {ngd.__version__}, mode {MODE}"
    )
    (measured,) = [f["text"] for f in findings if f["topic"] == "self-test"]
    numbers = re.fullmatch(r"2 ranks: ([\d.]+) us for 8 bytes, ([\d.]+) GB/s at 16 MiB.*", measured)
    assert numbers is not None
    assert min(map(float, numbers.groups())) > 0


def test_the_report_without_json_is_text() -> None:
    done = subprocess.run(
        [*COMMAND, "--no-self-test"],
        env=clean_environment() | {"NGD_COMM": "pigeon"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 1
    assert "TROUBLE: NGD_COMM: expected one of auto" in done.stdout
    assert "-> https://" in done.stdout
    assert "environment/ lists the values" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Found 1 problem")


@pytest.mark.parametrize(
    ("levels", "line"),
    [
        (["ok", "ok"], "No problems found."),
        (["ok", "warning", "warning"], "Found 2 warnings."),
        (["trouble", "warning"], "Found 1 problem and 1 warning."),
    ],
)
def test_the_verdict_counts_the_levels(levels: list[str], line: str) -> None:
    assert doctor.verdict([doctor.Finding("a", level, "b") for level in levels]) == line


@pytest.mark.parametrize(
    ("environ", "topic", "words"),
    [
        ({"NGD_THREADS": "many"}, "switches", "NGD_THREADS"),
        ({"NGD_DEVICE": "TOASTER"}, "switches", "NGD_DEVICE: expected one of CPU, INTERPRETER"),
        ({"NGD_ALLREDUCE": "star"}, "switches", "NGD_ALLREDUCE: expected one of auto, flat, ring"),
        ({"RANK": "0"}, "launcher", "WORLD_SIZE is not set"),
        ({"NGD_JOB": "a", "RANK": "2", "WORLD_SIZE": "2"}, "launcher", "is not below"),
    ],
)
def test_bad_environment_variables_are_errors(
    environ: dict[str, str], topic: str, words: str
) -> None:
    code, findings = examine("--no-self-test", **environ)
    assert code == 1
    trouble = single_finding(findings, topic, "trouble")
    assert words in trouble["text"]
    assert trouble["fix"]


def test_a_misspelt_variable_is_a_warning() -> None:
    code, findings = examine("--no-self-test", NGD_TREADS="2")
    assert code == 0
    warning = single_finding(findings, "switches", "warning")
    assert warning["text"] == "NGD_TREADS has no effect"
    assert warning["fix"] == "did you mean NGD_THREADS?"


@needs_ranks
def test_a_failed_self_test_is_an_error() -> None:
    code, findings = examine(NGD_TIMEOUT="0.0001")
    assert code == 1
    assert "CollectiveTimeoutError" in single_finding(findings, "self-test", "trouble")["text"]


@needs_ranks
def test_a_rank_that_does_not_start_is_an_error() -> None:
    environ = {"NGD_JOB": f"doctor-{os.getpid()}", "RANK": "0", "WORLD_SIZE": "2"}
    code, findings = examine(**environ, NGD_TIMEOUT="1")
    assert code == 1
    assert "rank 1 did not arrive" in single_finding(findings, "ranks", "trouble")["text"]


@pytest.mark.parametrize(
    ("limits", "level", "words"),
    [
        ("ulimit -v 3000000", "warning", "RLIMIT_AS is 2.9 GiB: room for 9 ranks"),
        ("ulimit -f 10240", "trouble", "RLIMIT_FSIZE is 10 MiB"),
        ("ulimit -n 100", "warning", "RLIMIT_NOFILE is 100"),
    ],
)
def test_resource_limits_are_reported(limits: str, level: str, words: str) -> None:
    _, findings = examine("--no-self-test", before=("bash", "-c", f'{limits}; exec "$@"', "bash"))
    finding = single_finding(findings, "memory", level)
    assert words in finding["text"]
    assert finding["fix"].startswith("ulimit")


def fake_mpirun(folder: Path, says: str) -> str:
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to ...", ("Open MPI", "5.0.11")),
        ("mpirun.real (OpenRTE) 4.1.4\nOpen MPI) 4.1.4", ("Open MPI", "4.1.4")),
        ("HYDRA build details:\n    Version:       4.3.1\n    CC: gcc", ("MPICH", "4.3.1")),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 1", ("Intel MPI", "2021.9")),
        ("something else", None),
    ],
)
def test_versions_of_mpirun(tmp_path: Path, says: str, version: tuple[str, str] | None) -> None:
    assert doctor.version_of_mpirun(fake_mpirun(tmp_path, says)) == version


@pytest.mark.skipif(doctor.mpis() != ["openmpi"], reason="needs mode OMPI, for Open MPI alone")
@pytest.mark.parametrize(
    ("says", "level"),
    [
        ("mpirun (Open MPI) 2.1.1", "trouble"),
        ("HYDRA build details:\n    Version: 4.3.1", "trouble"),
        ("mpirun (Open MPI) 5.99.99", "warning"),
    ],
)
def test_an_mpirun_of_another_mpi_is_reported(tmp_path: Path, says: str, level: str) -> None:
    fake_mpirun(tmp_path, says)
    _, findings = examine("--no-self-test", PATH=f"{tmp_path}:/usr/bin:/bin")
    finding = single_finding(findings, "mpirun", level)
    assert str(tmp_path) in finding["text"]
    assert "Open MPI" in finding["text"] + finding["fix"]
    assert "on the PATH" in finding["fix"]


@pytest.mark.parametrize(
    ("library", "level"),
    [
        ("Open MPI v5.0.11, package: Open MPI user@host, ident: 5.0.11", "ok"),
        ("Open MPI v5.0.9, package: Open MPI user@host, ident: 5.0.9", "warning"),
        ("Open MPI v4.1.4, package: Open MPI user@host, ident: 4.1.4", "trouble"),
    ],
)
def test_the_mpirun_of_the_library_needs_no_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, level: str
) -> None:
    """The build is one of mode OMPI, with the `mpirun` of its Open MPI first on the PATH."""
    fake_mpirun(tmp_path, "mpirun (Open MPI) 5.0.11")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(doctor, "build_info", lambda: {"mode": "OMPI"})
    monkeypatch.setattr(doctor, "mpis", lambda: ["openmpi"])
    monkeypatch.setattr(doctor, "load_mpi", lambda name: library)
    (finding,) = doctor._mpi()
    assert finding.level == level
    assert (finding.fix == "") == (level == "ok")


@pytest.mark.skipif(doctor.mpis() != ["openmpi"], reason="needs mode OMPI, for Open MPI alone")
@needs_mpirun
def test_the_mpirun_of_this_build_needs_no_fix() -> None:
    _, findings = examine("--no-self-test")
    for finding in findings:
        if finding["level"] == "ok":
            assert finding["fix"] == "", finding


def run_under_mpirun(ranks: int, *options: str, **environ: str) -> list[dict[str, Any]]:
    assert MPIRUN is not None
    environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    before = (MPIRUN, "--oversubscribe", "-np", str(ranks), *options)
    return examine(before=before, **environ)[1]


@needs_ranks
@needs_mpirun
def test_every_rank_reports_where_it_runs() -> None:
    findings = run_under_mpirun(3, "--bind-to", "none")
    assert "openmpi: rank 0 of 3" in single_finding(findings, "launcher", "ok")["text"]
    cores = len(os.sched_getaffinity(0))
    for rank in range(3):
        (finding,) = [f for f in findings if f["topic"] == f"rank {rank}"]
        assert f"({cores} of {len(doctor.reachable_cores())})" in finding["text"]
    (measured,) = [f for f in findings if f["topic"] == "all_reduce"]
    assert measured["text"].startswith("3 ranks: ")


@needs_mpirun
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("environ", [{}, {"NGD_THREADS": "2"}])
def test_a_rank_bound_to_one_core_while_others_are_free(environ: dict[str, str]) -> None:
    findings = run_under_mpirun(1, "--bind-to", "core", **environ)
    warning = single_finding(findings, "rank 0", "warning")
    assert ("more threads than cores" in warning["text"]) == bool(environ)
    assert "--bind-to none" in warning["fix"]


@pytest.mark.parametrize(("more", "level"), [(0, "ok"), (1, "warning")])
def test_more_threads_than_cores_are_a_warning(
    more: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "thread_count", lambda: doctor.available_cores() + more)
    (finding,) = doctor._cores()
    assert finding.level == level
    assert ("more threads than cores" in finding.text) == (level == "warning")
    assert finding.fix.startswith("use a smaller NGD_THREADS") == (level == "warning")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_binding_does_not_hide_cores() -> None:
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, [max(mine)])
        assert doctor.reachable_cores() >= mine
        assert os.sched_getaffinity(0) == {max(mine)}
    finally:
        os.sched_setaffinity(0, mine)


REPORT = {"rank": 0, "host": "a", "communicator": "shm", "threads": 1, "of": 8, "local_size": 2}


@pytest.mark.parametrize(
    ("mine", "other", "threads", "level", "words"),
    [
        ([0, 1, 2, 3], [4, 5, 6, 7], 4, "ok", "cores 0-3 (4 of 8), 4 threads"),
        ([0], [1], 1, "warning", "no rank may use 6 of the cores"),
        ([0], [1], 4, "warning", "more threads than cores"),
        ([0], [1, 2, 3, 4, 5, 6, 7], 1, "ok", "core 0 (1 of 8), 1 thread"),
        ([*range(8)], [*range(8)], 4, "ok", "cores 0-7 (8 of 8)"),
    ],
)
def test_bindings_of_ranks_are_reported(
    mine: list[int], other: list[int], threads: int, level: str, words: str
) -> None:
    me = {**REPORT, "cpus": mine, "threads": threads}
    got, text, fix = doctor.judge(me, [me, {**REPORT, "rank": 1, "cpus": other}], "openmpi")
    assert got == level
    assert words in text
    assert (fix == "") == (level == "ok")
    assert ("more threads" in text) == fix.startswith("use a smaller NGD_THREADS; or mpirun ")


def test_a_kernel_without_cgroups_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    read_text = Path.read_text

    def refuse(self: Path, *how: Any, **more: Any) -> str:
        if self == Path("/proc/self/cgroup"):
            raise FileNotFoundError(2, "no such file", str(self))
        return read_text(self, *how, **more)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert doctor._cgroup_memory() == doctor.UNLIMITED


@needs_ranks
def test_the_self_test_makes_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    findings = doctor._self_test()
    assert findings.level != "trouble", findings
