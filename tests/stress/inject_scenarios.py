# SPDX-License-Identifier: Apache-2.0
"""What two ranks do while inject.py makes a call of ngd's C++ side fail: public calls, in steps.

A step is one call and the check of its result. Where it raises and the group stays open, nothing
has happened: the step is done once more. `expects` are the errors that a step must end in without
any fault: of calls that are wrong on purpose, for the code that words errors fails, too.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import ngd
from ngd import _core, errors, ops
from ngd.distributed import alone

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.ops.cases import Case, all_cases, assert_close, placeholders, takes_two

SMALL, MIDDLE, LARGE = 5, 60_000, 700_000
"""Elements (of 8 bytes) that ride beside the flag, in one piece, and in several chunks."""


@dataclass
class Step:
    """One call, checked."""

    name: str
    call: Callable[[], Any]
    expects: tuple[type[BaseException], ...] = ()


@dataclass
class Scenario:
    """The steps of a rank, by its number."""

    name: str
    steps: Callable[[int], list[Step]]
    ranks: int = 2
    env: dict[str, str] = field(default_factory=dict)
    joins: bool = True
    """The ranks have a world before the first step."""
    again: bool = True
    """After an error that leaves the group open, or makes none, a step is called again."""
    independent: bool = False
    """Each step stands for itself: only that with the fault is run."""


def check(got: Any, want: Any) -> None:
    """Refuse a wrong result."""
    if not np.array_equal(got, want):
        raise AssertionError(f"wrong result: {np.ravel(got)[:4]}, not {np.ravel(want)[:4]}")


def of(rank: int, count: int, dtype: Any = np.float64) -> Any:
    """A rank's contribution."""
    return (np.arange(count) % 7 + 10 * rank + 1).astype(dtype)


def total(count: int, dtype: Any = np.float64) -> Any:
    """What both contribute, added."""
    return of(0, count, dtype) + of(1, count, dtype)


def joined(count: int) -> Any:
    """Both contributions, one behind the other."""
    return np.concatenate([of(0, count), of(1, count)])


def fresh() -> list[Step]:
    """Memory of a world that nobody has used yet, and its call sites."""
    return [Step("barrier", ngd.barrier)]


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
        Step("leave", ngd.distributed.leave),
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


# ---- groups


def groups(rank: int) -> list[Step]:
    """Groups are split, used, left, and split again."""
    made: list[Any] = []

    def split() -> None:
        group = ngd.init().split(0, key=-rank)
        assert group is not None
        made.append(group)

    def alone_in_it() -> None:
        group = ngd.init().split(rank)
        assert group is not None
        check(group.all_reduce(of(rank, 3), op="sum"), of(rank, 3))
        group.close()

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
        *(Step("split", alone_in_it), Step("close", left)),
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
        state["w"], state["step"] = w, None
        state["step"] = ngd.compile([x, labels], [loss, mean, other, first], update)

    def run() -> None:
        rows = of(rank, 24).reshape(6, 4) / 24
        before = state["w"].numpy()
        _, mean, other, first = state["step"](rows, np.arange(6) % 3)
        check(first, of(1, 24).reshape(6, 4) / 24 * 2)
        check(other[6 * rank :][:6], np.asarray(other[6 * rank :][:6]))
        assert other.shape == (12, 4)
        check(state["w"].numpy(), before - 0.1 * mean)

    def compared() -> None:
        assert "agree" in state["step"].compare_ranks()

    def written() -> None:
        state["w"].assign(np.ones((4, 3)))
        assert str(state["step"])

    def dropped() -> None:
        state["step"] = None

    return [
        *fresh(),
        *(Step("split", split), Step("compile", built), Step("run", run), Step("run", run)),
        *(Step("compare", compared), Step("assign", written), Step("drop", dropped)),
        *(Step("compile", built), Step("run", run)),
    ]


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


def another_size(rank: int) -> list[Step]:
    """The ranks were told different sizes."""

    def apart() -> None:
        key = f"{os.environ['NGD_JOB']}-size"
        _core.Communicator.make_shm(key, rank, 2 + rank, 10.0)

    return [Step("init", apart, (errors.InitError,))]


def taken(rank: int) -> list[Step]:
    """Rank 0 finds its name taken, by what is no rank: rank 1 waits for an answer in vain."""

    def waited() -> None:
        key = f"{os.environ['NGD_JOB']}-taken"
        if rank == 1:
            _core.Communicator.make_shm(key, 5, 2, 1.0)
        else:
            _core.Communicator.make_shm(key, 0, 2, 1.0)

    return [Step("init", waited, (errors.InitError, errors.CollectiveTimeoutError))]


def name_of(process: int) -> str:
    """The name of the socket on which a process of ours listens, once it does."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        links = [os.readlink(entry) for entry in Path(f"/proc/{process}/fd").iterdir()]
        for line in Path("/proc/net/unix").read_text().splitlines():
            fields = line.split()
            if f"socket:[{fields[6]}]" in links and fields[-1].startswith("@ngd"):
                return "\0" + fields[-1][1:]
        time.sleep(0.001)
    raise AssertionError("rank 0 does not listen")


def stranger(rank: int) -> list[Step]:
    """Somebody who is no rank comes to the rendezvous, and says something."""

    def met() -> None:
        key = f"{os.environ['NGD_JOB']}-stranger"
        if rank == 1:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
                other.connect(name_of(int(os.environ["NGD_INJECT_FIRST"])))
                other.send(b"hello")
                time.sleep(0.1)
        _core.Communicator.make_shm(key, rank, 2, 10.0)

    return [Step("init", met)]


# ---- one rank


def refusals(rank: int) -> list[Step]:
    """Calls that are refused, or say how things are; long because it is a list."""
    world = alone().communicator

    def raises(kind: type[BaseException], call: Callable[[], Any]) -> Step:
        return Step(f"{kind.__name__} from line {call.__code__.co_firstlineno}", call, (kind,))

    def nonsense() -> None:
        os.environ["NGD_TIMEOUT"] = "soon"
        try:
            _core.timeout_seconds()
        finally:
            del os.environ["NGD_TIMEOUT"]

    def algorithm() -> None:
        os.environ["NGD_ALLREDUCE"] = "tree"
        try:
            _core.Communicator.make_shm("alone", 0, 1, 10.0)
        finally:
            del os.environ["NGD_ALLREDUCE"]

    def submit(*given: Any, **more: Any) -> Callable[[], Any]:
        kind, op, dtype = given
        root, count = more.pop("root", 0), 2
        array = np.ones(8)
        address = array.ctypes.data
        return lambda: world.submit(kind, op, dtype, count, root, address, address, **more)

    def overlap() -> None:
        array = np.zeros(4)
        _core.Grouped(
            world, "all_reduce", "sum", 0, [np.ones(3), np.ones(3)], [array[:3], array[1:]]
        )

    def alone_over_shm() -> None:
        one = _core.Communicator.make_shm("alone", 0, 1, 10.0)
        assert one.name == "shm"
        one.close()

    def builder() -> None:
        program = _core.ProgramBuilder()
        program.add_value("float32", (2, 3), "input", 0)
        program.add_value("float32", (2, 3), "output", 0)
        program.add_constant(b"12345678")
        attrs = {"n": 1, "f": 0.5, "t": "x" * 40, "many": [1, 2, 3]}
        program.add_instruction("run", "tanh", [0], [1], attrs, 0, 0, "here" * 10)
        program.add_group("text" * 10, 7)
        program.set_sizes(1, 1, 0)
        assert "tanh" in str(program)

    value, unsupported = ValueError, NotImplementedError
    return [
        Step("build_info", lambda: ngd.build_info()),
        Step("kernel_table", lambda: _core.kernel_table()),
        Step("thread_count", lambda: _core.thread_count()),
        Step("program", builder),
        Step("alone", alone_over_shm),
        raises(errors.InitError, nonsense),
        raises(value, algorithm),
        raises(value, lambda: world.submit("gossip", "sum", "float32", 1, 0, 0, 0)),
        raises(value, lambda: world.submit("barrier", "sum", "float31", 1, 0, 0, 0)),
        raises(value, submit("all_reduce", "median", "float32")),
        raises(value, submit("all_reduce", "none", "float32")),
        raises(value, submit("all_reduce", "mean", "int64")),
        raises(value, submit("all_reduce", "sum", "bool")),
        raises(value, submit("broadcast", "none", "float32", root=7)),
        raises(value, submit("send", "none", "float32", root=0)),
        raises(value, submit("all_to_all", "none", "float32", counts=[1])),
        raises(value, submit("all_to_all", "none", "float32", counts=[1], receive_counts=[2])),
        raises(value, submit("all_reduce", "sum", "float32", counts=[1])),
        raises(value, submit("all_gather", "none", "float32", counts=[1, 2])),
        raises(value, overlap),
        raises(unsupported, lambda: _core.Communicator.make_mpi(-1, 1.0)),
        raises(unsupported, lambda: _core.Communicator.make_hierarchical(-1, 1.0)),
        raises(errors.InitError, lambda: _core.Communicator.make_shm("key", 3, 2, 1.0)),
        raises(errors.InitError, lambda: _core.Communicator.make_shm("key", 3, 300, 1.0)),
        Step("next number", lambda: world.next_group_number()),
        raises(unsupported, lambda: world.group_of([0], 1, "key", 1.0)),
        Step("query", lambda: _core.query_kernel("nonsense", [], [], {})),
    ]


def kernels(rank: int) -> list[Step]:
    """Every sample of every op is compiled, run, and compared with the reference."""

    def runs(case: Case) -> Callable[[], None]:
        def run() -> None:
            inputs, arrays = placeholders(case.types), case.arrays()
            step = ngd.compile(inputs, [case.op.node(inputs, case.sample.attrs)])
            assert_close(step(*arrays)[0], np.asarray(case.reference(arrays)))

        return run

    dtypes = (None, np.bool_, np.int32, np.float16, np.float32)
    cases = [case for case in all_cases() if case.dtype in dtypes and not takes_two(case.op)]
    return [Step(str(case), runs(case)) for case in cases]


SHORT = {"NGD_TIMEOUT": "0.5"}

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("making", making, joins=False),
        Scenario("exiting", exiting),
        Scenario("small", lambda rank: kinds(rank, SMALL)),
        Scenario("middle", lambda rank: kinds(rank, MIDDLE)),
        Scenario("large", lambda rank: kinds(rank, LARGE)),
        Scenario("works", works),
        Scenario("groups", groups),
        Scenario("training", training),
        Scenario("mismatch", mismatch),
        Scenario("mismatch of counts", mismatch_of_counts),
        Scenario("mismatch of letters", mismatch_of_letters),
        Scenario("mismatch of programs", mismatch_of_programs),
        Scenario("late", late, env=SHORT),
        Scenario("late letter", late_letter, env=SHORT),
        Scenario("raised", raised),
        Scenario("left early", left_early),
        Scenario("another size", another_size, joins=False, again=False),
        Scenario("taken", taken, joins=False, again=False),
        Scenario("stranger", stranger, joins=False, again=False),
        Scenario("refusals", refusals, ranks=1, joins=False, independent=True),
        Scenario("kernels", kernels, ranks=1, joins=False, independent=True),
    )
}
