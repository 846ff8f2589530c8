# SPDX-License-Identifier: Apache-2.0
"""Tests of collectives of one rank: array-like operands, call sites, tables. No launcher runs."""

from __future__ import annotations

import array
import contextlib
import gc
import inspect
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ngd
from ngd import _core
from ngd._util import signature_errors as calls
from ngd.comm import CallStats, CommStats, compare_ranks
from ngd.comm.kinds import KINDS, Kind
from ngd.comm.world import alone
from ngd.dtypes import Array
from ngd.graph.registry import OPS
from ngd.ops.collectives.reductions import Collective

PACKAGE = str(Path(ngd.__file__).parent)


class Exporter:
    """An object that shows its memory only through DLPack."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __dlpack__(self, **how: Any) -> Any:
        return self.data.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


class RefusingExporter(Exporter):
    """An object whose memory is on another device."""

    def __dlpack__(self, **how: Any) -> Any:
        raise BufferError("on another device")


def test_dlpack_is_read_and_written_in_place() -> None:
    data = np.arange(4.0)
    operand = Exporter(data)
    assert ngd.all_reduce(operand, op="sum", group=alone()).tolist() == [0, 1, 2, 3]
    assert ngd.all_reduce(np.full(4, 7.0), op="sum", out=operand, group=alone()) is operand
    assert data.tolist() == [7] * 4
    assert ngd.all_reduce([operand, data], op="sum", group=alone())[0].tolist() == [7] * 4
    with pytest.raises(
        TypeError, match=r"all_gather: expected an array in the CPU's memory.*Refus"
    ):
        ngd.all_gather(RefusingExporter(data), group=alone())


def test_the_buffer_protocol_is_read_and_written_in_place() -> None:
    data = array.array("f", [1, 2, 3])
    assert ngd.all_gather(data, group=alone()).dtype == np.float32
    assert ngd.all_gather(np.float32([4, 5, 6]), out=data, group=alone()) is data
    assert data.tolist() == [4, 5, 6]
    assert ngd.broadcast(memoryview(b"xyz"), group=alone()).tobytes() == b"xyz"
    with pytest.raises(ngd.errors.ShapeError, match=r"broadcast: out: .*read-only"):
        ngd.broadcast(b"xyz", out=b"abc", group=alone())


def test_pytorch_tensors_are_read_and_written() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        operand = torch.arange(6).reshape(2, 3).to(dtype)
        result = ngd.all_reduce(operand, op="sum", group=alone())
        assert result.dtype == (
            ml_dtypes.bfloat16 if dtype == torch.bfloat16 else operand.numpy().dtype
        )
        assert result.tolist() == operand.tolist()
        out = torch.zeros_like(operand)
        assert ngd.all_reduce(operand, op="sum", out=out, group=alone()) is out
        assert torch.equal(out, operand)
    with pytest.raises(TypeError, match="detach"):
        ngd.all_reduce(torch.ones(3, requires_grad=True), op="sum", group=alone())


@pytest.mark.parametrize("dtype", [d for d in ngd.dtypes.ALL if d != ngd.bool_])
def test_every_dtype_takes_the_fast_path(dtype: Any) -> None:
    operand, out = np.arange(6).astype(dtype), np.empty(6, dtype)

    def fast_call(array: Any, op: Any, out: Any) -> Any:
        return alone().quick("all_reduce", array, out, op)

    assert fast_call(operand, "sum", out) is out
    assert (out == operand).all()
    result = fast_call(operand.reshape(2, 3), "max", None)
    assert (result.shape, result.dtype) == ((2, 3), operand.dtype)
    assert (result.ravel() == operand).all()
    assert fast_call(operand, "sum", operand) is operand


def test_other_arguments_take_the_slow_path() -> None:
    def fast_call(array: Any, op: Any, out: Any) -> Any:
        return alone().quick("all_reduce", array, out, op)

    plain = np.arange(6.0)
    read_only = plain.copy()
    read_only.flags.writeable = False
    misaligned = np.frombuffer(b"\0" * 49, np.uint8)[1:].view(np.float64)
    for operand in (
        plain[::2],
        plain.reshape(2, 3).T,
        plain.astype(">f8"),
        plain.astype(complex),
        plain.view(np.ma.MaskedArray),
        misaligned,
        [1.0],
        3,
    ):
        assert fast_call(operand, "sum", None) is None
    for op in ("xor", None, 3, ["sum"]):
        assert fast_call(plain, op, None) is None
    for out in (read_only, plain[::2], plain[:5], plain.reshape(2, 3), plain.astype("f4"), [0.0]):
        assert fast_call(plain, "sum", out) is None
    both = np.arange(12.0)
    assert fast_call(both[:6], "sum", both[1:7]) is None
    assert fast_call(both[:6], "sum", both[6:]) is not None
    assert fast_call(read_only, "sum", None).tolist() == plain.tolist()
    assert ngd.all_reduce(misaligned, op="sum", group=alone()).tolist() == [0.0] * 6


def test_lists_take_the_fast_path() -> None:
    def fast_call(kind: str, array: Any, op: Any, out: Any) -> Any:
        return alone().quick(kind, array, out, op)

    operand = [np.arange(5.0), np.float32(3.0) * np.ones((2, 2), np.float32), np.empty(0)]
    out = [np.empty_like(a) for a in operand]
    for kind, op in (("all_reduce", "sum"), ("broadcast", "none")):
        back = fast_call(kind, operand, op, out)
        assert all(x is y for x, y in zip(back, out, strict=True))
        fresh = fast_call(kind, operand, op, None)
        for x, y, z in zip(fresh, operand, out, strict=True):
            assert (x == y).all()
            assert (z == y).all()
            assert not np.shares_memory(x, y)
    assert fast_call("all_gather", operand, "none", None) is None
    for bad in (
        [],
        [operand[0], 1.0],
        [operand[0], operand[1].T[:1]],
        [operand[0].astype(complex)],
    ):
        assert fast_call("all_reduce", bad, "sum", None) is None
    for bad in (out[:2], tuple(out), [out[0], out[1], None, out[2]], [*out[:2], np.empty(1)]):
        assert fast_call("all_reduce", operand, "sum", bad) is None


def test_the_fast_path_leaks_nothing() -> None:
    operand, out = np.ones(3), np.empty(3)
    code = compile("call()", "quick", "exec")

    def call() -> None:
        ngd.all_reduce(operand, op="sum", out=out, group=alone())
        ngd.all_reduce(operand, op="sum", group=alone())
        ngd.all_reduce([operand, operand], op="sum", group=alone())
        ngd.all_reduce([operand], op="sum", out=[out], group=alone())

    def counts() -> list[int]:
        gc.collect()
        return [sys.getrefcount(x) for x in (operand, out, code, np.dtype(float), "sum", call)]

    exec(code, {"call": call})
    before = counts()
    for _ in range(50):
        exec(code, {"call": call})
    assert counts() == before


def test_a_call_from_an_exit_handler_works() -> None:
    """A call from an exit handler has no frame of Python above it."""
    program = (
        "import atexit, numpy, ngd\n"
        "out = numpy.zeros(2)\n"
        "atexit.register(lambda: print(out))\n"
        "atexit.register(ngd.all_reduce, numpy.ones(2), op='sum', out=out)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k == "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("[1. 1.]\n", "")


def test_a_wrong_group_raises() -> None:
    for call in (ngd.all_reduce, ngd.reduce_scatter):
        with pytest.raises(TypeError, match=r"group: expected an ngd.Group; got str"):
            call(np.ones(1), op="sum", group="world")  # type: ignore[operator]
    with pytest.raises(TypeError, match=r"group: expected an ngd.Group; got Mesh"):
        ngd.barrier(group=ngd.make_mesh((1,), ("a",), group=alone()))  # type: ignore[arg-type]


def interrupt_at(call: Callable[[], Any], at: int) -> Any:
    """Make a call, and raise KeyboardInterrupt before bytecode number `at` of ngd's Python code."""
    remaining = at

    def step(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal remaining
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        remaining -= event == "opcode"
        if remaining == 0 and event == "opcode":
            raise KeyboardInterrupt
        return step

    sys._getframe().f_trace_opcodes = True  # before settrace, or 3.12 ignores it the first time
    sys.settrace(step)
    try:
        return call()
    finally:
        sys.settrace(None)


def test_an_interrupted_wait_can_be_repeated() -> None:
    for at in itertools.count(1):
        xs = [np.arange(3.0), np.arange(2.0)]
        work = ngd.all_reduce(xs, op="mean", weight=2.0, async_op=True, group=alone())
        try:
            interrupt_at(work.wait, at)
        except KeyboardInterrupt:
            assert [x.tolist() for x in work.wait()] == [[0, 1, 2], [0, 1]]
            assert work.exception() is None
        else:
            break
    assert at > 50


def test_a_number_has_a_weighted_mean() -> None:
    mean = alone().all_reduce(np.array(3.0), op="mean", weight=2.0)
    assert (mean.shape, mean.item()) == ((), 3.0)


def test_a_compression_keeps_what_was_not_sent() -> None:
    """An interrupt before the state is stored loses nothing and sends nothing twice."""
    for at in itertools.count(1):
        top, x = ngd.TopK(0.1), np.arange(1.0, 5.0)
        with contextlib.suppress(KeyboardInterrupt):
            total = interrupt_at(partial(alone().all_reduce, x, op="sum", compression=top), at)
            break
        total = alone().all_reduce(np.zeros(4), op="sum", compression=top)
        residual = top.residual
        assert residual is not None
        assert (total + residual).tolist() in ([0, 0, 0, 0], [1, 2, 3, 0])
    assert (total + top.residual).tolist() == x.tolist()


def test_a_dropped_work_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: reports.append(str(args.exc_value)))
    work = ngd.all_gather(np.ones(3), async_op=True, group=alone())
    del work
    gc.collect()
    assert reports == ["all_gather: this ngd.Work was dropped without wait()"]
    ngd.all_gather(np.ones(3), async_op=True, group=alone()).wait()
    gc.collect()
    assert len(reports) == 1


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_signatures_follow_the_table_of_kinds(kind: Kind) -> None:
    name = kind.name
    function = dict(inspect.signature(getattr(ngd, name)).parameters)
    method = dict(inspect.signature(getattr(ngd.Group, name)).parameters)
    assert function.pop("group").default is None
    assert method.pop("site").default is None
    del method["self"]
    assert list(function.items()) == list(method.items())
    assert name in ngd.__all__
    assert getattr(ngd, name).__doc__
    assert f"ngd.{name}" in getattr(ngd.Group, name).__doc__
    assert ("op" in function) == kind.reduces
    assert ("root" in function) == bool(kind.root_only)
    assert ("tag" in function) == kind.is_point_to_point
    assert ("out" in function) == (kind.result != "nothing")
    assert "async_op" in function


def test_every_collective_op_has_a_row() -> None:
    ops = {op.kind.name: op for op in OPS.values() if isinstance(op, Collective)}
    assert set(ops) == set(KINDS) - {"barrier"}
    for kind in KINDS.values():
        if kind.name in ops:
            call = inspect.signature(ops[kind.name].__call__).parameters
            assert getattr(ngd.ops, kind.name) is ops[kind.name]
            assert ("op" in call) == kind.reduces
            assert ("root" in call) == bool(kind.root_only)
            assert "group" in call
            function = inspect.signature(getattr(ngd, kind.name)).parameters
            common = [name for name in call if name in function]
            assert common == [name for name in function if name in call]
            for name in common:
                if name not in ("counts", "receive_counts", "shape", "dtype", "x"):
                    assert call[name].kind is function[name].kind, (kind.name, name)
                    assert call[name].default == function[name].default, (kind.name, name)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_core_has_the_same_rows(kind: Kind) -> None:
    """Each kind takes op=, root= and counts as its row says. It runs in a group of one rank."""
    group = alone().communicator
    x = np.arange(3.0)

    def submit(op: str = "none", root: int = 0, counts: list[int] | None = None) -> Array:
        result = np.zeros(3)
        v = counts and {"receive_counts": counts} if kind.wire == "all_to_all" else {}
        call = _core.Call.on_array(
            group, kind.wire, op, x, result, 3, root, counts=counts, **(v or {})
        )
        _core.run_calls([call], 0)
        return result

    if kind.is_point_to_point:
        with pytest.raises(ValueError, match="expected another rank"):
            submit()
        return
    op = "max" if kind.reduces else "none"
    np.testing.assert_array_equal(submit(op), x if kind.result != "nothing" else 0 * x)
    if kind.reduces:
        with pytest.raises(ValueError, match="expected op to be one of"):
            submit()
    if kind.root_only:
        with pytest.raises(ValueError, match="expected root to be in"):
            submit(op, root=1)
    else:
        submit(op, root=1)
    if "block" in (kind.operand, kind.result) or kind.operand == "blocks":
        submit(op, counts=[3])
    else:
        with pytest.raises(ValueError, match="expected blocks of one size"):
            submit(op, counts=[3])


def test_statistics_print_as_a_table() -> None:
    rows = [
        CallStats("world", "all_reduce(sum)", "a.py:3", 10, 2_000_000, 0.5, 0.25, (0, 9, 1)),
        CallStats("data", "barrier", "b.py:77", 1, 0, 0.001, 0.0, (0, 0, 0)),
    ]
    lines = str(CommStats(rows)).splitlines()
    assert lines[1].split() == [
        *("world", "all_reduce(sum)", "10", "2.000", "500.000", "250.000", "1:9", "2:1", "a.py:3")
    ]
    assert lines[2].split() == ["data", "barrier", "1", "0.000", "1.000", "0.000", "b.py:77"]
    assert (
        len({line.index(end) for line, end in zip(lines[1:], ("a.py", "b.py"), strict=True)}) == 1
    )


def test_compare_ranks_of_one_rank_finds_no_difference() -> None:
    text = "all_reduce f32[3] at a.py:1\nbroadcast f32[] at b.py:2"
    assert compare_ranks(alone(), text, 0, "here") == "alone: all 1 ranks agree, 2 collectives"
    assert compare_ranks(alone(), "", 0, "here") == "alone: all 1 ranks agree, 0 collectives"


def test_top_k_checks_its_ratio() -> None:
    for ratio in (0, -1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="TopK: expected a ratio"):
            ngd.TopK(ratio)


@pytest.mark.parametrize("name", sorted(calls.SHORT_CALLS))
def test_short_calls_have_no_frame_above_the_core(name: str) -> None:
    """The core finds the call site one frame above. A wrapper would disable the fast path."""
    for call in (getattr(ngd, name), getattr(ngd.Group, name)):
        assert inspect.unwrap(call) is call
        assert call.__code__.co_name == name
