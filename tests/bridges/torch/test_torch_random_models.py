# SPDX-License-Identifier: Apache-2.0
"""Compare steps of random small models with eager PyTorch in float64. A grammar makes the models.

NGD_TORCH_MODELS is the number of models, and NGD_TORCH_SEED the first seed.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn import functional as F  # noqa: E402, N812

from ngd.torch import compile_step  # noqa: E402

COUNT = int(os.environ.get("NGD_TORCH_MODELS", "20"))
FIRST = int(os.environ.get("NGD_TORCH_SEED", "0")) or random.randrange(1 << 30)
OPS_PER_MODEL = 12

Op = Callable[["RandomModel", Any], Any]


class RandomModel(torch.nn.Module):
    """A model whose ops depend on a seed. The first forward pass makes the parameters."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.weights = torch.nn.ParameterList()
        self.is_made = False

    def weight(self, *shape: int) -> Any:
        """Return the next parameter."""
        if not self.is_made:
            generator = torch.Generator().manual_seed(self.seed + len(self.weights))
            values = torch.randn(shape, dtype=torch.float64, generator=generator)
            self.weights.append(torch.nn.Parameter(values / max(shape[-1], 1) ** 0.5))
        self.used += 1
        return self.weights[self.used - 1]

    def forward(self, x: Any) -> Any:
        """Return the loss."""
        self.random = random.Random(self.seed)
        self.used = 0
        values = [x @ self.weight(x.shape[-1], 6)]
        for _ in range(OPS_PER_MODEL):
            y = self.random.choice(values[-3:])
            op = self.random.choice(OPS)
            result = op(self, y)
            values.append(torch.tanh(result) if self.random.random() < 0.3 else result)
        return sum(value.mean() for value in values[-3:])

    def axis(self, y: Any) -> int:
        """Return a random dimension."""
        return self.random.randrange(y.ndim)


def unary(m: RandomModel, y: Any) -> Any:
    functions = [
        torch.tanh,
        torch.sigmoid,
        F.gelu,
        F.silu,
        F.softplus,
        F.elu,
        torch.sin,
        torch.atan,
        torch.erf,
        lambda v: torch.exp(torch.clamp(v, -3, 3)),
        lambda v: torch.sqrt(v.abs() + 1),
        lambda v: torch.log1p(v * v),
        lambda v: v.pow(3) * 0.1,
        lambda v: F.hardswish(v),
        lambda v: F.leaky_relu(v, 0.2),
    ]
    return m.random.choice(functions)(y)


def binary(m: RandomModel, y: Any) -> Any:
    other = m.weight(*(n if m.random.random() < 0.7 else 1 for n in y.shape))
    functions = [
        lambda a, b: a + b,
        lambda a, b: a - 2 * b,
        lambda a, b: a * b,
        lambda a, b: a / (b.abs() + 1),
        torch.maximum,
        torch.minimum,
        lambda a, b: torch.where(a > b, a, b * 0.5),
        lambda a, b: torch.lerp(a, b.expand_as(a), 0.3),
        lambda a, b: torch.addcmul(a, b.expand_as(a), a, value=0.5),
    ]
    return m.random.choice(functions)(y, other)


def product(m: RandomModel, y: Any) -> Any:
    size = m.random.choice([3, 5])
    kind = m.random.randrange(3)
    if kind == 0:
        return F.linear(y, m.weight(size, y.shape[-1]), m.weight(size))
    if kind == 1:
        return y @ m.weight(y.shape[-1], size)
    return torch.einsum("...i,ij->...j", y, m.weight(y.shape[-1], size))


def reduced(m: RandomModel, y: Any) -> Any:
    if y.ndim < 2:
        return y * 2
    axis, keep = m.axis(y), m.random.random() < 0.5
    functions = [
        lambda v: v.sum(axis, keepdim=keep),
        lambda v: v.mean(axis, keepdim=keep),
        lambda v: v.amax(axis, keepdim=keep),
        lambda v: torch.logsumexp(v, axis, keepdim=keep),
        lambda v: v.var(axis, unbiased=False, keepdim=keep),
        lambda v: v.norm(dim=axis, keepdim=keep) + 0,
        lambda v: v.max(axis, keepdim=keep).values,
    ]
    return m.random.choice(functions)(y)


def shaped(m: RandomModel, y: Any) -> Any:
    axis = m.axis(y)
    functions = [
        lambda v: v.transpose(0, -1),
        lambda v: v.reshape(-1, v.shape[-1]),
        lambda v: v.flatten(),
        lambda v: v.unsqueeze(axis) if v.ndim < 4 else v,
        lambda v: v.flip(axis),
        lambda v: v.roll(1, axis),
        lambda v: v.narrow(axis, 0, max(v.shape[axis] - 1, 1)),
        lambda v: v[..., ::2],
        lambda v: F.pad(v, (1, 2)),
        lambda v: torch.cat([v, v * 0.5], axis) if v.numel() < 500 else v,
        lambda v: torch.stack([v, v.sin()], axis).sum(axis),
        lambda v: sum(v.chunk(2, axis)[:1]),
        lambda v: v.index_select(axis, torch.tensor([0, v.shape[axis] - 1, 0])),
        lambda v: v.t() if v.ndim == 2 else v.squeeze(),
        lambda v: v.cumsum(axis),
        lambda v: v.repeat_interleave(2, axis) if v.numel() < 300 else v,
    ]
    result = m.random.choice(functions)(y)
    return result if result.ndim else result.reshape(1)


def normalized(m: RandomModel, y: Any) -> Any:
    n = y.shape[-1]
    functions = [
        lambda v: torch.softmax(v, -1),
        lambda v: torch.log_softmax(v, -1),
        lambda v: F.layer_norm(v, (n,), m.weight(n), m.weight(n)),
        lambda v: F.normalize(v, dim=-1),
        lambda v: v / (1 + v.abs().sum(-1, keepdim=True)),
    ]
    return m.random.choice(functions)(y)


def indexed(m: RandomModel, y: Any) -> Any:
    order = y.detach().argsort(-1)
    functions = [
        lambda v: v.gather(-1, order),
        lambda v: v.sort(-1).values,
        lambda v: v.topk(max(v.shape[-1] // 2, 1), -1).values,
        lambda v: F.embedding(order, m.weight(v.shape[-1], 3)) if v.ndim < 4 else v,
        lambda v: v * F.one_hot(order[..., 0], v.shape[-1]),
        lambda v: torch.zeros_like(v).scatter_add(-1, order, v),
        lambda v: torch.where(v > 0, v, torch.zeros(())),
    ]
    return m.random.choice(functions)(y)


def in_place(m: RandomModel, y: Any) -> Any:
    result = y * 1
    kind = m.random.randrange(6)
    if kind == 0:
        result.mul_(0.5).add_(1)
    elif kind == 1:
        result[..., 0] = result[..., -1].detach() * 2
    elif kind == 2:
        result.masked_fill_(result > 0.5, 0.25)
    elif kind == 3:
        result[..., :1] += 1
    elif kind == 4:
        result.clamp_(-1, 1)
    else:
        result = result.contiguous()
        result.view(-1)[::2] = 0.0
    return result


def cut(m: RandomModel, y: Any) -> Any:
    if m.random.random() < 0.5:
        with torch.no_grad():
            z = y.cos() + 1
        return y * z
    return y * (y.detach() > 0) + y.detach() * 0.5


OPS: list[Op] = [
    unary,
    unary,
    binary,
    binary,
    product,
    reduced,
    shaped,
    shaped,
    normalized,
    indexed,
    in_place,
    cut,
]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_a_random_model_equals_eager(seed: int) -> None:
    x = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    model = RandomModel(seed)
    model(x)
    model.is_made = True
    eager = copy.deepcopy(model)
    step = compile_step(model, lambda m, x: m(x), torch.optim.SGD(model.parameters(), lr=1.0))
    loss = step(x).item()
    expected = eager(x)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-11, abs=1e-11)
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        gradient = torch.zeros_like(q) if q.grad is None else q.grad
        np.testing.assert_allclose(
            (q.detach() - p.detach()).numpy(), gradient.numpy(), 1e-8, 1e-9, err_msg=str(seed)
        )
