# SPDX-License-Identifier: Apache-2.0
"""One step of 30 architectures of Hugging Face equals eager, in float64 and without dropout.

The models train by compile_step, and by torch.compile(backend="ngd").
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

from tests.bridges.torch import dynamo_warnings

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
hf_models = pytest.importorskip(
    "tests.bridges.torch.hf_models", exc_type=RuntimeError, reason="torchvision is broken"
)

from ngd.errors import FallbackWarning  # noqa: E402
from ngd.torch import compile_step  # noqa: E402
from ngd.torch.compiled import backend  # noqa: E402

pytestmark = dynamo_warnings.IGNORED
HAS_FLOAT32 = 1e-6
"""The tolerance of models that compute a part in float32 in any dtype."""


def relative_difference(results: list[Any], expected: list[Any]) -> float:
    """Return the norm of the difference of two lists of tensors, relative to the second."""
    pairs = zip(results, expected, strict=True)
    difference = sum((a - b).square().sum().item() for a, b in pairs)
    return float((difference / sum(b.square().sum().item() for b in expected)) ** 0.5)


def gradients_of(model: Any, batch: Any) -> tuple[float, list[Any]]:
    """Return eager's loss and gradients; zeros for parameters without one."""
    loss = model(**batch).loss
    loss.backward()
    zeros = (torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())
    return loss.item(), list(zeros)


@pytest.fixture(params=hf_models.MODELS)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """A model in float64, and a batch."""
    if request.param in ("mixtral", "olmoe"):
        # PyTorch's grouped matmul has no float64, so take the one of transformers.
        from transformers.integrations import moe

        monkeypatch.setattr(moe, "_can_use_grouped_mm", lambda *args, **options: False)
    torch.manual_seed(0)
    model, batch = hf_models.MODELS[request.param]()
    is_float = {k: isinstance(v, torch.Tensor) and v.is_floating_point() for k, v in batch.items()}
    batch = {k: v.double() if is_float[k] else v for k, v in batch.items()}
    return model.double().train(), batch


def expect_equal_buffers(model: Any, expected: Any) -> None:
    for key, value in expected.named_buffers():
        torch.testing.assert_close(model.get_buffer(key), value, rtol=1e-12, atol=1e-12)


def test_a_step_equals_eager(case: tuple[Any, Any]) -> None:
    model, batch = case
    eager = copy.deepcopy(model)
    before = [p.detach().clone() for p in model.parameters()]
    step = compile_step(
        model, lambda m, b: m(**b).loss, torch.optim.SGD(model.parameters(), lr=1.0)
    )
    loss = step(batch).item()
    expected, gradients = gradients_of(eager, batch)
    pairs = zip(before, model.parameters(), strict=True)
    updates = [old - new.detach() for old, new in pairs]
    difference = relative_difference(updates, gradients)
    assert difference <= 1e-8 or (difference <= HAS_FLOAT32 and not step.coverage().missing)
    assert loss == pytest.approx(expected, rel=1e-12 if difference <= 1e-8 else HAS_FLOAT32)
    expect_equal_buffers(model, eager)


def test_the_backend_equals_eager(case: tuple[Any, Any]) -> None:
    model, batch = case
    eager = copy.deepcopy(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="ngd")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        loss, compiled_gradients = gradients_of(compiled, batch)
    expected, gradients = gradients_of(eager, batch)
    difference = relative_difference(compiled_gradients, gradients)
    assert difference <= HAS_FLOAT32
    assert loss == pytest.approx(expected, rel=1e-12 if difference <= 1e-8 else HAS_FLOAT32)
    expect_equal_buffers(model, eager)
    programs = set(backend._programs)
    gradients_of(compiled, batch)
    assert programs.issuperset(backend._programs)  # no program is compiled twice
