# SPDX-License-Identifier: Apache-2.0
"""Tests of modules against PyTorch: values, gradients, buffers, state dicts, training steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import nn, ops, optim

torch = pytest.importorskip("torch", reason="PyTorch is not installed beside the tests")
NORMS = torch.nn.utils.parametrizations
F64 = "float64"
RANDOM = np.random.default_rng

CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), lambda: torch.nn.Linear(4, 3), (2, 5, 4)),
    "linear_alone": (
        lambda: nn.Linear(4, 3, bias=False),
        lambda: torch.nn.Linear(4, 3, bias=False),
        (5, 4),
    ),
    "layer_norm": (
        lambda: nn.LayerNorm((3, 4), eps=0.1),
        lambda: torch.nn.LayerNorm((3, 4), eps=0.1),
        (2, 3, 4),
    ),
    "layer_norm_plain": (
        lambda: nn.LayerNorm(4, elementwise_affine=False),
        lambda: torch.nn.LayerNorm(4, elementwise_affine=False),
        (2, 3, 4),
    ),
    "rms_norm": (
        lambda: nn.RMSNorm(4, eps=0.1),
        lambda: torch.nn.RMSNorm(4, eps=0.1),
        (2, 3, 4),
    ),
    "group_norm": (lambda: nn.GroupNorm(2, 6), lambda: torch.nn.GroupNorm(2, 6), (3, 6, 2, 3)),
    "batch_norm": (lambda: nn.BatchNorm1d(4), lambda: torch.nn.BatchNorm1d(4), (5, 4)),
    "batch_norm_2d": (
        lambda: nn.BatchNorm2d(3, momentum=None),
        lambda: torch.nn.BatchNorm2d(3, momentum=None),
        (4, 3, 2, 3),
    ),
    "batch_norm_3d": (
        lambda: nn.BatchNorm3d(2, affine=False, track_running_stats=False),
        lambda: torch.nn.BatchNorm3d(2, affine=False, track_running_stats=False),
        (2, 2, 2, 3, 2),
    ),
    "conv1d": (
        lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2),
        lambda: torch.nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2),
        (2, 4, 7),
    ),
    "conv2d": (
        lambda: nn.Conv2d(3, 4, (3, 2), padding=(1, 0), dilation=2, bias=False),
        lambda: torch.nn.Conv2d(3, 4, (3, 2), padding=(1, 0), dilation=2, bias=False),
        (2, 3, 6, 5),
    ),
    "conv3d": (
        lambda: nn.Conv3d(2, 3, 3, padding="same"),
        lambda: torch.nn.Conv3d(2, 3, 3, padding="same"),
        (2, 2, 3, 4, 3),
    ),
    "conv_transpose1d": (
        lambda: nn.ConvTranspose1d(3, 2, 4),
        lambda: torch.nn.ConvTranspose1d(3, 2, 4),
        (2, 3, 5),
    ),
    "conv_transpose2d": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        lambda: torch.nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2),
        (2, 4, 3, 4),
    ),
    "conv_transpose3d": (
        lambda: nn.ConvTranspose3d(2, 3, 2, dilation=2, bias=False),
        lambda: torch.nn.ConvTranspose3d(2, 3, 2, dilation=2, bias=False),
        (1, 2, 3, 2, 3),
    ),
    "max_pool1d": (lambda: nn.MaxPool1d(3, 2), lambda: torch.nn.MaxPool1d(3, 2), (2, 3, 8)),
    "max_pool2d": (
        lambda: nn.MaxPool2d(3, 2, padding=1, ceil_mode=True),
        lambda: torch.nn.MaxPool2d(3, 2, padding=1, ceil_mode=True),
        (2, 3, 6, 7),
    ),
    "max_pool3d": (lambda: nn.MaxPool3d(2), lambda: torch.nn.MaxPool3d(2), (1, 2, 4, 4, 5)),
    "avg_pool1d": (lambda: nn.AvgPool1d(2), lambda: torch.nn.AvgPool1d(2), (2, 3, 8)),
    "avg_pool2d": (
        lambda: nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
        lambda: torch.nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
        (2, 3, 6, 7),
    ),
    "avg_pool3d": (lambda: nn.AvgPool3d(2), lambda: torch.nn.AvgPool3d(2), (1, 2, 4, 4, 5)),
    "adaptive_avg1d": (
        lambda: nn.AdaptiveAvgPool1d(3),
        lambda: torch.nn.AdaptiveAvgPool1d(3),
        (2, 3, 7),
    ),
    "adaptive_avg2d": (
        lambda: nn.AdaptiveAvgPool2d(1),
        lambda: torch.nn.AdaptiveAvgPool2d(1),
        (2, 3, 5, 4),
    ),
    "adaptive_avg3d": (
        lambda: nn.AdaptiveAvgPool3d((1, 2, None)),
        lambda: torch.nn.AdaptiveAvgPool3d((1, 2, None)),
        (1, 2, 3, 4, 3),
    ),
    "adaptive_max1d": (
        lambda: nn.AdaptiveMaxPool1d(3),
        lambda: torch.nn.AdaptiveMaxPool1d(3),
        (2, 3, 7),
    ),
    "adaptive_max2d": (
        lambda: nn.AdaptiveMaxPool2d((2, 3)),
        lambda: torch.nn.AdaptiveMaxPool2d((2, 3)),
        (2, 3, 5, 6),
    ),
    "adaptive_max3d": (
        lambda: nn.AdaptiveMaxPool3d(2),
        lambda: torch.nn.AdaptiveMaxPool3d(2),
        (1, 2, 4, 4, 2),
    ),
    "flatten": (lambda: nn.Flatten(), lambda: torch.nn.Flatten(), (2, 3, 4)),
    "identity": (lambda: nn.Identity(), lambda: torch.nn.Identity(), (2, 3)),
    "relu6": (lambda: nn.ReLU6(), lambda: torch.nn.ReLU6(), (40,)),
    "gelu_tanh": (lambda: nn.GELU("tanh"), lambda: torch.nn.GELU("tanh"), (40,)),
    "leaky_relu": (lambda: nn.LeakyReLU(0.2), lambda: torch.nn.LeakyReLU(0.2), (40,)),
    "elu": (lambda: nn.ELU(0.5), lambda: torch.nn.ELU(0.5), (40,)),
    "log_softmax": (lambda: nn.LogSoftmax(dim=1), lambda: torch.nn.LogSoftmax(dim=1), (3, 4, 2)),
    "softmin": (lambda: nn.Softmin(dim=1), lambda: torch.nn.Softmin(dim=1), (3, 4, 2)),
    "glu": (lambda: nn.GLU(1), lambda: torch.nn.GLU(1), (3, 4, 2)),
    "hardtanh": (lambda: nn.Hardtanh(-2, 0.5), lambda: torch.nn.Hardtanh(-2, 0.5), (40,)),
    "prelu": (lambda: nn.PReLU(), lambda: torch.nn.PReLU(), (3, 4, 2)),
    "prelu_of_channels": (lambda: nn.PReLU(4, 0.1), lambda: torch.nn.PReLU(4, 0.1), (3, 4, 2)),
    "instance_norm1d": (
        lambda: nn.InstanceNorm1d(3),
        lambda: torch.nn.InstanceNorm1d(3),
        (2, 3, 5),
    ),
    "instance_norm2d": (
        lambda: nn.InstanceNorm2d(3, 0.1, affine=True),
        lambda: torch.nn.InstanceNorm2d(3, 0.1, affine=True),
        (2, 3, 5, 2),
    ),
    "instance_norm3d": (
        lambda: nn.InstanceNorm3d(2),
        lambda: torch.nn.InstanceNorm3d(2),
        (2, 2, 3, 2, 2),
    ),
    "upsample": (
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        lambda: torch.nn.Upsample(scale_factor=2, mode="bilinear"),
        (2, 3, 4, 5),
    ),
    "upsample_nearest": (lambda: nn.Upsample(7), lambda: torch.nn.Upsample(7), (2, 3, 4)),
    "pixel_shuffle": (lambda: nn.PixelShuffle(2), lambda: torch.nn.PixelShuffle(2), (2, 4, 3, 2)),
    "pixel_unshuffle": (
        lambda: nn.PixelUnshuffle(2),
        lambda: torch.nn.PixelUnshuffle(2),
        (2, 3, 4, 2),
    ),
    "unfold": (
        lambda: nn.Unfold(2, padding=1, stride=2),
        lambda: torch.nn.Unfold(2, padding=1, stride=2),
        (2, 3, 5, 4),
    ),
    "fold": (lambda: nn.Fold((3, 4), 2), lambda: torch.nn.Fold((3, 4), 2), (2, 8, 6)),
    "softmax": (lambda: nn.Softmax(dim=1), lambda: torch.nn.Softmax(dim=1), (3, 4, 2)),
    **{
        name: (getattr(nn, name), getattr(torch.nn, name), (40,))
        for name in (
            *("ReLU", "GELU", "SiLU", "Sigmoid", "Tanh", "Softplus", "Hardswish"),
            *("Mish", "SELU", "Softsign", "LogSigmoid"),
        )
    },
    "Hardsigmoid": (nn.Hardsigmoid, torch.nn.Hardsigmoid, (40,)),
    "weight_norm": (
        lambda: nn.weight_norm(nn.Linear(4, 3)),
        lambda: NORMS.weight_norm(torch.nn.Linear(4, 3)),
        (5, 4),
    ),
    "weight_norm_of_columns": (
        lambda: nn.weight_norm(nn.Conv2d(3, 4, 2), dim=1),
        lambda: NORMS.weight_norm(torch.nn.Conv2d(3, 4, 2), dim=1),
        (2, 3, 4, 4),
    ),
    "weight_norm_of_all": (
        lambda: nn.weight_norm(nn.Linear(4, 3), dim=None),
        lambda: NORMS.weight_norm(torch.nn.Linear(4, 3), dim=None),
        (5, 4),
    ),
    "spectral_norm": (
        lambda: nn.spectral_norm(nn.Linear(4, 3)),
        lambda: NORMS.spectral_norm(torch.nn.Linear(4, 3)),
        (5, 4),
    ),
    "spectral_norm_conv": (
        lambda: nn.spectral_norm(nn.Conv2d(3, 4, 2, bias=False), n_power_iterations=3),
        lambda: NORMS.spectral_norm(torch.nn.Conv2d(3, 4, 2, bias=False), n_power_iterations=3),
        (2, 3, 4, 4),
    ),
    "spectral_norm_conv_transpose": (
        lambda: nn.spectral_norm(nn.ConvTranspose1d(3, 2, 4)),
        lambda: NORMS.spectral_norm(torch.nn.ConvTranspose1d(3, 2, 4)),
        (2, 3, 5),
    ),
    "spectral_norm_of_one_axis": (
        lambda: nn.spectral_norm(nn.LayerNorm(4)),
        lambda: NORMS.spectral_norm(torch.nn.LayerNorm(4)),
        (5, 4),
    ),
}


def run_ours(
    model: nn.Module, x: Any, training: bool, adjoint: Any = None
) -> tuple[Any, dict[str, Any]]:
    """Return the output, and the gradients of sum(output * adjoint). Buffers are updated."""
    node = ngd.placeholder("x", x.shape, x.dtype)
    updates: dict[ngd.Variable, ngd.Node] = {}
    if training:
        with nn.training() as state:
            y = model(node)
        updates = state.updates
    else:
        y = model(node)
    wrt = {} if adjoint is None else {"x": node, **model.parameters()}
    loss = ops.sum(y * (np.ones(y.shape) if adjoint is None else adjoint))
    found = ngd.compile([node], (y, ngd.grad(loss, wrt)), updates)(x)
    return found[0], found[1]


def run_torch(model: Any, x: Any, training: bool, adjoint: Any) -> tuple[Any, dict[str, Any]]:
    model.train(training)
    tensor = torch.tensor(x, requires_grad=True)
    y = model(tensor)
    model.zero_grad()
    (y * torch.tensor(adjoint)).sum().backward()
    gradients = {key: p.grad.numpy() for key, p in model.named_parameters()}
    return y.detach().numpy(), {"x": tensor.grad.numpy(), **gradients}


TOLERANCES = {"Hardsigmoid": 1e-7}
"""Tolerances that differ from 1e-10. PyTorch's Hardsigmoid rounds 1/6 to float32."""


def compare(found: dict[str, Any], wanted: dict[str, Any], tolerance: float = 1e-10) -> None:
    assert list(found) == list(wanted)
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, tolerance, tolerance, err_msg=key)


def as_arrays(state: Any) -> dict[str, Any]:
    return {key: value.numpy() for key, value in state.items()}


@pytest.mark.parametrize("name", CASES)
def test_modules_equal_pytorch(name: str) -> None:
    make, make_theirs, shape = CASES[name]
    ours, theirs = make().astype(F64), make_theirs().double()
    random = RANDOM(len(name))
    x = random.normal(size=shape) * 3
    assert ours.load_state_dict(theirs.state_dict()) == ([], [])
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for training in (True, False):
        value = run_ours(ours, x, training=False)[0]
        adjoint = random.normal(size=value.shape)
        found = run_ours(ours, x, training, adjoint)
        wanted = run_torch(theirs, x, training, adjoint)
        tolerance = TOLERANCES.get(name, 1e-10)
        compare({"y": found[0], **found[1]}, {"y": wanted[0], **wanted[1]}, tolerance)
        compare(ours.state_dict(), as_arrays(theirs.state_dict()))
    fresh = make().astype(F64)
    fresh.initialize(seed=1)
    theirs.load_state_dict({k: torch.from_numpy(v) for k, v in fresh.state_dict().items()})
    wanted_value = theirs(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(run_ours(fresh, x, False)[0], wanted_value, 1e-10, 1e-10)


def test_embedding_equals_pytorch() -> None:
    ours = nn.Embedding(7, 3, padding_idx=-2).astype(F64)
    theirs = torch.nn.Embedding(7, 3, padding_idx=-2).double()
    np.testing.assert_array_equal(ours.weight.numpy()[5], 0)
    ours.load_state_dict(theirs.state_dict())
    numbers = np.array([[1, 5], [5, 1], [0, 6]])
    adjoint = RANDOM(0).normal(size=(3, 2, 3))
    node = ngd.placeholder("numbers", numbers.shape, "int64")
    y = ours(node)
    step = ngd.compile([node], [y, ngd.grad(ops.sum(y * adjoint), ours.weight)])
    value, gradient = step(numbers)
    wanted = theirs(torch.tensor(numbers))
    (wanted * torch.tensor(adjoint)).sum().backward()
    np.testing.assert_array_equal(value, wanted.detach().numpy())
    np.testing.assert_allclose(gradient, theirs.weight.grad.numpy(), 1e-12)


@pytest.mark.parametrize("mode", ["mean", "sum"])
@pytest.mark.parametrize("offsets", [None, [0, 2, 2, 5]])
@pytest.mark.parametrize("padding", [None, 3])
def test_embedding_bag_equals_pytorch(mode: str, offsets: Any, padding: int | None) -> None:
    ours = nn.EmbeddingBag(7, 3, mode, padding).astype(F64)
    theirs = torch.nn.EmbeddingBag(7, 3, mode=mode, padding_idx=padding).double()
    ours.load_state_dict(theirs.state_dict())
    numbers = np.array([[1, 3, 3], [5, 1, 0]]) if offsets is None else np.array([1, 3, 3, 5, 1, 0])
    own = RANDOM(1).normal(size=numbers.shape)
    for weights in (None, own) if mode == "sum" else (None,):
        y = ours(ngd.constant(numbers), offsets, weights)
        adjoint = RANDOM(0).normal(size=y.shape)
        step = ngd.compile([], [y, ngd.grad(ops.sum(y * adjoint), ours.weight)])
        value, gradient = step()
        theirs.zero_grad()
        wanted = theirs(
            torch.tensor(numbers),
            None if offsets is None else torch.tensor(offsets),
            None if weights is None else torch.tensor(weights),
        )
        (wanted * torch.tensor(adjoint)).sum().backward()
        np.testing.assert_allclose(value, wanted.detach().numpy(), 1e-12)
        np.testing.assert_allclose(gradient, theirs.weight.grad.numpy(), 1e-12, 1e-15)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_equals_pytorch(bias: bool, causal: bool) -> None:
    ours = nn.MultiHeadAttention(6, 2, bias).astype(F64)
    theirs = torch.nn.MultiheadAttention(6, 2, bias=bias, batch_first=True).double()
    assert ours.load_state_dict(theirs.state_dict()) == ([], [])
    assert list(ours.state_dict()) == list(theirs.state_dict())
    random = RANDOM(1)
    q, k = random.normal(size=(2, 4, 6)), random.normal(size=(2, 4, 6))
    mask = np.triu(np.ones((4, 4), bool), 1) if causal else random.random((4, 4)) < 0.3
    mask[:, 0] = False
    options: dict[str, Any] = {"causal": True} if causal else {"mask": ~mask}
    adjoint = random.normal(size=q.shape)
    wanted = theirs(*map(torch.tensor, (q, k, k)), attn_mask=torch.tensor(mask))[0]
    (wanted * torch.tensor(adjoint)).sum().backward()
    gradients = {key: p.grad.numpy() for key, p in theirs.named_parameters()}
    y = ours(ngd.constant(q), ngd.constant(k), **options)
    found = ngd.compile([], (y, ngd.grad(ops.sum(y * adjoint), ours.parameters())))()
    compare({"y": found[0], **found[1]}, {"y": wanted.detach().numpy(), **gradients})
    alone = theirs(*[torch.tensor(q)] * 3)[0].detach().numpy()
    np.testing.assert_allclose(run_ours(ours, q, False)[0], alone, 1e-10, 1e-12)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 2, "batch_first": True},
        {"bias": False},
        {"num_layers": 2, "bidirectional": True},
    ],
    ids=["layers", "plain", "directions"],
)
def test_recurrent_modules_equal_pytorch(name: str, options: dict[str, Any]) -> None:
    ours = getattr(nn, name)(3, 4, **options).astype(F64)
    theirs = getattr(torch.nn, name)(3, 4, **options).double()
    assert ours.load_state_dict(theirs.state_dict()) == ([], [])
    assert list(ours.state_dict()) == list(theirs.state_dict())
    random = RANDOM(3)
    x = random.normal(size=(2, 3, 3))
    batch, count = x.shape[0 if options.get("batch_first") else 1], 2 if name == "LSTM" else 1
    num_states = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    first = [random.normal(size=(num_states, batch, 4)) for _ in range(count)]
    for given in (None, first):
        tensors: Any = None if given is None else tuple(torch.tensor(s) for s in given)
        nodes: Any = None if given is None else tuple(ngd.constant(s) for s in given)
        if given is not None and count == 1:
            tensors, nodes = tensors[0], nodes[0]
        theirs.zero_grad()
        output, states = theirs(torch.tensor(x), tensors)
        wanted = [output, *([states] if count == 1 else states)]
        sum((w * w).sum() for w in wanted).backward()
        gradients = {key: p.grad.numpy() for key, p in theirs.named_parameters()}
        y, last = ours(ngd.constant(x), nodes)
        parts = [y, *([last] if count == 1 else last)]
        loss = ops.sum(ops.stack([ops.sum(part * part) for part in parts]))
        found = ngd.compile([], (parts, ngd.grad(loss, ours.parameters())))()
        for value, tensor in zip(found[0], wanted, strict=True):
            np.testing.assert_allclose(value, tensor.detach().numpy(), 1e-10, 1e-12)
        compare(found[1], gradients)


def perceptron(library: Any) -> Any:
    return library.Sequential(
        library.Linear(6, 8),
        library.LayerNorm(8),
        library.GELU(),
        library.Dropout(0.0),
        library.Linear(8, 3),
    )


def convolutional(library: Any) -> Any:
    return library.Sequential(
        library.Conv2d(2, 4, kernel_size=3, padding=1, bias=False),
        library.BatchNorm2d(4),
        library.ReLU(),
        library.MaxPool2d(kernel_size=2),
        library.Conv2d(4, 4, 3, groups=2),
        library.GroupNorm(2, 4),
        library.SiLU(),
        library.AdaptiveAvgPool2d(1),
        library.Flatten(),
        library.Linear(4, 3),
    )


@pytest.mark.parametrize(
    ("make", "shape", "optimizer", "theirs"),
    [
        (
            perceptron,
            (5, 6),
            lambda: optim.AdamW(0.02, weight_decay=0.1),
            lambda p: torch.optim.AdamW(p, 0.02, weight_decay=0.1),
        ),
        (
            convolutional,
            (5, 2, 8, 8),
            lambda: optim.SGD(0.05, momentum=0.9, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
        ),
    ],
    ids=["perceptron", "convolutional"],
)
def test_ten_training_steps_equal_pytorch(
    make: Any, shape: Any, optimizer: Any, theirs: Any
) -> None:
    model, reference = make(nn).astype(F64), make(torch.nn).double()
    model.load_state_dict(reference.state_dict())
    x, y = ngd.placeholder("x", shape, F64), ngd.placeholder("y", shape[:1], "int64")
    with nn.training() as state:
        logits = model(x)
        loss = ops.mean(ops.softmax_cross_entropy(logits, y))
    updates = [optimizer().minimize(loss, model.parameters()), state.updates]
    step, evaluate = ngd.compile([x, y], [loss], updates), ngd.compile([x], [model(x)])
    trainer, random = theirs(reference.parameters()), RANDOM(2)
    for _ in range(10):
        data, labels = random.normal(size=shape), random.integers(3, size=shape[0])
        reference.train()
        trainer.zero_grad()
        wanted = torch.nn.functional.cross_entropy(
            reference(torch.tensor(data)), torch.tensor(labels)
        )
        wanted.backward()
        trainer.step()
        np.testing.assert_allclose(step(data, labels)[0], wanted.item(), 1e-8)
    reference.eval()
    expected = reference(torch.tensor(data)).detach().numpy()
    np.testing.assert_allclose(evaluate(data)[0], expected, 1e-8, 1e-8)


def test_parameters_with_gradients_and_bfloat16_load() -> None:
    theirs, ours = torch.nn.Linear(4, 3), nn.Linear(4, 3)
    assert ours.load_state_dict(dict(theirs.named_parameters())) == ([], [])
    np.testing.assert_array_equal(ours.weight.numpy(), theirs.weight.detach().numpy())
    half = theirs.to(torch.bfloat16)
    assert ours.load_state_dict(half.state_dict()) == ([], [])
    np.testing.assert_array_equal(ours.weight.numpy(), half.weight.detach().float().numpy())
