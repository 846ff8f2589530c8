# SPDX-License-Identifier: Apache-2.0
"""Scenarios of inject.py in which the ranks fail: the code that reports an error fails, too."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

import ngd
from ngd import errors, ops
from tests.stress.inject_steps import Step, contribution, first_barrier


def mismatch(rank: int) -> list[Step]:
    """Call different collectives on the ranks."""

    def call_differently() -> None:
        if rank == 0:
            ngd.all_reduce(contribution(0, 3), op="sum")
        else:
            ngd.all_gather_v(contribution(1, 3), counts=[2, 3])

    return [*first_barrier(), Step("apart", call_differently, (errors.CollectiveMismatchError,))]


def mismatch_of_counts(rank: int) -> list[Step]:
    """Call collectives that differ only in their counts, in a smaller group."""
    groups_made: list[Any] = []

    def split() -> None:
        groups_made.append(ngd.init().split(0))

    def call_differently() -> None:
        groups_made[0].all_gather_v(contribution(rank, 3), counts=[4, 3] if rank else [3, 5])

    return [
        Step("split", split),
        Step("apart", call_differently, (errors.CollectiveMismatchError,)),
    ]


def mismatch_of_messages(rank: int) -> list[Step]:
    """Send a message that the other rank does not expect."""

    def send_unexpected() -> None:
        if rank == 0:
            ngd.send(contribution(0, 3000), 1, tag=1)
            ngd.barrier()
        else:
            ngd.recv(0, 2, shape=(3000,), dtype=np.float64)

    expected = (errors.CollectiveMismatchError, errors.RemoteRankError)
    return [*first_barrier(), Step("apart", send_unexpected, expected)]


LAYOUTS = {
    "shapes": ([np.ones((2, 3)), np.ones((3, 2))]),
    "axes": ([np.ones(6), np.ones((2, 3))]),
    "arrays in lists": ([[np.ones((400, 300))], [np.ones((300, 400))]]),
    "lists": ([[np.ones(2), np.ones(3)], [np.ones(3), np.ones(2)]]),
    "long lists": ([[np.ones(n) for n in (*range(1, 9), *last)] for last in ((2, 3), (3, 2))]),
    "longest lists": ([[np.ones(n) for n in (*[1] * 80, *last)] for last in ((2, 3), (3, 2))]),
}


def mismatch_of(rank: int, operands: list[Any]) -> list[Step]:
    """Reduce the same number of elements in different shapes or lists."""

    def reduce_differently() -> None:
        ngd.all_reduce(operands[rank], op="sum")

    return [*first_barrier(), Step("apart", reduce_differently, (errors.CollectiveMismatchError,))]


def mismatch_of_programs(rank: int) -> list[Step]:
    """Compile different sequences of collectives on the ranks."""
    state: list[Any] = []

    def build() -> None:
        x = ngd.placeholder("x", (3,), np.float64)
        total = ops.all_reduce(x, op="sum")
        y = ops.all_reduce(ops.tanh(total), op="max" if rank else "min")
        state.append(ngd.compile([x], [y]))

    def run() -> None:
        state[0](contribution(rank, 3))

    return [Step("compile", build), Step("run", run, (errors.CollectiveMismatchError,))]


def arrive_late(rank: int) -> list[Step]:
    """Rank 1 comes too late."""
    late = (errors.CollectiveTimeoutError, errors.RemoteRankError, errors.RankLostError)

    def wait_for_rank_1() -> None:
        if rank == 1:
            time.sleep(1.5)
        ngd.all_reduce(contribution(rank, 3), op="sum")

    return [*first_barrier(), Step("late", wait_for_rank_1, late)]


def late_message(rank: int) -> list[Step]:
    """Rank 0 waits in a group for a message that rank 1 does not send."""
    errors_of_timeout = (
        errors.CollectiveTimeoutError,
        errors.RemoteRankError,
        errors.RankLostError,
    )
    groups_made: list[Any] = []

    def split() -> None:
        groups_made.append(ngd.init().split(0))

    def wait_for_message() -> None:
        if rank == 1:
            time.sleep(1.5)
            ngd.barrier()
        else:
            groups_made[0].recv(1, shape=(3,), dtype=np.float64)

    return [Step("split", split), Step("late", wait_for_message, errors_of_timeout)]


def late_in_two_groups(rank: int) -> list[Step]:
    """The ranks wait for each other in two groups."""
    errors_of_timeout = (
        errors.CollectiveTimeoutError,
        errors.RemoteRankError,
        errors.RankLostError,
    )
    groups_made: list[Any] = []

    def split() -> None:
        groups_made.append(ngd.init().split(0))

    def wait_apart() -> None:
        groups_made[0].barrier() if rank == 0 else ngd.barrier()

    return [Step("split", split), Step("late", wait_apart, errors_of_timeout)]


def busy(rank: int) -> list[Step]:
    """A second thread calls a group in which the first one waits."""

    def call_in_two_threads() -> None:
        if rank == 1:
            time.sleep(0.3)
            return ngd.barrier()
        world, failed = ngd.init(), list[BaseException]()

        def wait() -> None:
            try:
                world.barrier()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        try:
            world.barrier()
        finally:
            thread.join()
            if failed:
                raise failed[0]

    return [
        *first_barrier(),
        Step("busy", call_in_two_threads, (errors.BusyError,) if rank == 0 else ()),
    ]


def abort_of_rank_1(rank: int) -> list[Step]:
    """Rank 1 reports that it has failed."""

    def abort_on_rank_1() -> None:
        world = ngd.init()
        if rank == 1:
            world.abort("Traceback:\n" + "x" * 20_000)
        world.all_reduce(contribution(rank, 3), op="sum")

    return [
        *first_barrier(),
        Step("abort", abort_on_rank_1, (errors.RemoteRankError, errors.GroupClosedError)),
    ]


def early_exit_of_rank_1(rank: int) -> list[Step]:
    """Rank 1 leaves before rank 0 has called."""

    def leave_on_rank_1() -> None:
        if rank == 1:
            ngd.shutdown()
        ngd.init().barrier() if rank == 0 else None

    return [
        *first_barrier(),
        Step("left", leave_on_rank_1, (errors.RankLostError,) if rank == 0 else ()),
    ]
