# SPDX-License-Identifier: Apache-2.0
"""Tests of `ngd.function`: what is traced, when it is traced, and the results of calls."""

from __future__ import annotations

import array
import copy
import dataclasses
import functools
import pickle
import threading
import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import nn, ops
from ngd.dtypes import bfloat16
from ngd.errors import CompileError, DTypeError, RetraceWarning
from ngd.graph.node import Node

DEVICES = ("CPU", "INTERPRETER")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Batch:
    image: Any
    label: Any


def test_arguments_and_results_may_be_nested_structures(device: str) -> None:
    @ngd.function(device=device)
    def f(batch: Batch, pair: Pair, *rest: Any, weights: dict[str, Any]) -> Any:
        total = batch.image * weights["w"] + pair.first + rest[0]
        return {"batch": Batch(total, batch.label), "all": [pair, rest], "none": None}

    x = ones(2, 3)
    results = f(Batch(x, np.arange(2)), Pair(2 * x, x), 3 * x, weights={"w": 4 * x})
    npt.assert_array_equal(results["batch"].image, 9 * x)
    npt.assert_array_equal(results["batch"].label, np.arange(2))
    assert isinstance(results["all"][0], Pair)
    npt.assert_array_equal(results["all"][1][0], 3 * x)
    assert results["none"] is None
    assert f.num_traces == 1


def test_a_function_is_traced_once_per_shape_and_dtype() -> None:
    runs = []

    @ngd.function
    def f(x: Any) -> Any:
        runs.append(x.type)
        return x + 1

    for argument in (ones(2), 3 * ones(2), ones(3), ones(2, dtype=np.int32), ones(2)):
        npt.assert_array_equal(f(argument), argument + 1)
    assert len(runs) == f.num_traces == 3
    f.clear()
    assert f.num_traces == 0
    npt.assert_array_equal(f(ones(2)), 2 * ones(2))
    assert len(runs) == 4


def test_omitted_defaults_stay_python_values() -> None:
    table, calls = ones(2), []

    @ngd.function
    def f(x: Any, rate: float = 0.5, *rest: Any, shift: Any = table, **named: Any) -> Any:
        calls.append((rate, shift))
        return x * rate + shift + sum(rest) + sum(named.values())

    npt.assert_array_equal(f(ones(2)), [1.5, 1.5])
    assert calls == [(0.5, table)]
    assert calls[0][1] is table
    npt.assert_array_equal(f(ones(2), 0.5), [1.5, 1.5])
    assert isinstance(calls[1][0], Node)
    npt.assert_array_equal(f(ones(2), 2.5), [3.5, 3.5])
    npt.assert_array_equal(f(ones(2), shift=2.0), [2.5, 2.5])
    npt.assert_array_equal(f(ones(2), 1.0, 2.0, three=3.0), [7, 7])
    npt.assert_array_equal(f(ones(2)), [1.5, 1.5])
    assert f.num_traces == len(calls) == 4


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (ops.elu, lambda x: np.where(x > 0, x, np.expm1(x))),
        (ops.leaky_relu, lambda x: np.where(x > 0, x, 0.01 * x)),
        (ops.hardtanh, lambda x: np.clip(x, -1, 1)),
        (ops.nan_to_num, lambda x: x),
    ],
    ids=["elu", "leaky_relu", "hardtanh", "nan_to_num"],
)
def test_ops_with_float_defaults_are_functions(op: Any, expected: Any) -> None:
    x = np.array([-2.0, -0.5, 0.0, 1.5])
    npt.assert_allclose(ngd.function(op)(x), expected(x), rtol=1e-12)
    npt.assert_allclose(ngd.vmap(op)(x), expected(x), rtol=1e-12)


def test_floats_that_an_op_needs_when_it_is_built_are_fixed_by_partial() -> None:
    x = np.array([-1.0, 2.0])
    message = r"alpha: expected a number that is fixed .* functools\.partial\(f, alpha=2\.0\)"
    with pytest.raises(TypeError, match=message):
        ngd.function(ops.elu)(x, 2.0)
    fixed = ngd.function(functools.partial(ops.elu, alpha=2.0))
    npt.assert_allclose(fixed(x), [2 * np.expm1(-1), 2])


def test_defaults_of_differentiated_functions_stay_python_values() -> None:
    slope = ngd.grad(lambda x, alpha=1.0: ops.sum(ops.elu(x, alpha)))
    npt.assert_allclose(slope(np.array([-1.0, 2.0])), [np.exp(-1), 1])
    both = ngd.grad(lambda x, rate=3.0: ops.sum(x * rate), argnums=(0, 1))
    npt.assert_allclose(both(np.array([1.0, 2.0]))[0], [3, 3])
    npt.assert_allclose(both(np.array([1.0, 2.0]))[1], 3)


def test_the_order_of_keys_and_the_kind_of_sequence_cause_no_retrace() -> None:
    @ngd.function
    def f(x: dict[str, Any], pair: Any) -> Any:
        return x["a"] - x["b"] + pair[1]

    assert f({"a": ones(), "b": 2 * ones()}, (ones(), ones())) == 0
    assert f({"b": 2 * ones(), "a": ones()}, [ones(), ones()]) == 0
    assert f.num_traces == 1


@pytest.mark.parametrize(
    "given",
    [
        np.float32(2),
        np.float64(2),
        array.array("d", [2, 2]),
        memoryview(bytearray(b"ab")),
        np.array([1, 2], ">i4"),
        np.arange(6, dtype=np.int16).reshape(2, 3).T[::2],
        np.array([1, 2], bfloat16),
        np.array([True, False]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_arrays_of_all_kinds_and_dtypes_are_arguments(given: Any) -> None:
    f = ngd.function(lambda x: x)
    expected = np.asarray(given)
    found = f(given)
    assert (found.dtype, found.shape) == (expected.dtype.newbyteorder("="), expected.shape)
    npt.assert_array_equal(found, expected)
    f(given)
    assert f.num_traces == 1


def test_tensors_of_pytorch_are_arguments() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch, whose tensors speak DLPack, is needed")
    f = ngd.function(lambda x: x + 1)
    npt.assert_array_equal(f(torch.ones(3)), 2 * ones(3))
    assert f(torch.ones(3, dtype=torch.bfloat16)).dtype == bfloat16


@pytest.mark.parametrize(
    "dtype", [np.float16, bfloat16, np.float32, np.float64, np.int32, np.uint8, np.bool_]
)
def test_floats_are_traced_and_take_the_dtype_of_the_other_operand(dtype: Any, device: str) -> None:
    def f(x: Any, rate: float) -> Any:
        return [x * rate, rate - x, np.maximum(x, 2 * rate + 1), -rate / 3, abs(rate) + x * 2]

    def fixed(rate: float) -> Any:
        """Return the result of a function in which the rate is a constant."""
        return ngd.function(lambda x: f(x, rate), device=device)

    traced, x = ngd.function(f, device=device), np.array([0, 1]).astype(dtype)
    for rate in (0.1, 0.7):
        for found, expected in zip(traced(x, rate), fixed(rate)(x), strict=True):
            assert found.dtype == np.asarray(expected).dtype
            npt.assert_array_equal(found, expected)
    assert traced.num_traces == 1


def test_traced_floats_combine_with_variables_and_have_gradients() -> None:
    half, double = ngd.variable("h", np.ones(2, bfloat16)), ngd.variable("d", np.ones(2))
    f = ngd.function(lambda rate: (half * rate, double * rate, ops.exp(rate) * half))
    assert [a.dtype for a in f(0.1)] == [bfloat16, np.float64, bfloat16]
    npt.assert_array_equal(f(0.1)[1], np.full(2, 0.1))
    x = np.array([1, 2], np.float32)
    value, slope = ngd.value_and_grad(lambda rate, x: ops.sum(x * rate * rate))(0.1, x)
    assert value.dtype == np.float32
    npt.assert_allclose(slope, 0.6, rtol=1e-6)


def test_arguments_that_are_not_arrays_or_floats_are_fixed_in_the_trace() -> None:
    @ngd.function
    def f(x: Any, axis: int | None = None, mean: bool = False, kind: str = "a") -> Any:
        return (ops.mean if mean else ops.sum)(x, axis), kind

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    npt.assert_array_equal(f(x)[0], x.sum())
    npt.assert_array_equal(f(x, 1)[0], x.sum(1))
    npt.assert_array_equal(f(x, axis=1)[0], x.sum(1))
    assert f.num_traces == 2
    npt.assert_array_equal(f(x, True)[0], x.sum(1))  # True and 1 are different keys
    npt.assert_array_equal(f(x, 1, True, kind="b")[0], x.mean(1))
    assert f(x, 1, True, kind="b")[1] == "b"
    assert f.num_traces == 4


def test_variables_are_read_when_the_step_runs(device: str) -> None:
    w, v = ngd.variable("w", ones(2)), ngd.variable("v", ones(2))
    f = ngd.function(lambda x, of: x * w + of, device=device)
    npt.assert_array_equal(f(ones(2), v), 2 * ones(2))
    w.assign(3 * ones(2))
    npt.assert_array_equal(f(ones(2), v), 4 * ones(2))
    npt.assert_array_equal(f(ones(2), w), 6 * ones(2))
    assert f.num_traces == 2


def test_updates_change_variables(device: str) -> None:
    w = ngd.variable("w", np.zeros(2))

    @ngd.function(updates=True, device=device)
    def step(x: Any, rate: float) -> Any:
        loss = ops.sum((w - x) ** 2)
        return loss, {w: w - rate * ngd.grad(loss, w)}

    expected, x = np.zeros(2), np.array([1.0, 2.0])
    for rate in (0.1, 0.2, 0.1):
        npt.assert_allclose(step(x, rate), np.sum((expected - x) ** 2), rtol=1e-12)
        expected -= rate * 2 * (expected - x)
    npt.assert_allclose(w.numpy(), expected, rtol=1e-12)
    assert step.num_traces == 1


def test_undeclared_updates_raise_type_error() -> None:
    w = ngd.variable("w", ones(2))
    with pytest.raises(TypeError, match="updates=True"):
        ngd.function(lambda: (1, [{w: w + 1}]))()
    with pytest.raises(TypeError, match=r"return \(result, updates\); got <ngd.Node"):
        ngd.function(lambda: w + 1, updates=True)()
    with pytest.raises(TypeError, match=r"updates: expected {variable: node}"):
        ngd.function(lambda: (None, {"w": w + 1}), updates=True)()
    npt.assert_array_equal(w.numpy(), ones(2))


def test_calls_inside_a_trace_are_inlined() -> None:
    w = ngd.variable("w", ones(2))
    inner = ngd.function(lambda x: x * 2)
    change = ngd.function(lambda x: (x + w, {w: w + x}), updates=True)

    @ngd.function(updates=True)
    def outer(x: Any) -> Any:
        made, updates = change(inner(x) + inner(ones(2)))
        return made, updates

    npt.assert_array_equal(outer(ones(2)), 5 * ones(2))
    npt.assert_array_equal(w.numpy(), 5 * ones(2))
    assert (inner.num_traces, change.num_traces, outer.num_traces) == (0, 0, 1)
    x = ngd.placeholder("x", (2,))
    (found,) = ngd.compile([x], [inner(x)])(ones(2))
    npt.assert_array_equal(found, 2 * ones(2))
    _, last = ops.scan(lambda carry, part: (carry, inner(part)), (), x)
    npt.assert_array_equal(ngd.compile([x], [last])(ones(2))[0], 2 * ones(2))
    assert inner.num_traces == 0


def test_a_function_with_its_own_group_cannot_be_inlined_elsewhere() -> None:
    alone = ngd.init()
    f = ngd.function(lambda x: ops.all_reduce(x, op="sum"), group=alone)
    npt.assert_array_equal(f(ones(2)), ones(2))
    with pytest.raises(TypeError, match="group of its own"):
        f(ngd.placeholder("x", (2,)))
    npt.assert_array_equal(ngd.function(lambda x: f(x), group=alone)(ones(2)), ones(2))
    of_group = ngd.function(lambda x: ops.sum(f(x)), group=alone, device="INTERPRETER")
    npt.assert_array_equal(ngd.value_and_grad(of_group)(ones(2))[1], ones(2))
    assert ngd.value_and_grad(of_group).device == "INTERPRETER"


def test_after_shutdown_a_function_uses_the_new_world() -> None:
    f = ngd.function(lambda x: ops.all_reduce(x, op="sum"))
    npt.assert_array_equal(f(ones(2)), ones(2))
    ngd.shutdown()
    ngd.init()
    npt.assert_array_equal(f(ones(2)), ones(2))
    assert f.num_traces == 1


def test_trace_returns_the_compiled_step() -> None:
    f = ngd.function(lambda x, pair: x + pair["a"])
    step = f.trace(ones(2), {"a": 1.0})
    assert str(step.graph).startswith('graph("x": f32[2], "pair[\'a\']": f64[])')
    assert "add" in str(step)
    assert f.trace(x=ones(2), pair={"a": 2.0}) is step
    with pytest.raises(TypeError, match="got nodes"):
        f.trace(ngd.placeholder("x", (2,)), {"a": 1.0})


def test_results_are_fresh_and_may_be_any_values() -> None:
    table = np.arange(3)
    f = ngd.function(lambda x: {"x": x, "again": x, "table": table, "text": "t", "n": 3})
    x = ones(2)
    found = f(x)
    assert not np.shares_memory(found["x"], x)
    assert not np.shares_memory(found["x"], found["again"])
    found["table"][:] = 9
    npt.assert_array_equal(f(x)["table"], np.arange(3))
    assert (found["text"], found["n"]) == ("t", 3)
    assert ngd.function(lambda: None)() is None
    assert ngd.function(lambda: ())() == ()


class Model:
    def __init__(self) -> None:
        self.w = ngd.variable("w", ones(2))

    @ngd.function
    def apply(self, x: Any) -> Any:
        """Multiply."""
        return x * self.w


def test_methods_can_be_traced_and_keep_their_names() -> None:
    model, other = Model(), Model()
    other.w.assign(2 * ones(2))
    npt.assert_array_equal(model.apply(ones(2)), ones(2))
    npt.assert_array_equal(other.apply(x=ones(2)), 2 * ones(2))
    assert isinstance(Model.apply, ngd.Function)
    assert (Model.apply.__name__, Model.apply.__doc__) == ("apply", "Multiply.")
    assert "Model.apply, 2 traces" in repr(Model.apply)
    gradient = ngd.value_and_grad(lambda x: ops.sum(model.apply(x) ** 2))
    npt.assert_array_equal(gradient(ones(2))[1], 2 * ones(2))
    assert ngd.remat(model.apply)(ones(2)).tolist() == [1, 1]
    assert ngd.jacobian(model.apply) is ngd.jacobian(model.apply)


@ngd.function
def doubled(x: Any) -> Any:
    return 2 * x


def test_copies_and_pickles_are_the_same_function() -> None:
    assert copy.deepcopy({"f": doubled})["f"] is doubled
    assert pickle.loads(pickle.dumps(doubled)) is doubled


def test_any_callable_can_be_a_function() -> None:
    model = ngd.nn.Linear(2, 3)
    model.trace = "an attribute of the model"
    f = ngd.function(model)
    made = f(ones(4, 2))
    npt.assert_allclose(
        made, model.weight.numpy().sum(1) + np.tile(model.bias.numpy(), (4, 1)), 1e-6
    )
    assert f.trace(ones(4, 2)).graph.outputs[0].shape == (4, 3)
    npt.assert_array_equal(ngd.function(np.tanh)(0.0), 0)
    npt.assert_array_equal(ngd.function(ops.add)(ones(2), 1.0), 2 * ones(2))


def test_a_function_that_is_retraced_often_warns_once() -> None:
    f = ngd.function(lambda x, n: x * n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in range(1, 8):
            f(ones(size, 2), 3)
    with pytest.warns(
        RetraceWarning, match=r"8 times.*x is float32\[8, 2\], not float32\[7, 2\]"
    ) as seen:
        f(ones(8, 2), 3)
    assert seen[0].filename == __file__
    f(ones(9, 2), 3)  # no second warning, which would be an error
    g = ngd.function(lambda x, n: x * n)
    for n in range(7):
        g(ones(2), n)
    with pytest.warns(RetraceWarning, match=r"n is 7, a value fixed in the trace, not 6, .*int64"):
        g(ones(2), 7)


def test_bad_arguments_raise_errors_that_name_them() -> None:
    f = ngd.function(lambda x, table: x)
    with pytest.raises(TypeError, match=r"table\['a'\]\[0\]: expected an array, .*; got set"):
        f(ones(2), {"a": [set()]})
    with pytest.raises(TypeError, match=r"expected .*<lambda>\(x, table\); got no `table`"):
        f(ones(2))
    with pytest.raises(DTypeError, match="x: expected a dtype among"):
        f(np.array(["a"]), None)
    with pytest.raises(TypeError, match="expected a Python function; got 3"):
        ngd.function(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="without a mask"):
        f(np.ma.array([1.0], mask=[True]), None)


def test_a_function_that_reads_an_argument_of_another_trace_raises_compile_error() -> None:
    kept: list[Any] = []

    @ngd.function
    def leaks(x: Any) -> Any:
        kept.append(x)
        return x + kept[0]

    leaks(ones(2))
    with pytest.raises(CompileError, match=r"got 'x' \(made at .*an argument of another"):
        leaks(ones(3)[:1])
    assert leaks.num_traces == 1


def test_a_branch_on_a_traced_value_raises_an_error_with_advice() -> None:
    with pytest.raises(TypeError, match=r"ngd\.ops\.where"):
        ngd.function(lambda x: x if x > 0 else -x)(1.0)
    for made in (float, int, range, lambda x: [1, 2][x], lambda x: f"{x:.2}"):
        with pytest.raises(TypeError, match=r"x: expected a number that is fixed|format string"):
            ngd.function(lambda x, made=made: made(x))(1.0)


def test_an_exception_in_a_trace_leaves_no_trace() -> None:
    @ngd.function
    def f(x: Any, fails: bool) -> Any:
        if fails:
            raise KeyError("mine")
        return x + 1

    with pytest.raises(KeyError, match="mine"):
        f(ones(2), True)
    assert f.num_traces == 0
    npt.assert_array_equal(f(ones(2), False), 2 * ones(2))
    assert isinstance(f(ones(2), False), np.ndarray)


def test_a_block_of_nn_training_around_a_call_raises_type_error() -> None:
    drop = ngd.nn.Dropout(0.5)
    f = ngd.function(lambda x: drop(x))
    random = ngd.nn.Random(1)
    npt.assert_array_equal(f(ones(64)), ones(64))
    with ngd.nn.training(random):
        for given in (ones(64), ones(65)):
            with pytest.raises(
                TypeError, match=r"blocks of nn\.training.*Begin the block in the f"
            ):
                f(given)
        with ngd.nn.evaluation():
            npt.assert_array_equal(f(ones(64)), ones(64))
        made = f(ngd.placeholder("x", (64,)))  # part of the graph that is built in this block
    assert isinstance(made, ngd.Node)

    @ngd.function(updates=True)
    def trained(x: Any) -> Any:
        with ngd.nn.training(random) as state:
            return f(x), state.updates

    first, second = trained(ones(64)), trained(ones(64))
    assert 0 < (first == 0).sum() < 64
    assert (first != second).any()
    assert random.step.numpy() == 2


def test_traces_share_the_variables_and_the_state_of_an_optimizer() -> None:
    def trained(sizes: list[int], traced: bool) -> Any:
        w, optimizer = ngd.variable("w", np.zeros(3)), ngd.optim.AdamW(0.1)

        def step(x: Any) -> Any:
            loss = ops.mean((x @ w - 1) ** 2)
            return loss, optimizer.minimize(loss, w)

        function, losses = ngd.function(step, updates=True), []
        for size in sizes:
            x = np.random.default_rng(size).normal(size=(size, 3))
            if traced:
                losses.append(float(function(x)))
                continue
            given = ngd.placeholder("x", x.shape, x.dtype)
            loss, updates = step(given)
            losses.append(float(ngd.compile([given], [loss], updates)(x)[0]))
        assert function.num_traces == (2 if traced else 0)
        return losses, w.numpy().tolist(), optimizer.step.numpy()

    sizes = [8, 8, 5, 8, 5, 5, 8]
    assert trained(sizes, True) == trained(sizes, False)


def test_functions_that_are_defined_in_a_loop_are_reported() -> None:
    def once(n: int) -> None:
        ngd.value_and_grad(lambda x: ops.sum(x) * n)(ones(2))

    for n in range(99):
        once(n)
    with pytest.warns(RetraceWarning, match=r"made again, .* 100 times .*outside of the loop"):
        once(99)
    once(100)


def test_several_threads_trace_once() -> None:
    runs = []

    @ngd.function
    def f(x: Any) -> Any:
        runs.append(1)
        return x + 1

    begin = threading.Barrier(4)

    def call() -> None:
        begin.wait(10)
        f.trace(ones(2))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert len(runs) == f.num_traces == 1


LINEAR = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("python", "argument", "path", "kind"),
    [
        (lambda x: LINEAR(x), [[1.0, 2.0]], "x", "list"),
        (lambda x: LINEAR(x), [[1, 2]], "x", "list"),
        (lambda x: ops.relu(x), [[1.0, 2.0]], "x", "list"),
        (lambda x: ops.sum(x), (1.0, 2.0), "x", "tuple"),
        (lambda x: x + 1, [1.0, 2.0], "x", "list"),
        (lambda x: -x, [1.0, 2.0], "x", "list"),
        (lambda x: x[:, 0], [[1.0, 2.0]], "x", "list"),
        (lambda x: ops.sum(x["a"]), {"a": [1.0, 2.0]}, "x['a']", "list"),
    ],
)
def test_a_list_of_numbers_instead_of_an_array_is_named(
    python: Any, argument: Any, path: str, kind: str
) -> None:
    with pytest.raises(TypeError) as caught:
        ngd.function(python)(argument)
    assert str(caught.value) == (
        f"{python.__qualname__}: {path}: expected an array; got a {kind} of numbers, which is a "
        f"structure of separate arguments. Give np.array({path})."
    )


def test_a_list_of_nodes_instead_of_an_array_is_named() -> None:
    x = ngd.placeholder("x", (2,))
    with pytest.raises(TypeError, match=r"^relu: expected a node, .*; got a list of nodes\. Join"):
        ops.relu([x, x])
    with pytest.raises(TypeError, match=r"^relu: expected a node, .*; got a list of nodes\. Join"):
        ngd.function(lambda pair: ops.relu(pair))([ones(2), ones(2)])


def test_an_unrelated_error_is_unchanged() -> None:
    with pytest.raises(AttributeError, match="missing"):
        ngd.function(lambda x, sizes: x.missing)(ones(2), [1, 2])
    with pytest.raises(TypeError, match="unsupported operand"):
        ngd.function(lambda x, sizes: None + 1)(ones(2), [1, 2])
    assert ngd.function(lambda sizes: ops.sum(ops.ones(sizes)))([2, 3]) == 6
    assert ngd.function(lambda parts: ops.stack(parts))([1.0, 2.0]).tolist() == [1, 2]
