# SPDX-License-Identifier: Apache-2.0
"""How many threads kernels use, whatever the environment and the limits say."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np
import pytest

import ngd
from ngd import _core, ops
from ngd.devices import cpu

PRODUCT = """
import numpy as np, ngd
from ngd import ops
x = ngd.placeholder("x", (256, 256), np.float32)
ones = np.ones((256, 256), np.float32)
product, sums = ngd.compile([x], [ops.matmul(x, x), ops.sum(ops.exp(x))])(ones)
assert np.all(product == 256), product
assert abs(float(sums) / (256 * 256 * np.exp(1)) - 1) < 1e-5, sums
print("right")
"""


def multiply(
    environ: Mapping[str, str], before: Callable[[], None] | None = None
) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PRODUCT],
        env={**{k: v for k, v in os.environ.items() if not k.startswith("OMP_")}, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=before,
    )
    return done.returncode, done.stdout + done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NGD_THREADS", "1000000"),
        ("NGD_THREADS", "1025"),
        ("NGD_THREADS", "2.5"),
        ("NGD_THREADS", "1e300"),
        ("NGD_THREADS", "-1"),
        ("NGD_THREADS", "nan"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_with_the_range(name: str, value: str) -> None:
    code, text = multiply({name: value})
    assert code == 1, text
    assert f"InitError: {name}: expected a whole number from 0 to 1024; got '{value}'" in text


@pytest.mark.parametrize(
    "environ",
    [
        {"NGD_THREADS": "64"},
        {"NGD_THREADS": "2", "OMP_DYNAMIC": "true"},
        {"OMP_NUM_THREADS": "1000000"},
        {"OMP_NUM_THREADS": "nonsense"},
        {"OMP_THREAD_LIMIT": "1"},
        {"OMP_MAX_ACTIVE_LEVELS": "0"},
    ],
)
def test_openmps_switches_change_no_result(environ: dict[str, str]) -> None:
    code, text = multiply(environ)
    assert code == 0, text
    assert text.startswith("right\n"), text


def test_more_threads_than_openmp_may_start_are_refused() -> None:
    code, text = multiply({"NGD_THREADS": "3", "OMP_THREAD_LIMIT": "2"})
    assert code == 1
    assert "NGD_THREADS: expected at most 2 here (OMP_THREAD_LIMIT" in text


def test_more_threads_than_openmp_may_bind_are_refused() -> None:
    """Where threads are bound, a rank's share asks for them all: an error, not the end."""
    code = "from ngd import _core; _core.set_thread_share(1)"
    environ = {"NGD_THREADS": "3", "OMP_THREAD_LIMIT": "2", "OMP_PROC_BIND": "true"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done
    assert "InitError: NGD_THREADS: expected at most 2 here" in done.stderr


def test_more_threads_than_the_system_starts_are_refused() -> None:
    """OpenMP would end the process without an exception."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    code, text = multiply({"NGD_THREADS": "1000"}, limit)
    assert code == 1, text
    assert "NGD_THREADS: expected at most " in text
    assert "RLIMIT_AS" in text


def test_python_goes_on_while_kernels_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making an executable compiles oneDNN's kernels, and is one call."""
    spans: list[tuple[float, float]] = []
    looks: list[float] = []

    def timed(*arguments: object) -> _core.Executable:
        begin = time.monotonic()
        made = _core.Executable(*arguments)
        spans.append((begin, time.monotonic()))
        return made

    class Timed:
        Executable = staticmethod(timed)

        def __getattr__(self, name: str) -> object:
            return getattr(_core, name)

    monkeypatch.setattr(cpu, "_core", Timed())
    x = ngd.placeholder("x", (2, 8, 20, 20), np.float32)
    weights = [np.ones((4 + n, 8, 1 + n % 5, 1 + n // 5), np.float32) for n in range(25)]
    outputs = [ops.conv(x, ngd.constant(w)) for w in weights]
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.0005):
            looks.append(time.monotonic())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        ngd.compile([x], outputs)
    finally:
        ended.set()
        thread.join()
    begin, end = max(spans, key=lambda span: span[1] - span[0])
    margin = 0.05 * (end - begin)
    inside = [each for each in looks if begin + margin < each < end - margin]
    assert len(inside) >= 2, f"{len(inside)} looks in {end - begin:.3f} s"
