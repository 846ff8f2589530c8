# SPDX-License-Identifier: Apache-2.0
"""Comparisons of values and gradients with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from ngd import grad, ops
from ngd.dtypes import Array, DType, Type, float32, float64
from ngd.graph.node import Node
from tests.ops.cases import placeholders
from tests.ops.conftest import Runner

TOLERANCE: dict[DType, float] = {float32: 1e-5, float64: 1e-12}
Shape = tuple[int, ...]


def torch_or_skip() -> Any:
    """Return PyTorch, or skip the test if it is not installed."""
    return pytest.importorskip("torch", reason="PyTorch, the second witness, is not installed")


def drawn(dtype: DType, *shapes: Shape) -> list[Array]:
    """Return numbers in [-1, 1]. They are equal in each call."""
    rng = np.random.default_rng(3)
    return [np.asarray(rng.uniform(-1, 1, shape), dtype) for shape in shapes]


def agrees(
    run: Runner,
    arrays: Sequence[Array],
    ours: Callable[..., Node],
    theirs: Callable[..., Any],
) -> None:
    """Compare the value of a function, and the gradients of a weighted sum, with PyTorch.

    `theirs` takes torch and its tensors. Tolerances are relative to the largest element.
    """
    torch = torch_or_skip()
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = theirs(torch, *tensors)
    inputs = placeholders([Type(a.dtype, a.shape) for a in arrays])
    y = ours(*inputs)
    assert y.shape == tuple(expected.shape)
    seed = np.asarray(np.random.default_rng(4).uniform(-1, 1, y.shape), y.dtype)
    (expected * torch.tensor(seed)).sum().backward()
    found = run(inputs, [y, *grad(ops.sum(y * seed), inputs)], arrays)
    for value, tensor in zip(found, [expected, *(t.grad for t in tensors)], strict=True):
        wanted = tensor.detach().numpy()
        size = float(np.max(np.abs(wanted), initial=1))
        npt.assert_allclose(value, wanted, rtol=0, atol=TOLERANCE[y.dtype] * size)
