# SPDX-License-Identifier: Apache-2.0
"""Models that a naive capture gets wrong: their steps are those of eager, or they are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn import functional as F  # noqa: E402, N812

from ngd.errors import CompileError  # noqa: E402
from ngd.torch.compiled.step import compile_step  # noqa: E402


class Model(torch.nn.Module):
    """A matrix, a vector, and a forward pass that is given."""

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


def step_of(model: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return compile_step(model, lambda m, x: m(x), optimizer)


def expect_equal_steps(model: Any, steps: int = 2) -> None:
    """Compare losses, parameters and buffers after steps with eager."""
    eager = copy.deepcopy(model)
    optimizer = torch.optim.SGD(eager.parameters(), lr=1.0)
    step = step_of(model)
    for number in range(steps):
        optimizer.zero_grad()
        expected = eager(X + number)
        expected.backward()
        optimizer.step()
        loss = step(X + number)
        np.testing.assert_allclose(loss.item(), expected.item(), 1e-12, 1e-12)
    for key, value in eager.state_dict().items():
        np.testing.assert_allclose(model.state_dict()[key], value, 1e-11, 1e-11, err_msg=key)


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
    whole = torch.arange(4)
    return (x @ m.w * whole + whole / 2 + whole.float() * m.v).sum()


def branch_on_shape(m: Any, x: Any) -> Any:
    return (x @ m.w).sum() if x.shape[0] > 2 else (x * m.v).sum()


def unused(m: Any, x: Any) -> Any:
    return (x * m.v).sum()


def counted(m: Any, x: Any) -> Any:
    m.count += 1
    return (x @ m.w * m.v).sum() * m.count


EQUAL: dict[str, Callable[[Any, Any], Any]] = {
    "in-place": in_place,
    "masked-assignment": masked_assignment,
    "no_grad": without_gradient,
    "no_grad-with-two-results": two_regions,
    "detach": lambda m, x: ((x @ m.w).detach() * m.v).sum(),
    "checkpoint": checkpointed,
    "bounds": at_bounds,
    "promotion": promoted,
    "branch-on-shape": branch_on_shape,
    "unused-parameter": unused,
    "views": lambda m, x: ((x @ m.w).view(2, 6).t().reshape(-1)[2:7] ** 2).sum(),
    "expand": lambda m, x: ((x @ m.w).unsqueeze(0).expand(2, 3, 4) * m.v).sum(),
    "chunks": lambda m, x: sum((c * i).sum() for i, c in enumerate((x @ m.w).chunk(2, 1), 1)),
}


@pytest.mark.parametrize("name", EQUAL)
def test_a_step_equals_eager(name: str) -> None:
    expect_equal_steps(Model(EQUAL[name]))


def test_a_buffer_counts() -> None:
    expect_equal_steps(Model(counted, count=torch.zeros((), dtype=torch.int64)), steps=3)


def test_autocast_is_bfloat16() -> None:
    model = Model(autocast)
    eager = autocast(model, X)
    assert step_of(model)(X).item() == pytest.approx(eager.item(), rel=2e-2)


def test_tied_parameters_are_one_variable() -> None:
    model = Model(lambda m, x: (x @ m.w @ m.tied.T * m.v).sum())
    model.tied = model.w
    expect_equal_steps(model)
    assert model.tied.data_ptr() == model.w.data_ptr()


def test_frozen_parameters_do_not_change() -> None:
    model = Model(lambda m, x: (x @ m.w * m.v).sum())
    model.w.requires_grad_(False)
    before = model.w.detach().clone()
    expect_equal_steps(model)
    assert torch.equal(model.w, before)


def test_a_parameter_is_frozen_between_steps() -> None:
    model = Model(lambda m, x: (x @ m.w * m.v).sum())
    step = step_of(model)
    step(X)
    model.w.requires_grad_(False)
    before = model.w.detach().clone()
    step(X)
    assert torch.equal(model.w, before)


def test_a_forward_hook_is_part_of_the_step() -> None:
    model = Model(lambda m, x: (x @ m.w).sum())
    model.register_forward_hook(lambda module, inputs, output: output * 2)
    expect_equal_steps(model)


@pytest.mark.parametrize("name", ["unused-parameter", "detach", "no_grad"])
def test_a_parameter_without_gradient_does_not_decay(name: str) -> None:
    model = Model(EQUAL[name])
    before = model.w.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    compile_step(model, lambda m, x: m(x), optimizer)(X)
    assert torch.equal(model.w, before)


class Tripled(torch.autograd.Function):
    """Rounds, and has three times the gradient."""

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
    """Change the gradient, as hooks of tensors and modules may."""
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
            r"the torch\.autograd\.Function Tripled \(called at .*test_torch_traps\.py:\d+",
        ),
        "tensor-hook": (
            Model(with_tensor_hook),
            r"Tensor\.register_hook \(called at .*test_torch_traps\.py:\d+",
        ),
        "parameter-hook": (parameter, "a hook on the gradient of 'w'"),
        "accumulated-hook": (accumulated, "a hook on the gradient of 'w'"),
        "module-hook": (module, "a backward hook of the module 'itself'"),
    }


@pytest.mark.parametrize("name", refused_models())
def test_a_gradient_in_python_is_refused(name: str) -> None:
    model, message = refused_models()[name]
    with pytest.raises(CompileError, match=f"expected a model whose gradient .*; got {message}"):
        step_of(model)(X)
    y = torch.ones(2, requires_grad=True)
    y.register_hook(doubled)  # PyTorch is as before
    Tripled.apply(y).sum().backward()
    assert y.grad.tolist() == [6, 6]
