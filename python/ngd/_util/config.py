# SPDX-License-Identifier: Apache-2.0
"""The environment variables of ngd: functions that read them and check their values.

`check_variables` also checks variables that the C++ core reads (src/cpp/base/config.hpp). So
`ngd.init()` reports an invalid value before the first step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ..errors import CompileError, EnvironmentVariableWarning, InitError
from .callsite import warn
from .unknown_names import similar_name

LOOPBACK = "127.0.0.1"
"""The address at which metrics are served if NGD_METRICS has only a port."""
LOGS: Final = ("text", "json")
COMMUNICATORS: Final = ("auto", "self", "shm", "mpi")
COMMUNICATORS_OF_MODE: Final = {
    "OFF": COMMUNICATORS[:2],
    "MLSL": COMMUNICATORS[:3],
    "OMPI": COMMUNICATORS,
}
"""A dict from each build mode of ngd to the values of NGD_COMM that the mode supports.

OFF has "auto" and "self", which is for one rank. MLSL adds "shm", for the ranks of one host, which
share memory. OMPI adds "mpi", for several hosts.
"""
MPIS: Final = ("openmpi", "mpich")
SIMILARITY: Final = 0.7
"""The least similarity (a difflib ratio) at which an unknown name counts as a misspelt variable.

The names are compared without NGD_. For example, NUM_THREADS and THREADS have a ratio of 0.78.
"""
SWITCH: Final = ("0", "1")
DEVICES: Final = ("CPU", "INTERPRETER", "NULL")
"""The names of the devices, the default first. ngd/devices implements each device as a class."""
SIMD_LEVELS: Final = ("baseline", "avx2", "avx512")
"""The SIMD levels in ascending order. src/cpp/base/simd_levels.inc has all except the first."""


VARIABLES: Final = (
    "NGD_ALLREDUCE",
    "NGD_CHECK",
    "NGD_CHECK_FINITE",
    "NGD_COMM",
    "NGD_DEVICE",
    "NGD_EXPECT_SIZE",
    "NGD_HOST",
    "NGD_LOG",
    "NGD_METRICS",
    "NGD_MPI",
    "NGD_NUMA_NODE",
    "NGD_PROGRESS",
    "NGD_SIMD",
    "NGD_THREADS",
    "NGD_TIMEOUT",
)
"""The environment variables that users set."""
SET_BY_NGD: Final = (
    "NGD_ELASTIC_DIR",
    "NGD_ELASTIC_HOSTS",
    "NGD_JOB",
    "NGD_LAUNCHER",
    "NGD_MEMBER",
    "NGD_RAY_CLUSTER",
    "NGD_RAY_HOSTS",
    "NGD_RAY_NAMESPACE",
    "NGD_RAY_WORLD",
    "NGD_RESTART_COUNT",
    "NGD_SURROUNDINGS",
    "NGD_WORLD",
)
"""The environment variables that the launcher, ngd.ray or `ngd.init()` sets."""


def choose(name: str, values: Sequence[str]) -> str:
    """Return the value of the environment variable `name`.

    Return the first of `values` if the variable is unset or empty. Raise InitError if its value is
    not in `values`.
    """
    value = os.environ.get(name, "") or values[0]
    if value not in values:
        allowed = ", ".join(filter(None, values))
        raise InitError(f"{name}: expected one of {allowed}; got {value!r}")
    return value


def expect_whole_number(name: str, maximum: int, word: str = "") -> None:
    """Raise InitError if an environment variable has a value that is not allowed.

    The variable `name` may be unset, empty, a whole number from 0 to `maximum`, or `word`, such as
    "auto". Nothing is returned, because the C++ core reads the variable itself.
    """
    text = os.environ.get(name, "")
    is_number = text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= maximum
    if text and text != word and not is_number:
        alternative = f"{word} or " if word else ""
        raise InitError(
            f"{name}: expected {alternative}a whole number from 0 to {maximum}; got {text!r}"
        )


def device(name: str | None, where: str) -> str:
    """Return the name of a device: `name`, or NGD_DEVICE, or the default.

    Raise an error for an unknown device. `where` is the public call, for messages.
    """
    if not name:
        return choose("NGD_DEVICE", DEVICES)
    if name not in DEVICES:
        expected = f"{', '.join(DEVICES[:-1])} or {DEVICES[-1]}"
        fix = "Leave it out: ngd has no GPU devices."
        if str(name).upper() in DEVICES:
            fix = f"Write {str(name).upper()!r}."
        raise CompileError(f"{where}: device: expected {expected}; got {name!r}. {fix}")
    return name


def communicator(mode: str | None = None) -> str:
    """Return NGD_COMM, the communicator to use.

    If a build mode is given, raise InitError if that mode does not support this communicator.
    """
    name = choose("NGD_COMM", COMMUNICATORS)
    if mode is not None and name not in COMMUNICATORS_OF_MODE[mode]:
        allowed = ", ".join(COMMUNICATORS_OF_MODE[mode])
        required_mode = "OMPI" if name == "mpi" else "MLSL"
        raise InitError(
            f"ngd.init: NGD_COMM: expected one of {allowed} in mode {mode}; got {name!r}. Unset "
            f"NGD_COMM, or install ngd with cmake.define.NGD_DISTRIBUTED_ENABLE={required_mode}."
        )
    return name


def mpi() -> str | None:
    """Return NGD_MPI, the MPI library to use, or None."""
    return choose("NGD_MPI", ("", *MPIS)) or None


def host() -> str | None:
    """Return NGD_HOST, the name of this rank's host; ranks with the same name share memory."""
    return os.environ.get("NGD_HOST") or None


def check_finite() -> bool:
    """Return True if NGD_CHECK_FINITE is "1".

    Then a step raises an error at the first op whose result has a NaN or an infinity.
    """
    return choose("NGD_CHECK_FINITE", SWITCH) == "1"


def check() -> bool:
    """Return True if NGD_CHECK is "1". Then the compiler verifies the graph after every pass."""
    return choose("NGD_CHECK", SWITCH) == "1"


def metrics() -> tuple[str, int] | None:
    """Return NGD_METRICS, the address and port that serve the metrics of this host, or None."""
    text = os.environ.get("NGD_METRICS", "")
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 1 << 16):
        raise InitError(f"NGD_METRICS: expected PORT or HOST:PORT, PORT < 65536; got {text!r}")
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)


def log_as_json() -> bool:
    """Return True if NGD_LOG is "json". Then the lines of the log are JSON objects."""
    return choose("NGD_LOG", LOGS) == "json"


CHECKS: Final[tuple[Callable[[], object], ...]] = (
    communicator,
    mpi,
    metrics,
    log_as_json,
    check,
    check_finite,
    partial(device, None, "NGD_DEVICE"),
    partial(choose, "NGD_ALLREDUCE", ("auto", "flat", "ring")),
    partial(choose, "NGD_PROGRESS", ("auto", "on", "off")),
    partial(choose, "NGD_SIMD", ("", *SIMD_LEVELS)),
    partial(expect_whole_number, "NGD_THREADS", 1024),
    partial(expect_whole_number, "NGD_NUMA_NODE", 1023, "auto"),
)
"""One function per environment variable, which raises InitError if the value is invalid.

The functions take no arguments. NGD_TIMEOUT and NGD_EXPECT_SIZE have no function here: `ngd.init()`
uses their values itself, and checks them when it reads them.
"""


def check_variables() -> None:
    """Raise InitError if an environment variable of ngd has an invalid value.

    Warn about environment variables whose names are probably misspelt.
    """
    for check_variable in CHECKS:
        check_variable()
    for name, meant in misspelt_names().items():
        warn(
            f"ngd.init: expected a variable of ngd; got {name}={os.environ[name]}, which has no "
            f"effect. Did you mean {meant}?",
            EnvironmentVariableWarning,
        )


def misspelt_names() -> dict[str, str]:
    """Return the misspelt variables of ngd in the environment, as a dict.

    A key is the name of an NGD_ variable that ngd does not have. The value is the variable of ngd
    with the most similar name. If no name is similar, the variable is left out, because it
    probably belongs to another program, such as a test.
    """
    known = {name.removeprefix("NGD_"): name for name in (*VARIABLES, *SET_BY_NGD)}
    similar_names: dict[str, str] = {}
    for name in sorted(os.environ):
        short = name.removeprefix("NGD_")
        if name == short or short in known:
            continue
        close = similar_name(short, known, SIMILARITY)
        if close is not None:
            similar_names[name] = known[close]
    return similar_names
