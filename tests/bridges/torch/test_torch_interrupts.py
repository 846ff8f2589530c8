# SPDX-License-Identifier: Apache-2.0
"""Tests of caught Ctrl-C in calls of torch.distributed.

No tensor of a pending collective is freed, and no collectives are mixed up. After any interrupt,
either the group still works with all ranks in step, or every rank gets the error of a closed group.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.support import harness
from tests.support.harness import say

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402

import ngd  # noqa: E402
from ngd.torch.distributed import works  # noqa: E402
from tests.bridges.torch import torch_ranks  # noqa: E402

pytestmark = harness.needs_ranks
LONG = 300_000
"""A number of elements that is too large for an inline payload."""


class AlarmError(Exception):
    """An exception of a user's signal handler."""


def reuse_memory() -> None:
    """Allocate and write memory, so that a write to freed memory would be noticed."""
    for _ in range(20):
        assert float(torch.full((LONG,), 7.0).sum()) == 7.0 * LONG


def error_of_closed_group(call: Callable[[], Any]) -> str:
    """Return the error of a call on a closed group."""
    with pytest.raises(ngd.errors.Error) as caught:
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


# Ctrl-C to a waiting rank.


def interrupt_a_wait(kind: str) -> list[str]:
    """Interrupt rank 0 while it waits for rank 1; then both call again."""
    rank, _ = torch_ranks.join(timeout=timedelta(seconds=40))
    if kind == "AlarmError":
        signal.signal(signal.SIGINT, alarm)
    dist.barrier()
    if rank == 0:
        say("waiting")
        with pytest.raises((KeyboardInterrupt, AlarmError)):
            dist.all_reduce(torch.ones(LONG))
        gc.collect()
    else:
        time.sleep(2)
    tensor = torch.ones(LONG)
    first = error_of_closed_group(lambda: dist.all_reduce(tensor))
    reuse_memory()
    second = error_of_closed_group(lambda: dist.all_reduce(torch.ones(3)))
    dist.destroy_process_group()
    assert not works.outstanding
    torch_ranks.join(store="another")
    dist.all_reduce(tensor := torch.ones(LONG))
    assert float(tensor[-1]) == 2.0
    return [first, second]


def alarm(*_: Any) -> None:
    raise AlarmError("time for lunch")


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "AlarmError"])
def test_ctrl_c_closes_the_group_and_frees_no_pending_tensor(kind: str) -> None:
    with torch_ranks.job(interrupt_a_wait, 2, arguments={"kind": kind}) as job:
        job.wait_for(0, "waiting")
        time.sleep(0.5)
        job.kill(0, signal.SIGINT)
        first, other = job.wait(60)
    assert first.code == other.code == 0, f"{first}\n{other}"
    assert first.value[0].startswith("GroupClosedError: all_reduce(sum) of "), first
    assert ": an earlier failure closed this group. To continue, call " in first.value[0], first
    assert other.value[0].startswith("RemoteRankError: rank 0 failed: interrupted in"), other
    assert kind in other.value[0] or "interrupted in all_reduce" in other.value[0]
    assert other.value[1].startswith("GroupClosedError: "), other


# Ctrl-C at every bytecode of ngd's code.


@contextmanager
def trace_bytecodes(step: Callable[[Any, str, Any], Any]) -> Iterator[None]:
    """Call `step` for every bytecode of ngd.torch."""

    def enter(frame: Any, event: str, _: Any) -> Any:
        if "/ngd/torch/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(None)


@contextmanager
def raise_at(number: int) -> Iterator[list[str]]:
    """Raise KeyboardInterrupt at bytecode `number` of ngd.torch. Yield a list for its position."""
    count, places = 0, []

    def step(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
            if count == number:
                places.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                sys.settrace(None)
                raise KeyboardInterrupt
        return step

    with trace_bytecodes(step):
        yield places


def all_reduce(tensor: Any, group: Any) -> None:
    dist.all_reduce(tensor, group=group)


def all_reduce_with_holes(tensor: Any, group: Any) -> None:
    pairs = torch.stack([tensor, tensor], 1)
    dist.all_reduce(pairs[:, 0], group=group)
    tensor.copy_(pairs[:, 0])


def wait_for_future(tensor: Any, group: Any) -> None:
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.is_completed()
    work.get_future().wait()


def list_of_tensors(tensor: Any, group: Any) -> None:
    dist.all_reduce_coalesced(list(tensor.tensor_split(30)), group=group)


def exchange(tensor: Any, group: Any) -> None:
    """Exchange messages in both directions."""
    other = 1 - dist.get_rank()
    got = torch.empty_like(tensor)
    pair = [dist.P2POp(dist.isend, tensor.clone(), other, group)]
    pair.append(dist.P2POp(dist.irecv, got, other, group))
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    tensor += got


CALLS = {
    call.__name__: call
    for call in (all_reduce, all_reduce_with_holes, wait_for_future, list_of_tensors, exchange)
}


def call_outcome(call: Callable[[Any, Any], None], value: float, count: int, group: Any) -> str:
    """Return "right", "wrong: ...", or the class of the error."""
    try:
        call(tensor := torch.full((count,), value), group)
    except ngd.errors.Error as error:
        return type(error).__name__
    return "right" if tensor.eq(2 * value).all() else f"wrong: {tensor.unique()}"


def interrupt_everywhere(name: str, seed: int, rounds: int) -> dict[str, int]:
    """Interrupt rank 0 at one bytecode per round. Then both ranks call again in the same group."""
    rank, _ = torch_ranks.join(timeout=timedelta(seconds=30))
    call, numbers = CALLS[name], random.Random(seed)
    total = count_bytecodes(lambda: call_outcome(call, 1.0, 4000, dist.group.WORLD))
    outcomes: dict[str, int] = {}
    for round in range(rounds):
        group = dist.new_group()
        is_interrupted, places = False, ["nowhere"]
        first = "right"
        try:
            if rank == 0:
                with raise_at(numbers.randint(1, total)) as places:
                    call(torch.full((4000,), float(round)), group)
            else:
                first = call_outcome(call, float(round), 4000, group)
        except KeyboardInterrupt:
            is_interrupted = True
        except ngd.errors.Error as error:  # an interrupt may be reported as an error of a callback
            first = type(error).__name__
        reuse_memory() if round % 20 == 0 else None
        second = call_outcome(call, round + 0.5, 5000, group)
        outcome = f"{first}, {second}"
        assert "wrong" not in outcome, (round, places, is_interrupted, outcome)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        dist.destroy_process_group(group)
        check_lock_is_free()
        assert not works.outstanding, places
    return outcomes


def check_lock_is_free() -> None:
    """Check that another thread can take the lock of the calls."""
    is_taken = threading.Event()

    def take() -> None:
        with works.turns:
            is_taken.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert is_taken.wait(20), "the turn was not given back"


def count_bytecodes(call: Callable[[], Any]) -> int:
    """Return the approximate number of bytecodes of ngd.torch that a call runs."""
    count = 0

    def step(_: Any, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return step

    with trace_bytecodes(step):
        call()
    return count


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_bytecode_gives_no_wrong_result(name: str) -> None:
    seed = random.randrange(1 << 30)
    rounds = int(os.environ.get("NGD_TEST_INTERRUPTS", "60"))
    print(f"seed {seed}")
    how = {"name": name, "seed": seed, "rounds": rounds}
    outcomes = torch_ranks.run(interrupt_everywhere, 2, arguments=how, seconds=300)
    print(outcomes)
    for counts in outcomes:
        assert sum(counts.values()) == rounds
