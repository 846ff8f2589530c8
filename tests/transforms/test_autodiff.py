# SPDX-License-Identifier: Apache-2.0
"""Tests of reverse-mode differentiation: rules, errors, and gradients by PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from ngd import grad, ops
from ngd.devices.interpreter.evaluate import evaluate
from ngd.dtypes import Array, Type, float32, float64, int64
from ngd.errors import Error, GradientError
from ngd.graph.graph import Graph
from ngd.graph.leaves import PLACEHOLDER, VARIABLE
from ngd.graph.node import Node, Op, topological
from ngd.graph.registry import OPS


def placeholder(name: str, *shape: int, dtype: np.dtype[Any] = float64) -> Node:
    return Node(PLACEHOLDER, (), {"name": name, "uniform": False}, Type(dtype, shape))


def run(inputs: Sequence[Node], outputs: Sequence[Node], *arrays: Any) -> list[Array]:
    graph = Graph(tuple(inputs), tuple(outputs))
    graph.verify()
    given = [np.asarray(a, n.dtype) for a, n in zip(arrays, inputs, strict=True)]
    return evaluate(graph, given, {})[0]


def test_gradients_have_the_structure_of_wrt() -> None:
    x, y = placeholder("x"), placeholder("y")
    loss = x * x * y
    assert isinstance(grad(loss, x), Node)
    assert run([x, y], [grad(loss, x)], 3, 2) == [12]
    assert run([x, y], grad(loss, [x, y]), 3, 2) == [12, 9]
    assert run([x, y], grad(loss, (y, x, y)), 3, 2) == [9, 12, 9]
    assert grad(loss, []) == []


def test_gradients_of_several_uses_are_added() -> None:
    x = placeholder("x")
    assert run([x], [grad(x + x + x * x, x)], 5) == [12]
    assert run([x], [grad(x, x)], 5) == [1]


def test_gradients_by_and_through_an_intermediate_node() -> None:
    x = placeholder("x")
    y = x * x
    z = y * 3
    assert run([x], grad(z * y, [x, y, z]), 2) == [6 * 4 * 4, 24, 4]


def test_gradients_of_broadcast_operands_have_their_shape() -> None:
    shapes = [(), (3,), (1, 3), (2, 1), (2, 3), (4, 2, 3), (1, 1, 1)]
    for shape in shapes:
        x, y = placeholder("x", *shape), placeholder("y", 4, 2, 3)
        (found,) = run([x, y], [grad(ops.sum(x * y), x)], np.ones(shape), np.ones((4, 2, 3)))
        npt.assert_array_equal(found, np.full(shape, 24 / max(np.prod(shape), 1)))


def test_derivatives_of_all_orders_equal_the_formula() -> None:
    x = placeholder("x")
    node, found = ops.exp(2 * x) + x**3, []
    for _ in range(4):
        node = grad(node, x)
        found.append(node)
    e = 2 * np.exp(2.0)
    npt.assert_allclose(run([x], found, 1), [e + 3, 2 * e + 6, 4 * e + 6, 8 * e], rtol=1e-14)


def test_the_hessian_of_a_network_is_symmetric() -> None:
    rng = np.random.default_rng(0)
    x, w, labels = placeholder("x", 3, 2), placeholder("w", 2, 4), placeholder("y", 3, dtype=int64)
    loss = ops.mean(ops.softmax_cross_entropy(ops.tanh(x @ w), labels))
    first = ops.reshape(grad(loss, w), (-1,))
    rows = [grad(first[i], w) for i in range(8)]
    values = rng.normal(size=(3, 2)), rng.normal(size=(2, 4)), [0, 3, 1]
    hessian = np.stack(run([x, w, labels], rows, *values)).reshape(8, 8)
    npt.assert_allclose(hessian, hessian.T, atol=1e-15)
    assert np.abs(hessian).max() > 1e-3


class TestPathsThatEnd:
    def test_stop_gradient_ends_a_path(self) -> None:
        x = placeholder("x")
        assert run([x], [grad(ops.stop_gradient(x * x) * x, x)], 3) == [9]

    def test_integers_and_bools_end_a_path(self) -> None:
        x = placeholder("x", 3)
        loss = ops.sum(ops.cast(ops.cast(x, int64), float64) * x) + ops.sum(
            ops.where(x > 0, x, 2.0) * ops.cast(ops.argmax(x), float64)
        )
        (found,) = run([x], [grad(loss, x)], [1.5, -2.5, 3.5])
        assert found.tolist() == [1 + 2, -2, 3 + 2]

    def test_unused_inputs_raise_or_get_zeros(self) -> None:
        x, y = placeholder("x", 2), placeholder("y", 2, dtype=float32)
        loss = ops.sum(x) + ops.cast(ops.sum(ops.stop_gradient(y)), float64)
        message = (
            r"a loss that depends on placeholder 'y' float32\[2\] \(made at .*autodiff\.py:\d+\)"
        )
        with pytest.raises(GradientError, match=message):
            grad(loss, [x, y])
        gx, gy = grad(loss, [x, y], unused="zero")
        assert gy.type == y.type
        assert [g.tolist() for g in run([x, y], [gx, gy], [1, 1], [1, 1])] == [[1, 1], [0, 0]]


class Opaque(Op):
    """An op without a gradient. It is not in the registry."""

    name = "opaque"

    def infer(self, x: Type) -> Type:
        return x


class Wrong(Opaque):
    """An op whose gradient has the wrong dtype."""

    name = "wrong"

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (ops.cast(dy, float32),)


class Square(Opaque):
    """An op that is differentiated through its expansion, which reads each operand once."""

    name = "product"

    def infer(self, x: Type, y: Type) -> Type:
        return x

    def expand(self, x: Node, y: Node) -> Node:
        return x * y


class TestRefusals:
    def test_only_floating_scalars_can_be_differentiated(self) -> None:
        x = placeholder("x", 3)
        with pytest.raises(GradientError, match=r"floating scalar .*; got float64\[3\] \(made at "):
            grad(x * 2, x)
        with pytest.raises(GradientError, match=r"floating scalar .*; got int64\[\]"):
            grad(ops.argmax(x), x)

    def test_gradients_by_integers_are_rejected(self) -> None:
        n = placeholder("n", dtype=int64)
        with pytest.raises(GradientError, match=r"floats to differentiate by; got placeholder 'n'"):
            grad(ops.cast(n, float64), n)

    def test_an_unknown_option_for_unused_inputs_is_rejected(self) -> None:
        x = placeholder("x")
        with pytest.raises(ValueError, match='unused "error" or "zero"; got \'zeros\''):
            grad(x, x, unused="zeros")

    def test_a_missing_gradient_names_the_op_and_its_line(self) -> None:
        x = placeholder("x")
        loss = Opaque().node((x,)) * 2
        with pytest.raises(
            GradientError,
            match=r"^opaque: .*expected an op with a gradient; got opaque \(used at .*\.py:",
        ):
            grad(loss, x)

    def test_a_missing_gradient_that_is_not_needed_is_no_error(self) -> None:
        x, y = placeholder("x"), placeholder("y")
        assert grad(x * Opaque().node((y,)), x).op.name == "multiply"

    def test_a_rule_with_a_wrong_dtype_is_an_internal_error(self) -> None:
        x = placeholder("x")
        with pytest.raises(
            Error, match=r"internal error: wrong made .* float32\[\] .* float64\[\]"
        ):
            grad(Wrong().node((x,)), x)


def test_an_op_is_differentiated_through_its_expansion() -> None:
    x, y = placeholder("x"), placeholder("y")
    product = Square()
    loss = product.node((x, y)) + product.node((x, x)) + product.node((y, y * x))
    assert run([x, y], grad_expanded(loss, [x, y]), 3, 5) == [5 + 6 + 25, 3 + 30]


def grad_expanded(loss: Node, wrt: list[Node]) -> list[Node]:
    """Return gradients in which the op without a reference is replaced by its expansion."""
    graph = Graph((), tuple(grad(loss, wrt)))

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        if not node.inputs:
            return node
        if node.op.name == "product":
            return node.op.expand(*inputs)
        return node.op.node(inputs, node.attrs)

    return list(graph.rewrite(change).outputs)


def test_gradients_have_the_call_site_of_the_forward_op() -> None:
    x = placeholder("x", 3)
    y = ops.tanh(x)
    loss = ops.sum(y)
    forward = set(topological([loss]))
    sites = {n.op.name: n.site for n in topological([grad(loss, x)]) if n not in forward}
    assert sites["subtract"] == y.site  # dy * (1 - y * y)
    assert sites["broadcast_to"] == loss.site


def test_the_gradient_of_a_collective_is_a_collective_of_the_same_kind() -> None:
    x = placeholder("x", 3)
    for kind in ("sum", "mean"):
        added = grad(ops.sum(ops.all_reduce(x, op=kind, algorithm="ring")), x)
        assert added.op.name == "all_reduce"
        assert added.attrs == {"reduce_op": kind, "algorithm": "ring"}


class TestTorch:
    """Expressions whose gradients are compared with PyTorch."""

    @pytest.fixture
    def torch(self) -> Any:
        return pytest.importorskip("torch", reason="PyTorch is not installed beside the tests")

    def test_the_gradient_of_a_network_equals_pytorch(self, torch: Any) -> None:
        rng = np.random.default_rng(1)
        values = [rng.normal(size=s) for s in ((5, 4), (4, 6), (6,), (6, 3))]
        labels = [0, 2, 1, 1, 0]
        x, w, b, v = (placeholder(n, *a.shape) for n, a in zip("xwbv", values, strict=True))
        y = placeholder("y", 5, dtype=int64)
        hidden = ops.relu(x @ w + b) * ops.sigmoid(x @ w)
        loss = ops.mean(ops.softmax_cross_entropy(hidden @ v, y)) + ops.var(w) + ops.max(b)
        ours = run([x, w, b, v, y], [loss, *grad(loss, [x, w, b, v])], *values, labels)
        tx, tw, tb, tv = (torch.tensor(a, requires_grad=True) for a in values)
        hidden = torch.relu(tx @ tw + tb) * torch.sigmoid(tx @ tw)
        total = torch.nn.functional.cross_entropy(hidden @ tv, torch.tensor(labels))
        total = total + tw.var(correction=0) + tb.amax()
        total.backward()
        for mine, theirs in zip(ours, [total, tx.grad, tw.grad, tb.grad, tv.grad], strict=True):
            npt.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-12, atol=1e-14)

    def test_gradients_of_shapes_and_indices_equal_pytorch(self, torch: Any) -> None:
        value = np.random.default_rng(2).normal(size=(3, 4))
        x = placeholder("x", 3, 4)
        parts = [x[::-1, 1:3], ops.take(x, [2, 0, 2], 0)[:, :2], ops.transpose(x)[:3, :2]]
        loss = ops.sum(ops.logsumexp(ops.concat(parts), 1) ** 3) + ops.sum(
            ops.log_softmax(x, 0) * ops.softmax(x) + ops.erf(x) * ops.prod(x, 1, keepdims=True)
        )
        (ours,) = run([x], [grad(loss, x)], value)
        t = torch.tensor(value, requires_grad=True)
        flipped = t.flip(0)[:, 1:3]
        cat = torch.cat([flipped, t[[2, 0, 2]][:, :2], t.T[:3, :2]])
        rest = torch.log_softmax(t, 0) * torch.softmax(t, 1) + torch.erf(t) * t.prod(1, True)
        (torch.logsumexp(cat, 1) ** 3).sum().add(rest.sum()).backward()
        npt.assert_allclose(ours, t.grad.numpy(), rtol=1e-11)


def test_errors_name_variables() -> None:
    w = Node(VARIABLE, (), {"name": "weight"}, Type(float32, (2,)))
    x = placeholder("x", dtype=float32)
    with pytest.raises(GradientError, match=r"variable 'weight' float32\[2\]"):
        grad(x, w)


def test_every_op_has_a_rule_an_expansion_or_no_gradient() -> None:
    for op in OPS.values():
        assert type(op).grad is not Op.grad or op.has_expansion, op.name
