# SPDX-License-Identifier: Apache-2.0
"""Tests of loaders: equal batches for any number of processes, and no process is left running."""

from __future__ import annotations

import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from ngd import data, trees
from ngd.data import loader as loaders
from ngd.data import sampler as samplers
from ngd.errors import UnevenBatchWarning, WorkerError
from tests.data import loaded

pytestmark = pytest.mark.timeout(120)


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "worker.py" in " ".join(p.cmdline())]


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Any:
    yield
    assert children() == []


def expect_gone(processes: list[int], seconds: float = 20) -> None:
    """Wait until all processes have ended."""
    deadline = time.monotonic() + seconds
    while left := [p for p in processes if psutil.pid_exists(p)]:
        assert time.monotonic() < deadline, f"{left} are still there"
        time.sleep(0.05)


def epoch_of(loader: data.Loader) -> list[Any]:
    return [(b.columns[0].tolist(), b.columns[1].tolist(), b.weight, b.total) for b in loader]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_any_number_of_processes_loads_the_same_batches(num_workers: int) -> None:
    source = loaded.Numbers(23)
    expected_loader = data.Loader(source, data.Sampler(23, 4, seed=3), loaded.noisy)
    expected = [epoch_of(expected_loader) for _ in range(3)]
    assert expected[0] != expected[1]
    with data.Loader(
        source,
        data.Sampler(23, 4, seed=3),
        loaded.noisy,
        num_workers=num_workers,
        prefetch_factor=1,
    ) as loader:
        assert len(loader) == 6
        assert [epoch_of(loader) for _ in range(3)] == expected
        assert len(children()) == num_workers


def test_the_draws_for_a_sample_do_not_depend_on_the_number_of_ranks() -> None:
    def draws(size: int) -> dict[tuple[int, int], int]:
        found = {}
        for rank in range(size):
            sampler = data.Sampler(23, 4, rank=rank, size=size)
            loader = data.Loader(loaded.Numbers(23), sampler, loaded.noisy)
            for epoch in range(2):
                for indices, drawn, weight, _ in epoch_of(loader):
                    pairs = zip(indices[: int(weight)], drawn, strict=False)
                    found.update({(epoch, i): d for i, d in pairs})
        return found

    draws_of_one = draws(1)
    assert len(draws_of_one) == len({*draws_of_one.values()}) == 46
    assert draws(3) == draws(5) == draws_of_one


def test_draws_depend_on_the_seed_the_epoch_and_the_index() -> None:
    sampler = data.Sampler(23, 4, seed=3)
    sampler.done = 7
    indices, drawn, *_ = epoch_of(data.Loader(loaded.Numbers(23), sampler, loaded.noisy))[0]
    expected = [int(np.random.default_rng((3, 1, i)).integers(0, 10**6)) for i in indices]
    assert drawn == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_resumes_in_the_middle_of_an_epoch(num_workers: int) -> None:
    def loader() -> data.Loader:
        sampler = data.Sampler(40, 4, seed=1)
        return data.Loader(loaded.Numbers(), sampler, loaded.noisy, num_workers=num_workers)

    uninterrupted = loader()
    expected = [*epoch_of(uninterrupted), *epoch_of(uninterrupted)]
    uninterrupted.close()
    first = loader()
    found = []
    for batch in first:
        found.append((batch.columns[0].tolist(), batch.columns[1].tolist()))
        saved = first.sampler.state()
        if len(found) == 3:
            break
    first.close()
    second = loader()
    second.sampler.load_state(saved)
    assert epoch_of(second) + epoch_of(second) == expected[3:]
    second.close()


def test_iteration_continues_after_a_break_and_after_a_jump() -> None:
    expected = epoch_of(data.Loader(loaded.Numbers(), data.Sampler(40, 4), loaded.noisy))
    with data.Loader(loaded.Numbers(), data.Sampler(40, 4), loaded.noisy, num_workers=2) as loader:
        for _ in loader:
            break
        before = children()
        assert epoch_of(loader) == expected[1:]
        assert children() == before
        loader.sampler.done = 6
        assert epoch_of(loader) == expected[6:]


def test_batches_may_have_any_size_and_structure_and_are_writable() -> None:
    with data.Loader(loaded.Numbers(), data.Sampler(40, 10), loaded.large, num_workers=2) as loader:
        batches = [batch.columns for batch in loader]
    for numbers, (rows, others) in zip(data.Sampler(40, 10), batches, strict=True):
        assert np.array_equal(rows[:, 77], numbers.indices)
        assert others["empty"].shape == (0,)
        rows[0, 0] = 5  # the array is writable


def test_workers_read_shared_arrays_of_the_source() -> None:
    x = np.arange(40 * 10**5).reshape(40, 10**5)
    source = data.Arrays(x, np.arange(40))
    with data.Loader(source, data.Sampler(40, 4), num_workers=2) as loader:
        for batch in loader:
            rows, labels = batch.columns
            assert np.array_equal(rows, x[labels])


def test_a_worker_loads_the_core_only_if_its_transform_imports_ngd() -> None:
    for transform, expected in (
        (loaded.about_the_process, (False, 2, True)),  # one thread watches the parent
        (loaded.asks_for_ngd, (np.float32, "relu")),
    ):
        with data.Loader(
            loaded.Numbers(), data.Sampler(40, 40), transform, num_workers=1
        ) as loader:
            assert next(iter(loader)).columns == expected


def test_an_exception_in_a_worker_is_raised_with_its_traceback() -> None:
    source = loaded.Numbers(at=(9,), what="raise")
    sampler = data.Sampler(40, 4, shuffle=False)
    loader = data.Loader(source, sampler, num_workers=2)
    batches = iter(loader)
    assert next(batches).columns[0].tolist() == [0, 1, 2, 3]
    next(batches)
    with pytest.raises(KeyError, match="nobody's file") as raised:
        next(batches)
    assert "loaded.py" in str(raised.value.__cause__)
    assert "in worker 0 of 2 (process " in str(raised.value.__cause__)
    assert (sampler.done, children()) == (2, [])
    with pytest.raises(KeyError):
        next(iter(loader))  # the same batch again


def test_an_exception_that_is_false_is_raised() -> None:
    source = loaded.Numbers(at=(0,), what="raise an empty error")
    loader = data.Loader(source, data.Sampler(40, 4, shuffle=False), num_workers=1)
    with pytest.raises(loaded.EmptyError):
        next(iter(loader))


def test_an_exception_that_cannot_be_pickled_is_reported() -> None:
    source = loaded.Numbers(at=(0,), what="raise what cannot travel")
    loader = data.Loader(source, data.Sampler(40, 4, shuffle=False), num_workers=1)
    with pytest.raises(WorkerError, match=r"(?s)in worker 0 of 1.*UnpicklableError: made of two"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("what", "words"),
    [("die", "was killed by SIGKILL"), ("exit", "ended with exit code 3")],
)
def test_a_worker_that_exits_is_named(what: str, words: str) -> None:
    source = loaded.Numbers(at=(5,), what=what)
    sampler = data.Sampler(40, 4, shuffle=False)
    batches = iter(data.Loader(source, sampler, num_workers=2, prefetch_factor=3))
    next(batches)
    with pytest.raises(WorkerError, match=rf"worker 1 of 2 \(process \d+\) {words}"):
        next(batches)
    assert sampler.done == 1


def test_a_worker_that_is_killed_while_it_waits_is_named() -> None:
    loader = data.Loader(loaded.Numbers(), data.Sampler(40, 4), num_workers=2)
    next(iter(loader))
    for process in children():
        process.kill()
    with pytest.raises(WorkerError, match="was killed by SIGKILL"):
        for _ in loader:
            pass
    assert len(epoch_of(data.Loader(loaded.Numbers(), loader.sampler, loaded.noisy))) > 0


def test_a_worker_that_hangs_raises_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "POLL_SECONDS", 0.1)
    source = loaded.Numbers(at=(0,), what="hang")
    loader = data.Loader(source, data.Sampler(40, 4, shuffle=False), num_workers=1, timeout=1.0)
    with pytest.raises(
        WorkerError, match=r"an answer of worker 0 of 1 \(process \d+\); got none for 1 s"
    ):
        next(iter(loader))


def test_a_dead_worker_is_detected_even_if_another_process_has_its_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that a source has forked may keep the socket open."""
    monkeypatch.setattr(loaders, "POLL_SECONDS", 0.1)
    loader = data.Loader(loaded.Numbers(), data.Sampler(40, 4), num_workers=1)
    next(iter(loader))
    assert loader._team is not None
    (worker,) = loader._team.workers
    worker.link.close()
    worker.link, duplicate = socket.socketpair()
    os.kill(worker.process.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="was killed by SIGKILL"):
        worker.receive(None)
    for link in (worker.link, duplicate):
        link.close()
    loader.close()


def test_a_deleted_loader_ends_its_workers() -> None:
    loader = data.Loader(loaded.Numbers(), data.Sampler(40, 4), num_workers=2)
    next(iter(loader))
    assert len(children()) == 2
    del loader
    assert children() == []


def test_close_in_a_forked_child_does_not_stop_the_workers_of_the_parent() -> None:
    with data.Loader(loaded.Numbers(), data.Sampler(40, 4), loaded.noisy, num_workers=1) as loader:
        next(iter(loader))
        (worker,) = children()
        child = os.fork()
        if child == 0:
            loader.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert worker.is_running()
        assert len(epoch_of(loader)) == 9


@pytest.mark.parametrize("end", ["kill", "interrupt", "terminate", "stop the children"])
def test_no_worker_outlives_the_training(end: str) -> None:
    program = [sys.executable, str(Path(loaded.__file__))]
    training = subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert training.stdout is not None
        processes = [int(p) for p in training.stdout.readline().split()]
        assert len(processes) == 2
        ends: dict[str, Callable[[], object]] = {
            "kill": training.kill,
            "terminate": training.terminate,
            "interrupt": lambda: os.killpg(training.pid, signal.SIGINT),
            "stop the children": lambda: [psutil.Process(p).kill() for p in processes],
        }
        ends[end]()
        _, stderr = training.communicate(timeout=60)
    finally:
        training.kill()
        training.wait()
    expect_gone(processes)
    assert training.returncode != 0
    if end == "interrupt":
        assert stderr.count("Traceback") == 1, stderr
        assert "KeyboardInterrupt" in stderr
    if end == "stop the children":
        assert "was killed by SIGKILL" in stderr.splitlines()[-1]


def test_workers_find_classes_of_the_main_program(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "from ngd import data\n"
        "class Mine(Exception): pass\n"
        "class Source:\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, i):\n"
        "        if 3 in i: raise Mine('of the program')\n"
        "        return (i,)\n"
        "if __name__ == '__main__':\n"
        "    sampler = data.Sampler(4, 1, shuffle=False)\n"
        "    with data.Loader(Source(), sampler, num_workers=2) as loader:\n"
        "        try:\n"
        "            for batch in loader: print(int(batch.columns[0][0]))\n"
        "        except Mine as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:4] == ["0", "1", "2", "of the program"]


def test_a_function_that_workers_cannot_import_is_named(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "from ngd import data\n"
        "if __name__ == '__main__':\n"
        "    def halved(columns, random): return columns[0] / 2\n"
        "    source = data.Arrays([1, 2])\n"
        "    for batch in data.Loader(source, data.Sampler(2, 1), halved, num_workers=2): pass\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "in worker 0 of 2 (process" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("AttributeError: ")
    assert "halved" in last


def test_bad_arguments_are_refused() -> None:
    source, sampler = loaded.Numbers(), data.Sampler(40, 4)
    with pytest.raises(ValueError, match="num_workers: expected 0 or more; got -1"):
        data.Loader(source, sampler, num_workers=-1)
    for bad in (0, 65):
        with pytest.raises(ValueError, match=f"prefetch_factor: expected 1 to 64 .*; got {bad}"):
            data.Loader(source, sampler, num_workers=1, prefetch_factor=bad)
    with pytest.raises(ValueError, match="got 39 samples in the source and 40 in the sampler"):
        data.Loader(loaded.Numbers(39), sampler)
    loader = data.Loader(source, sampler, lambda columns, random: columns, num_workers=1)
    with pytest.raises(TypeError, match=r"can be pickled .*num_workers=0 needs no pickling"):
        next(iter(loader))
    assert len([*data.Loader(source, sampler, lambda columns, random: columns)]) == 10


def columns_of(loader: data.Loader) -> list[list[int]]:
    """Iterate like a program that does not read the weight."""
    return [numbers.tolist() for (numbers,) in loader]


def test_a_batch_unpacks_as_its_columns() -> None:
    x, y = np.arange(6).reshape(3, 2), np.array([0, 1, 1])
    loader = data.Loader(data.Arrays(x, y), data.Sampler(3, 3, shuffle=False))
    for rows, labels in loader:
        np.testing.assert_array_equal(rows, x)
        np.testing.assert_array_equal(labels, y)
    (batch,) = loader
    assert len(batch) == 2
    assert batch[1] is batch.columns[1] is [*batch][-1]
    assert (batch.weight, batch.total) == (3, 3)
    assert repr(batch) == "<data.Batch of int64[3, 2], int64[3]; weight 3 of 3>"
    copied = pickle.loads(pickle.dumps(batch))
    assert type(batch.weight) is float
    assert (type(copied), copied.weight, copied[1].tolist()) == (data.Batch, 3, [0, 1, 1])
    assert trees.leaves_of(batch)[1] is batch[1]


def test_a_batch_keeps_the_names_of_its_columns() -> None:
    loader = data.Loader(loaded.Numbers(4), data.Sampler(4, 4, shuffle=False), loaded.named)
    (batch,) = loader
    assert batch.columns.half.tolist() == batch[0].tolist() == [0, 0.5, 1, 1.5]


def test_a_single_array_instead_of_a_tuple_of_columns_is_rejected() -> None:
    loader = data.Loader(loaded.Numbers(4), data.Sampler(4, 4), lambda columns, random: columns[0])
    with pytest.raises(
        TypeError, match=r"expected a tuple of columns .*; got int64\[4\]. Return \(x,"
    ):
        next(iter(loader))


def line_of(word: str) -> int:
    """Return the number of the last line of this file that contains a word."""
    lines = Path(__file__).read_text().splitlines()
    return max(number for number, line in enumerate(lines, 1) if word in line)


def test_unread_weights_of_uneven_ranks_warn() -> None:
    loader = data.Loader(loaded.Numbers(40), data.Sampler(40, 5, rank=1, size=2))  # made here
    message = (
        r"^data\.Loader: expected batch\.weight to be read, because the 2 ranks share a batch of 5 "
        rf"samples unevenly; got an epoch .* \(loader made at {re.escape(__file__)}:"
        rf"{line_of('# made' + ' here')}\)\. Write .*"
        r"optimizer\.minimize\(loss, parameters, weight=batch\.weight\)"
    )
    with pytest.warns(UnevenBatchWarning, match=message) as seen:
        for _ in loader:  # loop
            pass
    assert (seen[0].filename, seen[0].lineno) == (__file__, line_of("# lo" + "op"))
    columns_of(loader)  # it warns once


def test_unread_weights_of_uneven_steps_warn() -> None:
    loader = data.Loader(loaded.Numbers(40), data.Sampler(40, 16, shuffle=False))
    with pytest.warns(UnevenBatchWarning, match="different numbers of samples, 16 and 8; got"):
        columns_of(loader)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_weights_that_are_read_do_not_warn(num_workers: int) -> None:
    sampler = data.Sampler(40, 16, rank=1, size=3)
    with data.Loader(loaded.Numbers(40), sampler, num_workers=num_workers) as loader:
        assert [batch.weight for batch in loader] == [5, 5, 3]
        for number, batch in enumerate(loader):  # one reading per epoch is enough
            assert number or batch.weight == 5
        for _ in loader:  # an epoch that is not finished
            break


@pytest.mark.parametrize(
    ("count", "options"), [(40, {"drop_last": True}), (40, {"replacement": True}), (48, {})]
)
def test_even_shards_do_not_warn(count: int, options: dict[str, bool]) -> None:
    sampler = data.Sampler(count, 16, rank=1, size=2, **options)
    assert len(columns_of(data.Loader(loaded.Numbers(count), sampler))) == len(sampler)


def test_a_warning_raised_as_an_error_leaves_the_sampler_at_the_next_epoch() -> None:
    loader = data.Loader(loaded.Numbers(40), data.Sampler(40, 16))
    with pytest.raises(UnevenBatchWarning):  # pytest turns warnings into errors
        columns_of(loader)
    assert (loader.sampler.epoch, loader.sampler.step) == (1, 0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_uses_the_rank_and_size_of_the_new_world(
    num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an elastic job the ranks change. Batches that were prefetched belong to the old world."""
    place = [(0, 1)]
    monkeypatch.setattr(samplers, "current_rank_and_size", lambda: place[0])
    sampler = data.Sampler(40, 8, shuffle=False)
    found = []
    with data.Loader(loaded.Numbers(40), sampler, num_workers=num_workers) as loader:
        for batch in loader:
            found.append((batch[0].tolist(), batch.weight))
            if len(found) == 2:
                place[0] = (1, 2)
    assert found[1] == ([*range(8, 16)], 8)
    assert found[2:] == [([*range(start, start + 4)], 4) for start in (20, 28, 36)]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("workers", "`workers` is called `num_workers`"),
        ("ahead", "`ahead` is called `prefetch_factor`"),
        ("batch_size", "`batch_size` is an argument of data.Sampler"),
        ("shuffle", "`shuffle` is an argument of data.Sampler"),
        ("pin_memory", "Remove `pin_memory`"),
    ],
)
def test_an_unknown_argument_names_the_known_one(option: str, words: str) -> None:
    with pytest.raises(TypeError, match=rf"data\.Loader: expected .*'{option}'.* {words}\.$"):
        data.Loader(loaded.Numbers(), data.Sampler(40, 4), **{option: 1})


def test_sources_and_samplers_of_other_types_are_rejected() -> None:
    with pytest.raises(TypeError, match=r"sampler: expected a data\.Sampler; got int\. Write"):
        data.Loader(loaded.Numbers(), 32)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="source: expected an object with a length; got int"):
        data.Loader(3, data.Sampler(40, 4))
    with pytest.raises(TypeError, match=r"data\.Loader: .*got no `sampler`"):
        data.Loader(loaded.Numbers())  # type: ignore[call-arg]


def test_messages_between_processes_hold_any_value() -> None:
    from ngd.data import messages

    value = {"a": np.arange(5)[::2], "b": [np.zeros((0, 3)), "text"], "c": np.ones((3, 4)).T}
    for in_place in (True, False):
        found = messages.unpack(messages.pack(value), pickle.Unpickler, in_place=in_place)
        assert found["a"].tolist() == [0, 2, 4]
        assert found["b"][0].shape == (0, 3)
        np.testing.assert_array_equal(found["c"], value["c"])
        found["c"][0] = 2
