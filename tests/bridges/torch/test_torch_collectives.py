# SPDX-License-Identifier: Apache-2.0
"""Compare torch.distributed over "ngd" with plain PyTorch on the inputs of all ranks.

Every rank can draw the inputs of every other rank. The numbers are small integers, so that each
dtype holds the results exactly, in any order of computation.
"""

from __future__ import annotations

import functools
import itertools
import operator
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.support import harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

from tests.bridges.torch import torch_ranks  # noqa: E402

Tensor = Any
pytestmark = harness.needs_ranks

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
SHAPES = ((0,), (1,), (5,), (3, 4, 2), (70_001,))
COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": operator.add,
    "PRODUCT": operator.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}


def draw(rank: int, shape: tuple[int, ...], dtype: Any = torch.float32, salt: int = 0) -> Tensor:
    """Return the values of a rank: 1, 2 or 3; for booleans both values."""
    numbers = torch.Generator().manual_seed(97 * salt + rank)
    values = torch.randint(1, 4, shape, generator=numbers)
    return values.ge(2) if dtype is torch.bool else values.to(dtype)


def with_stride(tensor: Tensor) -> Tensor:
    """Return the same values as a view with a stride of two elements."""
    pairs = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
    pairs[..., 0] = tensor
    return pairs[..., 0]


def reduce_values(op: str, values: list[Tensor]) -> Tensor:
    if op == "AVG":
        return functools.reduce(operator.add, [v.double() for v in values]) / len(values)
    return functools.reduce(COMBINE[op], values)


def check_equal(got: Tensor, expected: Tensor, case: object) -> None:
    expected = expected.to(got.dtype)
    assert got.shape == expected.shape, (case, got.shape, expected.shape)
    assert torch.equal(got, expected), (case, got, expected)


def each_rank(size: int, *how: Any) -> list[Tensor]:
    return [draw(rank, *how) for rank in range(size)]


# Reductions, in place.


def check_reductions(rank: int, size: int) -> None:
    cases = itertools.product((*FLOATS, *INTEGERS), SHAPES, (*COMBINE, "AVG"))
    for number, (dtype, shape, op) in enumerate(cases):
        if op == "AVG" and not dtype.is_floating_point:
            continue
        values = each_rank(size, shape, dtype, number)
        expected = reduce_values(op, values)
        what = (dtype, shape, op)
        for layout in (torch.clone, with_stride):
            mine = layout(values[rank])
            dist.all_reduce(mine, op=getattr(dist.ReduceOp, op))
            check_equal(mine, expected, what)
        root = number % size
        mine = values[rank].clone()
        dist.reduce(mine, root, op=getattr(dist.ReduceOp, op))
        check_equal(mine, expected if rank == root else values[rank], (what, "reduce"))


def check_special_reductions(rank: int, size: int) -> None:
    truths = each_rank(size, (9,), torch.bool)
    for op, combine in (("SUM", "any"), ("MAX", "any"), ("BOR", "any"), ("MIN", "all")):
        mine = truths[rank].clone()
        dist.all_reduce(mine, op=getattr(dist.ReduceOp, op))
        check_equal(mine, getattr(torch.stack(truths), combine)(0), op)
    values = each_rank(size, (6,))
    mine = values[rank].clone()
    dist.all_reduce(mine, op=dist._make_nccl_premul_sum(0.5))
    check_equal(mine, reduce_values("SUM", values) / 2, "premultiplied")
    waves = [torch.complex(v, -v) for v in values]
    mine = waves[rank].clone()
    dist.all_reduce(mine)
    check_equal(mine, functools.reduce(operator.add, waves), "complex")
    dist.broadcast(mine := waves[rank].clone(), size - 1)
    check_equal(mine, waves[-1], "complex broadcast")
    total = functools.reduce(operator.add, waves)
    # PyTorch's quotient of a complex number and a real one differs in the last digit.
    average = torch.view_as_complex(torch.view_as_real(total) / size)
    for op, expected in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.AVG, average)):
        dist.reduce(mine := waves[rank].clone(), size - 1, op=op)
        check_equal(mine, expected if rank == size - 1 else waves[rank], "complex reduce")
        got = torch.zeros(6, dtype=torch.complex64)
        dist.reduce_scatter(got, [wave.clone() for wave in waves], op=op)
        check_equal(
            got, waves[rank] * (size if op == dist.ReduceOp.SUM else 1), "complex reduce_scatter"
        )
        dist.reduce_scatter_tensor(got, torch.cat(waves), op=op)
        check_equal(
            got, waves[rank] * (size if op == dist.ReduceOp.SUM else 1), "reduce_scatter_tensor"
        )


def check_lazy_views(rank: int, size: int) -> None:
    """Run collectives on views whose values are conjugated or negated when they are read."""
    waves = [torch.complex(v, v + 1) for v in each_rank(size, (6,))]
    into = [torch.zeros(6, dtype=torch.complex64).conj() for _ in range(size)]
    dist.gather(waves[rank].conj(), into if rank == 0 else None, 0)
    for got, wave in zip(into if rank == 0 else [], waves, strict=False):
        check_equal(got, wave.conj(), "gather")
    mine = waves[rank].clone().conj()
    dist.reduce(mine, 0)
    total = functools.reduce(operator.add, waves)
    check_equal(mine, (total if rank == 0 else waves[rank]).conj(), "reduce")
    negated = torch._neg_view(waves[rank].imag.clone())
    dist.all_reduce(negated)
    check_equal(negated, -sum(wave.imag for wave in waves), "all_reduce")


def check_timeout_of_a_call(rank: int, size: int) -> None:
    if size != 2:
        return
    group = dist.new_group(timeout=timedelta(seconds=300))
    if rank == 0:
        with pytest.raises(
            RuntimeError, match=r"(?s)rank 1 did not arrive .*\sTimed out waiting 50ms"
        ):
            dist.barrier(group=group, timeout=timedelta(seconds=0.05))


def check_profiler(rank: int, size: int) -> None:
    """Check that a profiler records each call and each wait."""
    tensor = torch.ones(3, 4)
    for make in (torch.profiler.profile, torch.autograd.profiler.profile):
        with make(record_shapes=True) as profile:
            dist.all_reduce(tensor)
            work = dist.broadcast(tensor, 0, async_op=True)
            work.wait()
        events = profile.events() if hasattr(profile, "events") else profile.function_events
        names = [event.name for event in events]
        shapes = [event.input_shapes for event in events if event.name == "ngd:all_reduce"]
        assert shapes == [[[3, 4]]], shapes
        for name in ("all_reduce", "all_reduce (wait)", "broadcast", "broadcast (wait)"):
            assert names.count(f"ngd:{name}") == 1 or size == 1, (name, names)
    many = [torch.full((n,), float(rank)) for n in (3, 0, 7)]
    dist.all_reduce_coalesced(many)
    for each in many:
        check_equal(each, torch.full_like(each, sum(range(size))), "coalesced")


# One block per rank.


def check_blocks(rank: int, size: int) -> None:
    for number, (dtype, shape, layout) in enumerate(
        itertools.product(
            (*FLOATS, torch.int64, torch.bool, torch.complex64), SHAPES, (torch.clone, with_stride)
        )
    ):
        what = (dtype, shape, layout)
        values = each_rank(size, shape, dtype, number)
        mine = layout(values[rank])
        gathered = [layout(torch.zeros(shape, dtype=dtype)) for _ in range(size)]
        dist.all_gather(gathered, mine)
        for got, expected in zip(gathered, values, strict=True):
            check_equal(got, expected, ("all_gather", what))
        result = layout(torch.zeros((size, *shape), dtype=dtype))
        dist.all_gather_into_tensor(result, mine)
        check_equal(result, torch.stack(values), ("all_gather_into_tensor", what))
        for root in range(size):
            sent = layout(values[root]) if rank == root else layout(torch.zeros_like(mine))
            dist.broadcast(sent, root)
            check_equal(sent, values[root], ("broadcast", what))
            into = [layout(torch.zeros_like(mine)) for _ in range(size)] if rank == root else None
            dist.gather(mine, into, root)
            for got, expected in zip(into or [], values, strict=False):
                check_equal(got, expected, ("gather", what))
            result = layout(torch.zeros((size, *shape) if rank == root else (0,), dtype=dtype))
            options = dist.GatherOptions()
            options.rootRank = root
            dist.group.WORLD.gather_single(
                result, mine, options
            ).wait()  # a function exists from 2.14 on
            check_equal(
                result, torch.stack(values) if rank == root else result, ("gather_single", what)
            )
            got = layout(torch.zeros_like(mine))
            dist.scatter(got, [layout(v) for v in values] if rank == root else None, root)
            check_equal(got, values[rank], ("scatter", what))


def check_reduced_blocks(rank: int, size: int) -> None:
    for number, (dtype, shape, op, layout) in enumerate(
        itertools.product(FLOATS, SHAPES, ("SUM", "AVG", "MAX"), (torch.clone, with_stride))
    ):
        values = each_rank(size, (size, *shape), dtype, number)
        expected = reduce_values(op, values)[rank]
        redop = getattr(dist.ReduceOp, op)
        got = layout(torch.zeros(shape, dtype=dtype))
        dist.reduce_scatter(got, [layout(v) for v in values[rank]], op=redop)
        check_equal(got, expected, ("reduce_scatter", dtype, shape, op))
        got = layout(torch.zeros(shape, dtype=dtype))
        dist.reduce_scatter_tensor(got, layout(values[rank]), op=redop)
        check_equal(got, expected, ("reduce_scatter_tensor", dtype, shape, op))


def check_uneven_blocks(rank: int, size: int) -> None:
    mine = draw(rank, (rank + 2,))
    gathered = [torch.zeros(r + 2) for r in range(size)]
    dist.all_gather(gathered, mine)
    for r, got in enumerate(gathered):
        check_equal(got, draw(r, (r + 2,)), "all_gather")
    inputs = [[draw(r, (b + 1,), torch.float32, b) for b in range(size)] for r in range(size)]
    got = torch.zeros(rank + 1)
    dist.reduce_scatter(got, inputs[rank])
    check_equal(
        got,
        reduce_values("SUM", [blocks_of_rank[rank] for blocks_of_rank in inputs]),
        "reduce_scatter",
    )


def check_exchanges(rank: int, size: int) -> None:
    for dtype, rows in itertools.product((torch.float32, torch.bfloat16, torch.int64), (0, 1, 900)):
        # Rank r sends rows x (r + to) elements to rank `to`.
        sent = [
            [draw(r, (rows * (r + to), 2), dtype, to) for to in range(size)] for r in range(size)
        ]
        received = [sent[r][rank] for r in range(size)]
        outputs = [torch.zeros_like(block) for block in received]
        dist.all_to_all(outputs, [block.clone() for block in sent[rank]])
        for got, expected in zip(outputs, received, strict=True):
            check_equal(got, expected, "all_to_all")
        received_rows = torch.zeros(sum(len(b) for b in received), 2, dtype=dtype)
        dist.all_to_all_single(
            received_rows,
            torch.cat(sent[rank]),
            [len(b) for b in received],
            [len(b) for b in sent[rank]],
        )
        check_equal(received_rows, torch.cat(received), "all_to_all_single")
    values = each_rank(size, (2 * size, 3))
    received_rows = torch.zeros(2 * size, 3)
    dist.all_to_all_single(received_rows, values[rank])
    check_equal(
        received_rows, torch.cat([v[2 * rank : 2 * rank + 2] for v in values]), "even splits"
    )


# Point-to-point messages.


def check_messages(rank: int, size: int) -> None:
    if size == 1:
        return
    left, right = (rank - 1) % size, (rank + 1) % size
    for dtype, shape, layout in itertools.product(
        (torch.float32, torch.bfloat16, torch.bool), SHAPES, (torch.clone, with_stride)
    ):
        mine, got = layout(draw(rank, shape, dtype)), layout(torch.zeros(shape, dtype=dtype))
        work = dist.isend(mine, right, tag=7)
        dist.recv(got, left, tag=7)
        work.wait()
        check_equal(got, draw(left, shape, dtype), (dtype, shape))
    # Several messages at once, in both directions.
    sent = [draw(rank, (1000,), torch.float32, n) for n in range(3)]
    got = [torch.zeros(1000) for _ in sent]
    others = [dist.P2POp(dist.irecv, tensor, left) for tensor in got]
    for work in dist.batch_isend_irecv(
        [*others, *(dist.P2POp(dist.isend, t, right) for t in sent)]
    ):
        work.wait()
    for n, each in enumerate(got):
        check_equal(each, draw(left, (1000,), torch.float32, n), "batch")
    with pytest.raises(ValueError, match="the rank that sends"):
        dist.recv(torch.zeros(1))


# Objects, coalescing, and the collectives of torch.compile.


def check_objects(rank: int, size: int) -> None:
    mine = {"rank": rank, "text": "x" * (10 * rank)}
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, mine)
    assert [each["rank"] for each in gathered] == list(range(size))
    shared = ["of rank 0" if rank == 0 else None, rank]
    dist.broadcast_object_list(shared, 0)
    assert shared == ["of rank 0", 0]
    into = [None] * size if rank == size - 1 else None
    dist.gather_object(mine, into, size - 1)
    assert into is None or into == gathered
    got: list[Any] = [None]
    dist.scatter_object_list(got, [f"to {r}" for r in range(size)] if rank == 0 else None, 0)
    assert got == [f"to {rank}"]
    dist.barrier()


def check_coalesced(rank: int, size: int) -> None:
    sizes = (3, 1, 1000)
    mine = [draw(rank, (n,), torch.float32, n) for n in sizes]
    all_of = [torch.stack(each_rank(size, (n,), torch.float32, n)) for n in sizes]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in mine:
            dist.all_reduce(tensor)
    manager.wait()
    for got, expected in zip(mine, all_of, strict=True):
        check_equal(got, expected.sum(0), "all_reduce")
    into = [torch.zeros_like(gathered) for gathered in all_of]
    with dist._coalescing_manager():
        for gathered, expected in zip(into, all_of, strict=True):
            dist.all_gather_into_tensor(gathered, expected[rank].clone())
    for got, expected in zip(into, all_of, strict=True):
        check_equal(got, expected, "all_gather_into_tensor")
    out = [torch.zeros(n) for n in sizes]
    with dist._coalescing_manager():
        for got, gathered in zip(out, all_of, strict=True):
            dist.reduce_scatter_tensor(got, gathered)
    for got, gathered in zip(out, all_of, strict=True):
        check_equal(got, size * gathered[rank], "reduce_scatter_tensor")
    many = [draw(rank, (n,), torch.float32, n) for n in sizes]
    dist.all_reduce_coalesced(many)
    for got, expected in zip(many, all_of, strict=True):
        check_equal(got, expected.sum(0), "all_reduce_coalesced")


def check_lists_of_ranks(rank: int, size: int) -> None:
    """Check all_gather_coalesced with one list of tensors per rank, of several lengths."""
    for count in (1, 2, size, size + 1):
        for dtype in (torch.float32, torch.complex64, torch.bool):
            values = [[draw(r, (n + 2, 3), dtype, n) for n in range(count)] for r in range(size)]
            into = [[torch.zeros_like(value) for value in of_rank] for of_rank in values]
            dist.all_gather_coalesced(into, values[rank])
            for r, (got, expected) in enumerate(zip(into, values, strict=True)):
                for n in range(count):
                    check_equal(got[n], expected[n], ("all_gather_coalesced", count, dtype, r, n))
    into = [[torch.zeros(3)] for _ in range(size)]
    dist.all_gather_coalesced(into, [draw(rank, (3,))], async_op=True).wait()
    check_equal(
        torch.stack([of_rank[0] for of_rank in into]), torch.stack(each_rank(size, (3,))), "async"
    )
    with pytest.raises(ValueError, match=f"expected {size} lists of outputs, one per rank, of 1"):
        dist.all_gather_coalesced(into[1:], [draw(rank, (3,))])


def check_functional_collectives(rank: int, size: int) -> None:
    """Check the functional collectives. DTensor and torch.compile use them."""
    group = dist.group.WORLD
    values = each_rank(size, (2 * size, 3))
    mine = values[rank]
    total = reduce_values("SUM", values)
    rows = slice(2 * rank, 2 * rank + 2)
    check_equal(functional.all_reduce(mine, "sum", group) + 0, total, "all_reduce")
    check_equal(
        functional.all_gather_tensor(mine, 0, group) + 0, torch.cat(values), "all_gather_tensor"
    )
    got = functional.reduce_scatter_tensor(mine, "sum", 0, group)
    check_equal(got + 0, total[rows], "reduce_scatter_tensor")
    got = functional.all_to_all_single(mine, None, None, group)
    check_equal(got + 0, torch.cat([v[rows] for v in values]), "all_to_all_single")
    check_equal(functional.broadcast(mine, 0, group) + 0, values[0], "broadcast")
    many = functional.all_reduce_coalesced([mine, mine + 1], "sum", group)
    check_equal(many[1] + 0, total + size, "all_reduce_coalesced")
    many = functional.all_gather_into_tensor_coalesced([mine], group)
    check_equal(many[0] + 0, torch.cat(values), "all_gather_into_tensor_coalesced")
    many = functional.reduce_scatter_tensor_coalesced([mine], "sum", [0], group)
    check_equal(many[0] + 0, total[rows], "reduce_scatter_tensor_coalesced")


# Pending works and groups.


def check_works(rank: int, size: int) -> None:
    tensors = [torch.full((n,), float(rank + n)) for n in (1, 10, 100_000, 3)]
    pending = [dist.all_reduce(t, async_op=True) for t in tensors]
    order = pending if rank % 2 else pending[::-1]
    for work in order:
        assert work.wait(timedelta(seconds=30))
        assert work.is_completed()
        assert work.exception() is None
    for tensor, n in zip(tensors, (1, 10, 100_000, 3), strict=True):
        check_equal(tensor, torch.full_like(tensor, sum(r + n for r in range(size))), n)
    # The caller of get_future() does not need to wait for the work.
    tensor = torch.full((5,), float(rank))
    half = dist.all_reduce(tensor, async_op=True).get_future().then(lambda f: f.value()[0] / 2)
    check_equal(half.wait(), torch.full((5,), sum(range(size)) / 2), "future")
    # Many works without a wait.
    tensors_without_wait = [torch.ones(3) for _ in range(300)]
    for each in tensors_without_wait:
        dist.all_reduce(each, async_op=True)
    dist.barrier()
    for each in tensors_without_wait[::50]:
        check_equal(each, torch.full((3,), float(size)), "not waited for")


def check_groups(rank: int, size: int) -> None:
    pairs = [dist.new_group(list(pair)) for pair in itertools.combinations(range(size), 2)]
    members = list(itertools.combinations(range(size), 2))
    mine = [(g, m) for g, m in zip(pairs, members, strict=True) if rank in m]
    # All groups at once; each rank waits in another order.
    tensors = [torch.full((4 + 10_000 * (sum(m) % 2),), float(rank)) for _, m in mine]
    pending = [
        dist.all_reduce(t, group=g, async_op=True) for t, (g, _) in zip(tensors, mine, strict=True)
    ]
    for number in range(len(pending)):
        pending[(number + rank) % len(pending)].wait()
    for tensor, (group, ranks) in zip(tensors, mine, strict=True):
        check_equal(tensor, torch.full_like(tensor, float(sum(ranks))), ranks)
        assert dist.get_process_group_ranks(group) == list(ranks)
        got = torch.tensor([float(rank)])
        dist.broadcast(got, ranks[1], group=group)
        assert got.item() == ranks[1]
    evens = dist.new_group(range(0, size, 2), timeout=timedelta(seconds=30))
    if rank % 2 == 0:
        gathered: list[Any] = [None] * dist.get_world_size(evens)
        dist.all_gather_object(gathered, rank, group=evens)
        assert gathered == list(range(0, size, 2))
        dist.destroy_process_group(evens)


def check_threads(rank: int, size: int) -> None:
    """Wait in each of two threads for a collective that the other thread has not submitted yet.

    The order of the threads differs between ranks.
    """
    first, second = dist.new_group(), dist.new_group()
    failures: list[BaseException] = []

    def work_in(group: Any, salt: int) -> None:
        try:
            for number in range(50):
                tensor = torch.full((1 + number * salt,), float(rank))
                dist.all_reduce(tensor, group=group)
                check_equal(tensor, torch.full_like(tensor, sum(range(size))), number)
        except BaseException as error:
            failures.append(error)

    cases = [(first, 1), (second, 2_000)]
    started = [threading.Thread(target=work_in, args=case) for case in cases[:: 1 - 2 * (rank % 2)]]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not failures, failures


def check_many_pending(rank: int, size: int) -> None:
    """Start more collectives than the core can queue. All wait for one of another group."""
    other = dist.new_group()
    first = dist.all_reduce(long := torch.ones(100_000), group=other, async_op=True)
    if rank % 2:
        first.wait()
    tensors = [torch.full((1 + number % 3 * 2_000,), float(rank)) for number in range(150)]
    check_works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for number in reversed(range(150)):
        check_works[number].wait()
        check_equal(tensors[number], torch.full_like(tensors[number], sum(range(size))), number)
    first.wait()
    check_equal(long, torch.full_like(long, size), "the other group's")


def check_mesh(rank: int, size: int) -> None:
    if size != 4:
        return
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    for name, ranks in (("data", {rank, (rank + 2) % 4}), ("model", {rank, rank ^ 1})):
        tensor = torch.tensor([10.0**rank])
        dist.all_reduce(tensor, group=grid.get_group(name))
        assert tensor.item() == sum(10.0**r for r in ranks)


# Errors.


def bad_calls(size: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    one, two, integers = torch.ones(3), torch.ones(2), torch.ones(3, dtype=torch.int32)
    ones = [1] * size
    complex_values, booleans = torch.ones(3, dtype=torch.complex64), torch.ones(3, dtype=torch.bool)
    yield "expected one of SUM, AVG", lambda: dist.all_reduce(integers, op=dist.ReduceOp.BXOR)
    yield "torch.bool; got BXOR", lambda: dist.all_reduce(booleans, op=dist.ReduceOp.BXOR)
    yield "torch.complex64; got MAX", lambda: dist.reduce(complex_values, 0, op=dist.ReduceOp.MAX)
    yield "a mean needs a floating dtype", lambda: dist.all_reduce(integers, op=dist.ReduceOp.AVG)
    yield "dense tensor on the CPU", lambda: dist.all_reduce(one.to_sparse())
    yield f"expected {size} output tensors", lambda: dist.all_gather([one] * (size + 1), one)
    yield "expected 3 elements in output", lambda: dist.all_gather([two] * size, one)
    yield "one output a rank", lambda: dist.reduce_scatter_tensor(torch.ones(4), one)
    yield "whose sum is 9", lambda: dist.all_to_all_single(torch.ones(9), torch.ones(9), ones, ones)


def check_errors(rank: int, size: int) -> None:
    """Check that each bad call raises, and leaves the group usable."""
    for text, call in bad_calls(size):
        with pytest.raises((ValueError, TypeError), match=text):
            call()


def check_everything() -> None:
    rank, size = torch_ranks.join()
    for program in PROGRAMS:
        program(rank, size)
        dist.barrier()
    sites = {site for _, _, site, *_ in dist.group.WORLD.communicator.stats()}
    assert sites or size == 1
    foreign = [site for site in sites if not site.startswith((__file__, "ngd.init"))]
    assert not foreign, foreign
    dist.destroy_process_group()
    torch_ranks.join(store="another")
    dist.all_reduce(tensor := torch.ones(2))
    check_equal(tensor, torch.full((2,), float(size)), "a second world")


PROGRAMS = (
    check_reductions,
    check_special_reductions,
    check_lazy_views,
    check_blocks,
    check_reduced_blocks,
    check_uneven_blocks,
    check_exchanges,
    check_messages,
    check_objects,
    check_coalesced,
    check_lists_of_ranks,
    check_functional_collectives,
    check_works,
    check_groups,
    check_threads,
    check_many_pending,
    check_mesh,
    check_profiler,
    check_timeout_of_a_call,
    check_errors,
)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_function_of_torch_distributed(ranks: int) -> None:
    torch_ranks.run(check_everything, ranks)
