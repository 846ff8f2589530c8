# SPDX-License-Identifier: Apache-2.0
"""Tests of NGD_METRICS: the page of ranks that join, are stopped, die, or restart."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import _core, ops
from tests.support import harness
from tests.support.harness import Job, run, say

ANY_PORT = {"NGD_METRICS": "0"}
LIMIT_SECONDS = 30.0
"""A time limit in seconds for events that take a moment."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def page(port: int, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=LIMIT_SECONDS) as answer:
        return str(answer.read().decode())


def values(text: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a metric, by some of their labels."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                key = tuple(sample.labels[label] for label in labels)
                assert key not in found, (name, sample.labels)
                found[key] = sample.value
    return found


def ranks_on(port: int) -> set[str]:
    """Return the ranks whose metrics the page has, or nothing if no rank answers."""
    with contextlib.suppress(OSError):
        return {rank for (rank,) in values(page(port), "ngd_world_size", "rank")}
    return set()


def happens_in_time(condition: Callable[[], bool]) -> bool:
    limit = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True


def work_and_read_page() -> str | None:
    """Take 5 steps that sum 1000 float32 values, and 3 sums of 250 float64 values in no step."""
    world = ngd.init()
    x = ngd.placeholder("x", (1000,))
    step = ngd.compile([x], [ops.all_reduce(ops.exp(x), op="sum")])
    for _ in range(5):
        step(np.zeros(1000, np.float32))
    for _ in range(3):
        ngd.all_reduce(np.zeros(250), op="sum")
    ngd.metrics.count(examples=32 * (world.rank + 1))
    ngd.metrics.count(examples=1, steps=7)
    ngd.barrier()
    address = ngd.metrics.address()
    text = None if address is None else page(address[1], address[0])
    ngd.barrier()
    return text


@harness.needs_ranks
@pytest.mark.parametrize(("communicator", "ranks"), harness.worlds(2, 4))
def test_one_page_has_the_metrics_of_all_ranks(communicator: str, ranks: int) -> None:
    how = harness.over(communicator, ranks, env=ANY_PORT)
    (text,) = [o.value for o in run(work_and_read_page, ranks, **how) if o.value is not None]
    lines = Path(__file__).read_text().splitlines()
    call_sites = [f"{__file__}:{n}" for n, line in enumerate(lines, 1)]
    in_step = call_sites[
        next(i for i, line in enumerate(lines) if "[ops.all_reduce(ops.exp" in line)
    ]
    outside = call_sites[
        next(i for i, line in enumerate(lines) if "ngd.all_reduce(np.zeros(250)" in line)
    ]
    all_ranks = [str(rank) for rank in range(ranks)]
    assert values(text, "ngd_world_size", "rank") == {(r,): ranks for r in all_ranks}
    assert values(text, "ngd_examples_total", "rank") == {
        (r,): 32 * (int(r) + 1) + 1 for r in all_ranks
    }
    assert values(text, "ngd_steps_total", "rank", "site") == {
        **{(r, in_step): 5 for r in all_ranks},
        **{(r, "ngd.metrics.count"): 7 for r in all_ranks},
    }
    assert values(text, "ngd_step_seconds_count", "rank", "site") == {
        (r, in_step): 5 for r in all_ranks
    }
    calls = values(text, "ngd_collective_calls_total", "rank", "group", "op", "site")
    moved = values(text, "ngd_collective_bytes_total", "rank", "group", "op", "site")
    for rank in all_ranks:
        assert calls[rank, "world", "all_reduce(sum)", in_step] == 5
        assert moved[rank, "world", "all_reduce(sum)", in_step] == 5 * 1000 * 4
        assert calls[rank, "world", "all_reduce(sum)", outside] == 3
        assert moved[rank, "world", "all_reduce(sum)", outside] == 3 * 250 * 8
    seconds = values(text, "ngd_collective_seconds_total", "rank", "op", "site")
    waited = values(text, "ngd_collective_waited_seconds_total", "rank", "op", "site")
    assert all(0 <= waited[key] <= seconds[key] + 1e-9 for key in seconds)
    assert seconds["0", "all_reduce(sum)", in_step] > 0
    assert len(values(text, "ngd_build_info", "mode", "host", "rank")) == ranks
    (job,) = {key[0] for key in values(text, "ngd_build_info", "ngd_job", "rank")}
    assert len(job) == 8
    assert min(values(text, "process_resident_memory_bytes", "rank").values()) > 1e6


def let_rank_1_be_late() -> str | None:
    """Enter three barriers. Rank 1 is late in each of them."""
    world = ngd.init()
    half = world.split(0, name="both")
    for _ in range(3):
        half.barrier()
        if world.rank == 1:
            time.sleep(0.1)
        half.barrier()
    world.barrier()
    address = ngd.metrics.address()
    text = None if address is None else page(address[1])
    world.barrier()
    return text


@harness.needs_ranks
def test_late_ranks_are_counted() -> None:
    (text,) = [o.value for o in run(let_rank_1_be_late, 2, env=ANY_PORT) if o.value is not None]
    late_counts = values(text, "ngd_last_arrivals_total", "group", "rank", "peer")
    assert all(late_counts["both", rank, "1"] >= 3 for rank in "01")
    waited = values(text, "ngd_collective_waited_seconds_total", "group", "rank", "op", "site")
    of_rank = {rank: sum(v for k, v in waited.items() if k[:2] == ("both", rank)) for rank in "01"}
    assert of_rank["0"] > 0.25 > of_rank["1"]


def init_and_sleep() -> None:
    ngd.init()
    say("ready" if ngd.metrics.address() is None else "ready, serves")
    time.sleep(120)


def server_of(job: Job) -> int:
    """Wait until all ranks are ready, and return the rank that serves the page."""
    for rank in range(job.ranks):
        job.wait_for(rank, "ready")
    (server,) = [rank for rank in range(job.ranks) if "serves" in job.read(rank, "out")]
    return server


@harness.needs_ranks
@pytest.mark.parametrize("who", ["server", "another"])
def test_the_other_ranks_are_served_after_a_rank_is_killed(who: str) -> None:
    port = free_port()
    with Job(init_and_sleep, 3, env={"NGD_METRICS": str(port)}) as job:
        server = server_of(job)
        assert ranks_on(port) == {"0", "1", "2"}
        dead = server if who == "server" else (server + 1) % 3
        job.kill(dead)
        left = {"0", "1", "2"} - {str(dead)}
        assert happens_in_time(lambda: ranks_on(port) == left), job.everything


@pytest.mark.long
@harness.needs_ranks
def test_a_suspended_rank_is_left_out_until_it_continues() -> None:
    port = free_port()
    with Job(init_and_sleep, 2, env={"NGD_METRICS": str(port)}) as job:
        server = server_of(job)
        stopped = 1 - server
        job.kill(stopped, signal.SIGSTOP)
        stat = Path(f"/proc/{job.processes[stopped].pid}/stat")
        assert happens_in_time(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        begin = time.monotonic()
        assert ranks_on(port) == {str(server)}
        assert time.monotonic() - begin < LIMIT_SECONDS / 2
        job.kill(stopped, signal.SIGCONT)
        assert happens_in_time(lambda: ranks_on(port) == {"0", "1"}), job.everything


def one_waits() -> None:
    """Let rank 0 wait for rank 1, which does not arrive."""
    world = ngd.init()
    say("ready")
    if world.rank == 0:
        world.barrier()
    time.sleep(120)


@harness.needs_ranks
def test_a_rank_that_waits_in_a_collective_answers() -> None:
    port = free_port()
    with Job(one_waits, 2, env={"NGD_METRICS": str(port)}) as job:
        for rank in range(2):
            job.wait_for(rank, "ready")
        begin = time.monotonic()
        for _ in range(20):
            assert ranks_on(port) == {"0", "1"}
        assert time.monotonic() - begin < LIMIT_SECONDS


def count_in_two_worlds() -> list[list[str]]:
    """Return the number of sums of each rank, and the ranks on the page, in two worlds."""
    ngd.init()
    address = ngd.metrics.address()
    found: list[Any] = []
    for _ in range(2):
        ngd.all_reduce(1.0, op="sum")
        ngd.barrier()
        if address is not None:
            text = page(address[1])
            calls = values(text, "ngd_collective_calls_total", "op", "site", "rank")
            sums = {k: n for k, n in calls.items() if k[0] == "all_reduce(sum)"}
            found.append([n for k, n in sums.items() if k[1].startswith(__file__)])
        ngd.barrier()
        ngd.shutdown()
        if address is not None:
            found.append(sorted(ranks_on(address[1])))
        ngd.init()
    return found


@harness.needs_ranks
def test_the_page_remains_in_the_next_world() -> None:
    (found,) = [o.value for o in run(count_in_two_worlds, 2, env=ANY_PORT) if o.value]
    assert found == [[1, 1], ["0", "1"], [2, 2], ["0", "1"]]


def sum_ones() -> float:
    ngd.init()
    return float(ngd.all_reduce(1.0, op="sum"))


@pytest.mark.long
@harness.needs_ranks
def test_a_job_takes_the_port_after_another_job_released_it() -> None:
    port = free_port()
    env = {"NGD_METRICS": f"127.0.0.1:{port}", "NGD_JOB": "second"}
    with Job(init_and_sleep, 1, env={"NGD_METRICS": str(port), "NGD_JOB": "first"}) as first:
        server_of(first)
        outcomes = run(sum_ones, 2, env=env)
        assert [o.value for o in outcomes] == [2.0, 2.0]
        (warning,) = [line for o in outcomes for line in o.err.splitlines()]
        assert f"cannot bind port {port} at 127.0.0.1 (Address already in use)" in warning
        with Job(init_and_sleep, 2, env=env) as second:
            for rank in range(2):
                second.wait_for(rank, "ready")
            assert ranks_on(port) == {"0"}
            first.kill(0)
            assert happens_in_time(lambda: ranks_on(port) == {"0", "1"}), second.everything


def fail_once(port: int) -> None:
    """Fail in the first start of the job. The second start serves on the same port."""
    world = ngd.init()
    restarts = os.environ["NGD_RESTART_COUNT"]
    ngd.barrier()
    found = ranks_on(port)
    ngd.barrier()
    if restarts == "0" and world.rank == 1:
        raise SystemExit(3)
    if restarts == "0":
        time.sleep(60)
    say(f"{restarts}: {sorted(found)}")


@pytest.mark.long
@harness.needs_ranks
def test_a_restarted_job_is_served_again() -> None:
    port = free_port()
    launcher = [sys.executable, "-m", "ngd.launch", "-n", "2", "--max-restarts", "1"]
    how: dict[str, Any] = {"env": {"NGD_METRICS": str(port)}, "launcher": launcher}
    outcomes = run(fail_once, 2, arguments={"port": port}, **how)
    assert [o.out for o in outcomes] == ["1: ['0', '1']\n"] * 2


def steps_of_one() -> list[float]:
    """Count steps without `ngd.init`: called in four ways, one of which fails."""
    x = ngd.placeholder("x", (2,))
    found = []
    for device in ("CPU", "INTERPRETER"):
        step = ngd.compile([x], [x * 2.0], device=device)
        assert ngd.metrics.address() is not None
        step(np.ones(2, np.float32))
        step(x=np.ones(2, np.float32))
        step(np.ones(2, np.float32), out=[np.empty(2, np.float32)])
        with contextlib.suppress(ngd.errors.Error):
            step(np.ones(3, np.float32))
        nested = ngd.compile({"a": x}, {"b": x + 1.0}, device=device)
        nested(np.ones(2, np.float32))
        address = ngd.metrics.address()
        assert address is not None
        found.append(sum(values(page(address[1]), "ngd_steps_total", "site").values()))
    return found


def test_steps_are_counted_on_each_device_and_in_each_form_of_call() -> None:
    (outcome,) = run(steps_of_one, 1, env=ANY_PORT)
    assert outcome.value == [4.0, 8.0]


def count_barriers_of_groups() -> list[float]:
    """Return the barriers of a group that the page counts, before and after the group closes."""
    world, found = ngd.init(), []
    for _ in range(2):
        part = world.split(0, name="part")
        part.barrier()
        found.append(part)
        world.barrier()
        if (address := ngd.metrics.address()) is not None:
            key = "group", "op", "rank", "site"
            calls = values(page(address[1]), "ngd_collective_calls_total", *key)
            found.append(sum(v for k, v in calls.items() if k[:3] == ("part", "barrier", "0")))
        world.barrier()
        found.remove(part)
        part.close()
        del part
    return found


@harness.needs_ranks
def test_the_calls_of_a_closed_group_are_still_counted() -> None:
    (counts,) = [o.value for o in run(count_barriers_of_groups, 2, env=ANY_PORT) if o.value]
    assert counts == [1.0, 2.0]


def export_own_metrics() -> str | None:
    """Export metrics of the program."""
    from prometheus_client import Counter, Gauge

    world = ngd.init()
    Gauge("loss", "The loss.").set(0.5 + world.rank)
    Counter("seen", "With a label of that name.", ["rank"]).labels(rank="high").inc(3)
    ngd.barrier()
    address = ngd.metrics.address()
    text = None if address is None else page(address[1])
    ngd.barrier()
    return text


@harness.needs_ranks
def test_metrics_of_the_program_are_on_the_page() -> None:
    (text,) = [o.value for o in run(export_own_metrics, 2, env=ANY_PORT) if o.value is not None]
    assert values(text, "loss", "rank") == {("0",): 0.5, ("1",): 1.5}
    assert values(text, "seen_total", "rank", "exported_rank") == {
        ("0", "high"): 3,
        ("1", "high"): 3,
    }


def fails_to_collect() -> str:
    from prometheus_client import REGISTRY, Metric
    from prometheus_client.registry import Collector

    class Broken(Collector):
        def collect(self) -> Any:
            yield Metric("fine", "Fine.", "gauge")
            if ngd.metrics.address() is not None:
                raise RuntimeError("out of order")

    REGISTRY.register(Broken())
    ngd.init()
    address = ngd.metrics.address()
    assert address is not None
    return page(address[1]) + page(address[1])


def test_a_failing_metric_of_the_program_keeps_those_of_ngd() -> None:
    (outcome,) = run(fails_to_collect, 1, env=ANY_PORT)
    assert outcome.value.count("ngd_world_size{") == 2
    assert outcome.err.count("out of order") == 1


def fork_a_child() -> list[str]:
    """Check that a forked child has no sockets, is not a rank, and can run steps."""
    ngd.init()
    address = ngd.metrics.address()
    assert address is not None
    child = os.fork()
    if child == 0:
        good = ngd.metrics.address() is None
        x = ngd.placeholder("x", ())
        good = good and ngd.compile([x], [x + 1.0])(np.float32(1))[0] == 2
        open_ports = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")[:-1]]
        os._exit(0 if good and not any(o.startswith("socket:") for o in open_ports) else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    return sorted(ranks_on(address[1]))


def test_a_forked_child_is_not_a_rank() -> None:
    (outcome,) = run(fork_a_child, 1, env=ANY_PORT)
    assert outcome.value == ["0"]


def run_without_metrics() -> list[Any]:
    ngd.init()
    x = ngd.placeholder("x", ())
    step: Any = ngd.compile([x], [x + 1.0])
    step(np.float32(1))
    ngd.metrics.count(examples=1)
    imported = [name for name in sys.modules if name.startswith(("prometheus", "http.server"))]
    return [
        imported,
        type(step.hold) is _core.Hold,
        threading.active_count(),
        ngd.metrics.address(),
    ]


def test_without_the_variable_nothing_is_imported_timed_or_started() -> None:
    (outcome,) = run(run_without_metrics, 1, env={"NGD_METRICS": ""})
    assert outcome.value == [[], True, 1, None]


def without_the_package() -> str:
    sys.modules["prometheus_client"] = None  # type: ignore[assignment]
    with pytest.raises(ImportError) as caught:
        ngd.init()
    return str(caught.value)


def test_a_missing_package_is_named() -> None:
    (outcome,) = run(without_the_package, 1, env=ANY_PORT)
    assert (
        outcome.value == "NGD_METRICS: expected the package prometheus-client; got none. "
        "Install it: pip install 'ngd-runtime[metrics]'"
    )


def init_with_bad_port() -> str:
    with pytest.raises(ngd.errors.InitError) as caught:
        ngd.init()
    return str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("text", ["on", "70000", "host:", "1.5", "-1", "localhost:http", "²"])
def test_an_invalid_port_is_rejected(text: str) -> None:
    (outcome,) = run(init_with_bad_port, 1, env={"NGD_METRICS": text})
    expected = f"NGD_METRICS: expected PORT or HOST:PORT, PORT < 65536; got {text!r}"
    assert outcome.value == expected


def count_bad_values() -> list[str]:
    wrong: list[dict[str, Any]] = [{"examples": -1}, {"steps": 1.5}]
    found = []
    for arguments in wrong:
        with pytest.raises((ValueError, TypeError)) as caught:
            ngd.metrics.count(**arguments)
        found.append(str(caught.value))
    return found


def test_counts_must_be_positive_numbers() -> None:
    (outcome,) = run(count_bad_values, 1)
    assert outcome.value == [
        "metrics.count: examples: expected a number >= 0; got -1",
        "metrics.count: steps: expected a whole number; got 1.5. Give an integer.",
    ]


def init_with_foreign_address() -> str:
    ngd.init()
    return str(ngd.metrics.address())


def test_an_address_of_another_host_warns() -> None:
    (outcome,) = run(init_with_foreign_address, 1, env={"NGD_METRICS": "203.0.113.1:9"})
    assert outcome.value == "None"
    assert "cannot bind port 9 at 203.0.113.1" in outcome.err


def train_and_read_page() -> str | None:
    """Take 4 steps with a trainer. Each has 5 examples; a rank has 2 or 3 of them."""
    from ngd import data, train

    world = ngd.init()
    parts = data.Sampler(24, 5, rank=world.rank, size=world.size, drop_last=True)
    loader = data.Loader(data.Arrays(np.ones(24)), parts)
    train.Trainer(lambda x: [float(len(x))], loader, {}, epochs=1, progress=False).run()
    world.barrier()
    address = ngd.metrics.address()
    text = None if address is None else page(address[1])
    world.barrier()
    return text


@harness.needs_ranks
def test_a_trainer_counts_its_examples() -> None:
    (text,) = [o.value for o in run(train_and_read_page, 2, env=ANY_PORT) if o.value is not None]
    assert sorted(values(text, "ngd_examples_total", "rank").values()) == [8, 12]
