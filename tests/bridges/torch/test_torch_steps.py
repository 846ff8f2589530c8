# SPDX-License-Identifier: Apache-2.0
"""Tests of PyTorch models as ngd programs: losses, parameters and state equal eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from ngd.torch.compiled.step import compile_step  # noqa: E402

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adam": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.01),
}


def make_model() -> Any:
    torch.manual_seed(0)
    nn = torch.nn
    layers = [nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)]
    return nn.Sequential(*layers).double()


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(x), y)


def groups_of(model: Any) -> list[dict[str, Any]]:
    """Return two groups, the second with half the learning rate."""
    return [{"params": model[:3].parameters()}, {"params": model[3].parameters(), "lr": 0.005}]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_eager(name: str) -> None:
    model = make_model()
    eager = copy.deepcopy(model)
    optimizer, reference = (OPTIMIZERS[name](groups_of(each)) for each in (model, eager))
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 20) for o in (optimizer, reference)]
    step = compile_step(model, loss_of, optimizer, clip_norm=0.5)
    x, y = torch.randn(12, 32, 8).double(), torch.randint(0, 3, (12, 32))
    for batch, labels in zip(x, y, strict=True):
        loss = step(batch, labels)
        reference.zero_grad()
        expected = loss_of(eager, batch, labels)
        expected.backward()
        torch.nn.utils.clip_grad_norm_(eager.parameters(), 0.5)
        reference.step()
        for schedule in schedules:
            schedule.step()
        assert abs(loss.item() - expected.item()) < 1e-12
    for key, value in eager.state_dict().items():
        np.testing.assert_allclose(model.state_dict()[key], value, 1e-11, 1e-11, err_msg=key)
    optimizer_state, expected_state = (
        optimizer.state_dict()["state"],
        reference.state_dict()["state"],
    )
    assert optimizer_state.keys() == expected_state.keys()
    for number, state in expected_state.items():
        assert optimizer_state[number].keys() == {k for k, v in state.items() if v is not None}
        for key in optimizer_state[number]:
            np.testing.assert_allclose(optimizer_state[number][key], state[key], 1e-11, 1e-11)


def test_parameters_and_statistics_are_views_of_variables() -> None:
    model = make_model()
    step = compile_step(model, loss_of, torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = torch.randn(32, 8).double(), torch.randint(0, 3, (32,))
    step(x, y)
    weight, mean = model[0].weight, model[1].running_mean
    addresses, before = (weight.data_ptr(), mean.data_ptr()), weight.clone()
    version = weight._version
    step(x, y)
    assert (weight.data_ptr(), mean.data_ptr()) == addresses
    assert not torch.equal(weight, before)
    assert weight._version > version


def test_a_batch_of_another_size_is_another_program() -> None:
    model = make_model()
    eager = copy.deepcopy(model)
    step = compile_step(model, loss_of, torch.optim.SGD(model.parameters(), lr=0.1))
    reference = torch.optim.SGD(eager.parameters(), lr=0.1)
    for size in (32, 7, 32):
        x, y = torch.randn(size, 8).double(), torch.randint(0, 3, (size,))
        reference.zero_grad()
        expected = loss_of(eager, x, y)
        expected.backward()
        reference.step()
        assert abs(step(x, y).item() - expected.item()) < 1e-12


class Momentum(torch.optim.SGD):
    """A subclass, which could compute another update."""


@pytest.mark.parametrize("kind", [Momentum, torch.optim.Adadelta])
def test_other_optimizers_are_refused(kind: Any) -> None:
    model = make_model()
    with pytest.raises(TypeError, match=r"optimizer: expected one of torch\.optim's SGD, Adam"):
        compile_step(model, loss_of, kind(model.parameters(), lr=0.1))


def test_an_op_without_a_rule_is_named_with_its_line() -> None:
    model = torch.nn.Linear(4, 4)
    step = compile_step(
        model,
        lambda m, x: torch.linalg.det(m(x)),
        torch.optim.SGD(model.parameters(), lr=0.1),
    )
    with pytest.raises(ValueError, match=r"aten\.\S*det\S*, which has no rule \(called at .*\.py"):
        step(torch.randn(4, 4))


def test_evaluation_reads_the_statistics_of_training() -> None:
    model = make_model()
    eager = copy.deepcopy(model)
    step = compile_step(model, loss_of, torch.optim.SGD(model.parameters(), lr=0.1))
    reference = torch.optim.SGD(eager.parameters(), lr=0.1)
    x, y = torch.randn(32, 8).double(), torch.randint(0, 3, (32,))
    for _ in range(3):
        eager.eval()
        assert abs(step.evaluate(x, y).item() - loss_of(eager, x, y).item()) < 1e-12
        assert model.training
        eager.train()
        reference.zero_grad()
        loss_of(eager, x, y).backward()
        reference.step()
        step(x, y)
    np.testing.assert_allclose(model[1].running_var, eager[1].running_var, 1e-12)


def scale(p: Any) -> None:
    with torch.no_grad():
        p.mul_(0.9)


def replace(p: Any) -> None:
    p.data = p.detach() * 0.9


WRITES: dict[str, Callable[[Any], None]] = {
    "in place": scale,
    "through data": lambda p: p.data.mul_(0.9),
    "other data": replace,
}


@pytest.mark.parametrize("way", WRITES)
def test_a_write_between_steps_is_read_by_the_next(way: str) -> None:
    model = make_model()
    eager = copy.deepcopy(model)
    step = compile_step(model, loss_of, torch.optim.SGD(model.parameters(), lr=0.1))
    reference = torch.optim.SGD(eager.parameters(), lr=0.1)
    x, y = torch.randn(32, 8).double(), torch.randint(0, 3, (32,))
    for _ in range(3):
        reference.zero_grad()
        expected = loss_of(eager, x, y)
        expected.backward()
        reference.step()
        assert abs(step(x, y).item() - expected.item()) < 1e-12
        for each in (model, eager):
            WRITES[way](each[3].weight)
    np.testing.assert_allclose(model[3].weight.detach(), eager[3].weight.detach(), 1e-12)


def test_the_next_step_uses_a_loaded_state() -> None:
    model = make_model()
    start = copy.deepcopy(model.state_dict())
    step = compile_step(model, loss_of, torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = torch.randn(32, 8).double(), torch.randint(0, 3, (32,))
    first = step(x, y).item()
    assert step(x, y).item() != first
    model.load_state_dict(start)
    assert step(x, y).item() == first


def test_another_dtype_is_refused() -> None:
    model = make_model()
    step = compile_step(model, loss_of, torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = torch.randn(32, 8).double(), torch.randint(0, 3, (32,))
    step(x, y)
    model.float()
    with pytest.raises(TypeError, match=r"'0\.weight': expected float64, as in the first step"):
        step(x.float(), y)
