# SPDX-License-Identifier: Apache-2.0
"""Steps of one rank for inject.py: calls that raise errors, and every kernel."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

import ngd
from ngd import _core, errors, ops
from ngd.comm.world import alone
from ngd.devices.cpu import target as cpu
from tests.ops.cases import Case, all_cases, assert_close, placeholders, takes_two
from tests.stress.inject_refusals import UNSUPPORTED, UnsupportedQuery
from tests.stress.inject_steps import Step


def check_unsupported(query: UnsupportedQuery) -> Callable[[], None]:
    """Return a call that checks that no kernel takes a query, and that the reason is given."""

    def ask() -> None:
        kernel, reasons, *_ = cpu.DEVICE.query_kernel(*query[:-1])
        assert kernel is None, kernel
        assert query.reason in reasons, reasons

    return ask


def failing_calls(rank: int) -> list[Step]:
    """Return calls that raise errors, or return information; long because it is a list."""

    def world() -> _core.Communicator:
        return alone().communicator

    def raises(kind: type[BaseException], call: Callable[[], Any]) -> Step:
        return Step(f"{kind.__name__} from line {call.__code__.co_firstlineno}", call, (kind,))

    def read_bad_timeout() -> None:
        os.environ["NGD_TIMEOUT"] = "soon"
        try:
            _core.timeout_seconds()
        finally:
            del os.environ["NGD_TIMEOUT"]

    def make_with_bad_algorithm() -> None:
        os.environ["NGD_ALLREDUCE"] = "a tree, as it were"
        try:
            _core.Communicator.make_shm("alone", 0, 1, 10.0)
        finally:
            del os.environ["NGD_ALLREDUCE"]

    def submit(*arguments: Any, **options: Any) -> Callable[[], Any]:
        kind, op, dtype = arguments
        root, count = options.pop("root", 0), 2
        array = np.ones(8)
        address = array.ctypes.data

        def run() -> None:
            call = _core.Call.on_memory(
                world(), kind, op, dtype, count, root, address, address, **options
            )
            _core.run_calls([call], 10.0)

        return run

    def reduce_overlapping() -> None:
        array = np.zeros(4)
        out = [array[:3], array[1:]]
        call = _core.Call.on_list(world(), "all_reduce", "sum", 0, [np.ones(3), np.ones(3)], out)
        _core.run_calls([call], 10.0)

    def make_alone_over_shm() -> None:
        one = _core.Communicator.make_shm("alone", 0, 1, 10.0)
        assert one.name == "shm"
        one.close()

    def build_program() -> None:
        program = _core.ProgramBuilder()
        program.add_value("float32", (2, 3), "input", 0, 0)
        program.add_value("float32", (2, 3), "output", 0, 0)
        program.add_constant(b"12345678")
        attrs = {"n": 1, "f": 0.5, "t": "x" * 40, "many": [1, 2, 3]}
        program.add_instruction("run", "tanh", [0], [1], attrs, 0, 0, "here" * 10, [])
        program.add_group("text" * 10, 7, 8)
        program.add_value("float32", (1,) * 40, "private", 10**18, 0)
        program.add_value("float32", (10**7, 10**7, 1000), "private", 0, 0)
        program.set_sizes(1, 1, 0)
        assert "tanh" in str(program)

    def split() -> None:
        world().split(0, 0).close()

    types = [("float32", (2,))], [("float32", (2,))]
    value, unsupported = ValueError, NotImplementedError
    return [
        Step("build_info", lambda: ngd.build_info()),
        Step("kernel_table", lambda: cpu.DEVICE.kernel_table()),
        Step("thread_count", lambda: _core.thread_count()),
        Step("program", build_program),
        Step("alone", make_alone_over_shm),
        Step("split", split),
        raises(errors.InitError, read_bad_timeout),
        raises(value, make_with_bad_algorithm),
        raises(value, submit("gossip", "sum", "float32")),
        raises(value, submit("barrier", "sum", "float31")),
        raises(value, submit("all_reduce", "median", "float32")),
        raises(value, submit("all_reduce", "none", "float32")),
        raises(errors.DTypeError, submit("all_reduce", "mean", "int64")),
        raises(errors.DTypeError, submit("all_reduce", "sum", "bool")),
        raises(value, submit("broadcast", "none", "float32", root=7)),
        raises(value, submit("send", "none", "float32", root=0)),
        raises(value, submit("all_to_all", "none", "float32", counts=[1])),
        raises(value, submit("all_to_all", "none", "float32", counts=[1], receive_counts=[2])),
        raises(value, submit("all_reduce", "sum", "float32", counts=[1])),
        raises(value, submit("all_gather", "none", "float32", counts=[1, 2])),
        raises(value, reduce_overlapping),
        *[
            raises(RuntimeError, lambda op=op: cpu.DEVICE.query_kernel(op, *types, {}))
            for op in ("softmax", "reduce", "transpose")
        ],
        raises(unsupported, lambda: _core.Communicator.make_mpi(-1, 1.0)),
        raises(unsupported, lambda: _core.Communicator.make_hierarchical(-1, 1.0)),
        raises(errors.InitError, lambda: _core.Communicator.make_shm("key", 3, 2, 1.0)),
        raises(errors.InitError, lambda: _core.Communicator.make_shm("key", 3, 300, 1.0)),
        Step("next number", lambda: world().next_group_number()),
        raises(unsupported, lambda: world().group_of([0], 1, "key", 1.0)),
        *[Step(f"{query.op}: {query.reason}", check_unsupported(query)) for query in UNSUPPORTED],
    ]


def check_matmuls(dtype: Any) -> None:
    """Check a matmul by ngd's kernel, and one that is fused into the kernel that reads it."""
    a, b = np.ones((40, 60), dtype), np.ones((40, 50), dtype)
    x, y = ngd.placeholder("x", a.shape, a.dtype), ngd.placeholder("y", b.shape, b.dtype)
    product = ops.transpose(x, (1, 0)) @ y
    step = ngd.compile([x, y], [x @ ops.ones((60, 50), dtype), product * 2 - 1])
    for each, expected in zip(step(a, b), (60, 79), strict=True):
        assert (each == expected).all()


def check_own_convolutions() -> None:
    """Check convolutions by ngd's kernels.

    They are 3 x 3 by Winograd's method, 3 x 3 with too few tiles, 1 x 1, and without channels.
    """

    def gradients(image: tuple[int, ...], kernel: tuple[int, ...]) -> list[Any]:
        a, b = np.ones(image, np.float32), np.ones(kernel, np.float32)
        x, w = ngd.placeholder("x", a.shape, a.dtype), ngd.placeholder("w", b.shape, b.dtype)
        y = ops.conv(x, w, padding="same")
        return ngd.compile([x, w], [y, *ngd.grad(ops.sum(y), [x, w])])(a, b)

    for side in (16, 4):
        y, dx, dw = gradients((1, 16, side, side), (16, 16, 3, 3))
        for each in (y, dx):
            assert np.allclose(each[0, 0, :2, :2], [[64, 96], [96, 144]])
        assert np.allclose(
            dw[0, 0, :2, :2], [[(side - 1) ** 2, (side - 1) * side], [(side - 1) * side, side**2]]
        )
    for channels in (16, 1024):
        y, dx, dw = gradients((1, channels, 3, 2), (16, channels, 1, 1))
        assert (y == channels).all()
        assert (dx == 16).all()
        assert (dw == 6).all()
    y, _, _ = gradients((1, 0, 16, 16), (16, 0, 3, 3))
    assert not y.any()


def kernels(rank: int) -> list[Step]:
    """Return one step per sample of every op. It compares the results with the reference."""

    def check_case(case: Case) -> Callable[[], None]:
        def run() -> None:
            inputs, arrays = placeholders(case.types), case.arrays()
            step = ngd.compile(inputs, case.apply(inputs))
            for result, expected in zip(step(*arrays), case.reference(arrays), strict=True):
                assert_close(result, expected)

        return run

    def check_bias() -> None:
        a, b = np.ones((2, 4, 3), np.float32), np.ones((2, 3, 5), np.float32)
        x, w = ngd.placeholder("x", a.shape, a.dtype), ngd.placeholder("w", b.shape, b.dtype)
        bias = ngd.constant(np.full(5, -9, np.float32))
        residual = ngd.constant(np.full((4, 5), -3, np.float32))
        product = x[0] @ w[0]
        results = [ops.relu(x @ w + bias), ops.relu(product + bias), x[1] @ w[1] + residual]
        step = ngd.compile([x, w], results)
        for each in step(a, b):
            assert not each.any()

    def check_convolutions() -> None:
        """Check convolutions with a bias, and depthwise, which may be slow with channels last."""
        a, b = np.ones((1, 4, 5, 5), np.float32), np.ones((4, 4, 3, 3), np.float32)
        x, w = ngd.placeholder("x", a.shape, a.dtype), ngd.placeholder("w", b.shape, b.dtype)
        y = ops.conv(x, w, np.full(4, -36, np.float32))
        z = ops.conv(x, w[:, :1], groups=4)
        step = ngd.compile([x, w], [y, z])
        for each, expected in zip(step(a, b), (0, 9), strict=True):
            assert (each == expected).all()

    def check_control() -> None:
        x = ngd.placeholder("x", (3, 2))
        start = ngd.constant(np.zeros(2, np.float32))
        last, products = ops.scan(lambda c, p: (c + p, c * p), start, x)
        chosen = ops.cond(ops.sum(last) > 0, lambda: last * 2, lambda: last - 1)
        loss = ops.sum(chosen) + ops.sum(products)
        step = ngd.compile([x], [last, products, chosen, ngd.grad(loss, x)])
        results = step(np.ones((3, 2), np.float32))
        expected: list[Any] = [[3, 3], [[0, 0], [1, 1], [2, 2]], [6, 6], [[4, 4]] * 3]
        assert [each.tolist() for each in results] == expected
        assert "scan" in str(step)

    dtypes = (None, np.bool_, np.int32, np.float16, np.float32)
    cases = [case for case in all_cases() if case.dtype in dtypes and not takes_two(case.op)]
    return [
        *[Step(str(case), check_case(case)) for case in cases],
        Step("bias", check_bias),
        Step("convolution", check_convolutions),
        Step("convolution by own kernels", check_own_convolutions),
        Step("product", lambda: check_matmuls(np.float32)),
        Step("product of float64", lambda: check_matmuls(np.float64)),
        Step("control", check_control),
    ]


def wrong_values(rank: int) -> list[Step]:
    """Return steps in which a kernel computes or reads an infinity or NaN, or an index is bad."""
    x = ngd.placeholder("x", (8,))
    rows = ngd.placeholder("rows", (2,), np.int64)

    def run(
        make: Callable[[Any], Any], array: Any, weight: float = 1.0, updates: bool = False
    ) -> Callable[[], None]:
        def call() -> None:
            w = ngd.variable("w", np.full(8, weight, np.float32))
            value = make(w)
            outputs, updates_of_w = ([x * 2.0], {w: value}) if updates else ([value], {})
            ngd.compile([rows if array.dtype == np.int64 else x], outputs, updates_of_w)(array)

        return call

    def chain(w: Any) -> Any:
        return ops.log(x) * 2.0 + ops.sqrt(x)

    ones = np.ones(8, np.float32)
    calls = {
        "infinity": run(chain, 0 * ones),
        "NaN": run(chain, -ones),
        "argument": run(chain, np.nan * ones),
        "variable": run(lambda w: ops.exp(x) * w, ones, weight=np.nan),
        "overwritten": run(lambda w: w + ops.sqrt(w * x), ones, weight=-1.0, updates=True),
        "index": run(lambda w: ops.embedding(rows, ops.reshape(w, (4, 2))), np.array([1, 8])),
        "indices": run(lambda w: ops.reshape(w, (2, 4))[rows, rows], np.array([1, 4])),
    }
    expected = (errors.NotFiniteError, errors.OutOfRangeError)
    return [Step(name, call, expected) for name, call in calls.items()]
