# SPDX-License-Identifier: Apache-2.0
"""Tests of optimizers against PyTorch or the formulas of papers: ten steps of a small loss."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops, optim
from tests.optim import formulas

DEVICES = ("CPU", "INTERPRETER")
STEPS = 10
TOLERANCES = {"float64": 1e-12, "float32": 1e-5}
SHAPES = {"w": (4, 3), "k": (3, 2, 2), "b": (3,)}

TORCH: dict[str, tuple[Callable[[], optim.Optimizer], str, dict[str, Any]]] = {
    "sgd": (lambda: optim.SGD(0.1), "SGD", {"lr": 0.1}),
    "sgd_momentum": (
        lambda: optim.SGD(0.1, momentum=0.9, weight_decay=0.01),
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    ),
    "sgd_dampening": (
        lambda: optim.SGD(0.1, momentum=0.9, dampening=0.3),
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3},
    ),
    "sgd_nesterov": (
        lambda: optim.SGD(0.1, momentum=0.9, nesterov=True),
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    ),
    "adam": (lambda: optim.Adam(0.03), "Adam", {"lr": 0.03}),
    "adam_decay": (
        lambda: optim.Adam(0.03, betas=(0.8, 0.95), weight_decay=0.1, amsgrad=True),
        "Adam",
        {"lr": 0.03, "betas": (0.8, 0.95), "weight_decay": 0.1, "amsgrad": True},
    ),
    "adamw": (
        lambda: optim.AdamW(0.03, weight_decay=0.1, eps=1e-6),
        "AdamW",
        {"lr": 0.03, "weight_decay": 0.1, "eps": 1e-6},
    ),
    "rmsprop": (
        lambda: optim.RMSprop(0.03, weight_decay=0.1),
        "RMSprop",
        {"lr": 0.03, "weight_decay": 0.1},
    ),
    "rmsprop_centered": (
        lambda: optim.RMSprop(0.03, momentum=0.9, centered=True, alpha=0.9),
        "RMSprop",
        {"lr": 0.03, "momentum": 0.9, "centered": True, "alpha": 0.9},
    ),
    "adagrad": (
        lambda: optim.Adagrad(0.1, lr_decay=0.1, initial_accumulator_value=0.2, weight_decay=0.1),
        "Adagrad",
        {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2, "weight_decay": 0.1},
    ),
}

BETAS = (0.9, 0.98)
PAPERS: dict[str, tuple[Callable[[], optim.Optimizer], Any]] = {
    "lars": (
        lambda: optim.LARS(2.0, momentum=0.9, weight_decay=0.01, trust_coefficient=0.02),
        lambda w, g: formulas.lars(w, g, rate=2.0, m=0.9, beta=0.01, eta=0.02),
    ),
    "lamb": (
        lambda: optim.LAMB(0.03, betas=BETAS, weight_decay=0.1),
        lambda w, g: formulas.lamb(w, g, rate=0.03, betas=BETAS, epsilon=1e-6, decay=0.1),
    ),
    "lion": (
        lambda: optim.Lion(0.03, betas=BETAS, weight_decay=0.1),
        lambda w, g: formulas.lion(w, g, rate=0.03, betas=BETAS, decay=0.1),
    ),
    "muon": (
        lambda: optim.Muon(0.03, weight_decay=0.1),
        lambda w, g: formulas.muon(w, g, rate=0.03, mu=0.95, nesterov=True, decay=0.1),
    ),
    "muon_plain": (
        lambda: optim.Muon(0.03, nesterov=False, momentum=0.9),
        lambda w, g: formulas.muon(w, g, rate=0.03, mu=0.9, nesterov=False, decay=0.0),
    ),
}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def initial(dtype: str, least_axes: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return weights, and their targets in the loss."""
    random = np.random.default_rng(3)
    shapes = {name: shape for name, shape in SHAPES.items() if len(shape) >= least_axes}
    draw = [{n: random.normal(size=s).astype(dtype) for n, s in shapes.items()} for _ in range(2)]
    return draw[0], draw[1]


def gradient_of(w: Any, target: Any) -> Any:
    """Return the gradient of the loss below, by a formula."""
    return (w - target) * (2 + np.cos(w * 3))


def loss_of(variables: dict[str, Any], targets: dict[str, Any]) -> Any:
    """Return a loss with the gradient of the formula. The gradient is a constant of the graph."""
    parts = []
    for name, w in variables.items():
        gradient = (w - targets[name]) * (2.0 + ops.cos(w * 3.0))
        parts.append(ops.sum(w * ops.stop_gradient(gradient)))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def train(optimizer: optim.Optimizer, dtype: str, device: str, axes: int = 0) -> dict[str, Any]:
    """Return the weights after ten steps."""
    weights, targets = initial(dtype, axes)
    variables = {name: ngd.variable(name, w) for name, w in weights.items()}
    updates = optimizer.minimize(loss_of(variables, targets), variables)
    step = ngd.compile([], [], updates=updates, device=device)
    for _ in range(STEPS):
        step()
    return {name: v.numpy() for name, v in variables.items()}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", TORCH)
def test_steps_equal_pytorch(name: str, dtype: str, device: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: it is the witness")
    make, kind, options = TORCH[name]
    weights, targets = initial(dtype)
    tensors = {n: torch.tensor(w, requires_grad=True) for n, w in weights.items()}
    optimizer = getattr(torch.optim, kind)(list(tensors.values()), **options)
    for _ in range(STEPS):
        for n, tensor in tensors.items():
            tensor.grad = torch.tensor(gradient_of(tensor.detach().numpy(), targets[n]))
        optimizer.step()
    for n, found in train(make(), dtype, device).items():
        wanted = tensors[n].detach().numpy()
        assert np.abs(wanted - weights[n]).max() > 1e-2
        np.testing.assert_allclose(found, wanted, TOLERANCES[dtype], TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", PAPERS)
def test_steps_equal_the_paper(name: str, dtype: str, device: str) -> None:
    make, formula = PAPERS[name]
    axes = 2 if name.startswith("muon") else 0
    weights, targets = initial("float64", axes)
    for n, found in train(make(), dtype, device, axes).items():
        first = weights[n].astype(dtype).astype("float64")
        target = targets[n].astype(dtype).astype("float64")
        *_, wanted = islice(formula(first, lambda w, t=target: gradient_of(w, t)), STEPS)
        assert found.dtype == dtype
        assert np.abs(wanted - first).max() > 1e-2
        np.testing.assert_allclose(found, wanted, TOLERANCES[dtype], TOLERANCES[dtype])


def test_adam_equals_its_paper(device: str) -> None:
    """This test also runs where PyTorch is not installed."""
    weights, targets = initial("float64")
    found = train(optim.Adam(0.03), "float64", device)
    for n, w in weights.items():
        m, v = np.zeros_like(w), np.zeros_like(w)
        for t in range(1, STEPS + 1):
            g = gradient_of(w, targets[n])
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            w = w - 0.03 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(found[n], w, 1e-12, 1e-12)


@pytest.mark.parametrize("make", [lambda: optim.LARS(0.1), lambda: optim.LAMB(0.1)])
def test_weights_of_norm_zero_learn(make: Callable[[], optim.Optimizer], device: str) -> None:
    w = ngd.variable("w", np.zeros(3))
    ngd.compile([], [], updates=make().apply({w: ngd.constant(np.ones(3))}), device=device)()
    assert np.isfinite(w.numpy()).all()
    assert (w.numpy() < 0).all()
    still = ngd.variable("w", np.zeros(3))
    ngd.compile([], [], updates=make().apply({still: ops.zeros((3,), "float64")}))()
    np.testing.assert_array_equal(still.numpy(), 0)


def test_parameters_of_16_bit_have_float32_state(device: str) -> None:
    w = ngd.variable("w", np.ones(3, np.float16))
    optimizer = optim.Adam(0.01)
    updates = optimizer.minimize(ops.sum(ops.square(w)), w)
    ngd.compile([], [], updates=updates, device=device)()
    assert optimizer.state["adam.w.first_moment"].dtype == np.float32
    np.testing.assert_allclose(w.numpy(), 0.99, rtol=1e-3)
