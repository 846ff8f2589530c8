# SPDX-License-Identifier: Apache-2.0
"""Tests of nodes and graphs: types, operators, order, printing, rewriting, and `verify`."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ngd import ops
from ngd.dtypes import Type, bool_, float32, float64, int64
from ngd.errors import CompileError, ShapeError
from ngd.graph.graph import Graph
from ngd.graph.leaves import PLACEHOLDER, VARIABLE, Leaf, constant_node
from ngd.graph.node import Node, topological
from ngd.graph.registry import OPS, register
from ngd.ops._operands import broadcast_shapes


def placeholder(
    name: str, *shape: int, dtype: np.dtype[Any] = float32, uniform: bool = False
) -> Node:
    return Node(PLACEHOLDER, (), {"name": name, "uniform": uniform}, Type(dtype, shape))


def variable(name: str, *shape: int) -> Node:
    return Node(VARIABLE, (), {"name": name}, Type(float32, shape))


def line() -> int:
    """Return the line number of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_types_print_and_count_elements() -> None:
    assert str(Type(float32, (2, 3))) == "float32[2, 3]"
    assert str(Type(bool_, ())) == "bool[]"
    assert Type(float64, (2, 3)).bytes == 48
    assert Type(float64, (2, 0)).count == 0


@pytest.mark.parametrize(
    ("apply", "op"),
    [
        (operator.add, "add"),
        (operator.sub, "subtract"),
        (operator.mul, "multiply"),
        (operator.truediv, "divide"),
        (operator.pow, "power"),
        (operator.eq, "equal"),
        (operator.ne, "not_equal"),
        (operator.lt, "less"),
        (operator.le, "less_equal"),
        (operator.gt, "greater"),
        (operator.ge, "greater_equal"),
    ],
)
def test_operators_build_the_ops(apply: Callable[[Any, Any], Node], op: str) -> None:
    x, y = placeholder("x", 3), placeholder("y", 3)
    assert apply(x, y).op is OPS[op]
    assert apply(x, y).inputs == (x, y)
    assert apply(x, np.ones(3, "f")).inputs[0] is x
    assert apply(x, 3.5).type.dtype in (float32, bool_)
    assert apply(3.5, x).shape == (3,)
    if op not in ("less", "less_equal", "greater", "greater_equal"):
        reflected = apply(np.ones(3, "f"), x)  # NumPy defers to the node
        assert reflected.op is OPS[op]
        assert reflected.inputs[1] is x


def test_unary_operators_matmul_and_indices_build_nodes() -> None:
    x = placeholder("x", 2, 3)
    assert (-x).op is ops.negative
    assert abs(x).op is ops.abs
    assert (x @ np.ones((3, 2), "f")).shape == (2, 2)
    assert (np.ones((2, 2), "f") @ x).shape == (2, 3)
    assert x.T.shape == (3, 2)
    assert x[0, 1:].shape == (2,)
    assert (x**2).op is ops.square
    assert (x.ndim, x.dtype, x.shape, len(x)) == (2, float32, (2, 3), 2)
    assert repr(x) == "<ngd.Node placeholder 'x' float32[2, 3]>"
    assert repr(-x) == "<ngd.Node negative float32[2, 3]>"


def test_equality_is_elementwise_and_hashes_are_those_of_nodes() -> None:
    x, y = placeholder("x", 3), placeholder("x", 3)
    assert (x == x).op is ops.equal
    assert (np.float32(2) != x).op is ops.not_equal
    assert (x == [1.0, 2.0, 3.0]).op is ops.equal
    assert {x: 1, y: 2}[x] == 1
    assert len({x, y, x}) == 2
    for nothing in (None, "x", object()):  # these are not converted to arrays
        assert operator.eq(x, nothing) is False
        assert operator.ne(x, nothing) is True


@pytest.mark.parametrize(
    "ask",
    [
        lambda x, y: bool(x == y),
        lambda x, y: x in [y],
        lambda x, y: not x,
        lambda x, y: x and y,
        lambda x, y: 1 if x != 0 else 2,
        lambda x, y: 0 < x < 1,
        lambda x, y: (x,) == (y,),
    ],
)
def test_a_node_has_no_truth_value(ask: Callable[[Node, Node], Any]) -> None:
    words = r"test_ir\.py:\d+.*no truth value.*ops\.where.*logical_and.*`is`"
    with pytest.raises(TypeError, match=words):
        ask(placeholder("x", 3), placeholder("y", 3))


def test_a_node_cannot_be_iterated_and_a_scalar_has_no_length() -> None:
    x = placeholder("x", 3)
    with pytest.raises(TypeError, match=r"test_ir\.py:\d+\), which cannot be iterated over"):
        list(x)
    with pytest.raises(TypeError, match="scalar"):
        len(placeholder("s"))


def test_the_call_site_is_the_users_line() -> None:
    x = placeholder("x", 3)
    y, call_line = ops.mean(x * 2 + 1), line()
    for node in topological([y]):
        if node is not x:
            assert node.site == f"{__file__}:{call_line}"


def test_constants_are_copies() -> None:
    array = np.ones(2)
    node = constant_node(array)
    array[0] = 7
    assert node.attrs["value"].tolist() == [1, 1]
    with pytest.raises(ValueError, match="read-only"):
        node.attrs["value"][0] = 2


def test_uniform_values_are_derived_from_the_operands() -> None:
    varying, uniform = placeholder("x", 2), placeholder("s", uniform=True)
    weight = constant_node(np.ones(2))
    assert not (varying * uniform).uniform
    assert (uniform * weight).uniform
    assert ops.all_reduce(varying, op="sum").uniform
    assert ops.broadcast(varying).uniform
    assert ops.random_uniform(3, seed=1).uniform
    assert not ops.random_uniform(3, seed=ops.cast(ops.sum(varying), int64)).uniform
    assert not ops.own_rank().uniform


def test_the_topological_order_depends_only_on_the_structure() -> None:
    x = placeholder("x")
    late, early = ops.sin(x), ops.cos(x)
    root = early + late
    assert topological([root]) == [x, early, late, root]
    assert topological([late, root]) == [x, late, early, root]
    assert topological([root, root]) == [x, early, late, root]


def test_the_topological_order_of_a_deep_graph_needs_no_recursion() -> None:
    node = placeholder("x")
    for _ in range(20_000):  # deeper than Python's stack
        node = ops.negative(node)
    order = topological([node])
    assert len(order) == 20_001
    assert order[-1] is node


def test_graphs_are_printed_one_line_per_node() -> None:
    x, w = placeholder("x", 2), variable("w", 2)
    total = ops.all_reduce(ops.sum(x * w), op="sum")
    graph = Graph((x,), (total,), ((w, w + total),))
    assert str(graph).splitlines() == [
        'graph("x": f32[2])',
        '  %0 ~ placeholder() name="x" uniform=False : f32[2]',
        '  %1 ~ variable() name="w" : f32[2]'.replace("~", "="),
        "  %2 ~ multiply(%0, %1) : f32[2]",
        "  %3 ~ sum(%2) axes=(0) keepdims=False : f32[]",
        '  %4 = all_reduce(%3) algorithm="auto" reduce_op="sum" : f32[]',
        "  %5 = add(%1, %4) : f32[2]",
        "  return %4",
        '  update "w" <- %5',
    ]
    big = constant_node(np.ones(9))
    assert "value=<9 values>" in str(Graph((), (big,)))
    assert "dtype=f32" in str(Graph((), (ops.cast(big, float32),)))


def test_rewrite_keeps_call_sites_and_shared_nodes() -> None:
    x = placeholder("x", 2)
    y = ops.exp(x)
    graph = Graph((x,), (y + y, y))

    def replace_exp(node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node.op, Leaf):
            return node
        return (ops.sin if node.op is ops.exp else node.op).node(inputs, node.attrs)

    new = graph.rewrite(replace_exp)
    assert [n.op.name for n in new.nodes] == ["placeholder", "sin", "add"]
    assert new.outputs[1].site == y.site
    assert new.outputs[0].inputs == (new.outputs[1],) * 2
    new.verify()


def test_variables_of_a_graph_are_those_that_it_reads_or_writes() -> None:
    a, b, c = variable("a"), variable("b"), variable("c")
    graph = Graph((), (c + a,), ((b, a),))
    assert graph.variables == [a, b, c]


def broken_graphs() -> list[tuple[Graph, str]]:
    x, y = placeholder("x", 2), placeholder("y", 2)
    w, other = variable("w", 2), variable("w", 2)
    wrong_type = Node(ops.exp, (x,), {}, Type(float64, (2,)))
    return [
        (
            Graph((x, x), (x,)),
            r"inputs: expected each placeholder once; got one twice among \['x', 'x'\]",
        ),
        (Graph((x,), (x + y,)), r"placeholder 'y' \(made at .*test_ir\.py:\d+\), which"),
        (Graph((), (w + other,)), r"got two variables called 'w': one made at .*, one at .*\.py"),
        (
            Graph((x,), (wrong_type,)),
            r"exp at .*\.py:\d+ has type float64\[2\], .* returns float32\[2\]",
        ),
        (
            Graph((), (), ((w, ops.sum(w)),)),
            r"updates: expected float32\[2\] .* variable 'w'; got float32\[\]",
        ),
    ]


@pytest.mark.parametrize(("graph", "message"), broken_graphs(), ids=lambda v: str(v)[:20])
def test_verify_rejects_broken_graphs(graph: Graph, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        graph.verify()


def test_two_ops_with_the_same_name_are_rejected() -> None:
    with pytest.raises(ValueError, match="two ops are called exp"):
        register(type(ops.exp)())


def test_broadcast_shapes_follows_numpy() -> None:
    assert broadcast_shapes("call", (2, 1), (3,)) == (2, 3)
    with pytest.raises(ShapeError, match=r"^call: .* that broadcast; got \(2,\) with \(3,\)"):
        broadcast_shapes("call", (2,), (3,))
