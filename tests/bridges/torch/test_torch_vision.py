# SPDX-License-Identifier: Apache-2.0
"""Compare one step of image models of timm and torchvision with eager, in float64.

The models have no dropout. They train by compile_step, and by torch.compile(backend="ngd").
NGD_TORCH_FAMILIES is the number of timm's families (one model of each) and of torchvision's models.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest

from tests.bridges.torch import dynamo_warnings

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
timm = pytest.importorskip("timm", exc_type=RuntimeError, reason="torchvision is broken")
torchvision = pytest.importorskip("torchvision", exc_type=RuntimeError, reason="it is broken")

from torch.nn.functional import cross_entropy  # noqa: E402

from ngd.errors import FallbackWarning  # noqa: E402
from ngd.torch import compile_step  # noqa: E402

pytestmark = dynamo_warnings.IGNORED
COUNT = int(os.environ.get("NGD_TORCH_FAMILIES", "3"))
LARGEST = 200_000_000
"""The number of parameters of the largest model."""
CAST = frozenset({"efficientvit_b0"})
"""Models that compute a part in float32."""
RATES = ("p", "drop_prob", "drop_rate", "attn_drop", "proj_drop", "drop_path_rate", "dropout")


def smallest_models() -> list[str]:
    """Return the name of a small model for each family of timm."""
    small = ("test_", "atto", "femto", "pico", "nano", "xxs", "xx_small", "tiny", "_s", "small")
    names = []
    for family in timm.list_modules():
        models = timm.list_models(module=family)
        if models:
            names.append(min(models, key=lambda n: (not any(k in n for k in small), len(n))))
    return names[:COUNT]


def classifiers() -> list[str]:
    """Return names of torchvision's classifiers."""
    models = torchvision.models.list_models(module=torchvision.models)
    return sorted(models)[:COUNT] if COUNT < 15 else sorted(models)[:15]


def without_dropout(model: Any) -> Any:
    """Set all rates of dropout and of dropped paths to zero."""
    for module in model.modules():
        for name in RATES:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def loss_of(model: Any, x: Any, y: Any) -> Any:
    found = model(x)
    found = found[0] if isinstance(found, (tuple, list)) else getattr(found, "logits", found)
    return cross_entropy(found, y)


def gradients_of(model: Any) -> list[Any]:
    """Return the gradients; zeros for parameters without one."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def gradients_in_eager(model: Any, x: Any, y: Any) -> tuple[float, list[Any], dict[str, Any]]:
    """Return eager's loss, gradients and next buffers. The model does not change."""
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    loss = loss_of(model, x, y)
    loss.backward()
    gradients = gradients_of(model)
    after = {key: value.clone() for key, value in model.named_buffers()}
    for key, value in model.named_buffers():
        value.copy_(buffers[key])
    model.zero_grad()
    return loss.item(), gradients, after


def relative_difference(results: Any, expected: Any) -> float:
    norms = [(a - b).norm() for a, b in zip(results, expected, strict=True)]
    return float(torch.stack(norms).norm() / torch.stack([g.norm() for g in expected]).norm())


def gradients_of_step(model: Any, x: Any, y: Any) -> tuple[float, list[Any]]:
    """Return the loss and the gradients of compile_step."""
    before = [p.detach().clone() for p in model.parameters()]
    step = compile_step(model, loss_of, torch.optim.SGD(model.parameters(), lr=1.0))
    loss = step(x, y).item()
    with torch.no_grad():
        return loss, [old.sub_(p) for old, p in zip(before, model.parameters(), strict=True)]


def gradients_of_backend(model: Any, x: Any, y: Any) -> tuple[float, list[Any]]:
    """Return the loss and the gradients of torch.compile, which may not fall back to eager."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        loss = loss_of(torch.compile(model, backend="ngd"), x, y)
        loss.backward()
    return loss.item(), gradients_of(model)


WAYS = {"compile_step": gradients_of_step, "backend": gradients_of_backend}


def expect_equal_training(way: str, model: Any, x: Any, y: Any, *, is_cast: bool = False) -> None:
    """Compare a step with eager. A model has hundreds of MiB, so there are few copies of it."""
    model = without_dropout(model).double().train()
    expected, wanted, buffers = gradients_in_eager(model, x, y)
    of_loss, of_gradient = 1e-12, 1e-8
    if is_cast:  # eager itself changes with the last bit of an input in float32
        near = torch.nextafter(x.float(), torch.tensor(9.0)).double()
        moved = gradients_in_eager(model, near, y)[1]
        of_loss, of_gradient = 1e-6, max(1e-6, 10 * relative_difference(moved, wanted))
    loss, found = WAYS[way](model, x, y)
    assert loss == pytest.approx(expected, rel=of_loss)
    assert relative_difference(found, wanted) <= of_gradient
    for key, value in buffers.items():
        torch.testing.assert_close(model.get_buffer(key), value, rtol=of_loss, atol=of_loss)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", smallest_models())
def test_a_step_of_timm_equals_eager(name: str, way: str) -> None:
    torch.manual_seed(0)
    try:
        model = timm.create_model(name, num_classes=10)
        if sum(p.numel() for p in model.parameters()) > LARGEST:
            pytest.skip("needs more memory in float64 than this test may take")
        size = model.default_cfg["input_size"][1:]
        x, y = torch.randn(2, 3, *size, dtype=torch.float64), torch.tensor([1, 3])
        loss_of(without_dropout(model).double().train(), x, y).backward()
    except Exception as error:  # the model does not train in eager PyTorch on this machine
        pytest.skip(f"eager: {type(error).__name__}: {str(error)[:100]}")
    model.zero_grad()
    expect_equal_training(way, model, x, y, is_cast=name in CAST)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", classifiers())
def test_a_step_of_torchvision_equals_eager(name: str, way: str) -> None:
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, num_classes=10)
    size = 299 if "inception" in name else 96
    x = torch.randn(2, 3, size, size, dtype=torch.float64)
    expect_equal_training(way, model, x, torch.tensor([1, 3]))
