# SPDX-License-Identifier: Apache-2.0
"""Tests that an invalid environment variable raises an error with its name and its values."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ngd
from ngd._util import config
from ngd.devices import DEVICES
from ngd.errors import EnvironmentVariableWarning, InitError

INVALID = [
    ("NGD_COMM", "pigeon", "expected one of auto, self, shm, mpi"),
    ("NGD_MPI", "mvapich", "expected one of openmpi, mpich"),
    ("NGD_LOG", "xml", "expected one of text, json"),
    ("NGD_CHECK", "yes", "expected one of 0, 1"),
    ("NGD_CHECK", "2", "expected one of 0, 1"),
    ("NGD_CHECK_FINITE", "true", "expected one of 0, 1"),
    ("NGD_DEVICE", "TPU", "expected one of CPU, INTERPRETER, NULL"),
    ("NGD_DEVICE", "cpu", "expected one of CPU, INTERPRETER, NULL"),
    ("NGD_ALLREDUCE", "star", "expected one of auto, flat, ring"),
    ("NGD_PROGRESS", "maybe", "expected one of auto, on, off"),
    ("NGD_SIMD", "sse9", "expected one of baseline, avx2, avx512"),
    ("NGD_THREADS", "many", "expected a whole number from 0 to 1024"),
    ("NGD_THREADS", "1025", "expected a whole number from 0 to 1024"),
    ("NGD_THREADS", "-1", "expected a whole number from 0 to 1024"),
    ("NGD_THREADS", "1.5", "expected a whole number from 0 to 1024"),
    ("NGD_NUMA_NODE", "left", "expected auto or a whole number from 0 to 1023"),
    ("NGD_METRICS", "web", "expected PORT or HOST:PORT, PORT < 65536"),
    ("NGD_TIMEOUT", "soon", "expected a number >= 0"),
]
VALID = {
    "NGD_COMM": ("auto", "self"),
    "NGD_MPI": ("openmpi", "mpich"),
    "NGD_LOG": ("text", "json"),
    "NGD_CHECK": ("0", "1"),
    "NGD_CHECK_FINITE": ("0", "1"),
    "NGD_DEVICE": ("CPU", "INTERPRETER", "NULL"),
    "NGD_ALLREDUCE": ("auto", "flat", "ring"),
    "NGD_PROGRESS": ("auto", "on", "off"),
    "NGD_SIMD": ("baseline", "avx2", "avx512"),
    "NGD_THREADS": ("0", "1", "1024"),
    "NGD_NUMA_NODE": ("auto", "0", "1023"),
    "NGD_METRICS": ("9000", "localhost:9000", "[::1]:0"),
}


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("NGD_")}


@pytest.mark.parametrize(("name", "value", "expected"), INVALID)
def test_init_names_the_variable_with_the_bad_value(
    name: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    ngd.shutdown()
    message = f"^{name}: {re.escape(expected)}; got '{value}'"
    with pytest.raises(InitError, match=message):
        ngd.init()
    monkeypatch.delenv(name)
    assert ngd.init().size == 1
    ngd.shutdown()


@pytest.mark.parametrize("name", list(VALID))
def test_valid_and_empty_values_are_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", *VALID[name]):
        monkeypatch.setenv(name, value)
        config.check_variables()


@pytest.mark.parametrize("name", ["NGD_CHECK", "NGD_CHECK_FINITE", "NGD_DEVICE"])
def test_a_step_without_collectives_names_the_variable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = ngd.placeholder("x", (2,))
    monkeypatch.setenv(name, "perhaps")
    with pytest.raises(InitError, match=f"^{name}: expected one of .*; got 'perhaps'"):
        ngd.compile([x], [x + 1])
    monkeypatch.delenv(name)
    step = ngd.compile([x], [x + 1])
    np.testing.assert_array_equal(step(np.ones(2, np.float32))[0], [2, 2])


@pytest.mark.parametrize(
    ("mode", "value", "needed"),
    [("MLSL", "mpi", "OMPI"), ("OFF", "mpi", "OMPI"), ("OFF", "shm", "MLSL")],
)
def test_a_communicator_that_the_build_mode_lacks_is_rejected(
    mode: str, value: str, needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NGD_COMM", value)
    message = (
        rf"^ngd\.init: NGD_COMM: expected one of auto, self.* in mode {mode}; got '{value}'\. "
        rf"Unset NGD_COMM, or install ngd with .*NGD_DISTRIBUTED_ENABLE={needed}\.$"
    )
    with pytest.raises(InitError, match=message):
        config.communicator(mode)
    assert config.communicator("OMPI") == value


@pytest.mark.skipif(ngd.build_info()["mode"] != "MLSL", reason="needs mode MLSL")
def test_mpi_in_mode_mlsl_is_an_error_of_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NGD_COMM", "mpi")
    ngd.shutdown()
    with pytest.raises(InitError, match="NGD_COMM: expected one of auto, self, shm in mode MLSL"):
        ngd.init()


def test_the_documentation_lists_each_variable_and_value() -> None:
    page = (Path(__file__).parents[2] / "docs" / "environment.md").read_text()
    rows = {line.split("|")[1].strip(" `"): line for line in page.splitlines() if "| `NGD_" in line}
    for name, values in VALID.items():
        for value in values if name not in ("NGD_THREADS", "NGD_NUMA_NODE", "NGD_METRICS") else ():
            assert f"`{value}`" in rows[name], (name, value)


def test_a_rank_with_a_bad_value_does_not_join() -> None:
    """A bad algorithm raises in ngd.init, and not in the first collective."""
    program = "import ngd; ngd.init(); print('joined')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean_environment(), "NGD_ALLREDUCE": "star"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "joined" not in done.stdout
    assert "InitError: NGD_ALLREDUCE: expected one of auto, flat, ring; got 'star'" in done.stderr


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NGD_TREADS", "NGD_THREADS"),
        ("NGD_NUM_THREADS", "NGD_THREADS"),
        ("NGD_TIME_OUT", "NGD_TIMEOUT"),
        ("NGD_CHECK_FINITE_", "NGD_CHECK_FINITE"),
    ],
)
def test_init_warns_about_a_misspelt_variable(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "2")
    ngd.shutdown()
    message = rf"^ngd\.init: expected .*; got {name}=2, which has no effect\. .* {meant}\?$"
    with pytest.warns(EnvironmentVariableWarning, match=message) as caught:
        ngd.init()
    assert [warning.filename for warning in caught] == [__file__]
    ngd.shutdown()


def test_variables_of_other_programs_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NGD_MNIST", "NGD_KILLS", "NGD_INJECT_FIRST", "NGD_TEST_INTERRUPTS", "NGD_XYZ"):
        monkeypatch.setenv(name, "1")
    assert config.misspelt_names() == {}


def test_the_known_names_are_those_of_the_documentation_and_the_code() -> None:
    root = Path(__file__).parents[2]
    rows = re.findall(r"^\| (`NGD_.*?) \|", (root / "docs" / "environment.md").read_text(), re.M)
    listed = set(re.findall(r"NGD_\w+", " ".join(rows)))
    names = {*config.VARIABLES, *config.SET_BY_NGD}
    assert listed == {name for name in names if not name.startswith("NGD_RAY_")}
    sources = "".join(path.read_text() for path in (root / "python" / "ngd").rglob("*.py"))
    read = set(re.findall(r"\bNGD_[A-Z_]+\b", sources))
    # messages contain names of build options
    assert read - names <= {"NGD_DISTRIBUTED_ENABLE", "NGD_MPI_INCLUDE", "NGD_ONEDNN"}


def test_the_known_devices_are_those_of_the_package() -> None:
    assert tuple(DEVICES) == config.DEVICES


def test_the_simd_levels_are_those_of_the_core() -> None:
    rows = Path(__file__).parents[2] / "src" / "cpp" / "base" / "simd_levels.inc"
    names = re.findall(r"^  ROW\(\w+, (\w+),", rows.read_text(), re.M)
    assert ("baseline", *names) == config.SIMD_LEVELS
