# SPDX-License-Identifier: Apache-2.0
"""Tests of the options of compile_step: micro-batches, weights, evaluation, fallback and errors."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest

from tests.support import harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import ngd  # noqa: E402
from ngd.errors import CompileError, FallbackWarning, GradientError, RetraceWarning  # noqa: E402
from ngd.torch import compile_step  # noqa: E402
from tests.bridges.torch import torch_ranks  # noqa: E402

nn, functional = torch.nn, torch.nn.functional


def make_model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return functional.cross_entropy(model(x), y)


def batch_of(seed: int, size: int = 6) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 5, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 3, (size,), generator=generator)


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def expect_equal_models(model: Any, eager: Any) -> None:
    for key, value in eager.state_dict().items():
        np.testing.assert_allclose(model.state_dict()[key], value, 1e-10, 1e-12, err_msg=key)


def test_micro_batches_are_one_update_of_their_mean() -> None:
    model = make_model()
    eager = copy.deepcopy(model)
    optimizer = sgd(eager)
    step = compile_step(model, loss_of, sgd(model))
    for first in (0, 3):
        for number in range(3):
            (loss_of(eager, *batch_of(first + number)) / 3).backward()
            step(*batch_of(first + number), accumulate=number < 2)
        optimizer.step()
        optimizer.zero_grad()
    expect_equal_models(model, eager)


def test_weights_give_a_weighted_mean() -> None:
    model = make_model()
    eager = copy.deepcopy(model)
    optimizer = sgd(eager)
    step = compile_step(model, loss_of, sgd(model))
    for _ in range(2):
        for number, weight in enumerate((1.0, 3.0)):
            (loss_of(eager, *batch_of(number)) * weight / 4).backward()
            step(*batch_of(number), accumulate=number == 0, weight=torch.tensor(weight))
        optimizer.step()
        optimizer.zero_grad()
    expect_equal_models(model, eager)


def test_a_loss_of_weight_0_does_not_count() -> None:
    model = make_model()
    step = compile_step(model, loss_of, torch.optim.SGD(model.parameters(), lr=0.5))
    x, y = batch_of(0)
    before = model[3].weight.detach().clone()
    step(x * np.nan, y, weight=0)
    assert torch.equal(model[3].weight, before)


def train_with_weights() -> Any:
    """Train on batches of different sizes: rank 1 has one of the 4 samples."""
    torch.set_num_threads(1)
    rank = ngd.init().rank
    model = nn.Sequential(make_model()[0], make_model()[3])
    step = compile_step(model, loss_of, sgd(model))
    for number in range(3):
        x, y = batch_of(number, 4)
        mine = slice(0, 3) if rank == 0 else slice(3, 4)
        for part in range(2):
            half = x[mine] + part
            step(half, y[mine], weight=len(half), accumulate=part == 0)
    return [p.detach().numpy().tolist() for p in model.parameters()]


@harness.needs_ranks
def test_ranks_of_different_batch_sizes_equal_one_process() -> None:
    outcomes = torch_ranks.run(train_with_weights, 2)
    model = nn.Sequential(make_model()[0], make_model()[3])
    optimizer = sgd(model)
    for number in range(3):
        x, y = batch_of(number, 4)
        optimizer.zero_grad()
        loss_of(model, torch.cat([x, x + 1]), torch.cat([y, y])).backward()
        optimizer.step()
    for outcome in outcomes:
        for weight, p in zip(outcome, model.parameters(), strict=True):
            np.testing.assert_allclose(weight, p.detach().numpy(), 1e-10)


def test_evaluation_is_eager_in_evaluation_mode() -> None:
    model = make_model()
    step = compile_step(model, loss_of, sgd(model))
    for number in range(2):
        step(*batch_of(number))
        eager = copy.deepcopy(model).eval()
        result = step.evaluate(*batch_of(9))
        np.testing.assert_allclose(result, loss_of(eager, *batch_of(9)).detach(), 1e-12)
        assert model.training
        expect_equal_models(model, eager)


def test_statistics_are_equal_on_all_ranks() -> None:
    first, second = torch_ranks.run(train_statistics, 2)
    model = make_model()
    means = []
    for number in range(2):
        each = copy.deepcopy(model)
        each(batch_of(number)[0])
        means.append(each[1].running_var)
    np.testing.assert_allclose(first, torch.stack(means).mean(0), 1e-10)
    assert first == second


def train_statistics() -> Any:
    torch.set_num_threads(1)
    rank = ngd.init().rank
    model = make_model()
    compile_step(model, loss_of, sgd(model))(*batch_of(rank))
    assert model[1].num_batches_tracked.item() == 1
    return model[1].running_var.tolist()


class Unsupported(nn.Module):
    """A model with an op that has no rule, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3).double()

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        return torch.linalg.eigvalsh(y.T @ y).sum() + y.sum()


def test_an_op_without_a_rule_is_named_with_its_line() -> None:
    model = Unsupported()
    step = compile_step(model, lambda m, x: m(x), sgd(model))
    with pytest.raises(CompileError, match=r"linalg_eigh.*test_torch_step_options\.py:\d+"):
        step(batch_of(0)[0])
    (name,) = step.coverage().missing
    assert "linalg_eigh" in name
    assert "aten.linear.default" in step.coverage().translated
    assert "ops that ngd has no rule for:" in str(step.coverage())


def test_the_fallback_runs_in_eager_pytorch() -> None:
    model = Unsupported()
    eager = copy.deepcopy(model)
    optimizer = sgd(eager)
    step = compile_step(model, lambda m, x: m(x), sgd(model), clip_norm=1.0, fallback="torch")
    with pytest.warns(FallbackWarning, match="runs in eager PyTorch.*linalg_eigh"):
        step(batch_of(0)[0], accumulate=True)
    step(batch_of(1)[0])
    for number in range(2):
        (eager(batch_of(number)[0]) / 2).backward()
    nn.utils.clip_grad_norm_(eager.parameters(), 1.0)
    optimizer.step()
    expect_equal_models(model, eager)
    result = step.evaluate(batch_of(2)[0])
    np.testing.assert_allclose(result, eager(batch_of(2)[0]).detach(), 1e-12)


def test_backward_and_optimizer_step_are_refused() -> None:
    model = make_model()
    optimizer = sgd(model)
    loss = compile_step(model, loss_of, optimizer)(*batch_of(0))
    with pytest.raises(RuntimeError, match=r"loss\.backward: expected no backward pass.*backend="):
        loss.backward()
    with pytest.raises(RuntimeError, match=r"optimizer\.step: expected no call"):
        optimizer.step()


def test_the_model_can_be_differentiated_in_eager_pytorch() -> None:
    model = make_model()
    compile_step(model, loss_of, sgd(model))(*batch_of(0))
    loss_of(model, *batch_of(1)).backward()
    assert model[0].weight.grad is not None


class Counting(nn.Module):
    """A model with a Python value that each forward pass changes."""

    def __init__(self, is_used: bool) -> None:
        super().__init__()
        self.layer, self.calls, self.is_used = nn.Linear(5, 3).double(), 0, is_used

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.layer(x).sum() * (self.calls if self.is_used else 1)


def test_a_python_value_that_changes_the_result_is_refused() -> None:
    model = Counting(is_used=True)
    with pytest.raises(CompileError, match=r"changes and uses the attribute 'calls'.*register_buf"):
        compile_step(model, lambda m, x: m(x), sgd(model))(batch_of(0)[0])
    model = Counting(is_used=False)
    compile_step(model, lambda m, x: m(x), sgd(model))(batch_of(0)[0])


def test_many_shapes_are_reported() -> None:
    model = nn.Linear(5, 3).double()
    step = compile_step(model, lambda m, x: m(x).sum(), sgd(model))
    batches = [torch.ones(size, 5, dtype=torch.float64) for size in range(1, 10)]
    for batch in batches[:7]:
        step(batch)
    with pytest.warns(RetraceWarning, match=r"compiled 8 programs.* signature of the batch"):
        step(batches[7])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(batches[8])
        step(batches[3])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((None, None), {}, "model: expected a torch.nn.Module; got NoneType"),
        ((make_model(), 3), {}, "loss: expected a function of the model and the batch; got 3"),
        ((make_model(), loss_of), {"fallback": "eager"}, "fallback: expected 'error' or 'torch'"),
    ],
)
def test_bad_arguments_raise(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"ngd.torch.compile_step: {message}"):
        compile_step(*arguments, sgd(make_model()), **options)


def test_a_loss_that_is_not_a_scalar_is_refused() -> None:
    model = make_model()
    step = compile_step(model, lambda m, x: m(x), sgd(model))
    with pytest.raises(GradientError, match=r"loss: expected a function that returns a scalar of"):
        step(batch_of(0)[0])


@pytest.mark.parametrize("weight", [-1, np.nan, "x"])
def test_a_bad_weight_raises(weight: Any) -> None:
    model = make_model()
    with pytest.raises(ValueError, match="weight: expected a number >= 0"):
        compile_step(model, loss_of, sgd(model))(*batch_of(0), weight=weight)


def test_complex_batches_are_refused() -> None:
    model = make_model()
    with pytest.raises(CompileError, match="batch: expected tensors that ngd supports"):
        compile_step(model, loss_of, sgd(model))(torch.zeros(2, 5, dtype=torch.complex64))


def test_many_programs_after_freezing_a_layer_are_reported() -> None:
    model = nn.Sequential(*(nn.Linear(5, 5).double() for _ in range(9)))
    step = compile_step(model, lambda m, x: m(x).sum(), sgd(model))
    x = batch_of(0)[0]
    for layer in model[:7]:
        step(x)
        layer.requires_grad_(False)  # drops older programs
    with pytest.warns(RetraceWarning, match=r"compiled 8 programs.* signature of the model"):
        step(x)
