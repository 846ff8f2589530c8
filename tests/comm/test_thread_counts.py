# SPDX-License-Identifier: Apache-2.0
"""Tests of the number of threads that kernels use, under several environments and limits."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

import ngd
from ngd import _core, ops
from ngd.devices.cpu import executable as cpu

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


SWITCHES = ("OMP_", "NGD_THREADS")


def multiply(
    environ: Mapping[str, str], before: Callable[[], None] | None = None
) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PRODUCT],
        env={**{k: v for k, v in os.environ.items() if not k.startswith(SWITCHES)}, **environ},
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
def test_a_bad_number_of_threads_raises_with_the_range(name: str, value: str) -> None:
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
def test_openmp_variables_do_not_change_results(environ: dict[str, str]) -> None:
    code, text = multiply(environ)
    assert code == 0, text
    assert text.startswith("right\n"), text


def test_more_threads_than_openmp_may_start_raise() -> None:
    code, text = multiply({"NGD_THREADS": "3", "OMP_THREAD_LIMIT": "2"})
    assert code == 1
    assert "NGD_THREADS: expected at most 2 here (OMP_THREAD_LIMIT" in text


def test_more_threads_than_openmp_may_bind_raise() -> None:
    """If OpenMP binds threads, a rank's share starts all threads. This must raise, not exit."""
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


def test_more_threads_than_the_system_starts_raise() -> None:
    """OpenMP itself would end the process without an exception."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    code, text = multiply({"NGD_THREADS": "1000"}, limit)
    assert code == 1, text
    assert "NGD_THREADS: expected at most " in text
    assert "RLIMIT_AS" in text


# Models whose kernels have different numbers of parallel tasks: small and large matmuls,
# convolutions, pooling, attention and reductions.
STEPS = """
import os, sys
import numpy as np, ngd
from ngd import nn, ops, optim

random = np.random.default_rng(0)
if sys.argv[1] == "mlp":
    model = nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    x = random.standard_normal((100, 784), dtype=np.float32)
elif sys.argv[1] == "convolutions":
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2),
        nn.MaxPool2d(2), nn.Conv2d(16, 16, 1), nn.Flatten(), nn.Linear(16 * 7 * 7, 10))
    x = random.standard_normal((3, 3, 32, 32), dtype=np.float32)
else:
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiHeadAttention(96, 3)
            self.norm = nn.LayerNorm(96)
            self.head = nn.Linear(96, 10)

        def forward(self, x):
            return self.head(ops.mean(self.norm(x + self.attention(x)), axis=1))

    model = Attention()
    x = random.standard_normal((5, 37, 96), dtype=np.float32)
y = random.integers(0, 10, len(x))
optimizer = optim.AdamW(1e-3, clip_norm=1.0)

@ngd.function(updates=True)
def step(x, y):
    with nn.training(nn.Random(seed=1)) as state:
        loss = ops.mean(ops.softmax_cross_entropy(model(x), y))
    return loss, [optimizer.minimize(loss, model.parameters()), state.updates]

step(x, y)
first = set(os.listdir("/proc/self/task"))
created = set()
for _ in range(30):
    step(x, y)
    created |= set(os.listdir("/proc/self/task")) - first
print(len(first), len(created))
"""


@pytest.mark.parametrize("threads", [4, 8])
@pytest.mark.parametrize("model", ["mlp", "convolutions", "attention"])
def test_no_thread_is_created_after_the_first_step(model: str, threads: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEPS, model],
        env={**os.environ, "NGD_THREADS": str(threads)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    threads_of_first_step, created = map(int, done.stdout.split())
    assert threads_of_first_step >= threads
    assert created == 0


V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextlib.contextmanager
def cpu_cgroup(quota_us: int, period_us: int) -> Iterator[Path]:
    """Yield a cgroup inside another one that has the quota; skip if none can be made."""
    is_version_1 = (V1 / "cpu.cfs_quota_us").exists()
    outer = (V1 if is_version_1 else V2) / f"ngd-test-{os.getpid()}"
    inner = outer / "job"
    try:
        outer.mkdir()
    except OSError as error:
        pytest.skip(f"needs to make a cpu cgroup: {error}")
    try:
        if is_version_1:
            (outer / "cpu.cfs_period_us").write_text(str(period_us))
            (outer / "cpu.cfs_quota_us").write_text(str(quota_us))
        elif (outer / "cpu.max").exists():
            (outer / "cpu.max").write_text(f"{quota_us} {period_us}")
        else:
            pytest.skip("needs a cpu cgroup: the controller is not enabled")
        inner.mkdir()
        yield inner
    finally:
        with contextlib.suppress(FileNotFoundError):
            inner.rmdir()
        outer.rmdir()


def test_the_quota_of_an_enclosing_cgroup_is_respected() -> None:
    code = "from ngd import _core; print(_core.available_cores(), _core.thread_count())"
    with cpu_cgroup(50_000, 100_000) as cgroup:
        enter = ["/bin/sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "sh"]
        done = subprocess.run(
            [*enter, sys.executable, "-c", code],
            env={k: v for k, v in os.environ.items() if k != "NGD_THREADS"},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "1"]


def test_python_runs_while_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constructor of Executable, one call of Python, compiles the kernels of oneDNN."""
    spans: list[tuple[float, float]] = []
    times: list[float] = []

    def timed_executable(*arguments: object) -> _core.Executable:
        begin = time.monotonic()
        executable = _core.Executable(*arguments)
        spans.append((begin, time.monotonic()))
        return executable

    class Timed:
        Executable = staticmethod(timed_executable)

        def __getattr__(self, name: str) -> object:
            return getattr(_core, name)

    monkeypatch.setattr(cpu, "_core", Timed())
    x = ngd.placeholder("x", (2, 8, 20, 20), np.float32)
    weights = [np.ones((4 + n, 8, 1 + n % 5, 1 + n // 5), np.float32) for n in range(25)]
    outputs = [ops.conv(x, ngd.constant(w)) for w in weights]
    is_compiled = threading.Event()

    def record_times() -> None:
        while not is_compiled.wait(0.0005):
            times.append(time.monotonic())

    thread = threading.Thread(target=record_times)
    thread.start()
    try:
        ngd.compile([x], outputs)
    finally:
        is_compiled.set()
        thread.join()
    begin, end = max(spans, key=lambda span: span[1] - span[0])
    margin = 0.05 * (end - begin)
    inside = [each for each in times if begin + margin < each < end - margin]
    assert len(inside) >= 2, f"{len(inside)} looks in {end - begin:.3f} s"
