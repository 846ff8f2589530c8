# SPDX-License-Identifier: Apache-2.0
"""Tests of mixtures of experts: ngd runs the grouped matmuls of PyTorch and of transformers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from ngd.torch.compiled.step import compile_step  # noqa: E402
from tests.bridges.torch.programs import as_program  # noqa: E402


class Experts(torch.nn.Module):
    """A grouped matmul. Its groups have 2, 0, 3 and 1 of 6 rows."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor([2, 2, 5, 6], dtype=torch.int32)
        return torch._grouped_mm(x, weight.transpose(1, 2), offs=ends)


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this PyTorch has no grouped_mm")
def test_a_grouped_matmul_equals_pytorch() -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight, dy = (  # PyTorch exports this op only for bfloat16
        torch.randn(shape, generator=generator).bfloat16()
        for shape in ((6, 8), (4, 16, 8), (6, 16))
    )
    x.requires_grad_()
    weight.requires_grad_()
    expected = Experts()(x, weight)
    gradients = torch.autograd.grad(expected, (x, weight), dy)
    (result,), program_gradients = as_program(Experts(), (x, weight), (dy,))
    for got, want in zip((result, *program_gradients), (expected, *gradients), strict=True):
        assert got is not None
        np.testing.assert_allclose(got.astype(np.float32), want.detach().float(), 0.01, 0.01)


def make_mixtral() -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    try:
        kind, config_kind = transformers.MixtralForCausalLM, transformers.MixtralConfig
    except ImportError as error:
        pytest.skip(f"transformers lacks its model: {error}")
    torch.manual_seed(0)
    config = config_kind(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return kind(config)


def loss_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixtral_equals_eager(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_mixtral().to(dtype)
    if dtype is torch.float64:  # PyTorch's grouped matmul has no float64
        moe = pytest.importorskip("transformers.integrations.moe")
        monkeypatch.setattr(moe, "_can_use_grouped_mm", lambda *_: False)
    eager = copy.deepcopy(model)
    tokens = torch.randint(0, 50, (2, 9))
    expected = loss_of(eager, tokens)
    expected.backward()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    loss = compile_step(model, loss_of, torch.optim.SGD(model.parameters(), lr=1.0))(tokens)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-6  # the router computes in float32
    assert abs(loss.item() - expected.item()) < tolerance
    for name, p in model.named_parameters():
        gradient = eager.get_parameter(name).grad
        np.testing.assert_allclose(
            before[name] - p.detach(), gradient, 1e-4, tolerance, err_msg=name
        )
