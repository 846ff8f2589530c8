# SPDX-License-Identifier: Apache-2.0
"""Tests of dropout of whole channels, and of errors for bad input of modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import nn


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_whole_channels_are_dropped(axes: int) -> None:
    model = getattr(nn, f"Dropout{axes}d")(0.25)
    x = np.ones((20, 50, *(3,) * axes), np.float32)
    with nn.training(nn.Random(seed=1)) as state:
        y = model(ngd.constant(x))
    (found,) = ngd.compile([], [y], state.updates)()
    channels = found.reshape(20, 50, -1)
    assert (channels == channels[:, :, :1]).all()
    assert set(np.unique(channels)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    assert abs((channels[:, :, 0] > 0).mean() - 0.75) < 0.08
    assert model(node := ngd.constant(x)) is node


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: nn.Dropout2d()(ngd.constant(np.ones((2, 3)))),
            r"nn\.Dropout2d: expected an input \[N, C, H",
        ),
        (lambda: nn.Dropout1d(1.0), r"expected a probability in \[0, 1\)"),
        (lambda: nn.EmbeddingBag(3, 2, "max"), r'nn\.EmbeddingBag: expected mode "mean" or "sum"'),
        (
            lambda: nn.InstanceNorm2d(3)(ngd.constant(np.ones((2, 3, 4)))),
            r"nn\.InstanceNorm2d: expected an input of 4 axes",
        ),
        (
            lambda: nn.InstanceNorm1d(3)(ngd.constant(np.ones((2, 4, 4)))),
            r"nn\.InstanceNorm1d: expected an input with 3 channels",
        ),
    ],
)
def test_bad_arguments_and_inputs_raise_value_error(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
