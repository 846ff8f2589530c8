# SPDX-License-Identifier: Apache-2.0
"""One step of 30 architectures of Hugging Face equals eager, in float64 and without dropout."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
hf_models = pytest.importorskip("hf_models", exc_type=RuntimeError, reason="torchvision is broken")

from ngd.torch import compile_step  # noqa: E402

HAS_FLOAT32 = 1e-6
"""The tolerance of models that compute a part in float32, whatever their dtype."""


def relative_difference(found: list[Any], expected: list[Any]) -> float:
    """Return the norm of the difference of two lists of tensors, relative to the second."""
    pairs = zip(found, expected, strict=True)
    difference = sum((a - b).square().sum().item() for a, b in pairs)
    return float((difference / sum(b.square().sum().item() for b in expected)) ** 0.5)


def gradients_of(model: Any, batch: Any) -> tuple[float, list[Any]]:
    """Return eager's loss and gradients; zeros for parameters without one."""
    loss = model(**batch).loss
    loss.backward()
    zeros = (torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())
    return loss.item(), list(zeros)


@pytest.mark.parametrize("name", hf_models.MODELS)
def test_a_step_equals_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in ("mixtral", "olmoe"):
        # PyTorch's own grouped product has no float64: take the one of transformers.
        from transformers.integrations import moe

        monkeypatch.setattr(moe, "_can_use_grouped_mm", lambda *args, **options: False)
    torch.manual_seed(0)
    model, batch = hf_models.MODELS[name]()
    model = model.double().train()
    is_float = {k: isinstance(v, torch.Tensor) and v.is_floating_point() for k, v in batch.items()}
    batch = {k: v.double() if is_float[k] else v for k, v in batch.items()}
    eager = copy.deepcopy(model)
    before = [p.detach().clone() for p in model.parameters()]
    step = compile_step(
        model, lambda m, b: m(**b).loss, torch.optim.SGD(model.parameters(), lr=1.0)
    )
    loss = step(batch).item()
    expected, gradients = gradients_of(eager, batch)
    pairs = zip(before, model.parameters(), strict=True)
    found = [old - new.detach() for old, new in pairs]
    difference = relative_difference(found, gradients)
    assert difference <= 1e-8 or (difference <= HAS_FLOAT32 and not step.coverage().missing)
    assert loss == pytest.approx(expected, rel=1e-12 if difference <= 1e-8 else HAS_FLOAT32)
    for key, value in eager.named_buffers():
        torch.testing.assert_close(model.get_buffer(key), value, rtol=1e-12, atol=1e-12)
