# SPDX-License-Identifier: Apache-2.0
"""The scenarios of inject.py: public calls of two ranks, in steps."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import ngd
from ngd import _core, errors, ops
from ngd.compiler.driver import compile_in
from ngd.profiling import perfetto, recording
from tests.stress.inject_alone import failing_calls, kernels, wrong_values
from tests.stress.inject_failures import (
    LAYOUTS,
    abort_of_rank_1,
    arrive_late,
    busy,
    early_exit_of_rank_1,
    late_in_two_groups,
    late_message,
    mismatch,
    mismatch_of,
    mismatch_of_counts,
    mismatch_of_messages,
    mismatch_of_programs,
)
from tests.stress.inject_meetings import MEETINGS
from tests.stress.inject_steps import (
    LARGE,
    MIDDLE,
    SMALL,
    Scenario,
    Step,
    check,
    contribution,
    contributions,
    first_barrier,
    total,
)

# ---- making and leaving a world


def join() -> None:
    """Join the world."""
    ngd.init()


def make_worlds(rank: int) -> list[Step]:
    """Make, use and leave a world, twice."""

    def use() -> None:
        check(ngd.all_reduce(contribution(rank, 3), op="sum"), total(3))

    return [
        *(Step("init", join), Step("all_reduce", use), Step("shutdown", ngd.shutdown)),
        *(Step("init", join), Step("all_reduce", use), Step("shutdown", ngd.shutdown)),
    ]


def exit_early(rank: int) -> list[Step]:
    """Leave a process with open groups and a pending work."""

    def split() -> None:
        assert ngd.init().split(0) is not None

    return [
        Step("split", split),
        Step("barrier", ngd.barrier),
        Step("leave", ngd.comm.world.leave),
    ]


# ---- collectives on arrays


def kinds(rank: int, count: int) -> list[Step]:
    """Call each kind of collective on `count` elements; long because each kind has a check."""
    mine, both = contribution(rank, count), contributions(count)
    peer, pending = 1 - rank, list[Any]()
    half = count // 2 * 2

    def exchange() -> None:
        want = np.concatenate(
            [contribution(r, half)[rank * half // 2 :][: half // 2] for r in range(2)]
        )
        check(ngd.all_to_all(contribution(rank, half)), want)

    def exchange_unevenly() -> None:
        send_counts = [1, count - 1] if rank == 0 else [count - 1, 1]
        got = [1, count - 1] if rank == 0 else [count - 1, 1]
        result = ngd.all_to_all_v(mine, send_counts, got)
        first = contribution(0, count)[:1] if rank == 0 else contribution(0, count)[1:]
        second = (
            contribution(1, count)[: count - 1]
            if rank == 0
            else contribution(1, count)[count - 1 :]
        )
        check(result, np.concatenate([first, second]))

    def gather() -> None:
        got = ngd.gather(mine, root=1)
        check(got, both) if rank == 1 else check(got, None)

    def scatter() -> None:
        source = contribution(0, half) if rank == 0 else None
        got = ngd.scatter(source, 0, shape=(half // 2,), dtype=np.float64)
        check(got, contribution(0, half)[rank * half // 2 :][: half // 2])

    def reduce() -> None:
        got = ngd.reduce(mine, root=1, op="sum")
        check(got, total(count)) if rank == 1 else check(got, None)

    def reduce_scatter() -> None:
        want = total(half)[rank * half // 2 :][: half // 2]
        check(ngd.reduce_scatter(contribution(rank, half), op="sum"), want)

    def gather_unevenly() -> None:
        got = ngd.all_gather_v(contribution(rank, 1 + rank * (count - 1)), counts=[1, count])
        check(got, np.concatenate([contribution(0, 1), contribution(1, count)]))

    def send_or_receive() -> None:
        if rank == 0:
            ngd.send(mine, 1, tag=3)
        else:
            check(ngd.recv(0, 3, shape=(count,), dtype=np.float64), contribution(0, count))

    def start_send() -> None:
        pending.append(ngd.send(mine, peer, async_op=True))

    def receive() -> None:
        check(ngd.recv(peer, shape=(count,), dtype=np.float64), contribution(peer, count))

    def wait_for_send() -> None:
        pending.pop().wait()

    def ring() -> None:
        check(ngd.all_reduce(mine, op="sum", algorithm="ring"), total(count))

    def half_precision() -> None:
        source = contribution(rank, count, np.float16)
        check(ngd.all_reduce(source, op="max"), contribution(1, count, np.float16))

    return [
        *first_barrier(),
        Step("all_reduce", lambda: check(ngd.all_reduce(mine, op="sum"), total(count))),
        Step("ring", ring),
        Step("half", half_precision),
        Step("broadcast", lambda: check(ngd.broadcast(mine, root=1), contribution(1, count))),
        Step("all_gather", lambda: check(ngd.all_gather(mine), both)),
        Step("reduce_scatter", reduce_scatter),
        Step("all_to_all", exchange),
        Step("all_to_all_v", exchange_unevenly),
        Step("reduce", reduce),
        Step("gather", gather),
        Step("scatter", scatter),
        Step("all_gather_v", gather_unevenly),
        Step("send", send_or_receive),
        *(Step("send", start_send), Step("recv", receive), Step("wait", wait_for_send)),
        Step("barrier", ngd.barrier),
    ]


def works(rank: int) -> list[Step]:
    """Overlap works and lists."""
    pending: list[Any] = []
    sizes = (3, 2000, 40_000, 150_000, 7)

    def start() -> None:
        pending.append(ngd.all_reduce(contribution(rank, MIDDLE), op="sum", async_op=True))

    def wait_for_all() -> None:
        for work in pending:
            check(work.wait(), total(MIDDLE))
        pending.clear()

    def poll() -> None:
        work = ngd.broadcast(contribution(rank, SMALL), root=0, async_op=True)
        while not work.done():
            pass
        check(work.wait(), contribution(0, SMALL))

    def reduce_list() -> None:
        got = ngd.all_reduce([contribution(rank, n) for n in sizes], op="sum")
        for each, n in zip(got, sizes, strict=True):
            check(each, total(n))

    def reduce_list_later() -> None:
        arrays = [contribution(rank, n, np.float32) for n in sizes] + [contribution(rank, 9)]
        work = ngd.all_reduce(arrays, op="max", async_op=True)
        for each, n in zip(work.wait(), (*sizes, 9), strict=True):
            check(each, contribution(1, n))

    def broadcast_list() -> None:
        for each, n in zip(
            ngd.broadcast([contribution(rank, n) for n in sizes], root=1), sizes, strict=True
        ):
            check(each, contribution(1, n))

    def reduce_weighted() -> None:
        mean = ngd.all_reduce(np.ones(5), op="mean", weight=1.0 + rank)
        check(np.round(mean, 12), np.ones(5))

    def print_statistics() -> None:
        assert str(ngd.comm_stats())

    return [
        *first_barrier(),
        *[Step("start", start) for _ in range(3)],
        *(
            Step("list", reduce_list),
            Step("end", wait_for_all),
            Step("done", poll),
            Step("weight", reduce_weighted),
        ),
        *(Step("work of a list", reduce_list_later), Step("broadcast a list", broadcast_list)),
        Step("stats", print_statistics),
    ]


def many(rank: int) -> list[Step]:
    """Start more works than there are slots while the other rank is late, and many sends."""
    pending: list[Any] = []
    flat, uneven = contribution(rank, 6), [1, 5] if rank == 0 else [5, 1]
    starts = (
        lambda: ngd.all_gather_v(flat[: 2 + rank], counts=[2, 3], async_op=True),
        lambda: ngd.all_to_all_v(flat, uneven, uneven, async_op=True),
        lambda: ngd.all_reduce(flat.reshape(2, 3), op="sum", async_op=True),
        lambda: ngd.all_reduce([flat[:2], flat[2:]], op="sum", async_op=True),
    )

    def start(number: int) -> None:
        pending.append(starts[number % len(starts)]())

    def send() -> None:
        pending.append(ngd.send(flat, 1 - rank, async_op=True))

    def receive() -> None:
        shape = {"shape": (6,), "dtype": np.float64}
        pending.append(ngd.recv(1 - rank, async_op=True, **shape))

    def end() -> None:
        pending[0].wait()
        pending.pop(0)

    def sleep() -> None:
        time.sleep(0.2 * rank)

    return [
        *first_barrier(),
        Step("sleep", sleep),
        *[Step("start", lambda n=n: start(n)) for n in range(80)],
        *[Step("end", end) for _ in range(80)],
        *[Step("send", send) for _ in range(40)],
        *[Step("receive", receive) for _ in range(40)],
        *[Step("end", end) for _ in range(80)],
    ]


# ---- groups


def groups(rank: int) -> list[Step]:
    """Split groups, use them, leave them, and split again."""
    groups_made: list[Any] = []

    def split() -> None:
        group = ngd.init().split(0, key=-rank)
        assert group is not None
        groups_made.append(group)

    def split_alone() -> None:
        group = ngd.init().split(rank)
        assert group is not None
        groups_made.append(group)

    def use_alone() -> None:
        check(groups_made[-1].all_reduce(contribution(rank, 3), op="sum"), contribution(rank, 3))

    def use() -> None:
        check(groups_made[-1].all_reduce(contribution(rank, MIDDLE), op="sum"), total(MIDDLE))

    def send_or_receive() -> None:
        if rank == 0:
            groups_made[-1].send(contribution(0, 3000), 0)
        else:
            check(groups_made[-1].recv(1, shape=(3000,), dtype=np.float64), contribution(0, 3000))

    def close() -> None:
        groups_made.pop().close()

    return [
        *first_barrier(),
        *(Step("split", split), Step("all_reduce", use), Step("send", send_or_receive)),
        *(Step("split", split_alone), Step("all_reduce", use_alone), Step("close", close)),
        Step("close", close),
        *(Step("split", split), Step("all_reduce", use), Step("close", close)),
        Step("barrier", ngd.barrier),
    ]


# ---- compiled steps


def training(rank: int) -> list[Step]:
    """Compile and run a step with collectives in two groups, and return its shared arena."""
    state: dict[str, Any] = {}

    def split() -> None:
        state["pair"] = ngd.init().split(0)

    def build() -> None:
        w = ngd.variable("w", np.zeros((4, 3)))
        x = ngd.placeholder("x", (6, 4), np.float64)
        labels = ngd.placeholder("y", (6,), np.int64)
        loss = ops.mean(ops.softmax_cross_entropy(x @ w, labels))
        (gradient,) = ngd.grad(loss, [w])
        mean = ops.all_reduce(gradient, op="mean")
        other = ops.all_gather(ops.tanh(x), group=state["pair"])
        first = ops.broadcast(x * 2.0, root=1)
        update = {w: w - 0.1 * mean}

        def halve(carry: Any, part: Any) -> tuple[Any, None]:
            is_large = ops.all_reduce(ops.sum(carry) > 1.0, op="max")
            summed = ops.cond(is_large, lambda: ops.all_reduce(carry, op="mean"), lambda: carry)
            return summed / 2.0, None

        last, _ = ops.scan(halve, x, length=3)
        state["w"], state["step"] = w, None
        state["step"] = ngd.compile([x, labels], [loss, mean, other, first, last], update)

    def read_variable() -> None:
        state["before"] = state["w"].numpy()

    def run() -> None:
        rows = contribution(rank, 24).reshape(6, 4) / 24
        _, mean, other, first, last = state["step"](rows, np.arange(6) % 3)
        state["mean"] = mean
        check(last, (contribution(0, 24) + contribution(1, 24)).reshape(6, 4) / 24 / 2 / 8)
        check(first, contribution(1, 24).reshape(6, 4) / 24 * 2)
        rows_of_all = np.concatenate([contribution(r, 24).reshape(6, 4) for r in range(2)])
        np.testing.assert_allclose(other, np.tanh(rows_of_all / 24), rtol=1e-12)

    def check_update() -> None:
        check(state["w"].numpy(), state["before"] - 0.1 * state["mean"])

    def compare() -> None:
        assert "agree" in state["step"].compare_ranks()

    def assign() -> None:
        state["w"].assign(np.ones((4, 3)))
        assert str(state["step"])

    def drop() -> None:
        state["step"] = None

    return [
        *first_barrier(),
        *(Step("split", split), Step("compile", build)),
        *(Step("look", read_variable), Step("run", run), Step("look", check_update)),
        *(Step("look", read_variable), Step("run", run), Step("look", check_update)),
        *(Step("compare", compare), Step("assign", assign), Step("drop", drop)),
        *(Step("compile", build), Step("run", run)),
    ]


def sharing(rank: int) -> list[Step]:
    """Share one copy of a variable on two ranks: read it, assign it, and share it again."""
    state: dict[str, Any] = {}

    def build() -> None:
        w, x = ngd.variable("w", np.zeros(700)), ngd.placeholder("x", (700,), np.float64)
        mean = ops.all_reduce(x, op="mean")
        norm = ops.sum(mean * mean)
        state["w"], state["step"] = w, None
        state["step"] = ngd.compile([x], [norm], {w: w + mean + 0.0 * norm}, shard="host")

    def run() -> None:
        try:
            before = state["w"].numpy()
        except errors.PoisonedVariableError:  # a failure that has closed the group has poisoned it
            assign()
            return
        check(state["step"](np.full(700, 1.0 + rank))[0], np.array(700 * 1.5**2))
        state["want"] = before + 1.5

    def check_variable() -> None:
        check(state["w"].numpy(), state["want"])

    def assign() -> None:
        state["w"].assign(np.ones(700))
        try:
            ngd.barrier()  # if the group is closed, the rank has assigned only for itself
        except MemoryError as error:
            try:
                ngd.barrier()
            except errors.GroupClosedError:
                raise error from None

    def drop() -> None:
        state.clear()

    return [
        *first_barrier(),
        *(Step("compile", build), Step("run", run), Step("look", check_variable)),
        *(Step("assign", assign), Step("run", run), Step("look", check_variable)),
        *(Step("drop", drop), Step("compile", build), Step("run", run)),
    ]


def common_arena(rank: int) -> list[Step]:
    """Compile two steps in one arena, as the programs of a PyTorch model, and run them in turns."""
    state: dict[str, Any] = {}

    def allocate() -> None:
        state["arena"] = _core.Arena()

    def build(count: int) -> None:
        x = ngd.placeholder("x", (count,), np.float64)
        mean = ops.all_reduce(ops.tanh(x) + 1.0, op="sum")
        state[f"of {count}"] = compile_in(state["arena"], [x], [mean * 2.0], {})

    def run(count: int) -> None:
        check(state[f"of {count}"](np.zeros(count))[0], np.full(count, 4.0))

    return [
        *first_barrier(),
        Step("arena", allocate),
        *(Step("compile", lambda: build(MIDDLE)), Step("run", lambda: run(MIDDLE))),
        *(Step("compile", lambda: build(LARGE)), Step("run", lambda: run(LARGE))),
        *(Step("run", lambda: run(MIDDLE)), Step("drop", state.clear)),
    ]


def interpreter(rank: int) -> list[Step]:
    """Run a step with collectives on the other device."""
    state: list[Any] = []

    def build() -> None:
        x = ngd.placeholder("x", (3,), np.float64)
        gathered = ops.all_gather_v(x[: 1 + rank], counts=(1, 2))
        summed, _ = ops.scan(lambda carry, part: (carry + part, None), ops.sum(x * 0.0), x)
        chosen = ops.cond(summed > 0, lambda: summed * 2.0, lambda: summed)
        result = [ops.all_reduce(x, op="sum"), gathered, chosen]
        state[:] = [ngd.compile([x], result, device=name) for name in ("INTERPRETER", "CPU")]

    def build_larger() -> None:
        x = ngd.placeholder("x", (1000,), np.float64)
        state.append(ngd.compile([x], [ops.all_reduce(x, op="sum")]))

    def run(device: int) -> None:
        both, gathered, chosen = state[device](contribution(rank, 3))
        check(both, total(3))
        check(chosen, 2 * np.sum(contribution(rank, 3)))
        check(gathered, np.concatenate([contribution(0, 1), contribution(1, 2)]))

    has_run: list[bool] = []

    def record() -> None:
        with recording.record_block(100):
            if not has_run:  # a recording can fail at its end, too
                run(1)
                has_run.append(True)

    def write_events() -> None:
        state[1].native.record()
        perfetto.part(rank, _core.recorded_events(), 0, 0)

    compiled = Step("compile", build), Step("compile", build_larger)
    runs = Step("run", lambda: run(0)), Step("run", lambda: run(1)), Step("run", record)
    return [*first_barrier(), *compiled, *runs, Step("look", write_events)]


SHORT = {"NGD_TIMEOUT": "0.5"}

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("making", make_worlds, joins=False),
        Scenario(
            "making, on memory nodes", make_worlds, joins=False, env={"NGD_NUMA_NODE": "auto"}
        ),
        Scenario("exiting", exit_early),
        Scenario("small", lambda rank: kinds(rank, SMALL)),
        Scenario("middle", lambda rank: kinds(rank, MIDDLE)),
        Scenario("large", lambda rank: kinds(rank, LARGE)),
        Scenario("works", works),
        Scenario("groups", groups),
        Scenario("training", training),
        Scenario("sharing", sharing),
        Scenario("common arena", common_arena),
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
        Scenario("mismatch of letters", mismatch_of_messages),
        Scenario("mismatch of programs", mismatch_of_programs),
        Scenario("late", arrive_late, env=SHORT),
        Scenario("late letter", late_message, env=SHORT),
        Scenario("raised", abort_of_rank_1),
        Scenario("left early", early_exit_of_rank_1),
        Scenario("late elsewhere", late_in_two_groups, env=SHORT),
        Scenario("busy", busy, again=False),
        *MEETINGS,
        Scenario("refusals", failing_calls, ranks=1, joins=False, independent=True),
        Scenario("kernels", kernels, ranks=1, joins=False, independent=True),
    )
}
