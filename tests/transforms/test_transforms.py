# SPDX-License-Identifier: Apache-2.0
"""Tests of transforms of functions, against finite differences, formulas and one another."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import ops
from ngd.dtypes import Array
from ngd.errors import GradientError
from ngd.trees import leaves_of

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(3, 2)), RNG.normal(size=(2, 4))
DEVICES = ("CPU", "INTERPRETER")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The default device, on which transforms with arrays run."""
    monkeypatch.setenv("NGD_DEVICE", request.param)
    return str(request.param)


def layer(x: Any, y: Any) -> Any:
    return ops.tanh(x @ y) * ops.exp(-ops.sum(x * x))


def differences(f: Callable[..., Any], args: Sequence[Array], number: int) -> Array:
    """Return all derivatives of a function of float64 arrays by one of its arguments."""
    columns, step = [], 1e-6
    for place in range(args[number].size):
        ends = []
        for sign in (1, -1):
            changed = [a.copy() for a in args]
            changed[number].reshape(-1)[place] += sign * step
            ends.append(np.asarray(f(*changed)))
        columns.append((ends[0] - ends[1]) / (2 * step))
    made = np.stack(columns, -1)
    return made.reshape(*made.shape[:-1], *args[number].shape)


def close(found: Any, wanted: Any, tolerance: float = 1e-7) -> None:
    npt.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def test_value_and_grad_equals_the_formula(device: str) -> None:
    f = ngd.function(lambda x, y: ops.sum(layer(x, y) ** 2))
    value, gradient = ngd.value_and_grad(f, argnums=1)(X, Y)
    assert float(value) == float(f(X, Y))
    close(gradient, differences(f, (X, Y), 1))
    _, both = ngd.value_and_grad(f, argnums=(1, 0))(X, Y)
    close(both[0], gradient)
    close(both[1], differences(f, (X, Y), 0))


def test_arguments_may_be_structures_and_results_may_have_aux(device: str) -> None:
    def f(parameters: Any, x: Any, scale: float = 2.0, *, kind: str) -> Any:
        made = x @ parameters["w"] * scale + parameters["b"][0]
        return ops.sum(made**2), {"made": made, "kind": kind}

    parameters = {"w": Y, "b": [np.ones(4)]}
    (value, aux), gradients = ngd.value_and_grad(f, has_aux=True)(parameters, X, kind="a")
    made = X @ Y * 2 + 1
    close(value, np.sum(made**2))
    close(aux["made"], made)
    assert aux["kind"] == "a"
    close(gradients["w"], X.T @ (4 * made))
    close(gradients["b"][0], np.sum(2 * made, 0))


def test_one_value_for_two_arguments_has_two_derivatives(device: str) -> None:
    def f(x: Any, y: Any) -> Any:
        return ops.sum(x * x * y)

    x = np.array([2.0, 3.0])

    @ngd.function
    def inside(x: Any) -> Any:
        return (
            ngd.value_and_grad(f)(x, x)[1],
            ngd.value_and_grad(f, 1)(x, x)[1],
            ngd.grad(f(x, x), x),
        )

    for found, wanted in zip(inside(x), (2 * x * x, x * x, 3 * x * x), strict=True):
        close(found, wanted)


def test_gradients_by_variables_and_inside_a_graph(device: str) -> None:
    w = ngd.variable("w", Y)
    x = ngd.placeholder("x", X.shape, X.dtype)
    value, gradients = ngd.value_and_grad(lambda p, x: ops.sum(layer(x, p["w"])))({"w": w}, x)
    found = ngd.compile([x], [value, gradients["w"]], device=device)(X)
    f = ngd.function(lambda x, y: ops.sum(layer(x, y)))
    close(found[1], differences(f, (X, Y), 1))
    close(ngd.value_and_grad(lambda w: ops.sum(layer(X, w)))(w)[1], found[1])


def test_functions_without_a_gradient_raise_errors() -> None:
    def f(x: Any, y: Any) -> Any:
        return ops.sum(x) if x is not None else None

    with pytest.raises(GradientError, match=r"a result that depends on the argument\['a'\]"):
        ngd.value_and_grad(lambda x: ops.sum(x["b"]))({"a": 1.0, "b": 2.0})
    close(ngd.value_and_grad(f, 1, unused="zero")(X, Y)[1], np.zeros_like(Y))
    with pytest.raises(GradientError, match=r"expected floats to differentiate by.*got 3"):
        ngd.value_and_grad(f)(3, Y)
    with pytest.raises(GradientError, match=r"got int64\[2\]"):
        ngd.value_and_grad(f)(np.arange(2), Y)
    with pytest.raises(
        GradientError, match=r"floating scalar to differentiate; got float64\[3, 2\]"
    ):
        ngd.value_and_grad(lambda x: x)(X)
    with pytest.raises(GradientError, match="floating scalar to differentiate; got None"):
        ngd.value_and_grad(lambda x: None)(X)
    with pytest.raises(TypeError, match="expected argnums below 2, the number of positional"):
        ngd.value_and_grad(f, 2)(X, Y)
    for repeated in ((0, 0), (1, -1)):
        with pytest.raises(ValueError, match=r"^value_and_grad: expected each argument once in"):
            ngd.value_and_grad(f, repeated)(X, Y)
    with pytest.raises(TypeError, match=r"returns \(result, aux\)"):
        ngd.value_and_grad(lambda x: ops.sum(x), has_aux=True)(X)
    with pytest.raises(TypeError, match="value_and_grad: expected a function; got 3"):
        ngd.value_and_grad(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Write ngd\.grad\(f, argnums=0\)"):
        ngd.grad(f, X)


def test_a_function_is_built_once() -> None:
    runs = []

    def f(x: Any) -> Any:
        runs.append(1)
        return ops.sum(x * x)

    for _ in range(3):
        ngd.value_and_grad(f)(X)
        ngd.vjp(f, X)[1](1.0)
        ngd.jvp(f, (X,), (X,))
        ngd.hessian(f)(X)
    assert len(runs) == 5


def results_of_two(x: Any, y: Any) -> Any:
    return {"a": layer(x, y), "b": (ops.sum(x), ops.argmax(y), y)}


def test_vjp_and_jvp_are_products_with_the_jacobian(device: str) -> None:
    floats = ngd.function(lambda x, y: (layer(x, y), ops.sum(x), y))
    parts = [
        [differences(lambda *a, i=i: floats(*a)[i], (X, Y), n) for i in range(3)] for n in (0, 1)
    ]
    vectors = [RNG.normal(size=p.shape[: p.ndim - 2]) for p in parts[0]]
    result, pull = ngd.vjp(results_of_two, X, Y)
    close(result["a"], floats(X, Y)[0])
    assert result["b"][1] == np.argmax(Y)
    found = pull({"a": vectors[0], "b": (float(vectors[1]), 0, vectors[2])})
    for gradient, jacobians in zip(found, parts, strict=True):
        axes = [np.tensordot(v, j, v.ndim) for v, j in zip(vectors, jacobians, strict=True)]
        close(gradient, sum(axes))
    dx, dy = RNG.normal(size=X.shape), RNG.normal(size=Y.shape)
    result, slopes = ngd.jvp(results_of_two, (X, Y), (dx, dy))
    close(result["a"], floats(X, Y)[0])
    assert slopes["b"][1] is None
    for i, slope in enumerate((slopes["a"], slopes["b"][0], slopes["b"][2])):
        close(slope, np.tensordot(parts[0][i], dx, 2) + np.tensordot(parts[1][i], dy, 2))


def test_vjp_and_jvp_work_inside_a_graph(device: str) -> None:
    @ngd.function
    def f(x: Any, y: Any) -> Any:
        result, pull, aux = ngd.vjp(lambda x: (layer(x, y), "aux"), x, has_aux=True)
        assert aux == "aux"
        return result, pull(ops.ones((3, 4), x.dtype)), ngd.jvp(layer, (x, y), (x, 0 * y))[1]

    result, (gradient,), slope = f(X, Y)
    wanted = differences(lambda x, y: ngd.vjp(layer, x, y)[0], (X, Y), 0)
    close(result, ngd.vjp(layer, X, Y)[0])
    close(gradient, wanted.sum((0, 1)))
    close(slope, np.tensordot(wanted, X, 2))


def test_vectors_of_other_shapes_are_rejected() -> None:
    _, pull = ngd.vjp(layer, X, Y)
    with pytest.raises(
        GradientError, match=r"vjp: cotangents: expected float64\[3, 4\].*got float64\[3\]"
    ):
        pull(np.ones(3))
    with pytest.raises(TypeError, match="expected a tangent for each primal; got 2 and 1"):
        ngd.jvp(layer, (X, Y), (X,))
    with pytest.raises(GradientError, match=r"tangents\[1\]: expected float64\[2, 4\]"):
        ngd.jvp(layer, (X, Y), (X, X))


def test_the_jacobian_equals_finite_differences(device: str) -> None:
    f = ngd.function(layer)
    close(ngd.jacobian(layer)(X, Y), differences(f, (X, Y), 0))
    found = ngd.jacobian(lambda p: {"a": layer(p["x"], p["y"]), "b": p["y"][0]})({"x": X, "y": Y})
    close(found["a"]["y"], differences(f, (X, Y), 1))
    close(found["b"]["x"], np.zeros((4, 3, 2)))
    assert ngd.jacobian(lambda x: ops.sum(x))(X).shape == X.shape
    assert ngd.jacobian(lambda x: x[:0])(X).shape == (0, 2, 3, 2)


def test_the_hessian_equals_finite_differences(device: str) -> None:
    f = ngd.function(lambda x, y: ops.sum(layer(x, y) ** 2))
    (xx, xy), (yx, yy) = ngd.hessian(f, (0, 1))(X, Y)
    gradients = [ngd.value_and_grad(f, n) for n in (0, 1)]
    close(xx, differences(lambda *a: gradients[0](*a)[1], (X, Y), 0), 1e-6)
    close(xy, differences(lambda *a: gradients[0](*a)[1], (X, Y), 1), 1e-6)
    close(yy, differences(lambda *a: gradients[1](*a)[1], (X, Y), 1), 1e-6)
    close(yx, np.moveaxis(xy, (0, 1), (2, 3)), 1e-10)
    close(ngd.hessian(lambda x: ops.sum(x))(X), np.zeros((3, 2, 3, 2)))


def test_the_program_of_a_jacobian_does_not_grow_with_its_rows() -> None:
    def size(n: int) -> int:
        return str(ngd.jacobian(ops.tanh).trace(np.ones(n))).count("\n")

    assert size(300) == size(100)


def test_the_hessian_of_a_loop_equals_finite_differences(device: str) -> None:
    def f(x: Any) -> Any:
        last, _ = ops.scan(lambda c, part: (ops.tanh(c * part), None), x[0], x)
        return last

    x = np.array([0.7, -0.4, 0.9])
    gradient = ngd.value_and_grad(f)
    close(ngd.hessian(f)(x), differences(lambda x: gradient(x)[1], (x,), 0), 1e-6)


def test_jacobians_and_hessians_equal_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch, the second witness, is not installed")

    def theirs(x: Any, y: Any) -> Any:
        return torch.tanh(x @ y) * torch.exp(-torch.sum(x * x))

    functional = torch.autograd.functional
    given = torch.tensor(X), torch.tensor(Y)
    dx, dy = np.cos(X), np.sin(Y)
    _, wanted = functional.jvp(theirs, given, (torch.tensor(dx), torch.tensor(dy)))
    close(ngd.jvp(layer, (X, Y), (dx, dy))[1], wanted.numpy(), 1e-12)
    wanted = functional.jacobian(theirs, given)[1]
    close(ngd.jacobian(layer, 1)(X, Y), wanted.numpy(), 1e-12)
    wanted = functional.hessian(lambda x: theirs(x, given[1]).sum(), given[0])
    close(ngd.hessian(lambda x: ops.sum(layer(x, Y)))(X), wanted.numpy(), 1e-12)


@ngd.custom_gradient
def log1pexp(x: Any) -> Any:
    e = ops.exp(x)
    return ops.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))


@ngd.custom_gradient
def scaled(pair: Any, factor: float, times: int = 2) -> Any:
    """Return a function of a structure with a custom gradient that differs from the true one."""

    def gradient(dy: Any) -> Any:
        return {"a": dy[0] * 100, "b": None}, ops.sum(dy[1]) + 7

    return (pair["a"] * factor * times, pair["b"] * factor), gradient


def test_a_custom_gradient_is_used(device: str) -> None:
    value, gradient = ngd.value_and_grad(lambda x: ops.sum(log1pexp(x)))(np.array([0.0, 800.0]))
    assert value == np.inf  # the value of the function itself
    close(gradient, [0.5, 1.0])
    close(log1pexp(0.0), np.log(2))

    def f(pair: Any, factor: Any) -> Any:
        a, b = scaled(pair, factor)
        return ops.sum(a) + 3 * ops.sum(b)

    pair = {"a": X, "b": Y}
    value, (of_pair, of_factor) = ngd.value_and_grad(f, (0, 1), unused="zero")(pair, 2.0)
    close(value, 4 * X.sum() + 6 * Y.sum())
    close(of_pair["a"], np.full_like(X, 100))
    close(of_pair["b"], np.zeros_like(Y))
    close(of_factor, 3 * Y.size + 7)
    close(scaled(pair, 3.0, 5)[0], 15 * X)


def test_custom_gradients_work_in_loops_and_in_second_gradients(device: str) -> None:
    def two_iterations(x: Any, weight: Any, f: Any) -> Any:
        return ops.scan(lambda c, part: (f(c * weight) + part, None), x[0], x)[0]

    def plain(x: Any) -> Any:
        return ops.softplus(x)

    x = np.array([0.3, -0.8, 0.5])
    found = ngd.value_and_grad(lambda x, w: two_iterations(x, w, log1pexp), (0, 1))(x, 0.7)
    wanted = ngd.value_and_grad(lambda x, w: two_iterations(x, w, plain), (0, 1))(x, 0.7)
    for a, b in zip(leaves_of(found), leaves_of(wanted), strict=True):
        close(a, b, 1e-10)
    close(ngd.hessian(log1pexp)(0.3), ngd.hessian(plain)(0.3), 1e-6)


def test_bad_custom_gradients_raise_errors() -> None:
    w = ngd.variable("w", X)
    reads = ngd.custom_gradient(lambda x: (x * w, lambda dy: dy))
    with pytest.raises(GradientError, match=r"reads <ngd.Node variable 'w'.*Make it an argument"):
        reads(X)
    stopped = ngd.custom_gradient(lambda x: (x * ops.stop_gradient(w), lambda dy: dy))
    close(stopped(X), X * X)
    with pytest.raises(TypeError, match=r"expected it to return \(result, gradient\)"):
        ngd.custom_gradient(lambda x: x)(X)
    bad = ngd.custom_gradient(lambda x, y: (x + y, lambda dy: dy))
    with pytest.raises(TypeError, match="expected a tuple of 2 adjoints"):
        ngd.value_and_grad(lambda x: ops.sum(bad(x, x)))(X)
    bad = ngd.custom_gradient(lambda x: (ops.sum(x), lambda dy: ops.ones((5,))))
    with pytest.raises(
        GradientError, match=r"gradient: expected float64\[3, 2\].*got float64\[5\]"
    ):
        ngd.value_and_grad(bad)(X)


def deep(x: Any, weights: Sequence[Any], remat: bool) -> Any:
    """Return a network of blocks of several layers, whose inner values remat does not store."""
    for w in weights:

        def block(x: Any, w: Any = w) -> Any:
            for _ in range(4):
                x = ops.tanh(x @ w) + ops.sin(x)
            return x

        x = ngd.remat(block)(x) if remat else block(x)
    return ops.mean(x * x)


def test_remat_gives_the_same_values(device: str) -> None:
    w, x = [RNG.normal(size=(4, 4)) for _ in range(3)], RNG.normal(size=(2, 4))
    for argnums in (0, 1):
        plain, again = (
            ngd.value_and_grad(lambda x, w, remat=remat: deep(x, w, remat), argnums)(x, w)
            for remat in (False, True)
        )
        for a, b in zip(leaves_of(plain), leaves_of(again), strict=True):
            npt.assert_array_equal(a, b)


def test_remat_needs_less_memory_and_repeats_the_forward_pass() -> None:
    x, w = np.ones((64, 64), np.float32), [np.ones((64, 64), np.float32)] * 6
    plain, again = (
        ngd.value_and_grad(lambda x, w, remat=remat: deep(x, w, remat), 1).trace(x, w)
        for remat in (False, True)
    )
    assert again.memory()["private"] < 0.5 * plain.memory()["private"]
    products = [len(re.findall("matmul|elementwise_product", str(step))) for step in (plain, again)]
    assert products[1] == products[0] + 24  # one more forward pass of all layers


def test_remat_may_read_outer_values_and_return_several(device: str) -> None:
    w = ngd.variable("w", Y)

    def block(x: Any) -> Any:
        made = ops.tanh(x @ w)
        return {"made": made, "same": x, "max": ops.argmax(made), "name": "block"}

    def f(x: Any, block: Any) -> Any:
        result = block(x)
        assert result["name"] == "block"
        loss = ops.sum(result["made"] ** 2) + ops.sum(result["same"])
        return loss, ngd.grad(loss, [x, w]), result["max"]

    plain, again = (ngd.function(lambda x, b=b: f(x, b))(X) for b in (block, ngd.remat(block)))
    for a, b in zip(leaves_of(plain), leaves_of(again), strict=True):
        npt.assert_array_equal(a, b)
    close(ngd.remat(block)(X)["made"], np.tanh(X @ Y))


def test_remat_works_in_loops_in_branches_and_nested(device: str) -> None:
    def loss(x: Any, w: Any, remat: Any) -> Any:
        def block(c: Any) -> Any:
            fixed = ops.exp(-w)  # computed once, outside of the loop
            return ops.tanh(c * w) * fixed, fixed

        def body(c: Any, part: Any) -> Any:
            made, fixed = remat(block)(c + part)
            chosen = ops.cond(ops.sum(made) > 0, remat(ops.sin), ops.cos, made)
            return chosen * ops.sum(fixed), made

        last, made = ops.scan(body, x[0], x)
        return ops.sum(last) + ops.sum(remat(remat(ops.exp))(made))

    x, w = RNG.normal(size=(4, 3)), RNG.normal(size=3)
    plain, again = (
        ngd.value_and_grad(lambda x, w, r=r: loss(x, w, r), (0, 1))(x, w)
        for r in (lambda f: f, ngd.remat)
    )
    for a, b in zip(leaves_of(plain), leaves_of(again), strict=True):
        close(a, b, 1e-12)
    hessians = [ngd.hessian(lambda w, r=r: loss(x, w, r))(w) for r in (lambda f: f, ngd.remat)]
    close(hessians[0], hessians[1], 1e-10)


def test_remat_of_a_module_draws_the_same_numbers() -> None:
    from ngd import nn

    block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 8))
    x = np.ones((4, 8), np.float32)

    def slopes(f: Any) -> Any:
        random = nn.Random(3)

        @ngd.function(updates=True)
        def step(x: Any) -> Any:
            with nn.training(random) as state:
                loss = ops.sum(f(x) ** 2)
            return [loss, *ngd.grad(loss, leaves_of(block.parameters()))], state.updates

        return step(x), step(x)

    for plain, again in zip(slopes(block), slopes(ngd.remat(block)), strict=True):
        for a, b in zip(plain, again, strict=True):
            npt.assert_array_equal(a, b)


def test_a_gradient_by_an_adjoint_that_is_a_product(device: str) -> None:
    """The gradient depends on the product that the adjoint is, and not on its factors."""
    random = np.random.default_rng(1)
    x, u, z = (random.normal(size=(4, 3)) for _ in range(3))
    v = random.normal(size=(4, 1))

    def pulled(c: Any) -> Any:
        (gx,) = ngd.vjp(lambda x: ops.standardize(x, 1)[0], ngd.constant(x))[1](c)
        return ngd.grad(ops.sum(gx * z), c)

    product = ngd.constant(u) * ngd.constant(v)
    found, wanted = ngd.compile([], [pulled(product), pulled(ngd.constant(u * v))], device=device)()
    npt.assert_allclose(found, wanted, rtol=1e-10)


@pytest.mark.parametrize("f", [lambda a, w: ops.relu(a) @ w, lambda a, w: ops.sin(a + w)])
def test_a_matmul_is_fused_into_rematerialised_values(f: Any) -> None:
    """The node that marks the rematerialisation is a view of several operands."""
    random = np.random.default_rng(0)
    x, w = ngd.placeholder("x", (3, 3), "float32"), ngd.placeholder("w", (3, 3), "float32")
    arrays = [random.normal(size=(3, 3)).astype(np.float32) for _ in range(2)]
    found = []
    for each in (ngd.remat(f), f):
        gradients = ngd.grad(ops.sum(each(x @ w, w)), [x, w])
        found.append(ngd.compile([x, w], gradients)(*arrays))
    for again, plain in zip(*found, strict=True):
        npt.assert_allclose(again, plain, rtol=1e-5, atol=1e-6)
