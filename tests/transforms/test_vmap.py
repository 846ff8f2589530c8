# SPDX-License-Identifier: Apache-2.0
"""Tests of ngd.vmap: axes, structures, nesting, gradients, control flow, draws and errors.

tests/ops/test_vmap.py compares each op with a loop over the examples.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import nn, ops
from ngd.dtypes import Array
from ngd.errors import CompileError, ShapeError

RNG = np.random.default_rng(7)
X, Y, W = RNG.normal(size=(4, 3)), RNG.normal(size=(4, 3)), RNG.normal(size=(3, 5))
DEVICES = ("CPU", "INTERPRETER")


@pytest.fixture(params=DEVICES, autouse=True)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The default device, on which calls with arrays run."""
    monkeypatch.setenv("NGD_DEVICE", request.param)
    return str(request.param)


def loop(f: Callable[..., Any], *columns: Any) -> Array:
    """Return the results of a function for each example, stacked."""
    step = ngd.function(f)
    return np.stack([step(*row) for row in zip(*columns, strict=True)])


def close(found: Any, wanted: Any, tolerance: float = 1e-10) -> None:
    npt.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def layer(x: Any, w: Any) -> Any:
    return ops.sum(ops.tanh(x @ w) ** 2)


def test_an_argument_may_be_shared_by_all_examples() -> None:
    close(ngd.vmap(layer, (0, None))(X, W), [np.sum(np.tanh(x @ W) ** 2) for x in X])
    ws = np.stack([W, 2 * W, 3 * W, -W])
    both = ngd.vmap(layer)(X, ws)
    close(both, [np.sum(np.tanh(x @ w) ** 2) for x, w in zip(X, ws, strict=True)])
    close(ngd.vmap(lambda x: layer(x, W))(X), ngd.vmap(layer, (0, None))(X, W))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_in_axes_and_out_axes_select_the_mapped_axes(axis: int) -> None:
    x = RNG.normal(size=(2, 3, 4))
    rows = np.moveaxis(x, axis, 0)
    made = ngd.vmap(lambda a: ops.cumsum(a, 0) * a[:1], in_axes=axis, out_axes=axis)(x)
    wanted = np.stack([np.cumsum(a, 0) * a[:1] for a in rows], axis)
    close(made, wanted)


def test_in_axes_may_be_a_structure() -> None:
    def f(batch: Any, scale: Any) -> Any:
        return {"sum": batch["x"] + batch["y"][0] * scale, "y": batch["y"][1], "name": "f"}

    batch = {"x": X, "y": [X.T, np.float32(2)]}
    axes = ({"x": 0, "y": [1, None]}, None)
    made = ngd.vmap(f, axes, {"sum": 1, "y": None, "name": 0})(batch, 3.0)
    close(made["sum"], (X + X * 3).T)
    assert made["y"] == 2
    assert made["name"] == "f"
    prefix = ngd.vmap(lambda p: p["a"] * p["b"]["c"], ({"a": 0, "b": 1},))
    close(prefix({"a": X, "b": {"c": Y.T}}), X * Y)


def test_numbers_texts_and_defaults_are_shared() -> None:
    def f(x: Any, scale: float = 2.0, *rest: Any, kind: str = "a", y: Any = None) -> Any:
        made = x * scale if kind == "a" else -x
        return made if y is None else made + y

    close(ngd.vmap(f)(X), 2 * X)
    close(ngd.vmap(f)(X, 3.0), 3 * X)
    close(ngd.vmap(f)(X, scale=3), 3 * X)
    close(ngd.vmap(f)(X, kind="b"), -X)
    close(ngd.vmap(f, (1,))(X.T, y=Y), 2 * X + Y)
    close(ngd.vmap(f, (0, 0, None))(X, Y, 7), X * Y)


def test_results_that_do_not_depend_on_the_example_are_repeated() -> None:
    both = ngd.vmap(lambda x: (x, ops.ones((2,)), 5), out_axes=(0, 1, None))(X)
    assert both[1].shape == (2, 4)
    assert both[2] == 5
    assert ngd.vmap(lambda x: np.float32(3))(X).tolist() == [3] * 4


def test_vmap_works_in_graphs_and_in_traced_functions() -> None:
    x = ngd.placeholder("x", (4, 3), "float64")
    step = ngd.compile([x], ngd.vmap(ops.sum)(x))
    close(step(X), X.sum(1))
    w = ngd.variable("vmap_w", W)
    close(ngd.function(lambda a: ngd.vmap(lambda r: r @ w)(a))(X), X @ W)
    close(ngd.vmap(lambda r, v: r @ v, (0, None))(X, w), X @ W)
    f = ngd.function(lambda a: ops.sum(a * a))
    made = ngd.vmap(f)
    close(made(X), (X * X).sum(1))
    made(Y)
    assert made.num_traces == 1
    assert ngd.vmap(f) is made
    assert ngd.vmap(f, [0]) is ngd.vmap(f, [0])


def test_vmap_can_be_nested() -> None:
    products = ngd.vmap(ngd.vmap(ops.multiply, (None, 0)), (0, None))
    close(products(X[0], Y[1]), np.outer(X[0], Y[1]))
    x = RNG.normal(size=(2, 3, 4))
    close(ngd.vmap(ngd.vmap(lambda a: a / ops.sum(a)))(x), x / x.sum(-1, keepdims=True))
    close(ngd.vmap(ngd.vmap(ops.max, 1), 0, 1)(x), x.max(1).T)
    t = RNG.normal(size=(2, 5, 4))
    indices = RNG.integers(-5, 5, (2, 3, 6))
    made = ngd.vmap(ngd.vmap(lambda a, i: a[i], (None, 0)))(t, indices)
    close(made, [[a[i] for i in rows] for a, rows in zip(t, indices, strict=True)])


def test_gradients_per_example_equal_a_loop() -> None:
    def loss(p: Any, x: Any, y: Any) -> Any:
        return ops.mean((ops.tanh(x @ p["w"]) @ p["v"] - y) ** 2)

    p = {"w": W, "v": RNG.normal(size=5)}
    y = RNG.normal(size=4)
    each = ngd.vmap(ngd.value_and_grad(loss), (None, 0, 0))
    values, gradients = each(p, X, y)
    one = ngd.value_and_grad(loss)
    for i in range(4):
        value, gradient = one(p, X[i], y[i])
        close(values[i], value)
        close(gradients["w"][i], gradient["w"])
        close(gradients["v"][i], gradient["v"])
    mean = ngd.grad(lambda p, x, y: ops.mean(ngd.vmap(loss, (None, 0, 0))(p, x, y)))(p, X, y)
    close(mean["w"], gradients["w"].mean(0))


def test_jacobians_and_hessians_per_example_equal_a_loop() -> None:
    def f(x: Any) -> Any:
        return ops.sin(x) * ops.sum(x)

    close(ngd.vmap(ngd.jacobian(f))(X), loop(ngd.jacobian(f), X))
    g = ngd.hessian(lambda x: ops.sum(f(x) ** 2))
    close(ngd.vmap(g)(X), loop(g, X))
    rows = ngd.function(lambda x: ngd.vmap(ngd.vjp(f, x)[1])(np.eye(3))[0])
    close(rows(X[0]), ngd.jacobian(f)(X[0]))


class Network(nn.Module):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.out = nn.Linear(4 * 9, 3)

    def forward(self, x: Any) -> Any:
        made = ops.max_pool(ops.gelu(self.norm(self.convolution(x))), 2)
        return self.out(ops.reshape(made, (x.shape[0], -1)))


def test_a_model_can_be_mapped() -> None:
    model = Network()
    x = RNG.normal(size=(3, 2, 6, 6)).astype(np.float32)
    labels = np.array([0, 2, 1])
    parameters = model.parameters()

    @ngd.function
    def of_one(x: Any, label: Any) -> Any:
        loss = ops.cross_entropy(model(x[None]), label[None])
        return ngd.grad(loss, parameters)

    each = ngd.vmap(of_one)(x, labels)
    for i in range(3):
        for name, gradient in of_one(x[i], labels[i]).items():
            npt.assert_allclose(each[name][i], gradient, rtol=1e-4, atol=1e-5)


def attend(q: Any, k: Any, v: Any) -> Any:
    return ops.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (lambda x, w: ops.conv(x, w, padding=1, groups=2), [(2, 4, 5), (6, 2, 3)]),
        (lambda x, w: ops.conv_transpose(x, w, stride=2), [(2, 4, 5), (4, 3, 3)]),
        (lambda a, b: ops.einsum("ij,kj->ik", a, b), [(2, 3), (4, 3)]),
        (lambda a, b: a @ b, [(3,), (3,)]),
        (lambda a, b: ops.concat([a, b, a], -1), [(2, 3), (2, 1)]),
        (lambda a, b: ops.where(a > 0, a, b), [(2, 3), (3,)]),
        (lambda a, b: a.at[1:].add(b), [(4, 2), (2,)]),
        (lambda a, b: a.at[np.array([0, 2, 0])].max(b), [(4, 2), (3, 2)]),
        (lambda a, b: ops.pad(a, 1, "reflect") * ops.sum(b), [(3, 3), (2,)]),
        (lambda a, b: ops.flip(ops.roll(a, 1, 0), 1) - ops.tile(b, (3, 1)), [(3, 2), (2,)]),
        (lambda a, b: ops.sort(a, 0) + ops.argsort(a, 0) * b, [(5, 2), ()]),
        (lambda a, b: ops.softmax(a, 0) * ops.layer_norm(a, 3) + ops.var(b), [(2, 3), (4,)]),
        (lambda a, b: ops.huber_loss(a, b) + ops.kl_div(a, ops.exp(b)), [(2, 3), (2, 3)]),
        (lambda a, b: ops.lstm(a, b, b, *WEIGHTS)[0], [(5, 3), (2,)]),
    ],
)
def test_functions_composed_of_ops_can_be_mapped(f: Callable[..., Any], shapes: Any) -> None:
    columns = [RNG.normal(size=(3, *shape)) for shape in shapes]
    close(ngd.vmap(f)(*columns), loop(f, *columns), 1e-7)
    first = columns[1][0]
    close(ngd.vmap(f, (0, None))(columns[0], first), loop(lambda x: f(x, first), columns[0]), 1e-7)
    first = columns[0][0]
    close(
        ngd.vmap(f, (None, 0))(first, columns[1]),
        loop(lambda x: f(ops.as_node(first), x), columns[1]),
        1e-7,
    )


WEIGHTS = [RNG.normal(size=shape) for shape in ((8, 3), (8, 2), (8,), (8,))]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint8"])
def test_dtypes_are_kept(dtype: str) -> None:
    x = (RNG.normal(size=(3, 4)) * 3).astype("int8").astype(getattr(ngd, dtype))
    for f in (ops.max, lambda a: ops.sum(a.astype("float32")), lambda a: a[::2], ops.argmin):
        made, wanted = ngd.vmap(f)(x), loop(f, x)
        assert made.dtype == wanted.dtype
        npt.assert_array_equal(made, wanted)


def test_scan_can_be_mapped() -> None:
    def f(xs: Any, start: Any) -> Any:
        def body(carry: Any, x: Any) -> Any:
            value, number = carry
            return (value * 0.5 + x * W[0, 0] + number, number + 1), value * x

        (last, number), made = ops.scan(body, (start, ops.as_node(np.int64(0))), xs)
        return last, made, number

    last, made, number = ngd.vmap(f, (0, None))(X, np.float64(1))
    wanted = [ngd.function(f)(x, np.float64(1)) for x in X]
    close(last, [w[0] for w in wanted])
    close(made, [w[1] for w in wanted])
    assert number.tolist() == [3] * 4
    g = ngd.grad(lambda xs, start: ops.sum(f(xs, start)[1] ** 2), argnums=(0, 1))
    made = ngd.vmap(g)(X, Y[:, 0])
    for i in range(4):
        one = g(X[i], Y[i, 0])
        close(made[0][i], one[0])
        close(made[1][i], one[1])


def test_cond_can_be_mapped() -> None:
    def f(x: Any, limit: Any) -> Any:
        return ops.cond(ops.sum(x) > limit, lambda a: (a * 2, limit), lambda a: (-a, limit + 1), x)

    for axes, limits in (((0, None), np.float64(0)), ((None, 0), np.array([-9.0, 9.0]))):
        x = X if axes[0] == 0 else X[0]
        made = ngd.vmap(f, axes)(x, limits)
        rows = [(a, limits) for a in X] if axes[0] == 0 else [(x, limit) for limit in limits]
        wanted = [ngd.function(f)(*row) for row in rows]
        close(made[0], [w[0] for w in wanted])
        close(made[1], [w[1] for w in wanted])
    shared = ngd.vmap(lambda x, p: ops.cond(p, lambda a: a * 2, lambda a: Y[0], x), (0, None))
    close(shared(X, np.True_), 2 * X)
    close(shared(X, np.False_), np.stack([Y[0]] * 4))


def test_custom_gradients_can_be_mapped() -> None:
    @ngd.custom_gradient
    def f(x: Any, w: Any) -> Any:
        e = ops.exp(x) * w
        return e, lambda dy: (dy * e * 10, ops.sum(dy * dy) * x[0])

    def g(x: Any, w: Any) -> Any:
        return ops.sum(f(x, w) ** 2)

    each = ngd.grad(g, argnums=(0, 1))
    columns = (X, Y[:, 0])
    made = ngd.vmap(each)(*columns)
    wanted = [each(*row) for row in zip(*columns, strict=True)]
    close(made[0], [w[0] for w in wanted])
    close(made[1], [w[1] for w in wanted])
    whole = ngd.grad(lambda x, w: ops.sum(ngd.vmap(g, (0, None))(x, w)), argnums=(0, 1))(X, 0.5)
    rows = [each(x, 0.5) for x in X]
    close(whole[0], [w[0] for w in rows])
    close(whole[1], np.sum([w[1] for w in rows]))
    nested = ngd.vmap(ngd.vmap(each, (0, None)), (None, 0))(X, Y[:2, 0])
    close(nested[0][1], [each(x, Y[1, 0])[0] for x in X])


def test_custom_gradients_in_a_loop_can_be_mapped() -> None:
    @ngd.custom_gradient
    def own(x: Any, w: Any) -> Any:
        e = ops.exp(x) * w
        return e, lambda dy: (dy * e * 10, dy * dy * x)

    def f(xs: Any, w: Any, v: Any) -> Any:
        def body(carry: Any, x: Any) -> Any:
            carry = ops.tanh(carry * w) + own(x, w) * v
            return carry, carry * x

        last, made = ops.scan(body, xs[0], xs)
        return last + ops.sum(made**2)

    each = ngd.grad(f, argnums=(0, 1, 2))
    columns = (X, Y[:, 0], Y[:, 1])
    for axes in ((0, 0, None), (0, None, 0), (None, 0, 0), (0, 0, 0)):
        args = [c if axis == 0 else c[0] for c, axis in zip(columns, axes, strict=True)]
        made = ngd.vmap(each, axes)(*args)
        rows = [
            each(*(a[i] if axis == 0 else a for a, axis in zip(args, axes, strict=True)))
            for i in range(4)
        ]
        mapped = ngd.vmap(f, axes)
        whole = ngd.grad(lambda *a, g=mapped: ops.sum(g(*a)), argnums=(0, 1, 2))(*args)
        for part, total, wanted, axis in zip(
            made, whole, map(np.stack, zip(*rows, strict=True)), axes, strict=True
        ):
            close(part, wanted)
            close(total, wanted if axis == 0 else wanted.sum(0))


def test_loops_around_vmap_and_second_derivatives() -> None:
    def body(carry: Any, x: Any) -> Any:
        return carry + ops.sum(ngd.vmap(lambda a: a * carry)(x)), ngd.vmap(ops.sin)(x)

    last, made = ngd.function(lambda x: ops.scan(body, np.float64(1), x))(X)
    close(last, np.prod(1 + X.sum(1)))
    close(made, np.sin(X))
    curvature = ngd.hessian(lambda x: ops.sum(ngd.vmap(ops.prod)(x)))
    blocks = loop(ngd.hessian(ops.prod), X)
    close(np.stack([curvature(X)[i, :, i] for i in range(4)]), blocks)


@pytest.mark.parametrize("size", [0, 1])
def test_zero_and_one_example_are_mapped(size: int) -> None:
    x, places = np.ones((size, 3)), np.zeros((size, 2), int)
    assert ngd.vmap(lambda a: ops.softmax(a @ W)[::2])(x).shape == (size, 3)
    assert ngd.vmap(lambda a, i: a[i])(x, places).shape == (size, 2)
    assert ngd.vmap(ngd.grad(layer), (0, None))(x, W).shape == (size, 3)


def test_remat_can_be_mapped() -> None:
    def f(x: Any, w: Any) -> Any:
        return ops.sum(ops.tanh(ops.tanh(x @ w) @ ops.transpose(w)) ** 2)

    again = ngd.grad(ngd.remat(f), argnums=(0, 1))
    plain = ngd.grad(f, argnums=(0, 1))
    wanted = ngd.vmap(plain, (0, None))(X, W)
    for a, b in zip(ngd.vmap(again, (0, None))(X, W), wanted, strict=True):
        close(a, b)
    whole = ngd.grad(lambda w: ops.sum(ngd.vmap(ngd.remat(f), (0, None))(X, w)))(W)
    close(whole, wanted[1].sum(0))


def test_each_example_has_its_own_draws() -> None:
    def f(x: Any) -> Any:
        return x + ops.random_uniform((5,), "float64", seed=1), ops.random_bits((2,), seed=2)

    made, bits = ngd.vmap(f)(np.zeros((3, 1)))
    assert len(np.unique(made)) == 15
    assert len(np.unique(bits)) == 6
    twice = ngd.vmap(ngd.vmap(lambda x: x * ops.random_normal((), "float64", seed=3)))
    assert len(np.unique(twice(np.ones((3, 4))))) == 12
    seeds = np.array([3, 4, 3])
    drawn = ngd.vmap(lambda s: ops.random_uniform((5,), seed=s))(seeds)
    npt.assert_array_equal(drawn, loop(lambda s: ops.random_uniform((5,), seed=s), seeds))


def test_masks_of_dropout_differ_between_examples() -> None:
    def f(x: Any) -> Any:
        return ops.sum(ops.dropout(x, 0.5, seed=4))

    slopes = ngd.vmap(ngd.grad(f))(np.ones((3, 40)))
    assert set(np.unique(slopes)) == {0, 2}
    assert len({row.tobytes() for row in slopes}) == 3

    @ngd.function
    def jacobian(x: Any) -> Any:
        y, pull = ngd.vjp(lambda x: ops.dropout(x, 0.5, seed=4), x)
        return y, ngd.vmap(pull)(np.eye(40))[0]

    y, rows = jacobian(np.ones(40))  # the rows share the mask of the one forward pass
    npt.assert_array_equal(np.diag(rows), y)

    def loop_of_draws(x: Any) -> Any:
        _, made = ops.scan(lambda c, s: (c, s * ops.dropout(ops.ones((9,)), 0.5, seed=1)), (), x)
        return made

    made = ngd.vmap(loop_of_draws)(np.ones((2, 3), np.float32))
    assert made.shape == (2, 3, 9)
    assert len({row.tobytes() for row in made.reshape(6, 9)}) == 6


def test_dropout_of_a_layer_differs_between_examples() -> None:
    layer, random = nn.Dropout(0.5), nn.Random(seed=1, name="vmap_random")

    @ngd.function(updates=True)
    def step(x: Any) -> Any:
        with nn.training(random) as state:
            made = ngd.vmap(lambda a: layer(a))(x)
        return made, state.updates

    first, second = step(np.ones((3, 40), np.float32)), step(np.ones((3, 40), np.float32))
    assert len({row.tobytes() for row in (*first, *second)}) == 6


def test_indices_out_of_range_raise_errors() -> None:
    take = ngd.vmap(lambda x, i: x[i])
    close(take(X, np.array([0, -1, 2, -3])), [X[0, 0], X[1, 2], X[2, 2], X[3, 0]])
    with pytest.raises(IndexError, match=r"getitem: expected an index in \[-3, 3\)"):
        take(X, np.array([0, 1, 3, 0]))
    with pytest.raises(IndexError, match=r"embedding: expected an index in \[0, 3\)"):
        ngd.vmap(lambda i, t: ops.embedding(i, t))(
            np.array([[0], [-1]]), RNG.normal(size=(2, 3, 4))
        )


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: ngd.vmap(ops.add)(X, Y[:3]),
            ShapeError,
            r"expected mapped axes of one size; got 4 along axis 0 of a float64\[4, 3\], and 3 "
            r"along axis 0 of b float64\[3, 3\]",
        ),
        (
            lambda: ngd.vmap(ops.sin, 2)(X),
            ShapeError,
            r"expected an axis of x float64\[4, 3\]; got 2",
        ),
        (lambda: ngd.vmap(ops.sin, -3)(X), ShapeError, r"float64\[4, 3\]; got -3"),
        (lambda: ngd.vmap(ops.sin)(np.float32(1)), ShapeError, "Give None for an argument"),
        (lambda: ngd.vmap(ops.sin, None)(X), ShapeError, "expected an array to map over"),
        (lambda: ngd.vmap(ops.sin, out_axes=2)(X), ShapeError, r"an axis in \[-2, 2\) for the res"),
        (lambda: ngd.vmap(ops.sin, out_axes=None)(X), ShapeError, "depends on mapped arguments"),
        (
            lambda: ngd.vmap(ops.add, (0,))(X, Y),
            TypeError,
            r"one entry per argument, 2; got \(0,\)",
        ),
        (lambda: ngd.vmap(ops.sin, {"x": 0})(X), TypeError, "tuple with one entry per argument"),
        (lambda: ngd.vmap(ops.sin, ({"a": 0},))(X), TypeError, "axes in the structure of a leaf"),
        (lambda: ngd.vmap(ops.sin, "0")(X), TypeError, "expected an int or None; got '0'"),
        (lambda: ngd.vmap(ops.sin, (True,))(X), TypeError, "expected an int or None; got True"),
        (lambda: ngd.vmap(ops.sin, out_axes=(0, 0))(X), TypeError, "out_axes: expected axes in"),
        (lambda: ngd.vmap(3), TypeError, "vmap: expected a function; got 3"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_raise_errors(
    call: Callable[[], Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        call()


def test_an_op_without_a_rule_raises_an_error() -> None:
    here = re.escape(__file__)
    with pytest.raises(CompileError, match=f"got all_reduce .made at {here}:.*ops.scan"):
        ngd.vmap(lambda x: ops.all_reduce(x * 2, op="sum"))(X)
    x = ngd.placeholder("x", (4, 3), "float64")
    total = ops.all_reduce(ops.as_node(np.float64(3)), op="sum")
    assert ngd.vmap(lambda a: a * ops.all_reduce(total, op="max"))(x).shape == (4, 3)
    with pytest.raises(CompileError, match="a cond without collectives; got one"):
        ngd.vmap(lambda a: ops.cond(a > 0, lambda: ops.all_reduce(total, op="max"), lambda: total))(
            x[0]
        )


def test_updates_are_rejected() -> None:
    v = ngd.variable("vmap_updated", np.float64(0))
    step = ngd.function(lambda x: (x, {v: v + x}), updates=True)
    with pytest.raises(TypeError, match="next values of variables"):
        ngd.vmap(step)(X[0])
