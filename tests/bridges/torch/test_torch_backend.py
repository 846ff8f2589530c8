# SPDX-License-Identifier: Apache-2.0
"""Tests of torch.compile(backend="ngd"): losses, gradients and outputs equal eager."""

from __future__ import annotations

import copy
import gc
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest

from tests.bridges.torch import dynamo_warnings
from tests.support import harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

from ngd.errors import FallbackWarning  # noqa: E402
from ngd.torch.compiled import backend  # noqa: E402
from tests.bridges.torch import torch_ranks, trap_models  # noqa: E402
from tests.bridges.torch.trap_models import EQUAL, Model, X  # noqa: E402

pytestmark = dynamo_warnings.IGNORED


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list of the programs that are compiled during a test."""
    compiled_programs: list[Any] = []
    initialize = backend.GraphProgram.__init__

    def count(self: Any, *args: Any) -> None:
        initialize(self, *args)
        compiled_programs.append(self)

    monkeypatch.setattr(backend.GraphProgram, "__init__", count)
    return compiled_programs


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=backend.compile_graph, **options)


def expect_equal(result: Any, expected: Any, tolerance: float = 1e-8) -> None:
    np.testing.assert_allclose(
        result.detach().numpy(), expected.detach().numpy(), tolerance, tolerance
    )


def expect_equal_training(
    model: Any, *batches: Any, loss: Callable[..., Any] = lambda m, *x: m(*x)
) -> None:
    """Compare losses, gradients and buffers with eager, for each batch."""
    eager = copy.deepcopy(model)
    step = compiled(model)
    for batch in batches:
        for each in (model, eager):
            each.zero_grad()
        expected = loss(eager, *batch)
        expected.backward()
        result = loss(step, *batch)
        result.backward()
        expect_equal(result, expected, 1e-12)
        for (name, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
            if q.grad is not None:
                expect_equal(p.grad, q.grad)
        for p, q in zip(model.buffers(), eager.buffers(), strict=True):
            expect_equal(p, q, 1e-12)


def test_the_backend_is_an_entry_point() -> None:
    (entry,) = (p for p in entry_points(group="torch_dynamo_backends") if p.name == "ngd")
    assert entry.load() is backend.compile_graph


@pytest.mark.parametrize("name", EQUAL)
def test_a_trap_equals_eager(name: str) -> None:
    expect_equal_training(Model(EQUAL[name]), (X.clone(),), (X + 1,))


def test_a_buffer_counts() -> None:
    model = Model(trap_models.counted, count=torch.zeros((), dtype=torch.int64))
    expect_equal_training(model, (X,), (X,), (X,))


def test_autocast_is_bfloat16() -> None:
    model = Model(trap_models.autocast)
    expected = trap_models.autocast(model, X).item()
    assert compiled(model)(X).item() == pytest.approx(expected, rel=2e-2)


def test_tied_parameters_have_one_gradient() -> None:
    model = Model(lambda m, x: (x @ m.w @ m.tied.T * m.v).sum())
    model.tied = model.w
    expect_equal_training(model, (X,))


def images(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0]).square().mean()


class Squared(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.square().mean()


def small_models() -> dict[str, tuple[Any, tuple[int, ...]]]:
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    layers = [nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 3)]
    return {
        "mlp": (nn.Sequential(*layers, Squared()), (5, 8)),
        "convolution": (
            nn.Sequential(*convolutions, nn.Flatten(), nn.LazyLinear(4), Squared()),
            (4, 3, 9, 9),
        ),
        "lstm": (Recurrent(), (3, 6, 4)),
        "attention": (
            nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), Squared()),
            (2, 5, 8),
        ),
    }


@pytest.mark.parametrize("name", ["mlp", "convolution", "lstm", "attention"])
def test_a_small_model_equals_eager(name: str) -> None:
    model, shape = small_models()[name]
    model = model.double()
    model(images(*shape))
    expect_equal_training(model, (images(*shape),), (images(*shape) * 2,))


def test_evaluation_reads_the_running_statistics(programs: list[Any]) -> None:
    model, shape = small_models()["convolution"]
    model = model.double()
    model(images(*shape))
    eager, step = copy.deepcopy(model), compiled(model)
    x = images(*shape)
    for _ in range(2):
        for each in (model, eager):
            each.train()
        expect_equal(step(x), eager(x), 1e-12)
        for each in (model, eager):
            each.eval()
        with torch.no_grad():
            expect_equal(step(x), eager(x), 1e-12)
        with torch.inference_mode():
            expect_equal(step(x), eager(x), 1e-12)
    assert len(programs) == 2
    assert not programs[1].residuals


def models_of_hugging_face() -> Any:
    """Return the models of hf_models.py, or skip the test if they cannot be imported."""
    reason = "transformers is not installed, or its torchvision does not fit"
    return pytest.importorskip(
        "tests.bridges.torch.hf_models", exc_type=(ImportError, RuntimeError), reason=reason
    ).MODELS


def loss_of_text(model: Any, ids: Any) -> Any:
    logits = model(input_ids=ids).logits[:, :-1].double()
    return nn.functional.cross_entropy(logits.reshape(-1, 99), ids[:, 1:].reshape(-1))


def test_gpt2_equals_eager(programs: list[Any]) -> None:
    model = models_of_hugging_face()["gpt2"]()[0].double()
    ids = torch.randint(3, 90, (2, 9))
    expect_equal_training(model, (ids,), (ids + 1,), loss=loss_of_text)
    assert len(programs) == 1


def test_wav2vec2_equals_eager_with_its_graph_breaks(programs: list[Any]) -> None:
    torch.manual_seed(0)
    model = models_of_hugging_face()["wav2vec2"](layerdrop=0.1)[0].double()
    batch = images(2, 400), torch.tensor([0, 1])

    def loss(m: Any, x: Any, labels: Any) -> Any:
        torch.manual_seed(1)  # determines the dropped layers
        return m(input_values=x, labels=labels).loss

    expect_equal_training(model, batch, loss=loss)
    assert len(programs) > 1


def test_each_shape_is_compiled_once(programs: list[Any]) -> None:
    model, _ = small_models()["mlp"]
    model = model.double()
    sizes = (5, 7, 9, 5, 7, 9, 1)
    expect_equal_training(model, *((images(size, 8),) for size in sizes))
    assert len(programs) == 4


def test_graphs_that_compute_the_same_share_a_program(programs: list[Any]) -> None:
    layers = [nn.Linear(4, 4).double() for _ in range(3)]
    for layer in layers:
        expect_equal(compiled(layer)(X), layer(X), 1e-12)
    assert len(programs) == 1
    del programs[:]
    torch._dynamo.reset()
    gc.collect()


def test_the_number_of_programs_is_bounded(
    programs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "MAX_PROGRAMS", 2)
    step = compiled(lambda x, n: x * n, dynamic=True)
    for number in (2, 3):
        expect_equal(step(X, number), X * number, 1e-12)
    with pytest.warns(FallbackWarning, match="expected at most 2 combinations of shapes"):
        expect_equal(step(X, 4), X * 4, 1e-12)
    expect_equal(step(X, 5), X * 5, 1e-12)  # without another warning
    assert len(programs) == 2


def test_the_state_of_autocast_is_part_of_the_program() -> None:
    layer = nn.Linear(4, 4)
    step = compiled(layer)
    for _ in range(2):
        assert step(X.float()).dtype == torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert step(X.float()).dtype == torch.bfloat16


def outputs_of(function: Any, post: Callable[..., Any] | None = None) -> Any:
    """Return the outputs, the input and the gradients, in eager and compiled."""
    results = []
    for each in (function, compiled(function)):
        leaf, w = X.clone().requires_grad_(), torch.eye(4).double().add(0.5).requires_grad_()
        x = leaf * 1
        outputs = each(x, w)
        if post is not None:
            outputs = post(outputs, x)
        tensors = [t for t in torch.utils._pytree.tree_leaves(outputs) if torch.is_tensor(t)]
        weighted = (
            t * torch.arange(1.0, t.numel() + 1).view(t.shape) for t in tensors if t.grad_fn
        )
        torch.stack([each.sum() for each in weighted]).sum().backward()
        results.append((outputs, x, leaf.grad, w.grad))
    return results


def write_to_input(x: Any, w: Any) -> Any:
    before = x * 1
    x.add_(w[0])
    return before @ w, x.relu()


def write_to_a_part(x: Any, w: Any) -> Any:
    x[0].mul_(2)
    return x @ w


def views(x: Any, w: Any) -> Any:
    y = x @ w
    return x.view(-1), y, y.view(-1), y.t(), x.detach(), y.detach(), x


def kinds(x: Any, w: Any) -> Any:
    y = x @ w
    return y.argmax(-1), y > 0, None, {"y": y, "size": (y.shape[0], 3.5, "name")}


def breaks(x: Any, w: Any) -> Any:
    y = x @ w
    y = y * 2 if y.sum() > 0 else y * 3
    return (y + y.sum().item()) @ w


def regions(x: Any, w: Any) -> Any:
    with torch.no_grad():
        a = x @ w
        with torch.enable_grad():
            b = x @ w * 2
    return a, b


def layouts(x: Any, w: Any) -> Any:
    image = (x @ w).reshape(1, 3, 2, 2).to(memory_format=torch.channels_last)
    return (x @ w).t(), image * 2


FUNCTIONS: dict[str, Any] = {
    "write": write_to_input,
    "write-to-a-part": write_to_a_part,
    "views": views,
    "kinds": kinds,
    "breaks": breaks,
    "regions": regions,
    "layouts": layouts,
    "inputs": lambda x, w: (w, x),
    "copies": lambda x, w: (x.clone(), w.t().contiguous()),
    "constants": lambda x, w: (torch.ones(3), torch.arange(4), x @ w),
    "selection": lambda x, w: (x @ w)[x > 0].sum(),
    "vmap": lambda x, w: torch.vmap(lambda row: (row @ w).sum())(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_outputs_equal_eager(name: str) -> None:
    eager, compiled_outputs = outputs_of(FUNCTIONS[name])
    expected, structure = torch.utils._pytree.tree_flatten(eager)
    leaves, of = torch.utils._pytree.tree_flatten(compiled_outputs)
    assert of == structure
    for leaf, expected_leaf in zip(leaves, expected, strict=True):
        if not torch.is_tensor(expected_leaf):
            assert leaf == expected_leaf
            continue
        assert (leaf.dtype, leaf.requires_grad) == (
            expected_leaf.dtype,
            expected_leaf.requires_grad,
        )
        assert leaf.stride() == expected_leaf.stride()
        expect_equal(leaf, expected_leaf, 1e-12)


def add_in_place(outputs: Any, x: Any) -> Any:
    outputs[0].add_(1)
    return (*outputs, x * 3)


@pytest.mark.parametrize(
    "function",
    [lambda x, w: (x.view(-1), x + w[0]), lambda x, w: ((y := x @ w), y.view(-1))],
    ids=["view-of-input", "views-of-one-value"],
)
def test_a_write_to_an_output_is_seen_by_its_views(function: Any) -> None:
    eager, compiled_outputs = outputs_of(function, add_in_place)
    leaves = torch.utils._pytree.tree_leaves(compiled_outputs)
    for leaf, expected in zip(leaves, torch.utils._pytree.tree_leaves(eager), strict=True):
        expect_equal(leaf, expected, 1e-12)


def test_a_write_to_an_alias_runs_in_eager() -> None:
    def write(a: Any, b: Any) -> Any:
        a.mul_(2)
        return a + b

    step = compiled(write)
    for first, second in ((X.clone(), X.clone()), ((x := X.clone()), x[:])):
        expected = write(first.clone(), second.clone()) if first is not x else 4 * X
        expect_equal(step(first, second), expected, 1e-12)


def test_an_input_may_not_change_before_the_backward_pass() -> None:
    w = torch.eye(4).double().requires_grad_()
    x = X.clone()
    loss = compiled(lambda x, w: (x @ w).sum())(x, w)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_accumulate_and_a_graph_may_be_kept() -> None:
    w = torch.eye(4).double().requires_grad_()
    loss = compiled(lambda x, w: (x @ w).exp().sum())(X, w)
    loss.backward(retain_graph=True)
    once = w.grad.clone()
    loss.backward()
    expect_equal(w.grad, 2 * once, 1e-12)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_a_gradient_of_a_gradient_is_refused() -> None:
    w = torch.eye(4).double().requires_grad_()
    loss = compiled(lambda x, w: (x @ w).exp().sum())(X, w)
    with pytest.raises(RuntimeError, match="expected a backward pass without create_graph=True"):
        torch.autograd.grad(loss, w, create_graph=True)


def test_an_output_without_adjoint_gives_no_gradient() -> None:
    v, w = (torch.eye(4).double().requires_grad_() for _ in range(2))
    a, b = compiled(lambda x, v, w: ((x @ v).sum(), (x @ w).sum()))(X, v, w)
    a.backward()
    assert w.grad is None
    assert b.item() == pytest.approx(X.sum().item())


def test_threads_run_one_program() -> None:
    w = torch.eye(4).double().requires_grad_()
    step = compiled(lambda x, w: (x @ w).exp().sum())
    expected = X.exp().sum().item()
    step(X, w).backward()
    results = []

    def work() -> None:
        for _ in range(20):
            loss = step(X, w)
            loss.backward()
            results.append(loss.item())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    np.testing.assert_allclose(results, [expected] * 80, 1e-12)


def warnings_of(model: Any, x: Any) -> list[str]:
    """Return the warnings of fallbacks of two calls, whose gradients equal eager."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expect_equal_training(model, (x,), (x * 2,))
    return [str(each.message) for each in caught if each.category is FallbackWarning]


LINE = r"\(called at .*\.py:\d+"

FALLBACKS: dict[str, tuple[Callable[..., Any], str]] = {
    "function": (
        lambda m, x: (trap_models.Tripled.apply(x @ m.w) * m.v).sum(),
        rf"a torch\.autograd\.Function {LINE}",
    ),
    "hook": (trap_models.with_tensor_hook, rf"Tensor\.register_hook {LINE}"),
    "op": (
        lambda m, x: torch.fft.fft(x @ m.w).abs().sum(),
        rf"aten\._fft_r2c\.default, which has no rule {LINE}",
    ),
    **{
        name: (trap_models.HIDDEN_WRITES[name], rf"a write without gradient .* {LINE}")
        for name in ("write_in_region", "write_to_detached", "write_to_data")
    },
    "overlap": (
        lambda m, x: sum(map(torch.sum, overlapping(m, x))),
        "outputs that are overlapping views",
    ),
}


@torch._dynamo.disable
def as_they_are(*tensors: Any) -> Any:
    return tensors


def overlapping(m: Any, x: Any) -> Any:
    y = x @ m.w
    return as_they_are(y[:2], y[1:])


@pytest.mark.parametrize("name", FALLBACKS)
def test_what_ngd_cannot_run_is_run_by_pytorch_with_one_warning(name: str) -> None:
    if name == "hook" and torch.__version__.startswith("2.9."):
        pytest.skip("PyTorch 2.9 does not give such a graph to the backend")
    body, message = FALLBACKS[name]
    (warning,) = warnings_of(Model(body), X)
    before, after = re.escape(backend.WHERE), r"PyTorch runs this graph without ngd\."
    assert re.fullmatch(rf"{before}: expected .*; got {message}.*\. {after}", warning), warning


def test_hooks_of_parameters_and_modules_are_called() -> None:
    expected = Model(lambda m, x: (x @ m.w * m.v).sum())
    expected(X).backward()
    model = Model(lambda m, x: (x @ m.w * m.v).sum())
    model.w.register_hook(trap_models.doubled)
    calls = []
    model.v.register_post_accumulate_grad_hook(lambda p: calls.append(p))
    compiled(model)(X).backward()
    expect_equal(model.w.grad, 2 * expected.w.grad)
    assert len(calls) == 1


def drop(x: Any) -> Any:
    return nn.functional.dropout(x, 0.25)


def test_dropout_follows_the_seed_of_pytorch() -> None:
    x = torch.ones(1000, 1000, dtype=torch.float64, requires_grad=True)
    step = compiled(lambda x: (drop(x), drop(x)))
    torch.manual_seed(5)
    first, second = step(x)
    mask = (first != 0).double()
    deviation = (0.25 * 0.75 / x.numel()) ** 0.5
    assert abs(mask.mean().item() - 0.75) < 4.5 * deviation
    assert not torch.equal(first, second)
    first.sum().backward()
    expect_equal(x.grad, first, 1e-12)  # the backward pass uses the mask of the forward pass
    again, _ = step(x)
    assert not torch.equal(again, first)
    torch.manual_seed(5)
    again, _ = step(x)
    assert torch.equal(again, first)


def test_a_checkpoint_around_a_compiled_function_draws_again_the_same() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(100, dtype=torch.float64, requires_grad=True)
    step = compiled(lambda x: drop(x) * x)
    y = checkpoint(step, x, use_reentrant=False)
    y.sum().backward()
    expect_equal(x.grad, 2 * y, 1e-12)


def train_with_ddp() -> dict[str, Any]:
    rank, _ = torch_ranks.join("ngd")
    torch.manual_seed(0)
    layers = [nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 3), Squared()]
    eager = nn.Sequential(*layers).double()
    model = copy.deepcopy(eager)
    step = compiled(nn.parallel.DistributedDataParallel(model))
    dropped = compiled(drop)(torch.ones(1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number in range(3):
        optimizer.zero_grad()
        loss = step(images(4, 8)[2 * rank : 2 * rank + 2] + number)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.distributed.destroy_process_group()
    return {
        "losses": losses,
        "weights": [p.detach().numpy().tolist() for p in model.parameters()],
        "dropped": dropped.tolist(),
    }


@harness.needs_ranks
def test_ddp_over_ngd_equals_one_process() -> None:
    outcomes = torch_ranks.run(train_with_ddp, 2)
    torch.manual_seed(0)
    layers = [nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 3), Squared()]
    model = nn.Sequential(*layers).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        optimizer.zero_grad()
        loss = model(images(4, 8) + number)
        loss.backward()
        optimizer.step()
        mean = np.mean([outcome["losses"][number] for outcome in outcomes])
        assert mean == pytest.approx(loss.item(), abs=1e-10)
    for outcome in outcomes:
        for weight, p in zip(outcome["weights"], model.parameters(), strict=True):
            np.testing.assert_allclose(weight, p.detach().numpy(), 1e-9, 1e-9)
    assert outcomes[0]["dropped"] != outcomes[1]["dropped"]  # with equal seeds
