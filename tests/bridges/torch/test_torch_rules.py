# SPDX-License-Identifier: Apache-2.0
"""Tests of the rules for aten ops: results and gradients of their samples equal PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from ngd.torch.compiled.rules import RULES, Sample, T  # noqa: E402
from tests.bridges.torch.programs import as_program  # noqa: E402

SAMPLES = [
    pytest.param(op, sample, id=f"{op}({sample})")
    for op, rule in RULES.items()
    for sample in rule.samples
]
TOLERANCE = 1e-11
"""The relative and the absolute tolerance in float64."""
SINGLE_TOLERANCE = 1e-6
"""The tolerance if the op computes in float32."""
IMPRECISE = {torch.ops.aten.digamma.default: 1e-8, torch.ops.aten.hardsigmoid.default: 1e-7}
"""Tolerances for ops whose float64 gradient in PyTorch is imprecise.

PyTorch uses a short series or a float32 constant for them.
"""


def draw(spec: T, generator: torch.Generator) -> torch.Tensor:
    """Return a random tensor of a sample."""
    if spec.dtype is torch.bool:
        return torch.rand(spec.shape, generator=generator) < 0.5
    if not spec.dtype.is_floating_point:
        low, high = int(spec.low or 0), int(spec.high or 0)
        return torch.randint(low, high, spec.shape, generator=generator, dtype=spec.dtype)
    if spec.low is None or spec.high is None:
        return torch.randn(spec.shape, generator=generator, dtype=spec.dtype)
    span = torch.rand(spec.shape, generator=generator, dtype=spec.dtype)
    return spec.low + (spec.high - spec.low) * span


def fill(sample: Sample, tensors: list[torch.Tensor]) -> tuple[Any, Any]:
    """Return the arguments of a sample, with tensors instead of its T's."""
    rest = iter(tensors)

    def of(part: Any) -> Any:
        if isinstance(part, T):
            return next(rest)
        return type(part)(map(of, part)) if isinstance(part, (list, tuple)) else part

    return of(sample.args), {name: of(value) for name, value in sample.kwargs.items()}


def specs(part: Any) -> list[T]:
    """Return the T's of a sample, in order."""
    if isinstance(part, T):
        return [part]
    parts = part if isinstance(part, (list, tuple)) else []
    return [spec for each in parts for spec in specs(each)]


class OneOp(torch.nn.Module):
    """A model that calls one op."""

    def __init__(self, op: Any, sample: Sample) -> None:
        super().__init__()
        self.op, self.sample = op, sample

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = fill(self.sample, list(tensors))
        results = self.op(*args, **kwargs)
        results = results if isinstance(results, (tuple, list)) else (results,)
        if self.op is torch.ops.aten.lstm.input and torch.__version__.startswith("2.9."):
            results = results[:1]  # PyTorch 2.9 exports the last states with a wrong shape
        return tuple(each for each in results if isinstance(each, torch.Tensor))


@pytest.mark.parametrize(("op", "sample"), SAMPLES)
def test_a_rule_equals_pytorch(op: Any, sample: Sample) -> None:
    generator = torch.Generator().manual_seed(1)
    declared = specs(sample.args) + specs(tuple(sample.kwargs.values()))
    tensors = [draw(spec, generator) for spec in declared]
    for tensor, spec in zip(tensors, declared, strict=True):
        tensor.requires_grad_(spec.has_grad and tensor.is_floating_point())
    model = OneOp(op, sample)
    expected = model(*tensors)
    adjoints = [
        torch.randn(each.shape, generator=generator, dtype=each.dtype)
        if each.requires_grad
        else None
        for each in expected
    ]
    outputs = [each for each in expected if each.requires_grad]
    trained = [tensor for tensor in tensors if tensor.requires_grad] if outputs else []
    given_adjoints = [dy for dy in adjoints if dy is not None]
    gradients = (
        torch.autograd.grad(outputs, trained, given_adjoints, allow_unused=True) if trained else ()
    )
    results, program_gradients = as_program(model, tensors, adjoints)
    is_single = any(each.dtype is torch.float32 for each in expected)
    tolerance = IMPRECISE.get(op, SINGLE_TOLERANCE if is_single else TOLERANCE)
    for got, want in zip(results, expected, strict=True):
        if got is not None:
            compare(got, want.detach().numpy(), tolerance)
    for got, want in zip(program_gradients, gradients, strict=True):
        compare(got, np.zeros_like(got) if want is None else want.numpy(), tolerance)


def compare(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], tolerance: float) -> None:
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, tolerance, tolerance)
