# SPDX-License-Identifier: Apache-2.0
"""Collectives of one rank: what counts as an array, call sites, tables. No launcher, no peers."""

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
    """Memory that only DLPack shows."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __dlpack__(self, **how: Any) -> Any:
        return self.data.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


class Refusing(Exporter):
    """Memory elsewhere."""

    def __dlpack__(self, **how: Any) -> Any:
        raise BufferError("on another device")


def test_dlpack_is_read_and_written_in_place() -> None:
    data = np.arange(4.0)
    given = Exporter(data)
    assert ngd.all_reduce(given, op="sum", group=alone()).tolist() == [0, 1, 2, 3]
    assert ngd.all_reduce(np.full(4, 7.0), op="sum", out=given, group=alone()) is given
    assert data.tolist() == [7] * 4
    assert ngd.all_reduce([given, data], op="sum", group=alone())[0].tolist() == [7] * 4
    with pytest.raises(
        TypeError, match=r"all_gather: expected an array in the CPU's memory.*Refus"
    ):
        ngd.all_gather(Refusing(data), group=alone())


def test_the_buffer_protocol_is_read_and_written_in_place() -> None:
    data = array.array("f", [1, 2, 3])
    assert ngd.all_gather(data, group=alone()).dtype == np.float32
    assert ngd.all_gather(np.float32([4, 5, 6]), out=data, group=alone()) is data
    assert data.tolist() == [4, 5, 6]
    assert ngd.broadcast(memoryview(b"xyz"), group=alone()).tobytes() == b"xyz"
    with pytest.raises(ngd.errors.ShapeError, match=r"broadcast: out: .*read-only"):
        ngd.broadcast(b"xyz", out=b"abc", group=alone())


def test_pytorchs_tensors() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        given = torch.arange(6).reshape(2, 3).to(dtype)
        result = ngd.all_reduce(given, op="sum", group=alone())
        assert result.dtype == (
            ml_dtypes.bfloat16 if dtype == torch.bfloat16 else given.numpy().dtype
        )
        assert result.tolist() == given.tolist()
        out = torch.zeros_like(given)
        assert ngd.all_reduce(given, op="sum", out=out, group=alone()) is out
        assert torch.equal(out, given)
    with pytest.raises(TypeError, match="detach"):
        ngd.all_reduce(torch.ones(3, requires_grad=True), op="sum", group=alone())


@pytest.mark.parametrize("dtype", [d for d in ngd.dtypes.ALL if d != ngd.bool_])
def test_every_dtype_takes_the_quick_way(dtype: Any) -> None:
    given, out = np.arange(6).astype(dtype), np.empty(6, dtype)

    def quick(array: Any, op: Any, out: Any) -> Any:
        return alone().quick("all_reduce", array, out, op)

    assert quick(given, "sum", out) is out
    assert (out == given).all()
    result = quick(given.reshape(2, 3), "max", None)
    assert (result.shape, result.dtype) == ((2, 3), given.dtype)
    assert (result.ravel() == given).all()
    assert quick(given, "sum", given) is given


def test_what_is_not_plain_goes_the_other_way() -> None:
    def quick(array: Any, op: Any, out: Any) -> Any:
        return alone().quick("all_reduce", array, out, op)

    plain = np.arange(6.0)
    read_only = plain.copy()
    read_only.flags.writeable = False
    misaligned = np.frombuffer(b"\0" * 49, np.uint8)[1:].view(np.float64)
    for given in (
        plain[::2],
        plain.reshape(2, 3).T,
        plain.astype(">f8"),
        plain.astype(complex),
        plain.view(np.ma.MaskedArray),
        misaligned,
        [1.0],
        3,
    ):
        assert quick(given, "sum", None) is None
    for op in ("xor", None, 3, ["sum"]):
        assert quick(plain, op, None) is None
    for out in (read_only, plain[::2], plain[:5], plain.reshape(2, 3), plain.astype("f4"), [0.0]):
        assert quick(plain, "sum", out) is None
    both = np.arange(12.0)
    assert quick(both[:6], "sum", both[1:7]) is None
    assert quick(both[:6], "sum", both[6:]) is not None
    assert quick(read_only, "sum", None).tolist() == plain.tolist()
    assert ngd.all_reduce(misaligned, op="sum", group=alone()).tolist() == [0.0] * 6


def test_lists_take_the_quick_way_too() -> None:
    def quick(kind: str, array: Any, op: Any, out: Any) -> Any:
        return alone().quick(kind, array, out, op)

    given = [np.arange(5.0), np.float32(3.0) * np.ones((2, 2), np.float32), np.empty(0)]
    out = [np.empty_like(a) for a in given]
    for kind, op in (("all_reduce", "sum"), ("broadcast", "none")):
        back = quick(kind, given, op, out)
        assert all(x is y for x, y in zip(back, out, strict=True))
        fresh = quick(kind, given, op, None)
        for x, y, z in zip(fresh, given, out, strict=True):
            assert (x == y).all()
            assert (z == y).all()
            assert not np.shares_memory(x, y)
    assert quick("all_gather", given, "none", None) is None
    for bad in ([], [given[0], 1.0], [given[0], given[1].T[:1]], [given[0].astype(complex)]):
        assert quick("all_reduce", bad, "sum", None) is None
    for bad in (out[:2], tuple(out), [out[0], out[1], None, out[2]], [*out[:2], np.empty(1)]):
        assert quick("all_reduce", given, "sum", bad) is None


def test_the_quick_way_leaks_nothing() -> None:
    given, out = np.ones(3), np.empty(3)
    code = compile("call()", "quick", "exec")

    def call() -> None:
        ngd.all_reduce(given, op="sum", out=out, group=alone())
        ngd.all_reduce(given, op="sum", group=alone())
        ngd.all_reduce([given, given], op="sum", group=alone())
        ngd.all_reduce([given], op="sum", out=[out], group=alone())

    def counts() -> list[int]:
        gc.collect()
        return [sys.getrefcount(x) for x in (given, out, code, np.dtype(float), "sum", call)]

    exec(code, {"call": call})
    before = counts()
    for _ in range(50):
        exec(code, {"call": call})
    assert counts() == before


def test_a_call_from_c() -> None:
    """No frame of Python's stands above an exit handler's."""
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


def test_a_group_is_a_group() -> None:
    for call in (ngd.all_reduce, ngd.reduce_scatter):
        with pytest.raises(TypeError, match=r"group: expected an ngd.Group; got str"):
            call(np.ones(1), op="sum", group="world")  # type: ignore[operator]
    with pytest.raises(TypeError, match=r"group: expected an ngd.Group; got Mesh"):
        ngd.barrier(group=ngd.make_mesh((1,), ("a",), group=alone()))  # type: ignore[arg-type]


def interrupted(call: Callable[[], Any], at: int) -> Any:
    """Make a call; KeyboardInterrupt comes before that bytecode of ngd's own Python."""
    left = at

    def step(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left == 0 and event == "opcode":
            raise KeyboardInterrupt
        return step

    sys._getframe().f_trace_opcodes = True  # before settrace, or 3.12 traces none the first time
    sys.settrace(step)
    try:
        return call()
    finally:
        sys.settrace(None)


def test_an_interrupted_wait_may_be_repeated() -> None:
    for at in itertools.count(1):
        xs = [np.arange(3.0), np.arange(2.0)]
        work = ngd.all_reduce(xs, op="mean", weight=2.0, async_op=True, group=alone())
        try:
            interrupted(work.wait, at)
        except KeyboardInterrupt:
            assert [x.tolist() for x in work.wait()] == [[0, 1, 2], [0, 1]]
            assert work.exception() is None
        else:
            break
    assert at > 50


def test_a_number_has_a_weighted_mean() -> None:
    mean = alone().all_reduce(np.array(3.0), op="mean", weight=2.0)
    assert (mean.shape, mean.item()) == ((), 3.0)


def test_a_compression_remembers_what_was_sent() -> None:
    """Or not, where an interrupt came before that: nothing is lost, and nothing is sent twice."""
    for at in itertools.count(1):
        top, x = ngd.TopK(0.1), np.arange(1.0, 5.0)
        with contextlib.suppress(KeyboardInterrupt):
            total = interrupted(partial(alone().all_reduce, x, op="sum", compression=top), at)
            break
        total = alone().all_reduce(np.zeros(4), op="sum", compression=top)
        left = top.residual
        assert left is not None
        assert (total + left).tolist() in ([0, 0, 0, 0], [1, 2, 3, 0])
    assert (total + top.residual).tolist() == x.tolist()


def test_a_dropped_work_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: said.append(str(args.exc_value)))
    work = ngd.all_gather(np.ones(3), async_op=True, group=alone())
    del work
    gc.collect()
    assert said == ["all_gather: this ngd.Work was dropped without wait()"]
    ngd.all_gather(np.ones(3), async_op=True, group=alone()).wait()
    gc.collect()
    assert len(said) == 1


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_functions_and_methods_take_what_their_kind_says(kind: Kind) -> None:
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
    """A kind takes op=, root= or counts as its row says; a group of one runs it."""
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


def test_the_table_of_statistics() -> None:
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


def test_one_rank_agrees_with_itself() -> None:
    text = "all_reduce f32[3] at a.py:1\nbroadcast f32[] at b.py:2"
    assert compare_ranks(alone(), text, 0, "here") == "alone: all 1 ranks agree, 2 collectives"
    assert compare_ranks(alone(), "", 0, "here") == "alone: all 1 ranks agree, 0 collectives"


def test_ratios_of_top_k() -> None:
    for ratio in (0, -1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="TopK: expected a ratio"):
            ngd.TopK(ratio)


@pytest.mark.parametrize("name", sorted(calls.SHORT_CALLS))
def test_nothing_is_between_a_short_call_and_its_caller(name: str) -> None:
    """The core finds the call site one frame above; a wrapper would disable the quick path."""
    for call in (getattr(ngd, name), getattr(ngd.Group, name)):
        assert inspect.unwrap(call) is call
        assert call.__code__.co_name == name
