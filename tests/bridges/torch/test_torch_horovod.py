# SPDX-License-Identifier: Apache-2.0
"""Tests of Horovod's API for PyTorch: ranks train as one process does on the whole batch."""

from __future__ import annotations

import copy
import gc
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import digits, harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

import ngd.horovod.torch as hvd  # noqa: E402
from tests.bridges.torch import torch_ranks  # noqa: E402

pytestmark = harness.needs_ranks
STEPS, BATCH = 20, 6


def network() -> Any:
    """Return a network with small and large parameters."""
    torch.manual_seed(1)
    first, last = nn.Linear(digits.FEATURES, 300), nn.Linear(300, digits.CLASSES)
    return nn.Sequential(first, nn.Tanh(), nn.Linear(300, 300), nn.ReLU(), last)


def batch(step: int, size: int) -> tuple[Any, Any]:
    x, y = digits.batch(step, size * BATCH)
    return torch.tensor(x), torch.tensor(y)


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return nn.functional.cross_entropy(model(x), y)


OPTIMIZERS: Any = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


def largest_difference(a: Any, b: Any) -> float:
    """Return the largest difference of two models' parameters, relative to the largest value."""
    pairs = list(zip(a.parameters(), b.parameters(), strict=True))
    return max(float((p - q).abs().max() / q.abs().max()) for p, q in pairs)


def train(which: str, how: dict[str, Any]) -> list[float]:
    """Train on all ranks and in one process, and return the largest difference."""
    torch.set_num_threads(1)
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    model = network()
    reference_model = copy.deepcopy(model)
    if rank > 0:  # it gets the root's values
        nn.init.zeros_(model[0].weight)
    how = dict(how)
    wire = how.pop("wire", "none")
    if how.get("groups") == "lists":
        how["groups"] = [[model[4].weight, model[0].bias], [model[2].weight]]
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[which](model.parameters()),
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, wire),
        **how,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    reference = OPTIMIZERS[which](reference_model.parameters())
    passes = how.get("backward_passes_per_step", 1)
    for step in range(STEPS):
        optimizer.zero_grad()
        reference.zero_grad()
        for micro in range(passes):
            x, y = batch(step * passes + micro, size)
            mine = slice(rank * BATCH, (rank + 1) * BATCH)
            loss_of(model, x[mine], y[mine]).backward()
            loss_of(reference_model, x, y).backward()
        optimizer.step()
        reference.step()
    return [largest_difference(model, reference_model)]


@pytest.mark.parametrize(
    ("which", "ranks"), [("sgd", 1), ("sgd", 2), ("sgd", 3), ("adamw", 2), ("rmsprop", 2)]
)
def test_ranks_train_as_one_process(which: str, ranks: int) -> None:
    for (difference,) in torch_ranks.run(train, ranks, arguments={"which": which, "how": {}}):
        assert difference < 1e-5 if which == "sgd" else difference < 1e-4


@pytest.mark.parametrize(
    ("how", "tolerance"),
    [
        ({"backward_passes_per_step": 3}, 1e-5),
        ({"gradient_predivide_factor": 2.0}, 1e-5),
        ({"groups": 2}, 1e-5),
        ({"groups": "lists"}, 1e-5),
        ({"wire": "fp16"}, 0.1),
        ({"wire": "bf16"}, 0.1),
    ],
)
def test_options_of_the_optimizer(how: dict[str, Any], tolerance: float) -> None:
    outcomes = torch_ranks.run(train, 2, arguments={"which": "sgd", "how": how})
    for (difference,) in outcomes:
        assert difference < tolerance
        if "wire" in how:
            assert difference > 1e-6  # it was rounded
    assert outcomes[0] == outcomes[1]


def train_by_closures() -> list[float]:
    """Train with L-BFGS, which calls a closure several times per step.

    In float64, because L-BFGS multiplies the rounding of a gradient by more than 1,000.
    """
    hvd.init()
    torch.manual_seed(1 + hvd.rank())
    shape = (digits.FEATURES, digits.CLASSES)
    model, reference_model = (nn.Linear(*shape, dtype=torch.float64) for _ in range(2))
    hvd.broadcast_parameters(model.named_parameters(), 0)
    reference_model.load_state_dict(model.state_dict())
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), max_iter=5))
    reference = torch.optim.LBFGS(reference_model.parameters(), max_iter=5)
    x, y = batch(0, hvd.size())
    x = x.double()
    mine = slice(hvd.rank() * BATCH, (hvd.rank() + 1) * BATCH)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, x[mine], y[mine])
        loss.backward()
        return hvd.allreduce(loss.detach())

    def reference_closure() -> Any:
        reference.zero_grad()
        loss = loss_of(reference_model, x, y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        reference.step(reference_closure)
    return [largest_difference(model, reference_model)]


def test_closures_train_as_one_process() -> None:
    for (difference,) in torch_ranks.run(train_by_closures, 2):
        assert difference < 1e-10


def clip_after_reduction() -> list[float]:
    """Clip the gradients after their reduction, and then update."""
    hvd.init()
    model = nn.Linear(3, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    model(torch.tensor([[3.0, 0.0, 4.0]]) * (hvd.rank() * 2)).sum().backward()
    optimizer.synchronize()  # the mean is (3, 0, 4)
    before = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    with optimizer.skip_synchronize():
        optimizer.step()
    return [before, *model.weight.flatten().tolist()]


def test_gradients_can_be_clipped_after_their_reduction() -> None:
    for result in torch_ranks.run(clip_after_reduction, 2):
        assert result == pytest.approx([5.0, 0.4, 1.0, 0.2], abs=1e-6)


def use_one_layer_per_rank() -> list[float]:
    """Use one of two layers on each rank."""
    hvd.init()
    layers = nn.ModuleList([nn.Linear(2, 1, bias=False) for _ in range(2)])
    for layer in layers:
        nn.init.zeros_(layer.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layers.parameters(), lr=1.0))
    layers[hvd.rank()](torch.tensor([[2.0, 4.0]])).sum().backward()
    optimizer.step()
    return [w for layer in layers for w in layer.weight.flatten().tolist()]


def test_a_missing_gradient_counts_as_zeros() -> None:
    for weights in torch_ranks.run(use_one_layer_per_rank, 2):
        assert weights == [-1.0, -2.0, -1.0, -2.0]


def train_embedding(dense: bool) -> list[Any]:
    hvd.init()
    table = nn.Embedding(4, 1, sparse=True)
    nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), sparse_as_dense=dense
    )
    table(torch.tensor([0, hvd.rank() + 1])).sum().backward()
    optimizer.step()
    return [table.weight.grad.is_sparse, table.weight.flatten().tolist()]


@pytest.mark.parametrize("dense", [False, True])
def test_sparse_gradients_are_averaged(dense: bool) -> None:
    for result in torch_ranks.run(train_embedding, 2, arguments={"dense": dense}):
        assert result == [True, [-1.0, -0.5, -0.5, 0.0]]


def broadcast_states() -> list[Any]:
    """Broadcast the states of rank 0, which has trained, to the other ranks."""
    hvd.init()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 * (hvd.rank() + 1))
    if hvd.rank() == 0:
        for step in range(2):
            loss_of(model, *batch(step, 1)).backward()
            optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    moments = [s["exp_avg_sq"].sum().item() for s in optimizer.state_dict()["state"].values()]
    steps = [int(s["step"]) for s in optimizer.state_dict()["state"].values()]
    return [optimizer.param_groups[0]["lr"], moments, steps]


def test_states_are_broadcast_from_the_root() -> None:
    first, second = torch_ranks.run(broadcast_states, 2)
    assert first == second
    assert first[0] == 1e-3
    assert first[2] == [2] * 6


def gradients_of_collectives() -> list[Any]:
    """Return gradients of sum(weights * collective(x)), with different weights per rank."""
    hvd.init()
    r, n = hvd.rank(), hvd.size()
    results = []
    for call in (
        lambda x: hvd.allreduce(x) * (r + 1),
        lambda x: hvd.allreduce(x, op=hvd.Sum, postscale_factor=2.0) * (r + 1),
        lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[1] * (r + 1),
        lambda x: hvd.allgather(x) * torch.arange(1.0, 2 * n + 1) * (r + 1),
        lambda x: hvd.broadcast(x, 1) * (r + 1),
        lambda x: hvd.alltoall(x, [1, 1])[0] * torch.tensor([1.0, 10.0]) * (r + 1),
        lambda x: hvd.reducescatter(x, op=hvd.Sum) * (r + 1),
        lambda x: hvd.reducescatter(x) * (r + 1),
    ):
        x = torch.ones(2, requires_grad=True)
        call(x).sum().backward()
        results.append(x.grad.tolist())
    return results


def test_collectives_have_gradients() -> None:
    # As in Horovod: gradients are averaged for allgather and broadcast. For reducescatter they are
    # summed and multiplied by the number of ranks.
    first, second = torch_ranks.run(gradients_of_collectives, 2)
    assert first == [
        *[[1.5, 1.5], [6.0, 6.0], [3.0, 3.0]],
        [1.5, 3.0],  # the weights 1, 2 times 1 on rank 0 and times 2 on rank 1: the average
        [0.0, 0.0],
        [1.0, 2.0],  # the first row stays (1 * 1), the second comes from rank 1 (1 * 2)
        *[[2.0, 4.0], [1.0, 2.0]],
    ]
    assert second == [
        *[[1.5, 1.5], [6.0, 6.0], [3.0, 3.0]],
        [4.5, 6.0],
        [1.5, 1.5],
        [10.0, 20.0],
        *[[2.0, 4.0], [1.0, 2.0]],
    ]


def reduce_in_place() -> list[Any]:
    hvd.init()
    r = hvd.rank()
    a, b = torch.full((2,), float(r)), torch.full((3,), r, dtype=torch.int64)
    handle = hvd.allreduce_async_(a, op=hvd.Sum)
    other = hvd.broadcast_async_(b, 1)
    assert hvd.synchronize(handle) is a
    assert hvd.synchronize(other) is b
    assert hvd.poll(handle)
    results = [a.tolist(), b.tolist()]
    hvd.grouped_allreduce_([a, b], op=hvd.Max)
    half = torch.tensor([0.5, r], dtype=torch.bfloat16)
    strided = torch.arange(4.0).view(2, 2).t() * (r + 1)
    return [
        *results,
        a.tolist(),
        hvd.allreduce(half, op=hvd.Sum).tolist(),
        hvd.allgather(half).tolist(),
        hvd.allreduce(strided, op=hvd.Sum).tolist(),
    ]


def test_calls_in_place_and_on_other_layouts() -> None:
    for results in torch_ranks.run(reduce_in_place, 2):
        assert results == [
            [1.0, 1.0],
            [1, 1, 1],
            [1.0, 1.0],
            [1.0, 1.0],
            [0.5, 0.0, 0.5, 1.0],
            [[0.0, 6.0], [3.0, 9.0]],
        ]


def train_with_adasum() -> list[float]:
    """Check that orthogonal updates are added. Each rank has its own state of SGD."""
    hvd.init()
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), op=hvd.Adasum)
    x = torch.eye(2)[hvd.rank()]
    model(x).sum().backward()
    optimizer.step()
    return model.weight.flatten().tolist()


def test_an_optimizer_with_adasum_adds_orthogonal_updates() -> None:
    for weights in torch_ranks.run(train_with_adasum, 2):
        assert weights == [-1.0, -1.0]


def make_bad_calls() -> list[str]:
    hvd.init()
    model = nn.Linear(2, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    wrap = hvd.DistributedOptimizer
    pairs = list(model.named_parameters())
    calls: list[Any] = [
        lambda: wrap(sgd, named_parameters=[model.weight]),
        lambda: wrap(sgd, named_parameters=[*pairs, pairs[0]]),
        lambda: wrap(sgd, named_parameters=pairs[:1]),
        lambda: wrap(sgd, backward_passes_per_step=0),
        lambda: wrap(sgd, op=hvd.Sum, gradient_predivide_factor=2.0),
        lambda: wrap(sgd, groups=[[model.weight], [model.weight]]),
        lambda: hvd.allreduce_(torch.ones(3, 2).t()),
        lambda: hvd.allreduce(torch.ones(2, device="meta")),
    ]
    messages = []
    for call in calls:
        try:
            call()
        except Exception as error:
            messages.append(str(error))
    optimizer = wrap(sgd)
    model(torch.ones(1, 2)).sum().backward()
    for call in (optimizer.zero_grad, lambda: model(torch.ones(1, 2)).sum().backward()):
        try:
            call()
        except RuntimeError as error:
            messages.append(str(error))
    optimizer.step()
    return messages


def test_bad_calls_raise() -> None:
    for got in torch_ranks.run(make_bad_calls, 2):
        expected = [
            "expected pairs of a name and a parameter",
            "got more than once: weight",
            "expected a name for each parameter of the optimizer; got none for 1",
            "backward_passes_per_step: expected at least 1; got 0",
            "gradient_predivide_factor: expected op=Average",
            "groups: expected each parameter once",
            "expected a contiguous, writable",
            "expected an array in the CPU's memory",
            "expected zero_grad() before backward()",
            "expected step() after backward_passes_per_step=1 backward passes",
        ]
        assert len(got) == len(expected)
        for message, part in zip(got, expected, strict=True):
            assert part in message


TRAINS_ELASTICALLY = """
import os, sys
import torch
import ngd.horovod.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))
sampler = hvd.elastic.ElasticSampler(range(24), shuffle=True)
state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, batch=0)
again = int(os.environ["NGD_RESTART_COUNT"])


@hvd.elastic.run
def train(state):
    print("begins at", state.batch, flush=True)
    for number, index in enumerate(list(state.sampler)):
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(index))
        state.optimizer.zero_grad()
        state.model(x).mean().backward()
        if again == 0 and state.batch == 7 and hvd.rank() == 1 and "dies" in sys.argv:
            os._exit(9)
        state.optimizer.step()
        state.sampler.record_indices([index])
        state.batch += 1
        if state.batch % 3 == 0:
            state.commit()
    return state.batch


steps = train(state)
print("ends at", steps, [round(w, 4) for w in model.weight.flatten().tolist()], flush=True)
"""


@pytest.mark.parametrize("dies", [False, True])
def test_training_continues_from_the_last_commit(tmp_path: Any, dies: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINS_ELASTICALLY)
    command = [sys.executable, "-m", "ngd.launch", "-n", "2", "--max-restarts", "1", str(script)]
    env = {k: v for k, v in os.environ.items() if not harness.LAUNCHED.fullmatch(k)}
    env |= {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command += ["dies"] if dies else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    begins = [make_line for make_line in lines if "begins at" in make_line]
    assert sorted(begins) == sorted(
        [f"[{r}] begins at {at}" for at in ((0, 6) if dies else (0,)) for r in range(2)]
    )
    first, second = sorted(make_line for make_line in lines if "ends at" in make_line)
    assert first.removeprefix("[0]") == second.removeprefix("[1]")
    assert "ends at 12" in first
    assert not list(tmp_path.glob("ngd-run-*"))


@pytest.mark.parametrize("mine", [None, 6, 7])
def test_a_host_without_the_newest_commit_writes_it(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, mine: int | None
) -> None:
    """This process is the first rank of a second host. The first host has commit 7."""
    elastic = sys.modules["ngd.horovod.torch.elastic"]
    monkeypatch.setenv("NGD_ELASTIC_DIR", str(tmp_path))
    monkeypatch.setenv("NGD_RESTART_COUNT", "1")
    for name in ("rank", "local_rank"):
        monkeypatch.setattr(elastic, name, lambda name=name: int(name == "rank"))
    monkeypatch.setattr(elastic, "allgather", lambda own: np.array([7, *own]))
    monkeypatch.setattr(elastic, "broadcast_object", lambda own, root_rank: (7, {"step": 28}))
    state = hvd.elastic.State(step=0)
    file = tmp_path / f"commit-{state._number}.pt"
    if mine is not None:
        torch.save((mine, {"step": 4 * mine}), file)
    before = file.stat() if mine == 7 else None
    state.sync()
    assert state.step == 28
    assert elastic.read_commit(file) == (7, {"step": 28})
    assert before is None or file.stat().st_ino == before.st_ino  # it was not written again
    assert list(tmp_path.iterdir()) == [file]


def test_a_restart_without_a_commit_is_logged(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    elastic = sys.modules["ngd.horovod.torch.elastic"]
    monkeypatch.setenv("NGD_ELASTIC_DIR", str(tmp_path))
    for name in ("rank", "local_rank"):
        monkeypatch.setattr(elastic, name, lambda: 0)
    monkeypatch.setattr(elastic, "allgather", lambda own: own)
    monkeypatch.setattr(elastic, "broadcast_object", lambda own, root_rank: own)
    for count in ("0", "1"):
        monkeypatch.setenv("NGD_RESTART_COUNT", count)
        hvd.elastic.State(step=0).sync()
        assert ("no commit is left" in caplog.text) == (count == "1")
    assert list(tmp_path.iterdir()) == []


TRAINS_WITH_WHO_IS_THERE = """
import os, signal, sys, time
import torch
import ngd.horovod.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))
state = hvd.elastic.TorchState(model, optimizer, batch=0, sizes=[])
state.register_reset_callbacks([lambda: print("reset", hvd.size(), flush=True)])


@hvd.elastic.run
def train(state):
    state.sizes.append([state.batch, hvd.size()])
    while state.batch < 30:
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(state.batch))
        state.optimizer.zero_grad()
        dies = os.environ["NGD_MEMBER"] == "1" and state.batch == 7
        if dies and "before" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        state.model(x).mean().backward()
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        state.optimizer.step()
        state.batch += 1
        if state.batch % 3 == 0:
            state.commit()
        if state.batch > 8 and hvd.size() < 3:
            time.sleep(0.2)
            state.batch = min(state.batch, 20)
    return state.batch


steps = train(state)
weights = [round(w, 4) for w in model.weight.flatten().tolist()]
print("ends at", steps, weights, state.sizes, hvd.size(), flush=True)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_training_continues_after_a_death_and_with_a_new_rank(tmp_path: Any, when: str) -> None:
    """A rank dies before its backward pass, or between that and the step."""
    script = tmp_path / "train.py"
    script.write_text(TRAINS_WITH_WHO_IS_THERE)
    options = ["-n", "3", "--min-ranks", "2", "--max-restarts", "1", "--no-prefix"]
    env = {k: v for k, v in os.environ.items() if not harness.LAUNCHED.fullmatch(k)}
    env |= {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1", "NGD_TIMEOUT": "60"}
    command = [sys.executable, "-m", "ngd.launch", *options, str(script), when]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    ends = [make_line for make_line in lines if make_line.startswith("ends at")]
    assert len(ends) == 3
    assert len(set(ends)) == 1  # equal weights, and an equal history
    batches = re.findall(r"\[(\d+), (\d)\]", ends[0])
    assert [(int(n), int(ranks)) for n, ranks in batches][:2] == [(0, 3), (6, 2)]
    assert batches[2][1] == "3"
    assert ends[0].startswith("ends at 30 ")
    assert lines.count("reset 2") == 2
    assert lines.count("reset 3") == 3


def run_page(name: str) -> list[float]:
    """Run the program of a page and return the weights of its layer."""
    text = (Path(__file__).parents[3] / "docs" / f"{name}.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(block, names)
    return [float(w) for w in names["model"].weight.flatten()]


@pytest.mark.parametrize("name", ["horovod", "elastic"])
def test_the_page_runs(name: str) -> None:
    first, second = torch_ranks.run(run_page, 2, arguments={"name": name})
    assert first == second
    assert len(first) == 10


def weights_after(model: Any, optimizer: Any, steps: int, scheduler: Any = None) -> list[float]:
    """Train on the inputs 1 and 2 of the ranks, and return the weights."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.full((1, 1), hvd.rank() + 1.0)).sum().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return [round(w, 4) for w in model.weight.flatten().tolist()]


def make_line() -> Any:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def train_with_schedulers() -> list[Any]:
    hvd.init()
    step_lr = torch.optim.lr_scheduler.StepLR
    weights = []
    for order in ("before", "after", "after the state"):
        model = make_line()
        base = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = step_lr(base, 1, 0.1) if order == "before" else None
        optimizer = hvd.DistributedOptimizer(base)
        if order == "after the state":
            hvd.broadcast_optimizer_state(optimizer, 0)
            scheduler = step_lr(base, 1, 0.1)
        weights.append(weights_after(model, optimizer, 3, scheduler or step_lr(optimizer, 1, 0.1)))
    return weights


@pytest.mark.filterwarnings("ignore")
def test_schedulers_work_on_either_optimizer() -> None:
    for weights in torch_ranks.run(train_with_schedulers, 2):
        assert weights == [[-1.665]] * 3  # 1.5 times 1, 0.1 and 0.01


def wrap_again() -> list[Any]:
    hvd.init()
    model, weights = make_line(), []
    for _ in range(3):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        weights.append(weights_after(model, optimizer, 2))
    alive = weakref.ref(model)
    del model, optimizer
    gc.collect()
    return [*weights, alive() is None]


def test_a_model_can_be_wrapped_again_and_is_freed() -> None:
    for result in torch_ranks.run(wrap_again, 2):
        assert result == [[-3.0], [-6.0], [-9.0], True]


def add_parameters_later() -> list[Any]:
    hvd.init()
    first, second, frozen = make_line(), make_line(), make_line()
    frozen.requires_grad_(False)
    both = [*first.parameters(), *frozen.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(both, lr=1.0))
    for step in range(3):
        optimizer.zero_grad()
        x = torch.full((1, 1), hvd.rank() + 1.0)
        sum(each(x).sum() for each in (first, second, frozen)).backward()
        optimizer.step()
        if step == 0:
            optimizer.add_param_group({"params": list(second.parameters())})
            frozen.requires_grad_(True)
    return [each.weight.item() for each in (first, second, frozen)]


def test_parameters_that_are_added_later_are_reduced() -> None:
    for weights in torch_ranks.run(add_parameters_later, 2):
        assert weights == [-4.5, -3.0, -3.0]


def order_names_differently() -> str:
    hvd.init()
    a, b = make_line(), make_line()
    names = [("a", a.weight), ("b", b.weight)]
    order = names if hvd.rank() == 0 else names[::-1]
    sgd = torch.optim.SGD([p for _, p in order], lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=order)
    (a(torch.ones(1, 1)) + b(torch.ones(1, 1))).sum().backward()
    try:
        optimizer.step()
    except hvd.HorovodInternalError as error:
        optimizer.zero_grad()
        return str(error)
    return "nothing"


def test_gradients_of_different_names_raise() -> None:
    for message in torch_ranks.run(order_names_differently, 2):
        assert "expected one name on all ranks" in message


def train_in_process_set() -> list[Any]:
    hvd.init()
    some = hvd.add_process_set([0, 2])
    model = make_line()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    return weights_after(model, hvd.DistributedOptimizer(sgd, process_set=some), 2)


def test_ranks_outside_the_process_set_train_alone() -> None:
    assert torch_ranks.run(train_in_process_set, 3) == [[-4.0], [-4.0], [-4.0]]


def train_one_rank() -> list[Any]:
    hvd.init()
    model, unused_layer = make_line(), make_line()
    nn.init.ones_(unused_layer.weight)
    sgd = torch.optim.SGD(
        [*model.parameters(), *unused_layer.parameters()], lr=0.1, weight_decay=1.0
    )
    optimizer = hvd.DistributedOptimizer(sgd, compression=hvd.Compression.bf16)
    model(torch.full((1, 1), 1.001)).sum().backward()
    optimizer.step()
    return [unused_layer.weight.item(), model.weight.item()]


def test_one_rank_equals_the_plain_optimizer() -> None:
    (weights,) = torch_ranks.run(train_one_rank, 1)
    assert weights == pytest.approx([1.0, -0.1001], rel=1e-6)


def drop_micro_batches() -> list[Any]:
    hvd.init()
    model = make_line()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, backward_passes_per_step=2)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.zero_grad()
    for _ in range(2):
        model(torch.full((1, 1), hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    handle = hvd.grouped_allreduce_async_([ones := torch.ones(3), torch.ones(2)], op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    return [model.weight.item(), ones.tolist()]


def test_zero_grad_drops_micro_batches_and_poll_reports_results() -> None:
    for result in torch_ranks.run(drop_micro_batches, 2):
        assert result == [-3.0, [2.0, 2.0, 2.0]]
