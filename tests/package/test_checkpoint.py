# SPDX-License-Identifier: Apache-2.0
"""Tests of checkpoints: complete after a kill, readable by others, and exact when resumed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import ngd
from ngd import checkpoint, ops, optim

KILLS = int(os.environ.get("NGD_KILLS", "20"))
"""The number of kills. Set it higher for a longer test."""

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int8", "uint16", "bool"]


def some_variables() -> list[Any]:
    """Return one variable of every dtype, one of them a scalar and one of them empty."""
    values = np.random.default_rng(2).normal(size=(3, 2)) * 5
    variables = [ngd.variable(d, values.astype(np.dtype(d))) for d in DTYPES]
    return [
        *variables,
        ngd.variable("scalar", np.float64(0.1)),
        ngd.variable("no", np.zeros((0, 3))),
    ]


def test_saved_values_are_loaded(tmp_path: Path) -> None:
    before = some_variables()
    order, other = np.random.default_rng(1), np.random.Generator(np.random.MT19937(1))
    generators = {"order": order, "other": other}
    position = {"epoch": 3, "batches": [1, 2]}
    assert not checkpoint.exists(tmp_path / "c")
    for _ in range(2):  # the second save replaces the first
        checkpoint.save(tmp_path / "c", {"all": before}, position=position, generators=generators)
    assert checkpoint.exists(tmp_path / "c")
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [
        "checkpoint-2.safetensors",
        "checkpoint.json",
    ]
    expected = order.normal(size=3), other.normal(size=3)
    after = [ngd.variable(v.name, np.zeros(v.shape, v.dtype)) for v in before]
    assert checkpoint.load(tmp_path / "c", after, generators=generators) == position
    for old, new in zip(before, after, strict=True):
        assert old.numpy().tobytes() == new.numpy().tobytes()
    np.testing.assert_array_equal(order.normal(size=3), expected[0])
    np.testing.assert_array_equal(other.normal(size=3), expected[1])


def test_safetensors_reads_the_file(tmp_path: Path) -> None:
    variables = [v for v in some_variables() if v.name != "bfloat16"]
    checkpoint.save(tmp_path, variables)
    arrays = safetensors.numpy.load_file(tmp_path / "checkpoint-1.safetensors")
    assert arrays.keys() == {v.name for v in variables}
    for v in variables:
        assert arrays[v.name].dtype == v.dtype
        np.testing.assert_array_equal(arrays[v.name], v.numpy())


def test_files_of_safetensors_are_read(tmp_path: Path) -> None:
    w = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
    safetensors.numpy.save_file({"w": w}, tmp_path / "t", metadata={"by": "others"})
    arrays = checkpoint.read_safetensors(tmp_path / "t")
    assert arrays.keys() == {"w"}
    np.testing.assert_array_equal(arrays["w"], w)


def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    a, b = ngd.variable("a", [1.0]), ngd.variable("b", [2.0])
    checkpoint.save(tmp_path, [a, b])
    a.assign([5.0])
    missing, shape, dtype = (
        ngd.variable("c", [0.0]),
        ngd.variable("b", [0.0, 0.0]),
        ngd.variable("b", np.zeros(1)),
    )
    cases: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: checkpoint.load(tmp_path, [a, missing]),
            r"float32\[1\] for variable 'c'; got nothing",
        ),
        (
            lambda: checkpoint.load(tmp_path, [a, shape]),
            r"float32\[2\] for .*; got float32\[1\]",
        ),
        (
            lambda: checkpoint.load(tmp_path, [a, dtype]),
            r"float64\[1\] for .*; got float32\[1\]",
        ),
        (
            lambda: checkpoint.load(tmp_path, a, generators={"g": np.random.default_rng()}),
            "expected names of saved generators; got 'g'",
        ),
        (lambda: checkpoint.save(tmp_path, [b, shape]), "got two called 'b'"),
        (lambda: checkpoint.save(tmp_path, {"x": [3]}), r"variables\['x'\]\[0\]: expected a vari"),
        (
            lambda: checkpoint.save(tmp_path, a, position={1, 2}),
            r"expected a JSON value; got \{1, 2\}",
        ),
    ]
    for call, says in cases:
        with pytest.raises((TypeError, ValueError), match=says):
            call()
    assert a.numpy() == 5
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "none", a)
    assert checkpoint.load(tmp_path, a) is None
    assert a.numpy() == 1
    file = tmp_path / "checkpoint-1.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(
        ValueError, match=r"checkpoint-1\.safetensors, which is truncated or damaged"
    ):
        checkpoint.load(tmp_path, a)


def training(seed: int) -> tuple[Any, Any, Any, np.random.Generator]:
    """Return a step, its parameters, its optimizer, and the generator of its data."""
    w = ngd.variable("w", np.random.default_rng(seed).normal(size=(3, 2)).astype(np.float32))
    x = ngd.placeholder("x", (4, 3))
    optimizer = optim.AdamW(optim.warm_up(0.1, 4), weight_decay=0.1)
    loss = ops.mean(ops.square(ops.tanh(x @ w) - 0.5))
    step = ngd.compile([x], [loss], updates=optimizer.minimize(loss, w))
    return step, w, optimizer, np.random.default_rng(seed)


def test_a_resumed_training_has_the_same_bits(tmp_path: Path) -> None:
    def run(step: Any, random: np.random.Generator, steps: int) -> None:
        for _ in range(steps):
            step(random.normal(size=(4, 3)).astype(np.float32))

    step, w, _, random = training(1)
    run(step, random, 6)
    first, first_w, optimizer, random = training(1)
    run(first, random, 3)
    checkpoint.save(tmp_path, [first_w, optimizer.state], position=3, generators={"data": random})
    again, again_w, optimizer, random = training(2)
    assert checkpoint.load(tmp_path, [again_w, optimizer.state], generators={"data": random}) == 3
    run(again, random, 3)
    assert again_w.numpy().tobytes() == w.numpy().tobytes()


def bits_of(w: Any, optimizer: Any) -> dict[str, bytes]:
    """Return the weights and the optimizer state as bytes."""
    return {v.name: v.numpy().tobytes() for v in (w, *optimizer.state.values())}


def say(*words: Any) -> None:
    """Print a line in one write, because an unbuffered print writes it in two parts."""
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


def train_and_save(folder: str) -> None:
    """Train until the process is killed, from the checkpoint if there is one.

    Save each step, and print its number.
    """
    say(os.getpid())
    step, w, optimizer, random = training(1)
    state, generators, done = [w, optimizer.state], {"data": random}, 0
    if checkpoint.exists(folder):
        done = checkpoint.load(folder, state, generators=generators)
    while True:
        step(random.normal(size=(4, 3)).astype(np.float32))
        done += 1
        checkpoint.save(folder, state, position=done, generators=generators)
        say(done)


def train_in_children(folder: str) -> None:
    """For each input line, train in a child, and print how the child ended."""
    for _ in sys.stdin:
        victim = os.fork()  # so that the modules are imported only once
        if victim == 0:
            try:
                train_and_save(folder)
            finally:
                os._exit(1)
        say("ended with", os.waitpid(victim, 0)[1])


@pytest.fixture
def folder_in_memory() -> Iterator[Path]:
    """A folder in memory, because a killed process ends only after the disk has its file."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_kill_at_any_moment_leaves_a_complete_checkpoint(folder_in_memory: Path) -> None:
    """A training that resumes from it has the bits of a training without kills."""
    seed = int(time.time())
    print(f"seed {seed}")
    moment = random.Random(seed)
    step, w, optimizer, order = training(1)
    _, saved_w, saved, saved_order = training(2)
    last_printed = done = 0
    command = [sys.executable, __file__, str(folder_in_memory)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, bufsize=1) as victims:
        assert victims.stdin is not None
        assert victims.stdout is not None
        for _ in range(KILLS):
            victims.stdin.write("\n")
            pid = int(victims.stdout.readline())
            lines = [victims.stdout.readline()]
            time.sleep(moment.uniform(0, 0.02))
            os.kill(pid, signal.SIGKILL)
            while not lines[-1].startswith("ended"):
                lines.append(victims.stdout.readline())
            assert lines[-1] == f"ended with {int(signal.SIGKILL)}\n"
            last_printed = max([last_printed, *map(int, lines[:-1])])
            generators = {"data": saved_order}
            position = checkpoint.load(
                folder_in_memory, [saved_w, saved.state], generators=generators
            )
            assert position in (last_printed, last_printed + 1)
            while done < position:
                done += 1
                step(order.normal(size=(4, 3)).astype(np.float32))
            assert saved_order.bit_generator.state == order.bit_generator.state
            assert bits_of(w, optimizer) == bits_of(saved_w, saved)
            index = json.loads((folder_in_memory / "checkpoint.json").read_text())
            assert (folder_in_memory / index["tensors"]).exists()
            last_printed = position
    assert last_printed >= KILLS


if __name__ == "__main__":
    train_in_children(sys.argv[1])
