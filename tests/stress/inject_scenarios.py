# SPDX-License-Identifier: Apache-2.0
"""What two ranks do while inject.py makes a call of ngd's C++ side fail: public calls, in steps."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

import ngd
from ngd import _core, errors, ops
from ngd.profiling import perfetto, recording
from tests.stress.inject_alone import kernels, refusals, wrong_values
from tests.stress.inject_meetings import MEETINGS
from tests.stress.inject_steps import (
    LARGE,
    MIDDLE,
    SMALL,
    Scenario,
    Step,
    check,
    fresh,
    joined,
    of,
    total,
)

# ---- making and leaving a world


def join() -> None:
    """Make the world."""
    ngd.init()


def making(rank: int) -> list[Step]:
    """A world is made, used and left, twice."""

    def use() -> None:
        check(ngd.all_reduce(of(rank, 3), op="sum"), total(3))

    return [
        *(Step("init", join), Step("all_reduce", use), Step("shutdown", ngd.shutdown)),
        *(Step("init", join), Step("all_reduce", use), Step("shutdown", ngd.shutdown)),
    ]


def exiting(rank: int) -> list[Step]:
    """A process leaves with groups and a work that are still open."""

    def split() -> None:
        assert ngd.init().split(0) is not None

    return [
        Step("split", split),
        Step("barrier", ngd.barrier),
        Step("leave", ngd.comm.world.leave),
    ]


# ---- collectives on arrays


def kinds(rank: int, count: int) -> list[Step]:
    """Each kind of collective, on so many elements; long because each kind has a check."""
    mine, both = of(rank, count), joined(count)
    peer, under_way = 1 - rank, list[Any]()
    half = count // 2 * 2

    def exchanged() -> None:
        want = np.concatenate([of(r, half)[rank * half // 2 :][: half // 2] for r in range(2)])
        check(ngd.all_to_all(of(rank, half)), want)

    def exchanged_unevenly() -> None:
        given = [1, count - 1] if rank == 0 else [count - 1, 1]
        got = [1, count - 1] if rank == 0 else [count - 1, 1]
        result = ngd.all_to_all_v(mine, given, got)
        first = of(0, count)[:1] if rank == 0 else of(0, count)[1:]
        second = of(1, count)[: count - 1] if rank == 0 else of(1, count)[count - 1 :]
        check(result, np.concatenate([first, second]))

    def gathered() -> None:
        got = ngd.gather(mine, root=1)
        check(got, both) if rank == 1 else check(got, None)

    def scattered() -> None:
        source = of(0, half) if rank == 0 else None
        got = ngd.scatter(source, 0, shape=(half // 2,), dtype=np.float64)
        check(got, of(0, half)[rank * half // 2 :][: half // 2])

    def reduced() -> None:
        got = ngd.reduce(mine, root=1, op="sum")
        check(got, total(count)) if rank == 1 else check(got, None)

    def scatter_reduced() -> None:
        want = total(half)[rank * half // 2 :][: half // 2]
        check(ngd.reduce_scatter(of(rank, half), op="sum"), want)

    def gathered_unevenly() -> None:
        got = ngd.all_gather_v(of(rank, 1 + rank * (count - 1)), counts=[1, count])
        check(got, np.concatenate([of(0, 1), of(1, count)]))

    def sent() -> None:
        if rank == 0:
            ngd.send(mine, 1, tag=3)
        else:
            check(ngd.recv(0, 3, shape=(count,), dtype=np.float64), of(0, count))

    def send_away() -> None:
        under_way.append(ngd.send(mine, peer, async_op=True))

    def receive() -> None:
        check(ngd.recv(peer, shape=(count,), dtype=np.float64), of(peer, count))

    def sent_away() -> None:
        under_way.pop().wait()

    def ring() -> None:
        check(ngd.all_reduce(mine, op="sum", algorithm="ring"), total(count))

    def half_precision() -> None:
        source = of(rank, count, np.float16)
        check(ngd.all_reduce(source, op="max"), of(1, count, np.float16))

    return [
        *fresh(),
        Step("all_reduce", lambda: check(ngd.all_reduce(mine, op="sum"), total(count))),
        Step("ring", ring),
        Step("half", half_precision),
        Step("broadcast", lambda: check(ngd.broadcast(mine, root=1), of(1, count))),
        Step("all_gather", lambda: check(ngd.all_gather(mine), both)),
        Step("reduce_scatter", scatter_reduced),
        Step("all_to_all", exchanged),
        Step("all_to_all_v", exchanged_unevenly),
        Step("reduce", reduced),
        Step("gather", gathered),
        Step("scatter", scattered),
        Step("all_gather_v", gathered_unevenly),
        Step("send", sent),
        *(Step("send", send_away), Step("recv", receive), Step("wait", sent_away)),
        Step("barrier", ngd.barrier),
    ]


def works(rank: int) -> list[Step]:
    """Works and lists that overlap."""
    under_way: list[Any] = []
    sizes = (3, 2000, 40_000, 150_000, 7)

    def started() -> None:
        under_way.append(ngd.all_reduce(of(rank, MIDDLE), op="sum", async_op=True))

    def ended() -> None:
        for work in under_way:
            check(work.wait(), total(MIDDLE))
        under_way.clear()

    def asked() -> None:
        work = ngd.broadcast(of(rank, SMALL), root=0, async_op=True)
        while not work.done():
            pass
        check(work.wait(), of(0, SMALL))

    def listed() -> None:
        got = ngd.all_reduce([of(rank, n) for n in sizes], op="sum")
        for each, n in zip(got, sizes, strict=True):
            check(each, total(n))

    def listed_later() -> None:
        arrays = [of(rank, n, np.float32) for n in sizes] + [of(rank, 9)]
        work = ngd.all_reduce(arrays, op="max", async_op=True)
        for each, n in zip(work.wait(), (*sizes, 9), strict=True):
            check(each, of(1, n))

    def broadcast_list() -> None:
        for each, n in zip(ngd.broadcast([of(rank, n) for n in sizes], root=1), sizes, strict=True):
            check(each, of(1, n))

    def weighted() -> None:
        mean = ngd.all_reduce(np.ones(5), op="mean", weight=1.0 + rank)
        check(np.round(mean, 12), np.ones(5))

    def told() -> None:
        assert str(ngd.comm_stats())

    return [
        *fresh(),
        *[Step("start", started) for _ in range(3)],
        *(Step("list", listed), Step("end", ended), Step("done", asked), Step("weight", weighted)),
        *(Step("work of a list", listed_later), Step("broadcast a list", broadcast_list)),
        Step("stats", told),
    ]


def many(rank: int) -> list[Step]:
    """More works than there are slots, while the other rank does not come; many sends at once."""
    kept: list[Any] = []
    flat, uneven = of(rank, 6), [1, 5] if rank == 0 else [5, 1]
    starts = (
        lambda: ngd.all_gather_v(flat[: 2 + rank], counts=[2, 3], async_op=True),
        lambda: ngd.all_to_all_v(flat, uneven, uneven, async_op=True),
        lambda: ngd.all_reduce(flat.reshape(2, 3), op="sum", async_op=True),
        lambda: ngd.all_reduce([flat[:2], flat[2:]], op="sum", async_op=True),
    )

    def start(number: int) -> None:
        kept.append(starts[number % len(starts)]())

    def send() -> None:
        kept.append(ngd.send(flat, 1 - rank, async_op=True))

    def receive() -> None:
        shape = {"shape": (6,), "dtype": np.float64}
        kept.append(ngd.recv(1 - rank, async_op=True, **shape))

    def end() -> None:
        kept[0].wait()
        kept.pop(0)

    def sleep() -> None:
        time.sleep(0.2 * rank)

    return [
        *fresh(),
        Step("sleep", sleep),
        *[Step("start", lambda n=n: start(n)) for n in range(80)],
        *[Step("end", end) for _ in range(80)],
        *[Step("send", send) for _ in range(40)],
        *[Step("receive", receive) for _ in range(40)],
        *[Step("end", end) for _ in range(80)],
    ]


# ---- groups


def groups(rank: int) -> list[Step]:
    """Groups are split, used, left, and split again."""
    made: list[Any] = []

    def split() -> None:
        group = ngd.init().split(0, key=-rank)
        assert group is not None
        made.append(group)

    def split_alone() -> None:
        group = ngd.init().split(rank)
        assert group is not None
        made.append(group)

    def used_alone() -> None:
        check(made[-1].all_reduce(of(rank, 3), op="sum"), of(rank, 3))

    def used() -> None:
        check(made[-1].all_reduce(of(rank, MIDDLE), op="sum"), total(MIDDLE))

    def sent() -> None:
        if rank == 0:
            made[-1].send(of(0, 3000), 0)
        else:
            check(made[-1].recv(1, shape=(3000,), dtype=np.float64), of(0, 3000))

    def left() -> None:
        made.pop().close()

    return [
        *fresh(),
        *(Step("split", split), Step("all_reduce", used), Step("send", sent)),
        *(Step("split", split_alone), Step("all_reduce", used_alone), Step("close", left)),
        Step("close", left),
        *(Step("split", split), Step("all_reduce", used), Step("close", left)),
        Step("barrier", ngd.barrier),
    ]


# ---- compiled steps


def training(rank: int) -> list[Step]:
    """A step with collectives in two groups is compiled and run; its shared arena goes back."""
    state: dict[str, Any] = {}

    def split() -> None:
        state["pair"] = ngd.init().split(0)

    def built() -> None:
        w = ngd.variable("w", np.zeros((4, 3)))
        x = ngd.placeholder("x", (6, 4), np.float64)
        labels = ngd.placeholder("y", (6,), np.int64)
        loss = ops.mean(ops.softmax_cross_entropy(x @ w, labels))
        (gradient,) = ngd.grad(loss, [w])
        mean = ops.all_reduce(gradient, op="mean")
        other = ops.all_gather(ops.tanh(x), group=state["pair"])
        first = ops.broadcast(x * 2.0, root=1)
        update = {w: w - 0.1 * mean}

        def halved(carry: Any, part: Any) -> tuple[Any, None]:
            anybody = ops.all_reduce(ops.sum(carry) > 1.0, op="max")
            summed = ops.cond(anybody, lambda: ops.all_reduce(carry, op="mean"), lambda: carry)
            return summed / 2.0, None

        last, _ = ops.scan(halved, x, length=3)
        state["w"], state["step"] = w, None
        state["step"] = ngd.compile([x, labels], [loss, mean, other, first, last], update)

    def looked() -> None:
        state["before"] = state["w"].numpy()

    def run() -> None:
        rows = of(rank, 24).reshape(6, 4) / 24
        _, mean, other, first, last = state["step"](rows, np.arange(6) % 3)
        state["mean"] = mean
        check(last, (of(0, 24) + of(1, 24)).reshape(6, 4) / 24 / 2 / 8)
        check(first, of(1, 24).reshape(6, 4) / 24 * 2)
        everybody = np.concatenate([of(r, 24).reshape(6, 4) for r in range(2)])
        np.testing.assert_allclose(other, np.tanh(everybody / 24), rtol=1e-12)

    def learned() -> None:
        check(state["w"].numpy(), state["before"] - 0.1 * state["mean"])

    def compared() -> None:
        assert "agree" in state["step"].compare_ranks()

    def written() -> None:
        state["w"].assign(np.ones((4, 3)))
        assert str(state["step"])

    def dropped() -> None:
        state["step"] = None

    return [
        *fresh(),
        *(Step("split", split), Step("compile", built)),
        *(Step("look", looked), Step("run", run), Step("look", learned)),
        *(Step("look", looked), Step("run", run), Step("look", learned)),
        *(Step("compare", compared), Step("assign", written), Step("drop", dropped)),
        *(Step("compile", built), Step("run", run)),
    ]


def sharing(rank: int) -> list[Step]:
    """Two ranks keep one copy of a variable; it is read, assigned, and shared anew."""
    state: dict[str, Any] = {}

    def built() -> None:
        w, x = ngd.variable("w", np.zeros(700)), ngd.placeholder("x", (700,), np.float64)
        mean = ops.all_reduce(x, op="mean")
        norm = ops.sum(mean * mean)
        state["w"], state["step"] = w, None
        state["step"] = ngd.compile([x], [norm], {w: w + mean + 0.0 * norm}, shard="host")

    def run() -> None:
        try:
            before = state["w"].numpy()
        except errors.PoisonedVariableError:  # by a failure that has closed the group
            assigned()
            return
        check(state["step"](np.full(700, 1.0 + rank))[0], np.array(700 * 1.5**2))
        state["want"] = before + 1.5

    def looked() -> None:
        check(state["w"].numpy(), state["want"])

    def assigned() -> None:
        state["w"].assign(np.ones(700))
        try:
            ngd.barrier()  # where the group is closed, the rank has assigned for itself alone
        except MemoryError as error:
            try:
                ngd.barrier()
            except errors.GroupClosedError:
                raise error from None

    def dropped() -> None:
        state.clear()

    return [
        *fresh(),
        *(Step("compile", built), Step("run", run), Step("look", looked)),
        *(Step("assign", assigned), Step("run", run), Step("look", looked)),
        *(Step("drop", dropped), Step("compile", built), Step("run", run)),
    ]


def interpreter(rank: int) -> list[Step]:
    """A step with collectives on the other device."""
    state: list[Any] = []

    def built() -> None:
        x = ngd.placeholder("x", (3,), np.float64)
        gathered = ops.all_gather_v(x[: 1 + rank], counts=(1, 2))
        summed, _ = ops.scan(lambda carry, part: (carry + part, None), ops.sum(x * 0.0), x)
        chosen = ops.cond(summed > 0, lambda: summed * 2.0, lambda: summed)
        result = [ops.all_reduce(x, op="sum"), gathered, chosen]
        state[:] = [ngd.compile([x], result, device=name) for name in ("INTERPRETER", "CPU")]

    def built_larger() -> None:
        x = ngd.placeholder("x", (1000,), np.float64)
        state.append(ngd.compile([x], [ops.all_reduce(x, op="sum")]))

    def run(device: int) -> None:
        both, gathered, chosen = state[device](of(rank, 3))
        check(both, total(3))
        check(chosen, 2 * np.sum(of(rank, 3)))
        check(gathered, np.concatenate([of(0, 1), of(1, 2)]))

    ran: list[bool] = []

    def recorded() -> None:
        with recording.record_block(100):
            if not ran:  # a recording fails at its end, too
                run(1)
                ran.append(True)

    def told() -> None:
        state[1].native.record()
        perfetto.part(rank, _core.recorded_events(), 0, 0)

    compiled = Step("compile", built), Step("compile", built_larger)
    runs = Step("run", lambda: run(0)), Step("run", lambda: run(1)), Step("run", recorded)
    return [*fresh(), *compiled, *runs, Step("look", told)]


# ---- errors between ranks: what words them fails, too


def mismatch(rank: int) -> list[Step]:
    """The ranks call different things."""

    def apart() -> None:
        if rank == 0:
            ngd.all_reduce(of(0, 3), op="sum")
        else:
            ngd.all_gather_v(of(1, 3), counts=[2, 3])

    return [*fresh(), Step("apart", apart, (errors.CollectiveMismatchError,))]


def mismatch_of_counts(rank: int) -> list[Step]:
    """The same, but for what only the fine print says, in a smaller group."""
    made: list[Any] = []

    def split() -> None:
        made.append(ngd.init().split(0))

    def apart() -> None:
        made[0].all_gather_v(of(rank, 3), counts=[4, 3] if rank else [3, 5])

    return [Step("split", split), Step("apart", apart, (errors.CollectiveMismatchError,))]


def mismatch_of_letters(rank: int) -> list[Step]:
    """One sends what the other does not expect."""

    def apart() -> None:
        if rank == 0:
            ngd.send(of(0, 3000), 1, tag=1)
            ngd.barrier()
        else:
            ngd.recv(0, 2, shape=(3000,), dtype=np.float64)

    gone = (errors.CollectiveMismatchError, errors.RemoteRankError)
    return [*fresh(), Step("apart", apart, gone)]


LAYOUTS = {
    "shapes": ([np.ones((2, 3)), np.ones((3, 2))]),
    "axes": ([np.ones(6), np.ones((2, 3))]),
    "arrays in lists": ([[np.ones((400, 300))], [np.ones((300, 400))]]),
    "lists": ([[np.ones(2), np.ones(3)], [np.ones(3), np.ones(2)]]),
    "long lists": ([[np.ones(n) for n in (*range(1, 9), *last)] for last in ((2, 3), (3, 2))]),
    "longest lists": ([[np.ones(n) for n in (*[1] * 80, *last)] for last in ((2, 3), (3, 2))]),
}


def mismatch_of(rank: int, given: list[Any]) -> list[Step]:
    """The ranks reduce as many elements, otherwise arranged."""

    def apart() -> None:
        ngd.all_reduce(given[rank], op="sum")

    return [*fresh(), Step("apart", apart, (errors.CollectiveMismatchError,))]


def mismatch_of_programs(rank: int) -> list[Step]:
    """The ranks compiled other sequences."""
    state: list[Any] = []

    def built() -> None:
        x = ngd.placeholder("x", (3,), np.float64)
        total = ops.all_reduce(x, op="sum")
        y = ops.all_reduce(ops.tanh(total), op="max" if rank else "min")
        state.append(ngd.compile([x], [y]))

    def run() -> None:
        state[0](of(rank, 3))

    return [Step("compile", built), Step("run", run, (errors.CollectiveMismatchError,))]


def late(rank: int) -> list[Step]:
    """Rank 1 does not come."""
    late = (errors.CollectiveTimeoutError, errors.RemoteRankError, errors.RankLostError)

    def waited() -> None:
        if rank == 1:
            time.sleep(1.5)
        ngd.all_reduce(of(rank, 3), op="sum")

    return [*fresh(), Step("late", waited, late)]


def late_letter(rank: int) -> list[Step]:
    """Nothing comes to rank 0 in a group."""
    late = (errors.CollectiveTimeoutError, errors.RemoteRankError, errors.RankLostError)
    made: list[Any] = []

    def split() -> None:
        made.append(ngd.init().split(0))

    def waited() -> None:
        if rank == 1:
            time.sleep(1.5)
            ngd.barrier()
        else:
            made[0].recv(1, shape=(3,), dtype=np.float64)

    return [Step("split", split), Step("late", waited, late)]


def late_elsewhere(rank: int) -> list[Step]:
    """The ranks wait for one another in two groups."""
    late = (errors.CollectiveTimeoutError, errors.RemoteRankError, errors.RankLostError)
    made: list[Any] = []

    def split() -> None:
        made.append(ngd.init().split(0))

    def waited() -> None:
        made[0].barrier() if rank == 0 else ngd.barrier()

    return [Step("split", split), Step("late", waited, late)]


def busy(rank: int) -> list[Step]:
    """A second thread comes to a group in which the first one waits."""

    def refused() -> None:
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

    return [*fresh(), Step("busy", refused, (errors.BusyError,) if rank == 0 else ())]


def raised(rank: int) -> list[Step]:
    """Rank 1 says that it has failed."""

    def told() -> None:
        world = ngd.init()
        if rank == 1:
            world.abort("Traceback:\n" + "x" * 20_000)
        world.all_reduce(of(rank, 3), op="sum")

    return [*fresh(), Step("abort", told, (errors.RemoteRankError, errors.GroupClosedError))]


def left_early(rank: int) -> list[Step]:
    """Rank 1 leaves before rank 0 has called."""

    def left() -> None:
        if rank == 1:
            ngd.shutdown()
        ngd.init().barrier() if rank == 0 else None

    return [*fresh(), Step("left", left, (errors.RankLostError,) if rank == 0 else ())]


SHORT = {"NGD_TIMEOUT": "0.5"}

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("making", making, joins=False),
        Scenario("making, on memory nodes", making, joins=False, env={"NGD_NUMA_NODE": "auto"}),
        Scenario("exiting", exiting),
        Scenario("small", lambda rank: kinds(rank, SMALL)),
        Scenario("middle", lambda rank: kinds(rank, MIDDLE)),
        Scenario("large", lambda rank: kinds(rank, LARGE)),
        Scenario("works", works),
        Scenario("groups", groups),
        Scenario("training", training),
        Scenario("sharing", sharing),
        Scenario("many", many),
        Scenario("interpreter", interpreter),
        Scenario(
            "wrong values",
            wrong_values,
            ranks=1,
            env={"NGD_CHECK_FINITE": "1"},
            joins=False,
            independent=True,
        ),
        Scenario("mismatch", mismatch),
        *[
            Scenario(f"mismatch of {name}", lambda rank, given=given: mismatch_of(rank, given))
            for name, given in LAYOUTS.items()
        ],
        Scenario("mismatch of counts", mismatch_of_counts),
        Scenario("mismatch of letters", mismatch_of_letters),
        Scenario("mismatch of programs", mismatch_of_programs),
        Scenario("late", late, env=SHORT),
        Scenario("late letter", late_letter, env=SHORT),
        Scenario("raised", raised),
        Scenario("left early", left_early),
        Scenario("late elsewhere", late_elsewhere, env=SHORT),
        Scenario("busy", busy, again=False),
        *MEETINGS,
        Scenario("refusals", refusals, ranks=1, joins=False, independent=True),
        Scenario("kernels", kernels, ranks=1, joins=False, independent=True),
    )
}
