# SPDX-License-Identifier: Apache-2.0
"""NGD_METRICS: what the page says of known work, on ranks that come, stop, die and start again."""

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
SOON = 30.0
"""Seconds, for what takes a moment."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def page(port: int, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=SOON) as answer:
        return str(answer.read().decode())


def values(text: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The samples of that name, by some of their labels."""
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
    """Whose metrics the page has now; none where nobody answers."""
    with contextlib.suppress(OSError):
        return {rank for (rank,) in values(page(port), "ngd_world_size", "rank")}
    return set()


def soon(condition: Callable[[], bool]) -> bool:
    limit = time.monotonic() + SOON
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True


def works() -> str | None:
    """5 steps that sum 1000 float32, and 3 sums of 250 float64 outside of steps."""
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
def test_one_page_has_what_all_ranks_have_done(communicator: str, ranks: int) -> None:
    how = harness.over(communicator, ranks, env=ANY_PORT)
    (text,) = [o.value for o in run(works, ranks, **how) if o.value is not None]
    lines = Path(__file__).read_text().splitlines()
    here = [f"{__file__}:{n}" for n, line in enumerate(lines, 1)]
    in_step = here[next(i for i, line in enumerate(lines) if "[ops.all_reduce(ops.exp" in line)]
    alone = here[next(i for i, line in enumerate(lines) if "ngd.all_reduce(np.zeros(250)" in line)]
    everyone = [str(rank) for rank in range(ranks)]
    assert values(text, "ngd_world_size", "rank") == {(r,): ranks for r in everyone}
    assert values(text, "ngd_examples_total", "rank") == {
        (r,): 32 * (int(r) + 1) + 1 for r in everyone
    }
    assert values(text, "ngd_steps_total", "rank", "site") == {
        **{(r, in_step): 5 for r in everyone},
        **{(r, "ngd.metrics.count"): 7 for r in everyone},
    }
    assert values(text, "ngd_step_seconds_count", "rank", "site") == {
        (r, in_step): 5 for r in everyone
    }
    calls = values(text, "ngd_collective_calls_total", "rank", "group", "op", "site")
    moved = values(text, "ngd_collective_bytes_total", "rank", "group", "op", "site")
    for rank in everyone:
        assert calls[rank, "world", "all_reduce(sum)", in_step] == 5
        assert moved[rank, "world", "all_reduce(sum)", in_step] == 5 * 1000 * 4
        assert calls[rank, "world", "all_reduce(sum)", alone] == 3
        assert moved[rank, "world", "all_reduce(sum)", alone] == 3 * 250 * 8
    seconds = values(text, "ngd_collective_seconds_total", "rank", "op", "site")
    waited = values(text, "ngd_collective_waited_seconds_total", "rank", "op", "site")
    assert all(0 <= waited[key] <= seconds[key] + 1e-9 for key in seconds)
    assert seconds["0", "all_reduce(sum)", in_step] > 0
    assert len(values(text, "ngd_build_info", "mode", "host", "rank")) == ranks
    (job,) = {key[0] for key in values(text, "ngd_build_info", "ngd_job", "rank")}
    assert len(job) == 8
    assert min(values(text, "process_resident_memory_bytes", "rank").values()) > 1e6


def naps() -> str | None:
    """Three barriers to which rank 1 comes late."""
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
def test_who_came_late_has_a_number() -> None:
    (text,) = [o.value for o in run(naps, 2, env=ANY_PORT) if o.value is not None]
    late = values(text, "ngd_last_to_come_total", "group", "rank", "peer")
    assert all(late["both", rank, "1"] >= 3 for rank in "01")
    waited = values(text, "ngd_collective_waited_seconds_total", "group", "rank", "op", "site")
    mine = {rank: sum(v for k, v in waited.items() if k[:2] == ("both", rank)) for rank in "01"}
    assert mine["0"] > 0.25 > mine["1"]


def stays() -> None:
    ngd.init()
    say("ready" if ngd.metrics.address() is None else "ready, serves")
    time.sleep(120)


def stay(job: Job) -> int:
    """The rank that serves, when all ranks are there."""
    for rank in range(job.ranks):
        job.wait_for(rank, "ready")
    (server,) = [rank for rank in range(job.ranks) if "serves" in job.read(rank, "out")]
    return server


@harness.needs_ranks
@pytest.mark.parametrize("who", ["server", "another"])
def test_the_others_are_served_when_a_rank_is_killed(who: str) -> None:
    port = free_port()
    with Job(stays, 3, env={"NGD_METRICS": str(port)}) as job:
        server = stay(job)
        assert ranks_on(port) == {"0", "1", "2"}
        dead = server if who == "server" else (server + 1) % 3
        job.kill(dead)
        left = {"0", "1", "2"} - {str(dead)}
        assert soon(lambda: ranks_on(port) == left), job.everything


@pytest.mark.long
@harness.needs_ranks
def test_a_rank_that_is_stopped_is_left_out_until_it_goes_on() -> None:
    port = free_port()
    with Job(stays, 2, env={"NGD_METRICS": str(port)}) as job:
        server = stay(job)
        stopped = 1 - server
        job.kill(stopped, signal.SIGSTOP)
        stat = Path(f"/proc/{job.processes[stopped].pid}/stat")
        assert soon(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        begin = time.monotonic()
        assert ranks_on(port) == {str(server)}
        assert time.monotonic() - begin < SOON / 2
        job.kill(stopped, signal.SIGCONT)
        assert soon(lambda: ranks_on(port) == {"0", "1"}), job.everything


def one_waits() -> None:
    """Rank 0 waits for rank 1, which does not come."""
    world = ngd.init()
    say("ready")
    if world.rank == 0:
        world.barrier()
    time.sleep(120)


@harness.needs_ranks
def test_a_rank_that_waits_answers() -> None:
    port = free_port()
    with Job(one_waits, 2, env={"NGD_METRICS": str(port)}) as job:
        for rank in range(2):
            job.wait_for(rank, "ready")
        begin = time.monotonic()
        for _ in range(20):
            assert ranks_on(port) == {"0", "1"}
        assert time.monotonic() - begin < SOON


def leaves() -> list[list[str]]:
    """Whom the page has after each of two worlds, and before that how many sums they have made."""
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
def test_the_page_stays_from_one_world_to_the_next() -> None:
    (found,) = [o.value for o in run(leaves, 2, env=ANY_PORT) if o.value]
    assert found == [[1, 1], ["0", "1"], [2, 2], ["0", "1"]]


def trains() -> float:
    ngd.init()
    return float(ngd.all_reduce(1.0, op="sum"))


@pytest.mark.long
@harness.needs_ranks
def test_a_job_trains_on_while_another_has_the_port_and_then_takes_it() -> None:
    port = free_port()
    env = {"NGD_METRICS": f"127.0.0.1:{port}", "NGD_JOB": "second"}
    with Job(stays, 1, env={"NGD_METRICS": str(port), "NGD_JOB": "first"}) as first:
        stay(first)
        outcomes = run(trains, 2, env=env)
        assert [o.value for o in outcomes] == [2.0, 2.0]
        (warning,) = [line for o in outcomes for line in o.err.splitlines()]
        assert f"port {port} at 127.0.0.1 cannot be had (Address already in use)" in warning
        with Job(stays, 2, env=env) as second:
            for rank in range(2):
                second.wait_for(rank, "ready")
            assert ranks_on(port) == {"0"}
            first.kill(0)
            assert soon(lambda: ranks_on(port) == {"0", "1"}), second.everything


def falls_once(port: int) -> None:
    """The first start of the job fails; the second is served where the first was."""
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
def test_a_job_that_is_started_again_is_served_again() -> None:
    port = free_port()
    launcher = [sys.executable, "-m", "ngd.launch", "-n", "2", "--max-restarts", "1"]
    how: dict[str, Any] = {"env": {"NGD_METRICS": str(port)}, "launcher": launcher}
    outcomes = run(falls_once, 2, arguments={"port": port}, **how)
    assert [o.out for o in outcomes] == ["1: ['0', '1']\n"] * 2


def steps_of_one() -> list[float]:
    """Steps of a process that never calls ngd.init(): run, run with out=, by name; one fails."""
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


def test_steps_are_counted_on_each_device_however_they_are_called() -> None:
    (outcome,) = run(steps_of_one, 1, env=ANY_PORT)
    assert outcome.value == [4.0, 8.0]


def groups_end() -> list[float]:
    """What the page says of a group, while it is there, and when it is gone."""
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
def test_what_a_group_has_done_still_counts_when_it_is_gone() -> None:
    (counts,) = [o.value for o in run(groups_end, 2, env=ANY_PORT) if o.value]
    assert counts == [1.0, 2.0]


def beside() -> str | None:
    """The user's own metrics."""
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
def test_metrics_of_the_users_own_are_on_the_page() -> None:
    (text,) = [o.value for o in run(beside, 2, env=ANY_PORT) if o.value is not None]
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


def test_a_metric_of_the_user_that_fails_takes_none_of_ngds_along() -> None:
    (outcome,) = run(fails_to_collect, 1, env=ANY_PORT)
    assert outcome.value.count("ngd_world_size{") == 2
    assert outcome.err.count("out of order") == 1


def forks() -> list[str]:
    """A forked child has none of the sockets, is no rank, and its steps run."""
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


def test_a_forked_child_is_no_rank() -> None:
    (outcome,) = run(forks, 1, env=ANY_PORT)
    assert outcome.value == ["0"]


def unset() -> list[Any]:
    ngd.init()
    x = ngd.placeholder("x", ())
    step: Any = ngd.compile([x], [x + 1.0])
    step(np.float32(1))
    ngd.metrics.count(examples=1)
    taken = [name for name in sys.modules if name.startswith(("prometheus", "http.server"))]
    return [taken, type(step.hold) is _core.Hold, threading.active_count(), ngd.metrics.address()]


def test_without_the_variable_nothing_is_imported_timed_or_started() -> None:
    (outcome,) = run(unset, 1, env={"NGD_METRICS": ""})
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


def refused() -> str:
    with pytest.raises(ngd.errors.InitError) as caught:
        ngd.init()
    return str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("text", ["on", "70000", "host:", "1.5", "-1", "localhost:http", "²"])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    (outcome,) = run(refused, 1, env={"NGD_METRICS": text})
    expected = f"NGD_METRICS: expected PORT or HOST:PORT, PORT < 65536; got {text!r}"
    assert outcome.value == expected


def counts_nonsense() -> list[str]:
    wrong: list[dict[str, Any]] = [{"examples": -1}, {"steps": 1.5}]
    found = []
    for arguments in wrong:
        with pytest.raises((ValueError, TypeError)) as caught:
            ngd.metrics.count(**arguments)
        found.append(str(caught.value))
    return found


def test_numbers_that_count_nothing_are_refused() -> None:
    (outcome,) = run(counts_nonsense, 1)
    assert outcome.value == [
        "metrics.count: examples: expected a number >= 0; got -1",
        "metrics.count: steps: expected a whole number; got 1.5. Give an integer.",
    ]


def nowhere() -> str:
    ngd.init()
    return str(ngd.metrics.address())


def test_an_address_that_is_not_of_this_host_is_a_warning() -> None:
    (outcome,) = run(nowhere, 1, env={"NGD_METRICS": "203.0.113.1:9"})
    assert outcome.value == "None"
    assert "port 9 at 203.0.113.1 cannot be had" in outcome.err


def fits() -> str | None:
    """4 steps of a trainer, each of 5 examples, of which a rank has 2 or 3."""
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
    (text,) = [o.value for o in run(fits, 2, env=ANY_PORT) if o.value is not None]
    assert sorted(values(text, "ngd_examples_total", "rank").values()) == [8, 12]
