# SPDX-License-Identifier: Apache-2.0
"""Tests of axis orders: channels last where the kernels prefer it, and equal values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ngd
from ngd import nn, ops
from ngd.devices.cpu import target as cpu

pytestmark = pytest.mark.skipif(
    ("conv", "onednn") not in cpu.DEVICE.kernel_table(), reason="built without oneDNN"
)
SHAPE = (2, 4, 6, 5)


def moves(outputs: Any, *inputs: Any) -> tuple[int, int]:
    """Return the number of convolutions with channels last, and the number of transposes."""
    text = str(ngd.compile(list(inputs), outputs, device="NULL").program)
    return text.count("channels_last=1"), text.count("= transpose(")


def weight(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32) / 4


def block(x: Any, channels: int = 4) -> Any:
    """Return two convolutions with a norm, a bias and a residual connection."""
    y = ops.conv(x, weight(channels, channels, 3, 3), weight(channels), padding=1)
    normal, _, _ = ops.standardize(y, (0, 2, 3))
    y = ops.relu(normal * weight(1, channels, 1, 1) + weight(channels, 1, 1))
    return ops.relu(ops.conv(y, weight(channels, channels, 1, 1)) + x)


def test_a_part_of_a_graph_is_transposed_at_its_ends() -> None:
    x = ngd.placeholder("x", SHAPE, "float32")
    assert moves([block(block(block(x)))], x) == (6, 2)
    pooled = ops.mean(block(x), (2, 3))  # [N, C]: no axes are left to transpose
    assert moves([pooled], x) == (2, 1)


def test_a_training_step_is_transposed_at_its_ends() -> None:
    x = ngd.placeholder("x", SHAPE, "float32")
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    model = nn.Sequential(model, nn.Conv2d(4, 8, 3, bias=False), nn.AdaptiveAvgPool2d(1))
    with nn.training() as state:
        loss = ops.mean(ops.square(model(x)))
    gradients = ngd.grad(loss, list(model.parameters().values()))
    with pytest.warns(ngd.errors.UpdatesWarning):  # next values are outputs of this step
        assert moves([loss, *gradients, *state.updates.values()], x) == (5, 1)


def test_a_max_pool_and_its_gradient_keep_the_layout() -> None:
    x = ngd.placeholder("x", SHAPE, "float32")
    y = ops.max_pool(ops.relu(ops.conv(x, weight(4, 4, 3, 3), padding=1)), 3, 2, 1)
    loss = ops.sum(ops.tanh(ops.conv(y, weight(8, 4, 1, 1))))
    # The input and its gradient are transposed, and no value between them.
    assert moves([loss, ngd.grad(loss, x)], x)[1] == 2


def test_float64_and_sequences_are_not_transposed() -> None:
    x = ngd.placeholder("x", SHAPE, "float64")
    assert moves([ops.conv(x, np.ones((4, 4, 3, 3)))], x) == (0, 0)
    s = ngd.placeholder("s", SHAPE[:3], "float32")
    assert moves([ops.conv(s, weight(4, 4, 3))], s) == (0, 0)


def shifted(x: Any, amount: int) -> Any:
    return ops.concat([x[:, :, amount:], x[:, :, :amount]], 2)


PIECES: dict[str, Callable[[Any], Any]] = {
    "conv": lambda x: ops.conv(x, weight(4, 4, 3, 3), padding=1),
    "depthwise": lambda x: ops.conv(x, weight(4, 1, 3, 3), padding=1, groups=4),
    "transposed": lambda x: ops.conv_transpose(x, weight(4, 4, 3, 3), padding=1),
    "bias": lambda x: x + weight(4, 1, 1),
    "image": lambda x: x * weight(*SHAPE[1:]),
    "row": lambda x: x - weight(5),
    "scalar": lambda x: ops.tanh(x * 0.5),
    "where": lambda x: ops.where(x > 0, x, 0.1 * x),
    "mean": lambda x: x - ops.mean(x, (0, 2, 3), keepdims=True),
    "some": lambda x: x + ops.reshape(ops.sum(x, (1, 3)), (2, 1, 6, 1)) / 9,
    "largest": lambda x: x / (1 + ops.max(ops.abs(x), 2, keepdims=True)),
    "repeated": lambda x: ops.broadcast_to(ops.mean(x, 3, keepdims=True), x.shape) + x,
    "concat": lambda x: ops.concat([x, ops.tanh(x)], 1)[:, 2:6],
    "slice": lambda x: shifted(x, 2),
    "pool": lambda x: ops.max_pool(x, 3, 1, 1),
    "flat": lambda x: ops.reshape(ops.cumsum(ops.reshape(x, (2, 4, 30)), 2), x.shape),
    "parted": lambda x: ops.reshape(ops.tanh(ops.reshape(x, (2, 2, 2, 6, 5))), x.shape),
    "turned": lambda x: ops.transpose(ops.transpose(x, (0, 1, 3, 2)) * 2.0, (0, 1, 3, 2)),
    "softmax": lambda x: ops.softmax(x, 1),
    "norm": block,
}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(sorted(PIECES)), min_size=1, max_size=6), st.booleans())
def test_values_and_gradients_are_the_references(names: list[str], around: bool) -> None:
    x = ngd.placeholder("x", SHAPE, "float32")
    y = PIECES["conv"](x)
    for name in names:
        y = PIECES[name](y) + y if around else PIECES[name](y)
    loss = ops.mean(ops.square(y))
    outputs = [y, ngd.grad(loss, x)]
    given = np.random.default_rng(len(names)).normal(size=SHAPE).astype(np.float32)
    found = ngd.compile([x], outputs)(given)
    wanted = ngd.compile([x], outputs, device="INTERPRETER")(given)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * float(np.abs(b).max() + 1e-6))
