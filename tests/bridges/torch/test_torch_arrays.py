# SPDX-License-Identifier: Apache-2.0
"""Tests of PyTorch tensors as arrays of ngd, without a copy: in steps, variables and results."""

from __future__ import annotations

import numpy as np
import pytest

import ngd

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize("device", ["CPU", "INTERPRETER"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_a_step_takes_tensors_and_writes_into_tensors(dtype: str, device: str) -> None:
    kind = getattr(torch, dtype)
    operand = torch.arange(6).reshape(2, 3).to(kind)
    x = ngd.placeholder("x", (2, 3), dtype)
    step = ngd.compile([x], [x + x], device=device)
    (fresh,) = step(operand)
    np.testing.assert_array_equal(fresh.astype(float), (2 * operand).double().numpy())
    result = torch.zeros(2, 3, dtype=kind)
    assert step(operand, out=[result])[0] is result
    assert torch.equal(result, 2 * operand)
    turned = torch.arange(6).reshape(3, 2).to(kind).T
    np.testing.assert_array_equal(step(turned)[0].astype(float), (2 * turned).double().numpy())


def test_variables_and_constants_take_tensors() -> None:
    half = torch.tensor([1.0, 2.5], dtype=torch.bfloat16)
    w = ngd.variable("w", half)
    assert w.dtype == ngd.bfloat16
    w.assign(torch.tensor([3.0, 4.0]))
    x = ngd.placeholder("x", (2,), "bfloat16")
    (total,) = ngd.compile([x], [x + w + ngd.constant(half)])(half)
    np.testing.assert_array_equal(total.astype(float), [5.0, 9.0])


def test_a_lazily_negated_tensor_raises() -> None:
    """The imaginary part of a conjugate is a view that only has a flag for its sign."""
    negative = torch.tensor([1 + 2j, 3 + 4j]).conj().imag
    assert negative.tolist() == [-2, -4]
    x = ngd.placeholder("x", (2,))
    step = ngd.compile([x], [x * 2])
    ones = np.ones(2, np.float32)
    for call in (
        lambda: step(negative),
        lambda: step(ones, out=[negative]),
        lambda: ngd.variable("v", negative),
        lambda: ngd.all_reduce(negative, op="sum"),
        lambda: ngd.all_reduce(ones, op="sum", out=negative),
    ):
        with pytest.raises(TypeError, match=r"negative bit.*resolve_neg"):
            call()
    np.testing.assert_array_equal(step(negative.resolve_neg())[0], [-4, -8])


def test_a_tensor_that_requires_grad_raises_as_in_pytorch() -> None:
    x = ngd.placeholder("x", (2,))
    step = ngd.compile([x], [x * 2])
    with pytest.raises(TypeError, match=r"got a Tensor that NumPy cannot read.*gradient"):
        step(torch.ones(2, requires_grad=True))
