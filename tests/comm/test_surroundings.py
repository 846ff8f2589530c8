# SPDX-License-Identifier: Apache-2.0
"""Tests of small jobs in odd environments: a right result, or an error with a reason."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import harness

pytestmark = harness.needs_ranks

SECONDS = 40.0
MIB = 1 << 20
NOBODY = 65534

# The program of a rank. Its arguments are the first statement, and the path of the result.
SCRIPT = """
import contextlib, ctypes, json, locale, os, sys, traceback
with contextlib.suppress(locale.Error):
    locale.setlocale(locale.LC_ALL, "")
import numpy as np
import ngd
from ngd import ops


def job():
    found = {"decimal point": locale.localeconv()["decimal_point"]}
    world = ngd.init()
    found["sum"] = int(ngd.all_reduce(world.rank + 1, op="sum"))
    found["large"] = float(ngd.all_reduce(np.full(100_000, 0.5), op="sum")[-1])
    found["half"] = int(world.split(world.rank).all_reduce(7, op="sum"))
    x = ngd.placeholder("x", (300, 300), np.float32)
    y = ops.all_reduce(ops.matmul(x, x) * 0.25, op="sum")
    (result,) = ngd.compile([x], [y])(np.ones((300, 300), np.float32))
    found["step"] = float(result[7, 7])
    ngd.shutdown()
    return found


try:
    exec(sys.argv[1])
    found = job()
except (ngd.errors.Error, MemoryError, OSError) as error:
    found = {"error": type(error).__name__, "message": str(error)}
with open(sys.argv[2], "w", encoding="utf-8") as file:
    json.dump(found, file)
os._exit(0) if "error" in found else sys.exit(0)
"""
RIGHT = {"sum": 3, "large": 1.0, "half": 7, "step": 150.0}


@dataclass
class Surroundings:
    """The environment of a job, and its expected end."""

    name: str
    env: dict[str, str | None] = field(default_factory=dict)
    before: str = ""
    """A statement that runs after the imports."""
    shell: str = ""
    """Shell code that runs before the shell becomes the rank."""
    limit: tuple[int, int] | None = None
    """A resource limit from the start of the process."""
    folder: bytes | None = None
    """The working directory, which holds the script."""
    error: tuple[str, str] | None = None
    """The class of the error that at least one rank raises, and words of its message."""


def close_streams(*streams: int) -> str:
    return "".join(f"exec {each}{'<' if each == 0 else '>'}&-; " for each in streams)


def resource_limit(which: str, most: int) -> dict[str, Any]:
    return {"limit": (getattr(resource, which), most)}


# Become a user with few processes. After the imports, because the user may not read their files.
AS_NOBODY = f"""
import resource
os.setgroups([]); os.setresgid(*3 * [{NOBODY}]); os.setresuid(*3 * [{NOBODY}])
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
"""
OPEN_RESULT = "sys.argv[2] = os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY)\n"

CASES = [
    *[
        Surroundings(f"locale {name}", env={"LC_ALL": name})
        for name in ("de_DE.UTF-8", "tr_TR.UTF-8", "C", "POSIX")
    ],
    Surroundings("no UTF-8", env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    Surroundings("ASCII streams", env={"PYTHONIOENCODING": "ascii", "NGD_CHECK": "1"}),
    Surroundings("a working directory that nobody writes to", before="os.chdir('/proc')"),
    Surroundings(
        "a deleted working directory",
        before="os.mkdir(d := sys.argv[2] + 'd'); os.chdir(d); os.rmdir(d)",
    ),
    Surroundings("a path that is not ASCII", folder="größe 日本".encode()),
    Surroundings("a path that is not UTF-8", folder=b"\xff\xfe"),
    *[
        Surroundings(f"closed: {' '.join(map(str, streams))}", shell=close_streams(*streams))
        for streams in ((0,), (1,), (2,), (0, 1, 2))
    ],
    Surroundings("few descriptors", **resource_limit("RLIMIT_NOFILE", 40)),
    Surroundings(
        "too few descriptors",
        before="import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))",
        error=("InitError", "RLIMIT_NOFILE"),
    ),
    Surroundings("little address space", **resource_limit("RLIMIT_AS", 3072 * MIB)),
    Surroundings(
        "too little address space",
        before="import resource; used = 4096 * int(open('/proc/self/statm').read().split()[0]); "
        "resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), used + (300 << 20)))",
        error=("MemoryError", "RLIMIT_AS"),
    ),
    Surroundings(
        "small files", **resource_limit("RLIMIT_FSIZE", MIB), error=("MemoryError", "FSIZE")
    ),
    Surroundings("no core files", **resource_limit("RLIMIT_CORE", 0)),
    Surroundings("no other process or thread", before=OPEN_RESULT + AS_NOBODY),
    Surroundings(
        "no other thread, and two are wanted",
        before=OPEN_RESULT + AS_NOBODY,
        env={"NGD_THREADS": "2"},
        error=("InitError", "NGD_THREADS: expected at most 1 here"),
    ),
    Surroundings("a umask that forbids all", shell="umask 0777; "),
    Surroundings("no HOME", env={"HOME": None}),
    Surroundings("no TMPDIR", env={"TMPDIR": "/nowhere/at all"}),
]


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the locales that this machine may lack, and return their folder."""
    folder = tmp_path_factory.mktemp("locales")
    localedef = shutil.which("localedef")
    if localedef is not None:
        for name in ("de_DE", "tr_TR"):
            command = [localedef, "-i", name, "-f", "UTF-8", str(folder / f"{name}.UTF-8")]
            subprocess.run(command, capture_output=True, timeout=60)
            use = f"import locale; locale.setlocale(locale.LC_ALL, '{name}.UTF-8')"
            env = {**os.environ, "LOCPATH": str(folder)}
            if subprocess.run([sys.executable, "-c", use], env=env, capture_output=True).returncode:
                shutil.rmtree(folder / f"{name}.UTF-8", ignore_errors=True)  # incomplete
    return folder


def start_rank(case: Surroundings, rank: int, job: str, script: str, result: str) -> Any:
    env: dict[str, str | None] = {
        k: v for k, v in os.environ.items() if not harness.LAUNCHED.fullmatch(k)
    }
    env |= {**harness.plain_environment(rank, 2), "NGD_JOB": job, "NGD_TIMEOUT": "20", **case.env}

    def set_limit() -> None:
        if case.limit is not None:
            resource.setrlimit(case.limit[0], (case.limit[1], case.limit[1]))

    shell = ["/bin/sh", "-c", f'{case.shell}exec "$@"', "sh"]
    return subprocess.Popen(
        [*shell, sys.executable, script, case.before, result],
        env={k: v for k, v in env.items() if v is not None},
        cwd=None if case.folder is None else os.path.dirname(script),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=set_limit,
    )


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_job_in_odd_surroundings(case: Surroundings, tmp_path: Path, locales: Path) -> None:
    locale_name = case.env.get("LC_ALL") or "C"
    if "." in locale_name:
        if not (locales / locale_name).exists():
            pytest.skip(f"needs localedef and the sources of {locale_name}")
        case.env["LOCPATH"] = str(locales)
    if AS_NOBODY in case.before and os.geteuid() != 0:
        pytest.skip("needs root, to become a user who may start nothing")
    folder = os.fsencode(tmp_path) + b"/" + (case.folder or b"plain")
    os.mkdir(folder)
    script = os.fsdecode(folder + b"/job.py")
    Path(script).write_text(SCRIPT)
    results = [str(tmp_path / f"{rank}.json") for rank in range(2)]
    job = secrets.token_hex(16)
    since = time.monotonic()
    ranks = [start_rank(case, rank, job, script, results[rank]) for rank in range(2)]
    outputs = []
    try:
        for each in ranks:
            remaining = max(0.1, since + SECONDS - time.monotonic())
            outputs.append(each.communicate(timeout=remaining)[0].decode(errors="replace"))
    finally:
        for each in ranks:
            with contextlib.suppress(OSError):
                each.kill()
            each.communicate()
    os.chmod(tmp_path, 0o700)
    values = [json.loads(read_result(result) or "{}") for result in results]
    if case.error is None:
        for rank, each in enumerate(values):
            point = each.pop("decimal point", None)
            assert each == RIGHT, (each, outputs[rank])
            assert point == ("," if "." in locale_name else "."), point
    else:
        kind, words = case.error
        errors = [each for each in values if each.get("error") == kind]
        assert errors, (values, outputs)
        assert all(words in each["message"] for each in errors), errors
        assert all("error" in each for each in values), values


def read_result(file: str) -> str:
    with contextlib.suppress(FileNotFoundError):
        os.chmod(file, 0o600)
        return Path(file).read_text(encoding="utf-8")
    return ""
