# SPDX-License-Identifier: Apache-2.0
"""Tiny models that a naive capture gets wrong, for the tests of both entry points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812


class Model(torch.nn.Module):
    """A matrix, a vector, and a forward pass that the caller gives."""

    def __init__(self, body: Callable[..., Any], **buffers: Any) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.w = torch.nn.Parameter(torch.randn(4, 4, dtype=torch.float64, generator=generator))
        self.v = torch.nn.Parameter(torch.randn(4, dtype=torch.float64, generator=generator))
        self.body = body
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: Any) -> Any:
        return self.body(self, x)


X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def in_place(m: Any, x: Any) -> Any:
    y = x @ m.w
    y[:, 0] = 0
    y[:, 1:].mul_(2)
    y.relu_()
    return y.sum()


def masked_assignment(m: Any, x: Any) -> Any:
    y = x @ m.w
    y[y > 0] = 0
    return (y * m.v).sum()


def masked_addition(m: Any, x: Any) -> Any:
    y = x @ m.w
    y = y.index_put((y > 0,), torch.tensor(2.0, dtype=y.dtype), accumulate=True)
    return (y * m.v).sum()


def without_gradient(m: Any, x: Any) -> Any:
    with torch.no_grad():
        y = x @ m.w
    return (y * m.v).sum()


def two_regions(m: Any, x: Any) -> Any:
    with torch.no_grad():
        y, z = x @ m.w, torch.tanh(x @ m.w)
    return (y * m.v).sum() + (z * (x @ m.w)).sum()


def autocast(m: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        y = F.linear(x.float(), m.w.float())
    return (y.double() * m.v).sum()


def checkpointed(m: Any, x: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda z: torch.tanh(z @ m.w), x, use_reentrant=False).mul(m.v).sum()


def at_bounds(m: Any, x: Any) -> Any:
    y = torch.round(x) * m.v
    return (F.hardtanh(y) + F.relu6(y) + torch.clamp(y, 0, 1) + torch.relu(y)).sum()


def promoted(m: Any, x: Any) -> Any:
    integers = torch.arange(4)
    return (x @ m.w * integers + integers / 2 + integers.float() * m.v).sum()


def branch_on_shape(m: Any, x: Any) -> Any:
    return (x @ m.w).sum() if x.shape[0] > 2 else (x * m.v).sum()


def unused(m: Any, x: Any) -> Any:
    return (x * m.v).sum()


def counted(m: Any, x: Any) -> Any:
    m.count += 1
    return (x @ m.w * m.v).sum() * m.count


def write_in_region(m: Any, x: Any) -> Any:
    y = x @ m.w
    with torch.no_grad():
        y.mul_(3)
    return (y * m.v).sum()


def write_to_view_in_region(m: Any, x: Any) -> Any:
    y = x @ m.w
    with torch.no_grad():
        y[:, 1].zero_()
    return (y * m.v).sum()


def write_to_detached(m: Any, x: Any) -> Any:
    y = x @ m.w
    y.detach().add_(1)
    return (y * y).sum()


def write_to_data(m: Any, x: Any) -> Any:
    y = torch.tanh(x @ m.w)
    y.data.view(-1)[2:].mul_(2)
    return (y * m.v).sum()


def write_to_parameter(m: Any, x: Any) -> Any:
    with torch.no_grad():
        m.w.clamp_(-1, 1)
    return (x @ m.w * m.v).sum()


def write_to_copy(m: Any, x: Any) -> Any:
    y = x @ m.w
    with torch.no_grad():
        z = y.clone()
        z.mul_(3)
    t = y.detach().clone()
    t += 1
    return (y * m.v).sum() + (z * m.v).sum() + (t * m.v).sum()


def write_to_statistics(m: Any, x: Any) -> Any:
    with torch.no_grad():
        m.mean.mul_(0.9).add_((x @ m.w).mean(0), alpha=0.1)
    return ((x @ m.w - m.mean) * m.v).sum()


def write_of_gradient(m: Any, x: Any) -> Any:
    y = torch.zeros(3, 4, dtype=torch.float64)
    y[:, 1:] = (x @ m.w)[:, 1:]
    y.detach()
    return (y * m.v).sum()


HIDDEN_WRITES: dict[str, Callable[[Any, Any], Any]] = {
    each.__name__: each
    for each in (
        write_in_region,
        write_to_view_in_region,
        write_to_detached,
        write_to_data,
        write_to_parameter,
    )
}
"""Functions whose writes autograd does not track."""

EQUAL: dict[str, Callable[[Any, Any], Any]] = {
    "in-place": in_place,
    "masked-assignment": masked_assignment,
    "masked-addition": masked_addition,
    "no_grad": without_gradient,
    "no_grad-with-two-results": two_regions,
    "detach": lambda m, x: ((x @ m.w).detach() * m.v).sum(),
    "checkpoint": checkpointed,
    "bounds": at_bounds,
    "promotion": promoted,
    "branch-on-shape": branch_on_shape,
    "unused-parameter": unused,
    "write-to-copy": write_to_copy,
    "write-of-gradient": write_of_gradient,
    "views": lambda m, x: ((x @ m.w).view(2, 6).t().reshape(-1)[2:7] ** 2).sum(),
    "expand": lambda m, x: ((x @ m.w).unsqueeze(0).expand(2, 3, 4) * m.v).sum(),
    "chunks": lambda m, x: sum((c * i).sum() for i, c in enumerate((x @ m.w).chunk(2, 1), 1)),
}


class Tripled(torch.autograd.Function):
    """An op that rounds, and whose gradient is tripled."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x.round()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient * 3


def with_tensor_hook(m: Any, x: Any) -> Any:
    y = x @ m.w
    y.register_hook(lambda gradient: gradient * 2)
    return y.sum()


def doubled(*args: Any) -> Any:
    """Change the gradient, as hooks of tensors and modules can."""
    return (args[-1][0] * 2,) if isinstance(args[-1], tuple) else args[-1] * 2


def refused_models() -> dict[str, tuple[Any, str]]:
    def plain() -> Any:
        return Model(lambda m, x: (x @ m.w * m.v).sum())

    parameter, accumulated, module = plain(), plain(), plain()
    parameter.w.register_hook(doubled)
    accumulated.w.register_post_accumulate_grad_hook(lambda p: None)
    module.register_full_backward_pre_hook(doubled)
    return {
        "function": (
            Model(lambda m, x: (Tripled.apply(x @ m.w) * m.v).sum()),
            r"the torch\.autograd\.Function Tripled \(called at .*trap_models\.py:\d+",
        ),
        "tensor-hook": (
            Model(with_tensor_hook),
            r"Tensor\.register_hook \(called at .*trap_models\.py:\d+",
        ),
        "parameter-hook": (parameter, "a hook on the gradient of 'w'"),
        "accumulated-hook": (accumulated, "a hook on the gradient of 'w'"),
        "module-hook": (module, "a backward hook of the module 'itself'"),
    }
