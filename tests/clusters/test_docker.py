# SPDX-License-Identifier: Apache-2.0
"""Tests of the images of packaging/docker, which run as Docker would run them."""

from __future__ import annotations

import json

import pytest

from tests.clusters import engine

BUILT = [
    pytest.param(mode, marks=engine.needs(f"localhost/ngd:{mode.lower()}"))
    for mode in ("MLSL", "OMPI")
]
LARGE = """
import numpy, ngd
world = ngd.init()
mine = numpy.full(24 << 20, world.rank + 1, "float32")  # 96 MiB
assert (world.all_reduce(mine, op="sum") == 3).all()
print("summed")
"""


def run(mode: str, *words: str, options: tuple[str, ...] = ()) -> str:
    done = engine.run(f"localhost/ngd:{mode.lower()}", words, *options, seconds=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("mode", BUILT)
def test_image_is_slim_and_its_user_is_not_root(mode: str) -> None:
    output = run(
        mode,
        *("sh", "-c"),
        "id -u; id -un; pwd; command -v cc g++ ccache; ls -A /etc/pip.conf /run/secrets;"
        " ls /src; env | grep PIP_; python -c 'import ngd; print(ngd.build_info()[\"mode\"])'",
    )
    assert output.split() == ["1000", "mpiuser", "/home/mpiuser", mode]


@pytest.mark.parametrize("mode", BUILT)
def test_digits_train_on_two_ranks(mode: str) -> None:
    program = "/opt/ngd/examples/dist_mnist_mlp.py"
    output = run(mode, "ngd", "run", "--no-prefix", "-n", "2", program, "--epochs", "10")
    report = json.loads(output.splitlines()[-1])
    assert report["ranks"] == 2
    assert report["test_accuracy"] >= 0.93


@pytest.mark.parametrize("mode", BUILT)
def test_64_mb_in_dev_shm_and_the_seccomp_filter_are_enough(mode: str) -> None:
    script = (
        "df --output=size -k /dev/shm | tail -n 1; grep -o 'Seccomp:.*' /proc/self/status;"
        f"echo '{LARGE}' >large.py; ngd run --no-prefix -n 2 large.py; ls -A /dev/shm"
    )
    kilobytes, filtered, *summed = run(mode, "sh", "-c", script).splitlines()
    assert int(kilobytes) <= 64 << 10
    assert filtered.split() == ["Seccomp:", "2"]  # SECCOMP_MODE_FILTER
    assert summed == ["summed", "summed"]


@pytest.mark.parametrize("mode", BUILT)
def test_doctor_finds_no_error_in_the_image(mode: str) -> None:
    report = json.loads(run(mode, "ngd", "doctor", "--json"))
    assert report["ok"], report
