# SPDX-License-Identifier: Apache-2.0
"""Draws random collectives for random_collectives.py, and computes their results by NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt

import ngd

Array = npt.NDArray[Any]

KINDS = (
    *("all_reduce",) * 4,
    *("reduce_scatter",) * 3,
    *("broadcast",) * 3,
    *("all_gather",) * 2,
    "all_to_all",
    "gather",
    "scatter",
    "reduce",
    "barrier",
    "ring",
    "all_to_all_v",
    "all_gather_v",
    "send and receive",
    "list",
)
LENGTHS = (
    *(0, 1, 2, 3, 7, 64, 255, 479, 480, 481, 511, 512, 513, 959, 960, 961, 4096, 8191, 16384),
    *(65536, 65537, 131072, 262145, 524288, 600007, 1 << 20),
)
DTYPES: tuple[Any, ...] = (
    np.int64,
    np.float32,
    np.int32,
    np.uint8,
    ml_dtypes.bfloat16,
    np.float64,
)
MOST_PENDING = 8


@dataclass
class Counts:
    """The number of calls, and the file of wrong results."""

    path: Path
    """The file to which each wrong result is written at once, as a line."""

    calls: int = 0

    def note(self, wrong: str) -> None:
        """Write a wrong result."""
        with self.path.open("a") as file:
            file.write(f"{wrong}\n")


class Calls(Protocol):
    """The fields of a job on which its calls depend."""

    @property
    def per_host(self) -> tuple[int, ...]: ...
    @property
    def seed(self) -> int: ...
    @property
    def calls(self) -> int: ...
    @property
    def most_bytes(self) -> int: ...


class Members(NamedTuple):
    """A group, and the world ranks of each part of the split that made it, in order."""

    name: str
    group: Any
    parts: dict[int, list[int]]
    colors: Sequence[int]

    def of(self, rank: int) -> list[int]:
        """Return the world ranks of the part that contains a rank."""
        return self.parts[self.colors[rank]]


def make_groups(world: Any, per_host: tuple[int, ...]) -> list[Members]:
    """Split the world by host, by index on the host, in reverse order, and by parity."""
    ranks = range(world.size)
    hosts = [host for host, count in enumerate(per_host) for _ in range(count)]
    local_ranks = [local_rank for count in per_host for local_rank in range(count)]
    splits = {
        "host": (hosts, ranks),
        "place": (local_ranks, ranks),
        "reverse": ([0] * world.size, range(world.size, 0, -1)),
        "parity": ([rank % 2 for rank in ranks], ranks),
    }
    groups = [Members("world", world, {0: [*ranks]}, [0] * world.size)]
    for name, (colors, keys) in splits.items():
        parts = {
            color: sorted((r for r in ranks if colors[r] == color), key=lambda r: (keys[r], r))
            for color in set(colors)
        }
        group = world.split(colors[world.rank], keys[world.rank])
        groups.append(Members(name, group, parts, colors))
    return groups


class Draw(NamedTuple):
    """One call, which is drawn equally on all ranks."""

    number: int
    seed: int
    kind: str
    members: Members
    length: int
    dtype: Any
    op: str
    asynchronous: bool
    in_place: bool
    root: float
    counts: list[int]
    waits: bool

    def data(self, rank: int, length: int, part: int = 0) -> Array:
        """Return the operand of a rank."""
        generator = np.random.Generator(
            np.random.Philox(key=[self.seed, self.number], counter=[rank, part, 0, 0])
        )
        small = self.dtype in (ml_dtypes.bfloat16, np.uint8)  # so that no sum is rounded
        return generator.integers(0, 4 if small else 100, length).astype(self.dtype)

    def reduce_operands(self, operands: Sequence[Array]) -> Array:
        """Return the operands combined by the op."""
        exact = [x.astype(np.float64) if self.dtype is ml_dtypes.bfloat16 else x for x in operands]
        combine: Any = {"sum": np.add, "min": np.minimum, "max": np.maximum}[self.op]
        result: Array = combine.reduce(np.stack(exact), axis=0)
        return result.astype(self.dtype)


def draw_call(number: int, job: Calls, groups: list[Members], common: random.Random) -> Draw:
    """Draw the next call, which is the same on all ranks."""
    members = common.choice(groups)
    length = common.choice(LENGTHS) if common.random() < 0.8 else common.randrange(1, 1 << 20)
    dtype = common.choice(DTYPES)
    largest = max(len(part) for part in members.parts.values())
    return Draw(
        number,
        job.seed,
        common.choice(KINDS),
        members,
        min(length, max(1, job.most_bytes // np.dtype(dtype).itemsize // largest)),
        dtype,
        common.choice(("sum", "min", "max")),
        common.random() < 0.6,
        common.random() < 0.5,
        common.random(),
        [common.randrange(5000) for _ in range(64)],
        common.random() < 0.25,
    )


def call(draw: Draw, rank: int) -> tuple[Any, Array | None]:
    """Make a call; return its result or work, and the expected result, which may be None."""
    ranks = draw.members.of(rank)
    size, me, n, kind = len(ranks), ranks.index(rank), draw.length, draw.kind
    root = int(draw.root * size)
    mine = slice(me * n, (me + 1) * n)
    how: dict[str, Any] = {"group": draw.members.group, "async_op": draw.asynchronous}
    out: Array | None
    if kind in ("all_reduce", "ring"):
        x = draw.data(rank, n)
        if draw.in_place:
            how["out"] = x
        if kind == "ring":
            how["algorithm"] = "ring"
        expected = draw.reduce_operands([draw.data(r, n) for r in ranks])
        return ngd.all_reduce(x, op=draw.op, **how), expected
    if kind == "reduce_scatter":
        x = draw.data(rank, n * size)
        if draw.in_place:
            how["out"] = x[mine]
        expected = draw.reduce_operands([draw.data(r, n * size)[mine] for r in ranks])
        return ngd.reduce_scatter(x, op=draw.op, **how), expected
    if kind == "all_gather":
        x = draw.data(rank, n)
        if draw.in_place:
            out = np.zeros(n * size, draw.dtype)
            out[mine] = x
            x, how["out"] = out[mine], out
        expected = np.concatenate([draw.data(r, n) for r in ranks])
        return ngd.all_gather(x, **how), expected
    if kind == "broadcast":
        x = draw.data(rank, n)
        if draw.in_place:
            how["out"] = x
        return ngd.broadcast(x, root, **how), draw.data(ranks[root], n)
    if kind == "all_to_all":
        x = draw.data(rank, n * size)
        if draw.in_place:
            how["out"] = x
        expected = np.concatenate([draw.data(r, n * size)[mine] for r in ranks])
        return ngd.all_to_all(x, **how), expected
    if kind == "gather":
        expected = np.concatenate([draw.data(r, n) for r in ranks])
        result = ngd.gather(draw.data(rank, n), root, **how)
        return result, expected if me == root else None
    if kind == "reduce":
        expected = draw.reduce_operands([draw.data(r, n) for r in ranks])
        result = ngd.reduce(draw.data(rank, n), root, op=draw.op, **how)
        return result, expected if me == root else None
    if kind == "scatter":
        source = draw.data(ranks[root], n * size)
        result = ngd.scatter(
            source if me == root else None, root, out=np.zeros(n, draw.dtype), **how
        )
        return result, source[mine]
    return call_of_lengths(draw, rank, how)


def call_of_lengths(draw: Draw, rank: int, how: dict[str, Any]) -> tuple[Any, Array | None]:
    """Make a call of a kind whose ranks give different lengths."""
    ranks, counts = draw.members.of(rank), draw.counts
    me = ranks.index(rank)
    if draw.kind == "all_gather_v":
        counts_of_ranks = counts[: len(ranks)]
        expected = np.concatenate(
            [draw.data(r, k) for r, k in zip(ranks, counts_of_ranks, strict=True)]
        )
        return ngd.all_gather_v(
            draw.data(rank, counts_of_ranks[me]), counts=counts_of_ranks, **how
        ), expected
    assert draw.kind == "all_to_all_v"
    indices = range(len(ranks))
    table = [[counts[(i * 7 + j * 3) % len(counts)] for j in indices] for i in indices]
    blocks = []
    for sender, row in zip(ranks, table, strict=True):
        begin = sum(row[:me])
        blocks.append(draw.data(sender, sum(row))[begin : begin + row[me]])
    received = [row[me] for row in table]
    x = draw.data(rank, sum(table[me]))
    result = ngd.all_to_all_v(x, table[me], receive_counts=received, **how)
    return result, np.concatenate(blocks)


def call_at_once(draw: Draw, rank: int, check: Callable[[Any, Array, str], None]) -> bool:
    """Make and check a call that is not a single work; return if it was one."""
    ranks, group, n = draw.members.of(rank), draw.members.group, draw.length
    if draw.kind == "barrier":
        ngd.barrier(group=group)
    elif draw.kind == "send and receive":
        me = ranks.index(rank)
        to, source = (me + 1) % len(ranks), (me - 1) % len(ranks)
        if to == me:
            return True
        tag = draw.number % 1000
        sent = ngd.send(draw.data(rank, n), to, tag=tag, group=group, async_op=True)
        result = ngd.recv(source, tag=tag, shape=(n,), dtype=draw.dtype, group=group)
        sent.wait()
        check(result, draw.data(ranks[source], n), "")
    elif draw.kind == "list":
        counts_of_calls = [*draw.counts[:5], n]
        operands = [draw.data(rank, k, part) for part, k in enumerate(counts_of_calls)]
        results = ngd.all_reduce(operands, op=draw.op, group=group)
        for part, k in enumerate(counts_of_calls):
            check(
                results[part],
                draw.reduce_operands([draw.data(r, k, part) for r in ranks]),
                f" {part}",
            )
    else:
        return False
    return True


def make_calls(job: Calls, world: Any, counts: Counts, ready: Callable[[], None]) -> None:
    """Make the calls of a job, and record wrong results. `ready` is called before the first."""
    common, own = random.Random(job.seed), random.Random(f"{job.seed} {world.rank}")
    groups = make_groups(world, job.per_host)
    pending: list[tuple[Any, Array | None, Draw]] = []

    def check(draw: Draw, result: Any, expected: Array, part: str = "") -> None:
        got = np.asarray(result).reshape(expected.shape)
        wrong = np.flatnonzero(got != expected)
        if wrong.size:
            first = int(wrong[0])
            fields: dict[str, Any] = draw._asdict() | {"members": draw.members.name, "counts": []}
            counts.note(
                f"{fields}{part}: {wrong.size} of {got.size} elements are wrong, the first is "
                f"{first}: {got[first]} for {expected[first]}"
            )

    def finish() -> None:
        own.shuffle(pending)
        while pending:
            work, expected, draw = pending.pop()
            work.wait()
            if expected is not None:
                check(draw, work.result, expected)

    ready()
    for number in range(job.calls):
        draw = draw_call(number, job, groups, common)
        if not call_at_once(draw, world.rank, lambda *given, draw=draw: check(draw, *given)):
            result, expected = call(draw, world.rank)
            if draw.asynchronous:
                pending.append((result, expected, draw))
            elif expected is not None:
                check(draw, result, expected)
        counts.calls += 1
        if draw.waits or len(pending) > MOST_PENDING:
            finish()
    finish()
    ngd.barrier()
