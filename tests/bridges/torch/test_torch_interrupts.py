# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in torch.distributed's calls, caught: no tensor is freed in flight, nothing is mixed up.

Whatever was interrupted, wherever: afterwards the group works, in step with the others, or every
rank is told that it is closed.
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
"""Elements: what is in flight is no inline payload."""


class AlarmError(Exception):
    """What somebody's signal handler raises."""


def reuse_memory() -> None:
    """Whoever writes to freed memory now writes to these."""
    for _ in range(20):
        assert float(torch.full((LONG,), 7.0).sum()) == 7.0 * LONG


def closed(call: Callable[[], Any]) -> str:
    """The message of the error that says that the group is closed."""
    with pytest.raises(ngd.errors.Error) as caught:
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


# Ctrl-C to a rank that waits.


def wait_alone(kind: str) -> list[str]:
    """Rank 0 waits for the other, and is interrupted; then both go on."""
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
    found = closed(lambda: dist.all_reduce(tensor))
    reuse_memory()
    again = closed(lambda: dist.all_reduce(torch.ones(3)))
    dist.destroy_process_group()
    assert not works.outstanding
    torch_ranks.join(store="another")
    dist.all_reduce(tensor := torch.ones(LONG))
    assert float(tensor[-1]) == 2.0
    return [found, again]


def alarm(*_: Any) -> None:
    raise AlarmError("time for lunch")


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "AlarmError"])
def test_ctrl_c_closes_the_group_and_frees_nothing_in_flight(kind: str) -> None:
    with torch_ranks.job(wait_alone, 2, arguments={"kind": kind}) as job:
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


# Ctrl-C at every bytecode of ngd's own.


@contextmanager
def traced(step: Callable[[Any, str, Any], Any]) -> Iterator[None]:
    """Every bytecode of ngd.torch is told to `step`."""

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
def raised_at(number: int) -> Iterator[list[str]]:
    """KeyboardInterrupt at the so-manieth bytecode of ngd.torch; where that was, if anywhere."""
    seen, where = 0, []

    def step(frame: Any, event: str, _: Any) -> Any:
        nonlocal seen
        if event == "opcode":
            seen += 1
            if seen == number:
                where.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                sys.settrace(None)
                raise KeyboardInterrupt
        return step

    with traced(step):
        yield where


def all_reduce(tensor: Any, group: Any) -> None:
    dist.all_reduce(tensor, group=group)


def all_reduce_with_holes(tensor: Any, group: Any) -> None:
    wide = torch.stack([tensor, tensor], 1)
    dist.all_reduce(wide[:, 0], group=group)
    tensor.copy_(wide[:, 0])


def asynchronous(tensor: Any, group: Any) -> None:
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.is_completed()
    work.get_future().wait()


def list_of_tensors(tensor: Any, group: Any) -> None:
    dist.all_reduce_coalesced(list(tensor.tensor_split(30)), group=group)


def exchange(tensor: Any, group: Any) -> None:
    """By messages both ways."""
    other = 1 - dist.get_rank()
    got = torch.empty_like(tensor)
    pair = [dist.P2POp(dist.isend, tensor.clone(), other, group)]
    pair.append(dist.P2POp(dist.irecv, got, other, group))
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    tensor += got


CALLS = {
    call.__name__: call
    for call in (all_reduce, all_reduce_with_holes, asynchronous, list_of_tensors, exchange)
}


def outcome(call: Callable[[Any, Any], None], value: float, count: int, group: Any) -> str:
    """ "right", "wrong", or the class of the error."""
    try:
        call(tensor := torch.full((count,), value), group)
    except ngd.errors.Error as error:
        return type(error).__name__
    return "right" if tensor.eq(2 * value).all() else f"wrong: {tensor.unique()}"


def interrupt_everywhere(name: str, seed: int, rounds: int) -> dict[str, int]:
    """Rank 0 is interrupted at one bytecode a round. Then both call again, in the same group."""
    rank, _ = torch_ranks.join(timeout=timedelta(seconds=30))
    call, numbers = CALLS[name], random.Random(seed)
    total = count_of_bytecodes(lambda: outcome(call, 1.0, 4000, dist.group.WORLD))
    found: dict[str, int] = {}
    for turn in range(rounds):
        group = dist.new_group()
        interrupted, where = False, ["nowhere"]
        first = "right"
        try:
            if rank == 0:
                with raised_at(numbers.randint(1, total)) as where:
                    call(torch.full((4000,), float(turn)), group)
            else:
                first = outcome(call, float(turn), 4000, group)
        except KeyboardInterrupt:
            interrupted = True
        except ngd.errors.Error as error:  # an interrupt may be told as an error of a callback
            first = type(error).__name__
        reuse_memory() if turn % 20 == 0 else None
        second = outcome(call, turn + 0.5, 5000, group)
        what = f"{first}, {second}"
        assert "wrong" not in what, (turn, where, interrupted, what)
        found[what] = found.get(what, 0) + 1
        dist.destroy_process_group(group)
        check_turn_is_free()
        assert not works.outstanding, where
    return found


def check_turn_is_free() -> None:
    """Another thread can have it."""
    taken = threading.Event()

    def take() -> None:
        with works.turns:
            taken.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert taken.wait(20), "the turn was not given back"


def count_of_bytecodes(call: Callable[[], Any]) -> int:
    """How many of ngd.torch a call runs, about."""
    count = 0

    def step(_: Any, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return step

    with traced(step):
        call()
    return count


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_bytecode_mixes_nothing_up(name: str) -> None:
    seed = random.randrange(1 << 30)
    rounds = int(os.environ.get("NGD_TEST_INTERRUPTS", "60"))
    print(f"seed {seed}")
    how = {"name": name, "seed": seed, "rounds": rounds}
    outcomes = torch_ranks.run(interrupt_everywhere, 2, arguments=how, seconds=300)
    print(outcomes)
    for found in outcomes:
        assert sum(found.values()) == rounds
