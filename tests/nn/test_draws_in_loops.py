# SPDX-License-Identifier: Apache-2.0
"""Tests of random draws in loops: each iteration has its own draws, even in the backward pass."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

import ngd
from ngd import nn, ops
from ngd.dtypes import Array
from ngd.graph.node import Node

STRIDE = 2**40
DEVICES = ("CPU", "INTERPRETER")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def values(*outputs: Node, device: str = "CPU") -> list[Array]:
    """Return the values of nodes that depend on no placeholder."""
    return list(ngd.compile([], list(outputs), device=device)())


OPS: dict[str, Callable[..., Node]] = {
    "random_bits": lambda **how: ops.random_bits((40,), **how),
    "random_uniform": lambda **how: ops.random_uniform((40,), **how),
    "random_normal": lambda **how: ops.random_normal((40,), "float64", **how),
    "dropout": lambda **how: ops.dropout(np.ones(40, np.float32), 0.5, **how),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", OPS)
def test_each_iteration_draws_at_its_own_offset(name: str, reverse: bool, device: str) -> None:
    op = OPS[name]
    _, drawn = ops.scan(
        lambda c, _: (c, op(seed=5, offset=9)), 0.0, np.arange(4.0), reverse=reverse
    )
    alone = [op(seed=5, offset=9 + t * STRIDE) for t in range(4)]
    looped, *wanted = values(drawn, *alone, device=device)
    npt.assert_array_equal(looped, np.stack(wanted))
    assert all((looped[i] != looped[j]).any() for i in range(4) for j in range(i))


@pytest.mark.parametrize("name", OPS)
def test_an_offset_that_depends_on_the_slice_is_not_changed(name: str) -> None:
    op, offsets = OPS[name], np.array([3, 3, 8])
    _, drawn = ops.scan(lambda c, t: (c, op(seed=5, offset=t)), 0.0, offsets)
    looped, *wanted = values(drawn, *[op(seed=5, offset=int(t)) for t in offsets])
    npt.assert_array_equal(looped, np.stack(wanted))
    counted = ops.scan(lambda c, _: (c + 1, op(seed=c, offset=2)), np.int64(6), length=2)[1]
    looped, *wanted = values(counted, *[op(seed=s, offset=2) for s in (6, 7)])
    npt.assert_array_equal(looped, np.stack(wanted))


def test_nested_loops_count_all_iterations(device: str) -> None:
    draw = OPS["random_bits"]

    def inner(c: Node, part: Node) -> tuple[Node, Any]:
        return c, (draw(seed=1), draw(seed=1, offset=part))

    def outer(c: Node, part: Node) -> tuple[Node, Any]:
        _, made = ops.scan(inner, c, np.arange(3) + 7)
        _, of_outer = ops.scan(lambda d, _: (d, draw(seed=1, offset=part)), c, length=3)
        return c, (*made, of_outer, draw(seed=1))

    (both, of_inner, of_outer, before) = ops.scan(outer, 0.0, np.arange(2) + 50)[1]
    at = {n: draw(seed=1, offset=n) for n in (7, 8, 9)}
    wanted = [draw(seed=1, offset=n * STRIDE) for n in range(6)]
    of_slice = [draw(seed=1, offset=50 + t + u * STRIDE) for t in range(2) for u in range(3)]
    got = values(both, of_inner, of_outer, before, *wanted, *at.values(), *of_slice, device=device)
    npt.assert_array_equal(got[0], np.stack(got[4:10]).reshape(2, 3, 40))
    npt.assert_array_equal(got[1], np.stack([got[10:13]] * 2))
    npt.assert_array_equal(got[2], np.stack(got[13:]).reshape(2, 3, 40))
    npt.assert_array_equal(got[3], np.stack(got[4:6]))


@pytest.mark.parametrize("chosen", [False, True])
def test_draws_in_loops_and_branches_have_the_offsets_of_the_iterations(
    chosen: bool, device: str
) -> None:
    draw = OPS["random_bits"]
    p = ngd.placeholder("p", (), bool)

    def body(c: Node, part: Node) -> tuple[Node, Node]:
        return c, ops.cond(part > 1, lambda: draw(seed=1), lambda: draw(seed=2))

    in_loop = ops.scan(body, 0.0, np.arange(4))[1]
    in_branch = ops.cond(
        p,
        lambda: ops.scan(lambda c, _: (c, draw(seed=3)), 0.0, length=4)[1],
        lambda: ops.stack([draw(seed=4)] * 4),
    )
    step = ngd.compile([p], [in_loop, in_branch], device=device)
    looped, branched = step(np.array(chosen))
    wanted = values(
        *[draw(seed=1 if t > 1 else 2, offset=t * STRIDE) for t in range(4)],
        *[draw(seed=3, offset=t * STRIDE) for t in range(4)],
        draw(seed=4),
    )
    npt.assert_array_equal(looped, np.stack(wanted[:4]))
    npt.assert_array_equal(branched, np.stack(wanted[4:8] if chosen else wanted[8:] * 4))


def test_the_number_of_iterations_is_known_inside_a_loop() -> None:
    counts = []

    def body(c: Node, _: Any) -> tuple[Node, None]:
        counts.append(ops.iterations())
        ops.scan(lambda d, _: (counts.append(ops.iterations()), (d, d))[1], c, length=3)
        counts.append(ops.iterations())
        return c, None

    ops.scan(body, 0.0, length=5)
    assert (*counts, ops.iterations()) == (5, 15, 5, 1)


def test_a_loop_with_too_many_iterations_to_number_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"at most 8388608 iterations.* got 9000000.*depends on"):
        ops.scan(lambda c, _: (c, ops.random_bits((), seed=1)), 0.0, length=9_000_000)
    with nn.training(nn.Random()) as state:
        ops.scan(lambda c, _: (state.draw("mine"), (c, c))[1], 0.0, length=8_000_000)
        with pytest.raises(ValueError, match=r"^mine: expected at most 8388608 random draws per s"):
            ops.scan(lambda c, _: (state.draw("mine"), (c, c))[1], 0.0, length=8_000_000)


def test_masks_differ_between_iterations_draws_and_steps(device: str) -> None:
    """Compare seven masks per step: two dropouts in a loop of three iterations, one after it."""
    drop, random = nn.Dropout(0.5), nn.Random(seed=1)
    ones = np.ones((3, 2000), np.float32)
    with nn.training(random) as state:
        _, made = ops.scan(
            lambda c, t: (c, (drop(t), drop(ops.ones((2000,))))), np.float32(0), ones
        )
        outputs = [*made, drop(ops.ones((2000,)))]
    step = ngd.compile([], outputs, state.updates, device=device)
    first = step()
    masks = np.concatenate([np.concatenate([a, b, c[None]]) for a, b, c in (first, step())]) > 0
    for i, mask in enumerate(masks):
        assert abs(np.count_nonzero(mask) - 1000) < 6 * math.sqrt(2000 * 0.25)
        for other in masks[:i]:  # independent masks agree in half of the positions
            assert abs(np.count_nonzero(mask == other) - 1000) < 6 * math.sqrt(2000 * 0.25)
    random.step.assign(0)
    for again, before in zip(step(), first, strict=True):
        npt.assert_array_equal(again, before)


def test_both_devices_draw_the_same_bits() -> None:
    drop = nn.Dropout(0.3)
    found = []
    for device in DEVICES:
        with nn.training(nn.Random(seed=4)) as state:
            made = ops.scan(lambda c, t: (c, drop(t)), 0.0, np.ones((5, 64)))[1]
        found.append(ngd.compile([], [made], state.updates, device=device)()[0])
    npt.assert_array_equal(*found)


def test_one_draw_per_iteration_equals_the_unrolled_loop() -> None:
    """Draws are numbered in the order of the program, so both programs draw the same numbers."""
    drop, x = nn.Dropout(0.5), np.ones((4, 64), np.float32)
    with nn.training(nn.Random(seed=3)) as state:
        looped = [ops.scan(lambda c, t: (c, drop(t)), np.float32(0), x)[1], drop(x)]
        first = ngd.compile([], looped, state.updates)()
    with nn.training(nn.Random(seed=3)) as state:
        unrolled = [ops.stack([drop(part) for part in x]), drop(x)]
        second = ngd.compile([], unrolled, state.updates)()
    for a, b in zip(first, second, strict=True):
        npt.assert_array_equal(a, b)


def body_of(drop: Callable[[Node], Node], w: Node) -> Callable[[Node, Node], tuple[Node, Node]]:
    """Return a loop body with two draws. One of them is an operand of a matmul."""

    def body(c: Node, part: Node) -> tuple[Node, Node]:
        c = ops.tanh(drop(c) @ w + part)
        return c, drop(c * part)

    return body


def run_loop(c: Node, xs: Node, body: Any) -> tuple[Node, Node]:
    last, made = ops.scan(body, c, xs)
    return last, made


def run_reversed_loop(c: Node, xs: Node, body: Any) -> tuple[Node, Node]:
    last, made = ops.scan(body, c, xs, reverse=True)
    return last, made


def remat_of_the_body(c: Node, xs: Node, body: Any) -> tuple[Node, Node]:
    return run_loop(c, xs, ngd.remat(body))


def remat_of_the_loop(c: Node, xs: Node, body: Any) -> tuple[Node, Node]:
    made: tuple[Node, Node] = ngd.remat(lambda c, xs: run_loop(c, xs, body))(c, xs)
    return made


def run_nested_loops(c: Node, xs: Node, body: Any) -> tuple[Node, Node]:
    def outer(c: Node, part: Node) -> tuple[Node, Node]:
        c, made = ops.scan(body, c, ops.stack([part, part * 0.5]))
        return c, ops.sum(made, 0)

    last, made = ops.scan(outer, c, xs)
    return last, made


def run_in_a_branch(c: Node, xs: Node, body: Any) -> tuple[Node, Node]:
    made: tuple[Node, Node] = ops.cond(
        ops.sum(xs) > -1e9,
        lambda c, xs: run_loop(c, xs, body),
        lambda c, xs: (c, xs),
        *(c, xs),
    )
    return made


def run_a_branch_in_a_loop(c: Node, xs: Node, body: Any) -> tuple[Node, Node]:
    def branch(c: Node, part: Node) -> Any:
        return ops.cond(ops.sum(part) > 0, body, lambda c, part: (c, part * part), c, part)

    return run_loop(c, xs, branch)


SHAPES = {"c": (4,), "xs": (3, 4), "w": (4, 4)}


@pytest.mark.parametrize(
    ("device", "limit"), [("CPU", None), ("CPU", "least"), ("INTERPRETER", None)]
)
@pytest.mark.parametrize(
    "loop",
    [
        run_loop,
        run_reversed_loop,
        remat_of_the_body,
        remat_of_the_loop,
        run_nested_loops,
        run_in_a_branch,
        run_a_branch_in_a_loop,
    ],
    ids=lambda f: f.__name__,
)
def test_gradients_with_fixed_masks_equal_finite_differences(
    loop: Callable[..., tuple[Node, Node]], limit: str | None, device: str
) -> None:
    """If the backward pass drew other masks, the error would be as large as the gradient."""
    random, drop = nn.Random(seed=2), nn.Dropout(0.4)
    given = [ngd.placeholder(n, s, "float64") for n, s in SHAPES.items()]
    c, xs, w = given
    with nn.training(random) as state:
        last, made = loop(c, xs, body_of(drop, w))
        loss = ops.sum(ops.sin(last)) + ops.sum(made * made)
    compiled: dict[str, Any] = {"device": device}
    if limit:
        compiled["memory_limit"] = least_memory(given, loss, state.updates)
    step = ngd.compile(given, [loss, *ngd.grad(loss, given)], state.updates, **compiled)
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=s) for s in SHAPES.values()]

    def losses() -> list[Array]:
        random.step.assign(17)  # gives the same masks in each call
        return list(step(*arrays))

    check_by_finite_differences(losses, arrays)


def least_memory(given: list[Node], loss: Node, updates: Any) -> int:
    """Return the smallest memory limit of the gradient in bytes, which the error message names."""
    with pytest.raises(ngd.errors.CompileError) as error:
        ngd.compile(given, [loss, *ngd.grad(loss, given)], updates, memory_limit=1)
    found = re.search(r"at least (\d+) bytes", str(error.value))
    assert found is not None
    return int(found[1])


def check_by_finite_differences(
    losses: Callable[[], list[Array]], arrays: list[Array], step: float = 1e-6
) -> None:
    value, *gradients = losses()
    assert np.isfinite(value)
    assert max(float(np.abs(g).max()) for g in gradients) > 0.1
    for array, gradient in zip(arrays, gradients, strict=True):
        for index in np.ndindex(array.shape):
            original = array[index]
            array[index] = original + step
            above = losses()[0]
            array[index] = original - step
            below = losses()[0]
            array[index] = original
            npt.assert_allclose(gradient[index], (above - below) / (2 * step), 2e-5, 1e-7)


@pytest.mark.parametrize("transform", ["vjp", "jvp"])
def test_vjp_and_jvp_use_the_masks_of_the_forward_pass(transform: str) -> None:
    c, xs, w, d = (np.random.default_rng(n).normal(size=s) for n, s in enumerate(
        [(4,), (3, 4), (4, 4), (4,)]
    ))  # fmt: skip

    def f(c: Node) -> Node:
        def drop(x: Node) -> Node:
            made: Node = ops.dropout(x, 0.4, seed=3, offset=5)
            return made

        last, made = ops.scan(body_of(drop, w), c, xs)
        return last + ops.sum(made, 0)

    forward = ngd.function(lambda c: f(c))
    slope = (forward(c + 1e-6 * d) - forward(c - 1e-6 * d)) / 2e-6
    if transform == "jvp":
        _, product = ngd.jvp(f, [c], [d])
        npt.assert_allclose(product, slope, 1e-5, 1e-8)
    else:
        v = np.random.default_rng(9).normal(size=4)
        (product,) = ngd.vjp(f, c)[1](v)
        npt.assert_allclose(product @ d, v @ slope, 1e-5)
    npt.assert_allclose(ngd.jacobian(f)(c) @ d, slope, 1e-5, 1e-8)


def test_a_gradient_rule_that_draws_gets_the_numbers_of_the_forward_pass(device: str) -> None:
    """Test a rule in a loop, in the gradient of a loop, and in the rows of a Jacobian."""

    @ngd.custom_gradient
    def drop(x: Node) -> tuple[Node, Any]:
        def draw_mask() -> Node:
            made: Node = ops.cast(ops.random_uniform((4,), seed=8) > 0.4, "float64")
            return made

        return x * draw_mask(), lambda dy: dy * draw_mask()

    c, xs, w = (ngd.placeholder(n, s, "float64") for n, s in SHAPES.items())
    last, made = ops.scan(body_of(drop, w), c, xs)
    loss = ops.sum(ops.sin(last)) + ops.sum(made * made)
    step = ngd.compile([c, xs, w], [loss, *ngd.grad(loss, [c, xs, w])], device=device)
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=s) for s in SHAPES.values()]
    check_by_finite_differences(lambda: list(step(*arrays)), arrays)
    rows = ngd.jacobian(ngd.function(lambda x: drop(x), device=device))(np.ones(4))
    (mask,) = values(ops.random_uniform((4,), seed=8) > 0.4, device=device)
    npt.assert_array_equal(rows, np.diag(mask.astype(float)))
