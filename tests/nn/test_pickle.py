# SPDX-License-Identifier: Apache-2.0
"""Tests that pickles and copies of models have the values of the variables, in any process."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import nn, ops

X1, X2, X3 = (np.random.default_rng(n).normal(size=(2, 3, *[8] * n)).astype("f") for n in (1, 2, 3))
IMAGES = ((1, X1), (2, X2), (3, X3))
SHARES = np.random.default_rng(4).uniform(0.1, 0.9, (2, 3, 8)).astype("f")
LABELS = np.array([1, 0, 7])
LENGTHS = np.array([2] * 3), np.array([1] * 3)
ARGUMENTS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "AvgPool1d": ((2,), X1),
    "AvgPool2d": ((2,), X2),
    "AvgPool3d": ((2,), X3),
    "MaxPool1d": ((2,), X1),
    "MaxPool2d": ((2,), X2),
    "MaxPool3d": ((2,), X3),
    **{f"Adaptive{kind}Pool{n}d": ((2,), x) for kind in ("Avg", "Max") for n, x in IMAGES},
    **{f"Conv{kind}{n}d": ((3, 4, 3), x) for kind in ("", "Transpose") for n, x in IMAGES},
    "BatchNorm": ((3,), X1),
    "BatchNorm1d": ((3,), X1),
    "BatchNorm2d": ((3,), X2),
    "BatchNorm3d": ((3,), X3),
    "GroupNorm": ((3, 3), X1),
    "LayerNorm": ((8,), X1),
    "RMSNorm": ((8,), X1),
    "Linear": ((8, 4), X1),
    "Embedding": ((9, 4, 1), np.array([[1, 8]])),
    "LSTM": ((8, 4, 2), X1),
    "GRU": ((8, 4), X1),
    "MultiHeadAttention": ((8, 2), X1),
    "Dropout": ((0.5,), X1),
    **{f"Dropout{n}d": ((0.5,), x) for n, x in (("1", X1), *IMAGES[1:])},
    **{f"InstanceNorm{n}d": ((3, 1e-5, True), x) for n, x in IMAGES},
    "InstanceNorm": ((3,), X1),
    "EmbeddingBag": ((9, 4), np.array([[1, 8]])),
    "PReLU": ((3,), X1),
    "GLU": ((), X1),
    "Upsample": ((None, 2), X1),
    "PixelShuffle": ((1,), X2),
    "PixelUnshuffle": ((1,), X2),
    "Unfold": ((2,), X2),
    "Fold": ((2, 1), np.ones((2, 3, 4))),
    "Flatten": ((), X1),
    "TransformerEncoderLayer": ((8, 2, 16), X1),
    "TransformerEncoder": ((partial(nn.TransformerEncoderLayer, 8, 2, 16), 2), X1),
    "TransformerDecoderLayer": ((8, 2, 16), (X1, X1 + 1)),
    "TransformerDecoder": (
        (partial(nn.TransformerDecoderLayer, 8, 2, 16), 2),
        (X1, X1 + 1),
    ),
    "CosineSimilarity": ((), (X1, X1 + 1)),
    "TripletMarginLoss": ((), (X1, X1 + 1, X1 - 1)),
    "GaussianNLLLoss": ((), (X1, X1 + 1, SHARES)),
    **{f"{name}Loss": ((), (X1, X1 + 1)) for name in ("Huber", "L1", "MSE", "SmoothL1")},
    "BCELoss": ((), (SHARES, SHARES)),
    "BCEWithLogitsLoss": ((), (X1, SHARES)),
    "KLDivLoss": ((), (np.log(SHARES), SHARES)),
    "CrossEntropyLoss": ((), (X1[0], LABELS)),
    "NLLLoss": ((), (X1[0], LABELS)),
    "CTCLoss": (
        (),
        (np.log(SHARES), LABELS[[[0], [2], [0]]], *LENGTHS),
    ),
}
MODULES = sorted(
    name
    for name in nn.__all__
    if inspect.isclass(made := getattr(nn, name))
    and issubclass(made, nn.Module)
    and name not in ("Module", "ModuleDict", "ModuleList", "Sequential")
)


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def values(model: nn.Module, x: Any) -> list[Any]:
    made = model(*(x if isinstance(x, tuple) else (x,)))
    return list(ngd.compile([], [ops.as_node(y) for y in ngd.trees.flatten(made)[0]])())


@pytest.mark.parametrize("copied", [through_pickle, copy.deepcopy])
@pytest.mark.parametrize("name", MODULES)
def test_pickles_of_every_module_compute_the_same(name: str, copied: Callable[[Any], Any]) -> None:
    args, x = ARGUMENTS.get(name, ((), X1))
    fresh = getattr(nn, name)(*args)
    model = fresh if isinstance(x, tuple) else nn.Sequential(fresh)
    model.initialize(seed=3)
    twin = copied(model)
    assert repr(twin) == repr(model)
    assert twin.state_dict().keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(twin.state_dict()[key], value)
    for one, other in zip(values(model, x), values(twin, x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_pickle_has_its_own_name_and_variables() -> None:
    """Variables that the model shares are shared in the copy."""
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].parameter("weight")
    model.initialize(seed=1)
    fresh = through_pickle(nn.Sequential(nn.Linear(4, 5)))  # before the first use
    twin = through_pickle(model)
    twin.name = "twin"
    assert twin[0].weight is twin[1].weight
    assert twin[0].weight.name == "twin.0.weight"
    before = model.state_dict()
    twin[0].weight.assign(np.zeros((5, 4)))
    np.testing.assert_array_equal(model.state_dict()["0.weight"], before["0.weight"])
    twin.initialize(seed=1)
    assert not np.array_equal(twin.state_dict()["0.weight"], np.zeros((5, 4)))
    expected = nn.Sequential(nn.Linear(4, 5)).state_dict()
    for key, value in fresh.state_dict().items():
        np.testing.assert_array_equal(value, expected[key])


def test_a_pickle_can_be_initialized_like_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 5))
    model.initialize(seed=1)
    twin = through_pickle(model)
    for one in (model, twin):
        one.initialize(seed=2)
    np.testing.assert_array_equal(twin.state_dict()["0.weight"], model.state_dict()["0.weight"])


INITIALIZERS = {
    "constant": nn.initializers.constant(np.arange(5.0)),
    "uniform": nn.initializers.uniform(),
    "normal": nn.initializers.normal(1.0),
    "truncated_normal": nn.initializers.truncated_normal(),
    "xavier_uniform": nn.initializers.xavier_uniform(),
    "xavier_normal": nn.initializers.xavier_normal(),
    "he_uniform": nn.initializers.he_uniform(),
    "he_normal": nn.initializers.he_normal(),
    "orthogonal": nn.initializers.orthogonal(),
    "torch_default": nn.initializers.torch_default(),
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers_can_be_pickled(name: str) -> None:
    given, twin = INITIALIZERS[name], through_pickle(INITIALIZERS[name])
    drawn = [draw(np.random.default_rng(1), (4, 5)) for draw in (given, twin)]
    np.testing.assert_array_equal(*drawn)


def test_a_random_source_can_be_pickled() -> None:
    random = nn.Random(seed=4, name="noise")
    random.step.assign(7)
    twin = through_pickle(random)
    assert (twin.seed, twin.step.name, int(twin.step.numpy())) == (4, "noise.step", 7)


class Net(nn.Module):
    def __init__(self) -> None:
        self.norm = nn.BatchNorm1d(8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 2)])

    def forward(self, x: ngd.Node) -> ngd.Node:
        y = self.norm(x)
        for block in self.blocks:
            y = block(y)
        return y


def predict(model: nn.Module, rows: Any) -> Any:
    return ngd.function(lambda x: model(x))(rows)


def test_models_can_be_sent_to_spawned_processes() -> None:
    model, rows = Net(), np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    model.initialize(seed=5)
    model.norm.running_mean.assign(np.arange(8))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as workers:
        found = [workers.submit(predict, model, rows) for _ in range(2)]
        for each in found:
            np.testing.assert_allclose(each.result(timeout=120), predict(model, rows), 1e-6)
