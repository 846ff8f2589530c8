# SPDX-License-Identifier: Apache-2.0
"""Tests of modules: names, state dicts, copies, training and evaluation, draws, initial values."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import checkpoint, nn, ops, optim


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        self.scale = nn.Parameter(width, nn.initializers.ones)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU())
        self.outer = nn.Linear(2 * width, width, bias=False)
        self.steps = nn.Buffer((), nn.initializers.zeros, "int64")

    def forward(self, x: Any) -> Any:
        state = nn.current()
        if state is not None:
            state.updates[self.steps] = state.now(self.steps) + 1
        return x + self.scale * self.outer(self.inner(x))


class Net(nn.Module):
    def __init__(self) -> None:
        self.embedding = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList(Block(4) for _ in range(2))
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.parameter("weight")

    def forward(self, numbers: Any) -> Any:
        x = self.embedding(numbers)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


OF_A_BLOCK = ["scale", "steps", "inner.0.weight", "inner.0.bias", "outer.weight"]
KEYS = [
    "embedding.weight",
    *(f"blocks.{i}.{key}" for i in range(2) for key in OF_A_BLOCK),
    "head.weight",
]


def value_of(model: nn.Module, numbers: Any) -> Any:
    return ngd.compile([], [model(np.asarray(numbers))])()[0]


def test_variables_have_dotted_names() -> None:
    net = Net()
    assert list(net.state_dict()) == KEYS
    assert list(net.variables()) == KEYS[:-1]
    assert [v.name for v in net.variables().values()] == KEYS[:-1]
    assert list(net.buffers()) == ["blocks.0.steps", "blocks.1.steps"]
    assert net.parameters().keys() == net.variables().keys() - net.buffers().keys()
    assert net.head.weight is net.embedding.weight
    assert net.blocks[1].inner[0].weight is net.parameters()["blocks.1.inner.0.weight"]
    assert list(net.modules())[:4] == ["", "embedding", "blocks", "blocks.0"]
    assert "(1): GELU(approximate='none')" in repr(net)
    named = nn.Sequential(nn.Linear(2, 3))
    named.name = "critic"
    assert named[0].weight.name == "critic.0.weight"
    assert list(named.parameters()) == ["0.weight", "0.bias"]


def test_attributes_can_be_replaced_and_deleted() -> None:
    net = Net()
    with pytest.raises(TypeError, match=r"Linear.weight: expected a declaration; got .*share it"):
        net.head.weight = net.embedding.weight
    with pytest.raises(
        AttributeError, match=r"Net has no attribute 'train'. Use `with nn.training"
    ):
        net.train()
    net.blocks[0].inner = nn.Linear(4, 8)
    assert list(net.blocks[0].modules()) == ["", "inner", "outer"]
    net.head = nn.Linear(4, 2)
    assert list(net.state_dict())[-2:] == ["head.weight", "head.bias"]
    del net.head
    net.blocks = None
    assert list(net.state_dict()) == ["embedding.weight"]
    with pytest.raises(AttributeError, match="Net has no attribute 'head'"):
        net.head(0)
    with pytest.raises(KeyError, match=r"expected a name of a parameter; got 'head.weight'"):
        net.parameter("head.weight")
    with pytest.raises(TypeError, match="ModuleList: expected modules; got 3"):
        nn.ModuleList([3])  # type: ignore[list-item]
    layers = nn.ModuleDict({"b": nn.Linear(1, 1), "a": nn.ReLU()})
    assert (list(layers), len(layers)) == (["b", "a"], 2)
    assert list(layers.state_dict()) == ["b.weight", "b.bias"]


def test_initial_values_depend_only_on_seed_and_name() -> None:
    one, other = Net(), Net()
    other.blocks[1].outer.weight  # noqa: B018 (is made before the others)
    first = one.state_dict()
    for key, value in other.state_dict().items():
        np.testing.assert_array_equal(value, first[key])
    weights = [first[f"blocks.{i}.outer.weight"] for i in range(2)]
    assert not np.array_equal(*weights)
    one.initialize(seed=1)
    assert not np.array_equal(one.head.weight.numpy(), first["head.weight"])
    other.initialize(seed=1)
    np.testing.assert_array_equal(one.head.weight.numpy(), other.head.weight.numpy())


def test_state_dicts_load_and_mismatches_are_reported() -> None:
    one, other = Net(), Net()
    one.initialize(seed=2)
    state = one.state_dict()
    assert other.load_state_dict(state) == ([], [])
    np.testing.assert_array_equal(value_of(one, [1, 4]), value_of(other, [1, 4]))
    del state["embedding.weight"]  # head.weight is the same variable
    assert other.load_state_dict(state) == ([], [])
    del state["blocks.0.scale"]
    state["more"] = np.zeros(3)
    before = other.state_dict()
    with pytest.raises(ValueError, match=r"got 1 missing: blocks.0.scale; 1 unexpected: more\."):
        other.load_state_dict(state)
    assert other.load_state_dict(state, strict=False) == (["blocks.0.scale"], ["more"])
    state["blocks.1.scale"] = np.zeros((4, 1))
    state["blocks.1.outer.weight"] = np.zeros((4, 8))
    with pytest.raises(
        ngd.errors.ShapeError,
        match=r"blocks.1.scale: expected shape \(4,\); got \(4, 1\)$",
    ):
        other.load_state_dict(state, strict=False)
    for key, value in other.state_dict().items():
        np.testing.assert_array_equal(value, before[key])


class Parameter:
    """A parameter like PyTorch's: NumPy cannot read it while it requires a gradient."""

    def __init__(self, values: Any, requires_grad: bool = True) -> None:
        self.values, self.requires_grad = values, requires_grad

    def detach(self) -> Parameter:
        return Parameter(self.values, False)

    def __dlpack__(self, **how: Any) -> Any:
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return self.values.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


def test_a_bad_state_dict_changes_no_variable() -> None:
    one, other = Net(), Net()
    one.initialize(seed=2)
    state: dict[str, Any] = one.state_dict()
    middle = [*state][len(state) // 2]
    before = other.state_dict()
    for wrong in ("text", [["ragged"], []], {"a": 1}, np.array(["a", "b"]), object()):
        with pytest.raises((TypeError, ValueError), match=middle):
            other.load_state_dict(state | {middle: wrong})
        for key, value in other.state_dict().items():
            np.testing.assert_array_equal(value, before[key])
    assert other.load_state_dict({k: Parameter(v) for k, v in state.items()}) == ([], [])
    for key, value in other.state_dict().items():
        np.testing.assert_array_equal(value, state[key])


def test_the_variables_of_a_model_are_saved_and_loaded(tmp_path: Any) -> None:
    net, loaded = Net(), Net()
    net.initialize(seed=3)
    checkpoint.save(tmp_path, net.variables())
    checkpoint.load(tmp_path, loaded.variables())
    np.testing.assert_array_equal(loaded.head.weight.numpy(), net.head.weight.numpy())
    tensors = checkpoint.read_safetensors(next(tmp_path.glob("*.safetensors")))
    assert Net().load_state_dict(tensors) == ([], [])


def test_a_deep_copy_has_its_own_variables() -> None:
    net = Net()
    net.initialize(seed=4)
    copied = copy.deepcopy(net)
    np.testing.assert_array_equal(copied.blocks[0].scale.numpy(), net.blocks[0].scale.numpy())
    assert copied.head.weight is copied.embedding.weight is not net.head.weight
    layer = nn.Linear(2, 2)
    layer.initialize(seed=5)
    pair = nn.Sequential(copy.deepcopy(layer), copy.deepcopy(layer))
    assert [v.name for v in pair.parameters().values()][::2] == ["0.weight", "1.weight"]
    np.testing.assert_array_equal(pair[1].weight.numpy(), layer.weight.numpy())
    inner = copy.deepcopy(net.blocks[1])
    assert inner.scale.name == "scale"


def test_a_dtype_must_be_chosen_before_the_first_use() -> None:
    net = Net().astype("float64")
    assert {str(v.dtype) for v in net.parameters().values()} == {"float64"}
    assert net.blocks[0].steps.dtype == np.int64
    with pytest.raises(
        RuntimeError, match=r"expected a fresh module; got one whose 'embedding.weight' is in use"
    ):
        net.astype(ngd.bfloat16)
    assert nn.Linear(2, 3).astype(ngd.bfloat16).weight.dtype == ngd.bfloat16
    with pytest.raises(RuntimeError, match="expected an attribute of a module"):
        nn.Parameter(3).variable  # noqa: B018


def test_two_steps_share_the_variables_of_a_model() -> None:
    """The evaluation step sees the variables that the training step has changed."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    x, y = ngd.placeholder("x", (6, 3)), ngd.placeholder("y", (6,), "int64")
    random = nn.Random(seed=1)
    optimizer = optim.SGD(0.1)
    with nn.training(random) as state:
        loss = ops.mean(ops.softmax_cross_entropy(model(x), y))
        with nn.evaluation():
            frozen = model(x)
        assert nn.current() is state
    assert nn.current() is None
    updates = [optimizer.minimize(loss, model.parameters()), state.updates]
    step = ngd.compile([x, y], {"loss": loss, "frozen": frozen}, updates)
    evaluate = ngd.compile([x], [model(x)])
    data, labels = np.random.default_rng(0).normal(size=(6, 3)).astype("f"), np.arange(6) % 2
    before = evaluate(data)[0]
    np.testing.assert_array_equal(evaluate(data)[0], before)
    np.testing.assert_allclose(step(data, labels)["frozen"], before, 1e-6)
    assert not np.allclose(evaluate(data)[0], before)
    assert model[1].num_batches_tracked.numpy() == 1
    assert random.step.numpy() == 1
    assert list(random.state) == ["random.step"]


@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
def test_each_step_draws_new_masks_and_a_reset_repeats_them(device: str) -> None:
    x = ngd.placeholder("x", (1000,))
    drop = nn.Dropout(0.25)
    random = nn.Random(seed=7)
    with nn.training(random) as state:
        outputs = [drop(x), drop(x)]
    step = ngd.compile([x], outputs, state.updates, device=device)
    ones = np.ones(1000, np.float32)
    draws = [step(ones) for _ in range(2)]
    masks = [mask for pair in draws for mask in pair]
    for number, mask in enumerate(masks):
        assert set(np.unique(mask)) == {np.float32(0), np.float32(1 / 0.75)}
        assert abs(np.count_nonzero(mask) - 750) < 6 * math.sqrt(1000 * 0.25 * 0.75)
        assert all(np.any(mask != other) for other in masks[:number])
    random.step.assign(0)
    np.testing.assert_array_equal(step(ones), draws[0])
    assert drop(x) is x  # in evaluation


def test_dropout_needs_a_source_of_random_numbers() -> None:
    x = ngd.placeholder("x", (3,))
    with nn.training(), pytest.raises(ValueError, match=r"nn.Dropout: expected a source of rand"):
        nn.Dropout()(x)
    with nn.training() as state:
        assert nn.Dropout(0.0)(x) is x
    assert state.updates == {}
    with pytest.raises(ValueError, match=r"expected a probability in \[0, 1\); got 1"):
        nn.Dropout(1)
    with pytest.raises(ValueError, match=r"expected a seed in \[0, 2\^32\); got -1"):
        nn.Random(-1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.Embedding(3, 2, padding_idx=3), "padding_idx among 3 rows; got 3"),
        (lambda: nn.GroupNorm(3, 4), "groups that divides 4 channels; got 3"),
        (lambda: nn.MultiHeadAttention(6, 4), "heads that divides 6; got 4"),
        (lambda: nn.Conv2d(3, 4, (3,)), r"Conv2d: expected kernel_size of 2 axes; got \(3,\)"),
        (lambda: nn.Conv1d(3, 4, 3, groups=2), "groups that divide 3 and 4 channels; got 2"),
        (lambda: nn.Conv2d(3, 4, 3)(ngd.placeholder("x", (3, 5, 5))), r"Conv2d: .* \[N, 3, H"),
        (
            lambda: nn.MaxPool1d(2)(ngd.placeholder("x", (3, 5))),
            r"MaxPool1d: expected an input \[N, C",
        ),
        (
            lambda: nn.BatchNorm2d(3)(ngd.placeholder("x", (2, 3))),
            "BatchNorm2d: expected an input of 4 axes",
        ),
        (lambda: nn.initializers.fans((3,)), "weight of two axes or more"),
        (lambda: nn.initializers.he_std((3, 2), 1.0, "up"), 'fan "in" or "out"'),
    ],
)
def test_bad_arguments_raise_value_error(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_an_integer_mask_is_rejected() -> None:
    """Integers would be added to the attention logits, and would mask nothing."""
    attend, x = nn.MultiHeadAttention(4, 2), np.ones((1, 3, 4), np.float32)
    mask = np.array([[[1, 1, 0]]])
    with pytest.raises(
        ngd.errors.DTypeError, match=r"mask: expected bools .*int64.* mask != 0, or"
    ):
        attend(x, mask=mask)
    rows = [ngd.compile([], [attend(x, mask=m)])()[0] for m in (mask != 0, mask.astype(bool))]
    np.testing.assert_array_equal(*rows)


RANDOM = nn.initializers
SPREADS = {
    "uniform": (RANDOM.uniform(-3, 3), 3.0, math.sqrt(3)),
    "normal": (RANDOM.normal(0, 2), math.inf, 2.0),
    # The variance of a normal distribution cut at two standard deviations is 0.7737413.
    "truncated": (RANDOM.truncated_normal(0.5), 1.0, 0.5 * math.sqrt(0.7737413)),
    "xavier_uniform": (RANDOM.xavier_uniform(2.0), 2 * math.sqrt(6 / 900), 2 * math.sqrt(2 / 900)),
    "xavier_normal": (RANDOM.xavier_normal(), math.inf, math.sqrt(2 / 900)),
    "he_uniform": (RANDOM.he_uniform(), math.sqrt(6 / 300), math.sqrt(2 / 300)),
    "he_normal": (RANDOM.he_normal(fan="out"), math.inf, math.sqrt(2 / 600)),
    "torch": (RANDOM.torch_default(), 1 / math.sqrt(300), 1 / math.sqrt(3 * 300)),
    "of_a_bias": (RANDOM.torch_default(12), 1 / math.sqrt(12), 1 / 6),
}


@pytest.mark.parametrize("name", SPREADS)
def test_initializers_have_the_expected_bounds_and_variance(name: str) -> None:
    draw, bound, std = SPREADS[name]
    values = draw(np.random.default_rng(0), (200, 100, 3))
    assert np.abs(values).max() <= bound
    np.testing.assert_allclose([values.std(), values.mean()], [std, 0], atol=0.02 * std)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 2, 2)])
def test_orthogonal_weights_are_orthogonal(shape: tuple[int, ...]) -> None:
    w = RANDOM.orthogonal(2.0)(np.random.default_rng(0), shape).reshape(shape[0], -1)
    small = w @ w.T if shape[0] <= w.shape[1] else w.T @ w
    np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-12)


def test_a_linear_layer_needs_no_transpose() -> None:
    """The weight gradient is computed in the layout of the weight, and the matmul adds the bias."""
    layer = nn.Linear(5, 3)
    x = ngd.placeholder("x", (2, 4, 5))
    loss = ops.sum(ops.tanh(layer(x)))
    step = ngd.compile([x], [loss], optim.SGD(0.1).minimize(loss, layer.parameters()))
    assert "transpose(" not in str(step)
    assert str(step).count("= matmul(") == 2
    assert str(step).split("= matmul(")[1].split(")")[0].count("%") == 3


def test_buffers_are_restored_if_their_mean_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, calls = nn.BatchNorm(2), []

    def fail_at_the_second_call(value: Any, **options: Any) -> Any:
        calls.append(value)
        if len(calls) == 2:
            raise ngd.errors.RankLostError("all_reduce: rank 1 died")
        return value + 7

    monkeypatch.setattr("ngd.nn.module.all_reduce", fail_at_the_second_call)
    before = {key: v.numpy() for key, v in norm.buffers().items()}
    with pytest.raises(ngd.errors.RankLostError), norm.averaged_buffers():
        pass
    assert len(calls) == 2
    for key, v in norm.buffers().items():
        np.testing.assert_array_equal(v.numpy(), before[key])
