# SPDX-License-Identifier: Apache-2.0
"""Tests of x[index] and x.at[index]: against NumPy on random indices, and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ngd
from ngd import ops
from ngd.errors import DTypeError, ShapeError

DEVICES = ("CPU", "INTERPRETER")
UFUNCS = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}
X = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
TWICE = np.array([1, 0, 1, 1])


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@st.composite
def indexed(draw: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Draw a shape, and an index that NumPy accepts, with parts of all kinds in any order."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    of_arrays = draw(st.sampled_from([(), (3,), (2, 3), (0,)]))
    items: list[Any] = []
    axis = 0
    masked = False
    while axis < len(shape):
        n, kinds = shape[axis], ["int", "slice", "array", "none", "stop"]
        # A mask has as many positions as the arrays have elements.
        if not masked and of_arrays == (3,):
            kinds.append("mask")
        kind = draw(st.sampled_from(kinds))
        if kind == "stop":
            break
        if kind == "none":
            items.append(None)
            if sum(item is None for item in items) > 2:
                break
            continue
        if kind == "mask":
            masked = True
            width = draw(st.integers(1, len(shape) - axis))
            mask = np.zeros(shape[axis : axis + width], bool)
            if mask.size >= 3:
                mask.reshape(-1)[draw(st.permutations(range(mask.size)))[:3]] = True
                items.append(mask)
                axis += width
            continue
        if kind == "int":
            items.append(draw(st.integers(-n, n - 1)))
        elif kind == "slice":
            bound = st.none() | st.integers(-n - 1, n + 1)
            step = draw(st.sampled_from([None, 1, 2, -1, -2]))
            items.append(slice(draw(bound), draw(bound), step))
        else:
            count = int(np.prod(of_arrays))
            drawn = draw(st.lists(st.integers(-n, n - 1), min_size=count, max_size=count))
            squeezed = of_arrays[1:] if draw(st.booleans()) and len(of_arrays) == 2 else of_arrays
            items.append(np.array(drawn, np.int64)[: int(np.prod(squeezed))].reshape(squeezed))
        axis += 1
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), Ellipsis)
    return shape, tuple(items)


def fits(shape: tuple[int, ...], index: tuple[Any, ...]) -> bool:
    """Return True if NumPy accepts the index. An Ellipsis may have moved parts to other axes."""
    try:
        np.zeros(shape)[index]
    except IndexError:
        return False
    return True


def with_nodes(
    index: tuple[Any, ...], apply: Callable[[Any], Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """Return a function of nodes that replace the integer arrays of an index, and the arrays."""
    numbers = [i for i, p in enumerate(index) if isinstance(p, np.ndarray) and p.dtype == np.int64]

    def python(*nodes: Any) -> Any:
        of = dict(zip(numbers, nodes, strict=True))
        return apply(tuple(of.get(i, part) for i, part in enumerate(index)))

    return python, [index[i] for i in numbers]


@pytest.mark.filterwarnings("ignore::ngd.errors.RetraceWarning")
@settings(max_examples=120, deadline=None)
@given(indexed(), st.booleans())
def test_indexing_equals_numpy(case: Any, of_nodes: bool) -> None:
    shape, index = case
    if not fits(shape, index):
        return
    x = np.random.default_rng(1).normal(size=shape)
    wanted = np.asarray(x[index])
    weight = np.random.default_rng(2).normal(size=wanted.shape)
    gradient = np.zeros(shape)
    np.add.at(gradient, index, weight)

    def both(x: Any, index: Any) -> Any:
        return ngd.value_and_grad(lambda x: (ops.sum(x[index] * weight), x[index]), has_aux=True)(x)

    device = DEVICES[wanted.size % 2]
    if of_nodes:
        python, arrays = with_nodes(index, lambda index: lambda x: both(x, index))
        made = ngd.function(lambda x, *nodes: python(*nodes)(x), device=device)(x, *arrays)
    else:
        made = ngd.function(lambda x: both(x, index), device=device)(x)
    (_, found), slopes = made
    assert found.shape == wanted.shape
    npt.assert_array_equal(found, wanted)
    npt.assert_allclose(slopes, gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.filterwarnings("ignore::ngd.errors.RetraceWarning")
@settings(max_examples=150, deadline=None)
@given(indexed(), st.booleans(), st.sampled_from(["set", *UFUNCS]), st.booleans())
def test_updates_at_an_index_equal_numpy(
    case: Any, of_nodes: bool, name: str, scalar: bool
) -> None:
    shape, index = case
    if not fits(shape, index):
        return
    rng = np.random.default_rng(1)
    x = rng.normal(size=shape)
    part = np.asarray(x[index])
    values = np.asarray(rng.normal(size=() if scalar else part.shape))
    wanted = x.copy()
    if name == "set":
        wanted[index] = values
    else:
        UFUNCS[name].at(wanted, index, values)

    def changed(x: Any, values: Any, *nodes: Any) -> Any:
        return getattr(x.at[python(*nodes)], name)(values)

    python, arrays = with_nodes(index, lambda index: index) if of_nodes else (lambda: index, [])
    found = ngd.function(changed, device=DEVICES[part.size % 2])(x, values, *arrays)
    npt.assert_allclose(found, wanted, rtol=1e-12, atol=0)
    kept = np.ones(shape, bool)
    kept[index] = False
    npt.assert_array_equal(found[kept], x[kept])


INDICES: dict[str, Any] = {
    "int": 1,
    "slices": (slice(None), slice(2, None, -2), None),
    "array": TWICE,
    "array behind": (slice(None), slice(0, 2), TWICE),
    "two arrays": (TWICE, [0, 2, 0, 2]),
    "apart": (TWICE, slice(1, 3), [0, 2, 0, 2]),
    "mask": X % 5 < 2,
    "mask of an axis": (slice(None), np.array([True, False, True])),
}


def slopes(f: Callable[..., Any], *args: Any) -> list[Any]:
    """Return the gradients of a scalar function of float64 arrays by central differences."""
    gradients = []
    for number, array in enumerate(args):
        gradient = np.zeros(array.shape)
        for position in range(array.size):
            ends = []
            for step in (1e-6, -1e-6):
                changed = [a.copy() for a in args]
                changed[number].reshape(-1)[position] += step
                ends.append(float(f(*changed)))
            gradient.reshape(-1)[position] = (ends[0] - ends[1]) / 2e-6
        gradients.append(gradient)
    return gradients


@pytest.mark.parametrize("index", INDICES.values(), ids=list(INDICES))
@pytest.mark.parametrize("name", ["set", *UFUNCS])
def test_gradients_of_updates_equal_finite_differences(device: str, name: str, index: Any) -> None:
    rng = np.random.default_rng(3)
    x, weight = rng.permutation(X.size).reshape(X.shape) + 0.5, rng.normal(size=X.shape)
    values = rng.permutation(x[index].size).reshape(x[index].shape) + 0.25

    def f(x: Any, values: Any) -> Any:
        return ops.sum(getattr(x.at[index], name)(values) * weight)

    def theirs(x: Any, values: Any) -> Any:
        made = x.copy()
        if name == "set":
            made[index] = values
        else:
            UFUNCS[name].at(made, index, values)
        return np.sum(made * weight)

    gradient = ngd.function(ngd.value_and_grad(f, (0, 1)), device=device)
    value, found = gradient(x, values)
    npt.assert_allclose(value, theirs(x, values), rtol=1e-12)
    for ours, wanted in zip(found, slopes(theirs, x, values), strict=True):
        npt.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max(initial=1))


def test_masks_may_be_computed_by_the_step(device: str) -> None:
    row = np.array([1.0, -1, 2, -2])

    @ngd.function(device=device)
    def f(x: Any) -> Any:
        return {
            "set": x.at[x > 10].set(0),
            "add": x.at[(x > 10,)].add(x.dtype.type(1)),
            "multiply": x.at[x > 10].multiply(2.5),
            "rows": x.at[ops.sum(x, (1, 2)) > 100].set(row),
            "max": x.at[x[:, :, 0] > 5].max(row + 10),
        }

    found, mask = f(X), X > 10
    npt.assert_array_equal(found["set"], np.where(mask, 0, X))
    npt.assert_array_equal(found["add"], X + mask)
    npt.assert_array_equal(found["multiply"], np.where(mask, 2.5 * X, X))
    rows = X.copy()
    rows[X.sum((1, 2)) > 100] = row
    npt.assert_array_equal(found["rows"], rows)
    wanted = X.copy()
    wanted[X[:, :, 0] > 5] = np.maximum(wanted[X[:, :, 0] > 5], row + 10)
    npt.assert_array_equal(found["max"], wanted)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "float32"])
def test_updates_keep_the_bits_in_every_dtype(device: str, dtype: str) -> None:
    dtype = ngd.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x, values = np.array([0, 1, 1, 0, 1]).astype(dtype), np.array([1, 0, 1]).astype(dtype)
    if dtype not in (np.bool_, np.uint8, np.int64):
        values = np.array([np.nan, -0.0, np.inf]).astype(dtype)
    wanted = x.copy()
    wanted[[3, 1, 3]] = values
    for index in (lambda: [3, 1, 3], lambda: ops.as_node(np.array([3, 1, 3], np.uint8))):
        f = ngd.function(lambda x, v, i=index: (x.at[i()].set(v), x[i()]), device=device)
        found, taken = f(x, values)
        assert found.dtype == dtype
        assert found.tobytes() == wanted.tobytes()
        assert taken.tobytes() == x[[3, 1, 3]].tobytes()


@pytest.mark.parametrize("given", [0.3, np.float64(0.3), np.float32(0.3), 3, np.int64(3)])
def test_new_values_are_converted_to_the_dtype_of_the_array(device: str, given: Any) -> None:
    for dtype in (ngd.bfloat16, np.dtype(np.float16), np.dtype(np.float32)):
        x = np.zeros(4, dtype)
        f = ngd.function(lambda x, v: (x.at[1:3].set(v), x.at[[0, 0]].add(v)), device=device)
        placed, added = f(x, given)
        assert placed.dtype == added.dtype == dtype
        wanted = np.asarray(given).astype(dtype)
        npt.assert_array_equal(placed, np.array([0, wanted, wanted, 0], dtype))
        npt.assert_array_equal(added, np.array([2 * wanted.astype("f4"), 0, 0, 0]).astype(dtype))


def test_get_at_and_sequences_are_other_forms_of_an_index() -> None:
    f = ngd.function(
        lambda x: (x.at[0].get(), ops.at(x)[..., 1].set(5), x[[]], x[range(2)], x[True:])
    )
    got = f(X)
    wanted = X.copy()
    wanted[..., 1] = 5
    for ours, theirs in zip(got, (X[0], wanted, X[[]], X[[0, 1]], X[1:]), strict=True):
        npt.assert_array_equal(ours, theirs)


OUT_OF_RANGE = "expected an index in|out of range"


def test_item_assignment_suggests_at() -> None:
    x = ngd.placeholder("x", X.shape)
    with pytest.raises(TypeError, match=r"x = x\.at\[index\]\.set\(values\)"):
        x[0] = 1


def test_a_computed_index_is_checked_when_the_step_runs(device: str) -> None:
    one = ngd.function(lambda x, i: x[:, i], device=device)
    two = ngd.function(lambda x, i, j: x[i, j], device=device)
    change = ngd.function(lambda x, i: x.at[i].set(0), device=device)
    good, bad = np.array([0, -1]), np.array([0, 3])
    npt.assert_array_equal(one(X, good), X[:, good])
    with pytest.raises(ValueError, match=OUT_OF_RANGE):
        one(X, bad)
    with pytest.raises(ValueError, match=OUT_OF_RANGE):
        two(X, good, np.array([0, 3]))  # a flat index of row 1, column 0 would exist
    with pytest.raises(ValueError, match=OUT_OF_RANGE):
        two(X, np.array([0, -3]), good)
    for wrong in (np.array([2]), np.array([-3])):
        with pytest.raises(ValueError, match=OUT_OF_RANGE):
            change(X, wrong)


@pytest.mark.parametrize(
    ("apply", "error", "message"),
    [
        (lambda x: x[x > 0], DTypeError, r"ngd\.ops\.where.* x\.at\[mask\]"),
        (lambda x: x[:, x[0, 0] > 0], DTypeError, r"ngd\.ops\.where"),
        (lambda x: x[[0, 2]], ShapeError, r"indices in \[-2, 2\) for axis 0 .*; got 2"),
        (lambda x: x[:, np.array([[0], [-4]])], ShapeError, r"\[-3, 3\) for axis 1 .*got -4"),
        (lambda x: x[[0, 1], [0, 1, 2]], ShapeError, r"that broadcast; got \(2,\) with \(3,\)"),
        (lambda x: x[np.array([0.5])], DTypeError, "expected ints, slices, None"),
        (lambda x: x[True], DTypeError, "masks of at least one axis"),
        (lambda x: x["a"], DTypeError, "expected ints, slices"),
        (
            lambda x: x[ops.cast(x, "float32")],
            DTypeError,
            r"integers as an index; got float32\[2, 3, 4\]",
        ),
        (lambda x: x[np.ones((2, 4), bool)], ShapeError, "mask of 3 elements along axis 1.*got 4"),
        (lambda x: x[[0], 0, 0, 0], ShapeError, "at most 3 indices"),
        (lambda x: x[..., [0], ...], ShapeError, "at most one ...; got several"),
        (lambda x: x[ops.argmax(x) :], DTypeError, "dynamic_slice"),
        (
            lambda x: x.at[0].set(np.ones(5)),
            ShapeError,
            r"at\[\.\.\.\]\.set: .*broadcast to \(3, 4\)",
        ),
        (lambda x: x.at[[0, 0]].add(np.ones((3, 3, 4))), ShapeError, r"broadcast to \(2, 3, 4\)"),
        (lambda x: x.at[x > 0].set(np.ones(5)), ShapeError, r"broadcast to \(\)"),
        (lambda x: x.at[x[0] > 0].set(1), ShapeError, "expected a mask of the shape"),
        (lambda x: x.at[0].set(np.ones(4, np.complex64)), DTypeError, "complex64"),
        (
            lambda x: ops.cast(x, "int32").at[0].set(x[0]),
            DTypeError,
            r"int32\[2, 3, 4\]; got float64",
        ),
    ],
)
def test_bad_indices_raise_errors(
    apply: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        apply(ngd.placeholder("x", X.shape, X.dtype))


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_indexing_and_updates_equal_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch, the second witness, is not installed")
    rng = np.random.default_rng(3)
    x, values, i = rng.normal(size=(5, 3)), rng.normal(size=(7, 3)), rng.integers(0, 5, 7)
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, values)]
    made = tensors[0].index_reduce(0, torch.tensor(i), tensors[1], "prod")
    (made**2).sum().backward()
    _, found = ngd.value_and_grad(lambda x, v, i: ops.sum(x.at[i].multiply(v) ** 2), (0, 1))(
        x, values, i
    )
    for ours, tensor in zip(found, tensors, strict=True):
        npt.assert_allclose(ours, tensor.grad.numpy(), rtol=1e-10)


@pytest.mark.parametrize(
    ("call", "index", "said"),
    [
        (
            lambda x, i: x.at[i].set(0),
            [5],
            r"at\[\.\.\.\]\.set: .* \[-2, 2\) for axis 0; got 5 at \[0\]",
        ),
        (
            lambda x, i: x.at[i].add(1),
            [0, -9],
            r"at\[\.\.\.\]\.add: .* \[-2, 2\) for axis 0; got -9 at \[1\]",
        ),
        (
            lambda x, i: x.at[1:, i].min(0),
            [7],
            r"at\[\.\.\.\]\.min: .*\[-3, 3\) for axis 1; got 7 at",
        ),
        (
            lambda x, i: x.at[[0, 1], i].max(0),
            [0, 3],
            r"at\[\.\.\.\]\.max: .*\[-3, 3\) for axis 1; got 3 at \[1\]",
        ),
        (
            lambda x, i: x.at[..., i].multiply(2),
            [4],
            r"at\[\.\.\.\]\.multiply: .* for axis 2; got 4 at \[0\]",
        ),
        (lambda x, i: x[i], [2], r"getitem: expected an index in \[-2, 2\); got 2 at \[0\]"),
        (lambda x, i: x[0, i, i], [1, 3], r"getitem: .*\[-3, 3\) for axis 1; got 3 at \[1\]"),
        (lambda x, i: ops.take(x, i, 1), [-4], r"take: .*\[-3, 3\); got -4 at \[0\]"),
        (lambda x, i: np.take(x, i, axis=1), [3], r"take: .*\[-3, 3\); got 3 at \[0\]"),
        (
            lambda x, i: ops.take_along_axis(x[0, 0], i, 0),
            [0, 4],
            r"take_along_axis: .*\[-4, 4\); got 4 at \[1\]",
        ),
        (lambda x, i: ops.embedding(i, x[0]), [-1], r"embedding: .*\[0, 3\); got -1 at \[0\]"),
        (lambda x, i: ops.embedding(i, x[0], 0), [3], r"embedding: .*\[0, 3\); got 3 at \[0\]"),
        (
            lambda x, i: ops.cross_entropy(x[:, 0], i),
            [0, 4],
            r"cross_entropy: .*\[0, 4\); got 4 at \[1\]",
        ),
    ],
)
def test_an_index_out_of_range_names_the_call_of_the_user(
    device: str, call: Callable[[Any, Any], Any], index: list[int], said: str
) -> None:
    """The message has the public call, the index, its position in the array, and the line."""
    step = ngd.function(call, device=device)
    with pytest.raises(IndexError, match=f"^{said}.*made at .*test_selection.py:") as raised:
        step(X, np.array(index))
    assert isinstance(raised.value, ngd.errors.OutOfRangeError)
    assert isinstance(raised.value, ValueError)
    assert "scatter" not in str(raised.value)


def test_the_gradient_of_an_indexed_sum_names_the_call(device: str) -> None:
    """The gradient of a sum reads no row, so the gradient is the first op that checks the index."""

    def slopes(x: Any, i: Any) -> Any:
        return ngd.grad(ops.sum(ops.embedding(i, x)), [x])[0]

    step = ngd.function(slopes, device=device)
    npt.assert_array_equal(step(X[0], np.array([0, 2, 0]))[:, 0], [2, 0, 1])
    with pytest.raises(IndexError, match=r"^embedding: expected an index in \[0, 3\); got -1 at"):
        step(X[0], np.array([0, -1]))


def test_a_scalar_index_is_named_without_a_position(device: str) -> None:
    step = ngd.function(lambda x, i: x.at[i].set(0), device=device)
    with pytest.raises(IndexError, match=r"for axis 0; got 2 \(made at"):
        step(X, np.array(2))


def test_negative_indices_of_a_flattened_gather_follow_numpy(device: str) -> None:
    step = ngd.function(lambda x, i: ops.take(x, i, 2), device=device)
    npt.assert_array_equal(step(X, np.array([-1, 0])), np.take(X, [-1, 0], 2))
