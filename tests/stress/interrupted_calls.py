# SPDX-License-Identifier: Apache-2.0
"""The public calls that interrupts.py interrupts, each with its result if it is not interrupted.

In each run, every rank makes the same case. The values depend on the number of the run, so that a
call that is matched with a call of another run gives a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ngd
from ngd import ops

ELEMENTS = (3, 700, 60_000)
"""Numbers of elements: beside the flag, in one chunk, and in many chunks."""

SMALL = 40


@dataclass
class Case:
    """A call, its result, and objects that a rank checks after an interrupt."""

    call: Callable[[], Any]
    want: Any
    works: list[ngd.Work] = field(default_factory=list)
    """The works that a rank can wait for again. Work i gives `want[i]`."""
    group: ngd.Group | None = None
    """A group that must work, or be closed, as the world is."""
    state: Callable[[], str] = lambda: "nothing"
    """A function that returns the state that the call changes.

    It returns "before", "after" or "poisoned", or "nothing" if there is no such state.
    """


@dataclass
class Run:
    """One run on a rank, from which cases take their operands."""

    number: int
    count: int
    rank: int
    size: int
    kept: dict[str, Any]
    """Objects that live as long as the world."""

    def operand(self, rank: int | None = None, count: int | None = None, dtype: Any = float) -> Any:
        """Return an array of a rank. It has integers, so that sums are exact."""
        mine = self.rank if rank is None else rank
        values = np.arange(self.count if count is None else count) % 89
        return ((values + 1) * (mine + 1) + self.number % 1000).astype(dtype)

    def total(self, count: int | None = None, dtype: Any = float) -> Any:
        """Return the sum over the ranks."""
        return sum(self.operand(rank, count) for rank in range(self.size)).astype(dtype)

    def joined(self, count: int | None = None) -> Any:
        """Return the concatenation over the ranks."""
        return np.concatenate([self.operand(rank, count) for rank in range(self.size)])

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return an object that is made at its first use in a world."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]


def all_reduce(run: Run) -> Case:
    x = run.operand()
    return Case(lambda: ngd.all_reduce(x, op="sum"), run.total())


def all_reduce_ring(run: Run) -> Case:
    x = run.operand()
    return Case(lambda: ngd.all_reduce(x, op="sum", algorithm="ring"), run.total())


def all_reduce_in_place(run: Run) -> Case:
    x = run.operand()
    return Case(lambda: ngd.all_reduce(x, op="sum", out=x, algorithm="flat"), run.total())


def all_reduce_mean(run: Run) -> Case:
    x, want = run.operand() * run.size, run.total()
    return Case(lambda: ngd.all_reduce(x, op="mean", out=x), want)


def all_reduce_list(run: Run) -> Case:
    xs = [run.operand(), run.operand(count=SMALL), run.operand(count=SMALL, dtype=np.float32)]
    want = [run.total(), run.total(SMALL), run.total(SMALL, np.float32)]
    return Case(lambda: ngd.all_reduce(xs, op="sum"), want)


def all_reduce_list_flat(run: Run) -> Case:
    xs = [run.operand(), run.operand(count=SMALL), run.operand(count=SMALL, dtype=np.float32)]
    want = [run.total(), run.total(SMALL), run.total(SMALL, np.float32)]
    return Case(lambda: ngd.all_reduce(xs, op="sum", algorithm="flat"), want)


def all_reduce_weighted(run: Run) -> Case:
    x = np.full(run.count, float(1 + run.number % 7 + run.rank))
    parts = [(1 + run.number % 7 + r) * 2.0**r for r in range(run.size)]
    want = np.full(run.count, sum(parts) / sum(2.0**r for r in range(run.size)))
    return Case(lambda: ngd.all_reduce(x, op="mean", weight=2.0**run.rank), want)


def all_reduce_rounded(run: Run) -> Case:
    x = np.full(run.count, float(run.number % 16 + run.rank), np.float32)
    want = np.full(run.count, sum(run.number % 16 + r for r in range(run.size)), np.float32)
    return Case(lambda: ngd.all_reduce(x, op="sum", compression="bf16"), want)


def _sparse(run: Run, top: ngd.TopK, rank: int) -> tuple[Any, Any]:
    """Return an array of which TopK sends one element, and the residual."""
    x = np.arange(run.count, dtype=float) + run.number % 50 + rank
    residual = x.copy()
    residual[-1] = 0
    top.reset()
    return x, residual


def all_reduce_sparse(run: Run) -> Case:
    top = run.once("top", lambda: ngd.TopK(1e-9))
    x, residual = _sparse(run, top, run.rank)
    want = np.zeros(run.count)
    want[-1] = sum(run.count - 1 + run.number % 50 + r for r in range(run.size))

    def state() -> str:
        if top.residual is None:
            return "before"
        return "after" if np.array_equal(top.residual, residual) else f"residual {top.residual}"

    return Case(lambda: ngd.all_reduce(x, op="sum", compression=top), want, state=state)


def all_reduce_sparse_list(run: Run) -> Case:
    top = run.once("tops", lambda: ngd.TopK(1e-9))
    x, residual = _sparse(run, top, run.rank)
    want = np.zeros(run.count)
    want[-1] = sum(run.count - 1 + run.number % 50 + r for r in range(run.size))

    def state() -> str:
        got = [top[i].residual for i in range(2)]
        if all(each is None for each in got):
            return "before"
        good = all(each is not None and np.array_equal(each, residual) for each in got)
        return "after" if good else f"residuals {got}"

    call = lambda: ngd.all_reduce([x, x.copy()], op="sum", compression=top)  # noqa: E731
    return Case(call, [want, want], state=state)


def reduce_scatter(run: Run) -> Case:
    x = np.tile(run.operand(), run.size)
    return Case(lambda: ngd.reduce_scatter(x, op="sum"), run.total())


def reduce_scatter_columns(run: Run) -> Case:
    x = np.stack([run.operand()] * run.size, axis=1)
    return Case(lambda: ngd.reduce_scatter(x, op="sum", axis=1), run.total()[:, None])


def all_gather(run: Run) -> Case:
    x = run.operand()
    return Case(lambda: ngd.all_gather(x), run.joined())


def all_gather_columns(run: Run) -> Case:
    x = run.operand()[:, None]
    want = np.stack([run.operand(rank) for rank in range(run.size)], axis=1)
    out = np.empty_like(want)
    return Case(lambda: ngd.all_gather(x, axis=1, out=out), want)


def all_gather_v(run: Run) -> Case:
    x = run.operand(count=run.count + run.rank)
    want = np.concatenate([run.operand(r, run.count + r) for r in range(run.size)])
    return Case(lambda: ngd.all_gather_v(x), want)


def broadcast(run: Run) -> Case:
    x, root = run.operand(), run.number % run.size
    return Case(lambda: ngd.broadcast(x, root, out=x), run.operand(root))


def broadcast_list(run: Run) -> Case:
    root = run.number % run.size
    xs = [run.operand(), run.operand(count=SMALL)]
    outs = [np.empty_like(x) for x in xs]
    want = [run.operand(root), run.operand(root, SMALL)]
    group = ngd.init()
    return Case(lambda: group.broadcast(xs, root, out=outs, site="here:1"), want)


def reduce(run: Run) -> Case:
    x, root = run.operand(), run.number % run.size
    want = run.total() if run.rank == root else None
    return Case(lambda: ngd.reduce(x, root, op="sum"), want)


def gather(run: Run) -> Case:
    x, root = run.operand(), run.number % run.size
    want = run.joined() if run.rank == root else None
    return Case(lambda: ngd.gather(x, root), want)


def scatter(run: Run) -> Case:
    root = run.number % run.size
    x = np.concatenate([run.operand(root) + r for r in range(run.size)])
    shape = run.operand().shape
    source = x if run.rank == root else None
    how: dict[str, Any] = {} if run.rank == root else {"shape": shape, "dtype": float}
    return Case(lambda: ngd.scatter(source, root, **how), run.operand(root) + run.rank)


def all_to_all(run: Run) -> Case:
    x = np.concatenate([run.operand() + r for r in range(run.size)])
    want = np.concatenate([run.operand(r) + run.rank for r in range(run.size)])
    return Case(lambda: ngd.all_to_all(x), want)


def all_to_all_v(run: Run) -> Case:
    counts = [run.count + r for r in range(run.size)]
    x = np.concatenate([run.operand(count=n) + r for r, n in enumerate(counts)])
    mine = counts[run.rank]
    want = np.concatenate([run.operand(r, mine) + run.rank for r in range(run.size)])
    return Case(lambda: ngd.all_to_all_v(x, counts), want)


def barrier(run: Run) -> Case:
    return Case(lambda: ngd.barrier(), None)


def works(run: Run) -> Case:
    x = run.operand()
    case = Case(lambda: None, [run.total(), run.joined(), run.operand(0), None])

    def call() -> Any:
        case.works.append(ngd.all_reduce(x, op="sum", async_op=True))
        case.works.append(ngd.all_gather(x, async_op=True))
        case.works.append(ngd.broadcast(x, 0, async_op=True))
        case.works.append(ngd.barrier(async_op=True))
        return [work.wait() for work in reversed(case.works)][::-1]

    case.call = call
    return case


def works_of_forms(run: Run) -> Case:
    """Start works whose results are copied when they complete."""
    x, narrow = run.operand(), np.full(run.count, float(run.number % 16 + run.rank), np.float32)
    out = np.empty((run.count, run.size))
    columns = np.stack([run.operand(rank) for rank in range(run.size)], axis=1)
    sums = np.full(run.count, sum(run.number % 16 + r for r in range(run.size)), np.float32)
    case = Case(lambda: None, [columns, sums, [run.total(), run.total(SMALL)]])

    def call() -> Any:
        small = run.operand(count=SMALL)
        case.works.append(ngd.all_gather(x[:, None], axis=1, out=out, async_op=True))
        case.works.append(ngd.all_reduce(narrow, op="sum", compression="bf16", async_op=True))
        case.works.append(ngd.all_reduce([x, small], op="sum", async_op=True))
        return [work.wait() for work in case.works]

    case.call = call
    return case


def works_asked(run: Run) -> Case:
    """Poll with done() until it is true, and wait with timeouts."""
    x = run.operand()
    case = Case(lambda: None, [run.total(), run.joined()])

    def call() -> Any:
        case.works.append(ngd.all_reduce(x, op="sum", async_op=True))
        case.works.append(ngd.all_gather(x, async_op=True))
        while not case.works[0].done():
            pass
        while True:
            try:
                return [case.works[0].result, case.works[1].wait(1e-3)]
            except TimeoutError:
                pass

    case.call = call
    return case


def works_dropped(run: Run) -> Case:
    """Drop the work of the second call."""
    x = run.operand()

    def call() -> Any:
        work = ngd.all_reduce(x.copy(), op="sum", async_op=True)
        return ngd.all_gather(x, out=np.empty(run.count * run.size)), work.wait()

    return Case(call, (run.joined(), run.total()))


def send_and_recv(run: Run) -> Case:
    """Send the array to the next rank, and receive from the previous one."""
    x, before = run.operand(), (run.rank - 1) % run.size

    def call() -> Any:
        if run.rank % 2:
            got = ngd.recv(before, shape=run.count, dtype=float)
            ngd.send(x, (run.rank + 1) % run.size)
            return got
        work = ngd.send(x, (run.rank + 1) % run.size, async_op=True)
        got = ngd.recv(before, out=np.empty(run.count))
        work.wait()
        return got

    return Case(call, run.operand(before))


def group_of_all(run: Run) -> Case:
    """Call collectives in a group of all ranks in another order."""
    group = run.once("group", lambda: ngd.init().split(0, -run.rank, name="turned"))
    x = run.operand()
    return Case(
        lambda: [group.all_reduce(x, op="sum"), group.all_gather(x[:SMALL], site="here:2")],
        [run.total(), np.concatenate([run.operand(r)[:SMALL] for r in range(run.size)][::-1])],
        group=group,
    )


def split(run: Run) -> Case:
    """Split the world, and call a collective in the new group."""
    x = run.operand()

    def call() -> Any:
        return ngd.init().split(0, run.rank).all_reduce(x, op="sum")

    return Case(call, run.total())


def make_mesh(run: Run) -> Case:
    def call() -> Any:
        mesh = ngd.make_mesh((run.size, 1), ("data", "model"))
        return [mesh.coordinates, mesh["data"].all_reduce(run.operand(), op="sum")]

    return Case(call, [(run.rank, 0), run.total()])


def join(run: Run) -> Case:
    """Join ranks with 1, 2, ... batches."""

    def call() -> Any:
        batches = [float(run.number)] * (run.rank + 1)
        return [
            ngd.all_reduce(np.array(batch), op="mean", weight=weight).item()
            for batch, weight in ngd.join(batches)
        ]

    return Case(call, [float(run.number)] * run.size)


def comm_stats(run: Run) -> Case:
    return Case(lambda: str(ngd.comm_stats())[:5], "group")


def broadcast_variables(run: Run) -> Case:
    """Broadcast two variables of equal shape, whose values must not be mixed up."""
    names = ("a", "b")
    variables = run.once("alike", lambda: [ngd.variable(n, np.zeros(SMALL)) for n in names])
    for offset, variable in enumerate(variables):
        variable.assign(run.operand(count=SMALL) + offset)

    def call() -> Any:
        ngd.broadcast_variables(variables, root=0)
        return [variable.numpy() for variable in variables]

    return Case(call, [run.operand(0, SMALL), run.operand(0, SMALL) + 1])


def _value_of(variable: ngd.Variable, before: Any, after: Any) -> str:
    try:
        value = variable.numpy()
    except ngd.errors.PoisonedVariableError:
        return "poisoned"
    if np.array_equal(value, after):
        return "after"
    return "before" if np.array_equal(value, before) else f"a variable of {value}"


def _step(run: Run, device: str, collective: bool) -> Case:
    """Run a step that computes w += all_reduce(x) and v += 2 all_reduce(x)."""

    def make() -> Any:
        x = ngd.placeholder("x", (run.count,), np.float64)
        w, v = (ngd.variable(name, np.zeros(run.count)) for name in "wv")
        y = ops.all_reduce(x, op="sum") if collective else x * 1.0
        outputs = [y] if not collective else [y, ops.all_reduce(x * 2.0, op="max")]
        updates = {w: w + y, v: v + y * 2.0}
        return ngd.compile([x], outputs, updates, device=device), w, v

    step, w, v = run.once(f"step {device} {collective} {run.count}", make)
    begin = run.operand(0)
    for variable in (w, v):
        variable.assign(begin)
    x = run.operand()
    total = run.total() if collective else x
    want = [total, run.operand(run.size - 1) * 2.0] if collective else [total]

    def state() -> str:
        one = _value_of(w, begin, begin + total)
        other = _value_of(v, begin, begin + 2 * total)
        both = {one, other}
        if "poisoned" in both and len(both - {"poisoned", "before", "after"}) == 0:
            return "poisoned"
        return one if one == other else f"w is as {one}, v as {other}"

    return Case(lambda: step(x), want, state=state)


def step_on_the_cpu(run: Run) -> Case:
    return _step(run, "CPU", True)


def step_of_the_interpreter(run: Run) -> Case:
    return _step(run, "INTERPRETER", True)


def step_alone_on_the_cpu(run: Run) -> Case:
    return _step(run, "CPU", False)


def step_alone_of_the_interpreter(run: Run) -> Case:
    return _step(run, "INTERPRETER", False)


def step_twice(run: Run) -> Case:
    """Run a step on INTERPRETER, and again after an interrupt. The step must count once."""
    step, _, _ = run.once(f"twice {run.count}", lambda: _twice(run))
    x = run.operand()

    def call() -> Any:
        try:
            return step(x)
        except KeyboardInterrupt:
            return step(x)

    return Case(call, [run.total(), run.operand(run.size - 1) * 2.0])


def _twice(run: Run) -> Any:
    x = ngd.placeholder("x", (run.count,), np.float64)
    outputs = [ops.all_reduce(x, op="sum"), ops.all_reduce(x * 2.0, op="max")]
    return ngd.compile([x], outputs, device="INTERPRETER"), None, None


def compile_step(run: Run) -> Case:
    """Compile a step, and run it once."""
    device = ("CPU", "INTERPRETER")[run.number % 2]
    x = run.operand(count=SMALL)

    def call() -> Any:
        x_in_graph = ngd.placeholder("x", (SMALL,), np.float64)
        step = ngd.compile(
            [x_in_graph], [ops.all_reduce(x_in_graph + 1.0, op="sum")], device=device
        )
        return step(x)

    return Case(call, [run.total(SMALL) + run.size])


def traced_function(run: Run) -> Case:
    """Trace a function again in each run. An interrupted trace must not remain."""
    f = run.once("function", lambda: ngd.function(_sum_of_next))
    f.clear()
    x = run.operand(count=SMALL)
    return Case(lambda: f(x), run.total(SMALL) + run.size)


def _sum_of_next(x: Any) -> Any:
    return ops.all_reduce(x + 1.0, op="sum")


def compare_ranks(run: Run) -> Case:
    step, _, _ = run.once(f"twice {run.count}", lambda: _twice(run))
    return Case(lambda: step.compare_ranks()[:19], f"world: all {run.size} ranks ")


def assign(run: Run) -> Case:
    """Assign a variable that has values on two devices."""

    def make() -> Any:
        v = ngd.variable("v", np.zeros(SMALL))
        return v, [ngd.compile([], [v * 1.0], device=d) for d in ("CPU", "INTERPRETER")]

    variable, steps = run.once("variable", make)
    before, after = run.operand(0, SMALL), run.operand(1, SMALL)
    variable.assign(before)

    def call() -> Any:
        variable.assign(after)
        return [variable.numpy(), variable.numpy("CPU"), variable.numpy("INTERPRETER")]

    def state() -> str:
        if (state_of_value := _value_of(variable, before, after)) == "poisoned":
            return state_of_value
        values = [variable.numpy(d) for d in ("CPU", "INTERPRETER")] + [s()[0] for s in steps]
        same = all(np.array_equal(value, variable.numpy()) for value in values)
        return state_of_value if same else "devices that differ"

    return Case(call, [after] * 3, state=state)


def init(run: Run) -> Case:
    ngd.shutdown()
    return Case(lambda: ngd.init().size, run.size)


def shutdown(run: Run) -> Case:
    return Case(lambda: ngd.shutdown(), None)


CASES: dict[str, Callable[[Run], Case]] = {
    make.__name__: make
    for make in (
        all_reduce,
        all_reduce_ring,
        all_reduce_in_place,
        all_reduce_mean,
        all_reduce_list,
        all_reduce_list_flat,
        all_reduce_weighted,
        all_reduce_rounded,
        all_reduce_sparse,
        all_reduce_sparse_list,
        reduce_scatter,
        reduce_scatter_columns,
        all_gather,
        all_gather_columns,
        all_gather_v,
        broadcast,
        broadcast_list,
        reduce,
        gather,
        scatter,
        all_to_all,
        all_to_all_v,
        barrier,
        works,
        works_of_forms,
        works_asked,
        works_dropped,
        send_and_recv,
        group_of_all,
        split,
        make_mesh,
        join,
        comm_stats,
        broadcast_variables,
        step_on_the_cpu,
        step_of_the_interpreter,
        step_alone_on_the_cpu,
        step_alone_of_the_interpreter,
        step_twice,
        compile_step,
        traced_function,
        compare_ranks,
        assign,
        init,
        shutdown,
    )
}

ALONE = ("comm_stats", "step_alone_on_the_cpu", "step_alone_of_the_interpreter", "assign")
"""The calls that need no other rank."""

LEAVE = ("init", "shutdown")
"""The calls that end or replace the world."""

MESSAGES = ("send_and_recv",)
"""The calls that may leave a message that was sent and not received by the interrupted rank."""
