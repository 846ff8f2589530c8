# SPDX-License-Identifier: Apache-2.0
"""Tests of compile_step in common training loops: each trains as in eager PyTorch."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset  # noqa: E402

import ngd  # noqa: E402
from ngd.torch import compile_step  # noqa: E402
from tests.bridges.torch import torch_ranks  # noqa: E402

nn, functional = torch.nn, torch.nn.functional


def make_model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3)).double()


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return functional.cross_entropy(model(x), y)


def make_data(count: int = 24) -> Any:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 6, dtype=torch.float64, generator=generator)
    return TensorDataset(x, torch.randint(0, 3, (count,), generator=generator))


def expect_equal_models(model: Any, eager: Any, tolerance: float = 1e-10) -> None:
    for key, value in eager.state_dict().items():
        np.testing.assert_allclose(
            model.state_dict()[key], value, tolerance, tolerance, err_msg=key
        )


class Scored(Dataset):
    """Samples with a score from a copy of the model, as in reinforcement learning."""

    def __init__(self, model: Any) -> None:
        self.model, self.data = model, make_data()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        x, y = self.data[index]
        with torch.no_grad():
            return x, y, self.model(x[None])[0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_of_a_loader_can_call_the_model(num_workers: int) -> None:
    torch.set_num_threads(1)  # PyTorch's threads do not survive a fork
    model = make_model()
    eager = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, eager)]
    step = compile_step(model, loss_of, optimizers[0])
    for _ in range(2):
        loaders = [DataLoader(Scored(each), 8, num_workers=num_workers) for each in (model, eager)]
        for (x, y, scores), (_, _, expected) in zip(*loaders, strict=True):
            torch.testing.assert_close(scores, expected)
            step(x, y)
            optimizers[1].zero_grad()
            loss_of(eager, x, y).backward()
            optimizers[1].step()
        if num_workers == 0:
            break  # later batches have scores of newer weights
    expect_equal_models(model, eager)


def test_an_average_of_the_weights_equals_eager() -> None:
    model = make_model()
    eager = copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (model, eager)]
    step = compile_step(model, loss_of, optimizers[0])
    rule = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    averages = [
        torch.optim.swa_utils.AveragedModel(each, multi_avg_fn=rule) for each in (model, eager)
    ]
    for x, y in DataLoader(make_data(), 8):
        step(x, y)
        optimizers[1].zero_grad()
        loss_of(eager, x, y).backward()
        optimizers[1].step()
        for average, each in zip(averages, (model, eager), strict=True):
            average.update_parameters(each)
    expect_equal_models(*averages)
    x, y = make_data()[:]
    torch.testing.assert_close(loss_of(averages[0], x, y), loss_of(averages[1], x, y))


def test_frozen_parts_stay_and_can_be_trained_later() -> None:
    model = make_model()
    eager = copy.deepcopy(model)
    optimizers = [
        torch.optim.AdamW(each.parameters(), lr=0.01, weight_decay=0.5) for each in (model, eager)
    ]
    for each in (model, eager):
        each[0].requires_grad_(False)
    step = compile_step(model, loss_of, optimizers[0])
    start = model[0].weight.clone()
    for epoch in range(2):
        for x, y in DataLoader(make_data(), 8):
            step(x, y)
            optimizers[1].zero_grad()
            loss_of(eager, x, y).backward()
            optimizers[1].step()
        assert torch.equal(model[0].weight, start) == (epoch == 0)
        expect_equal_models(model, eager)
        for each in (model, eager):
            each[0].requires_grad_(True)


def train_in_parts(folder: str, stop: int | None) -> Any:
    """Train with ngd on ranks, from the last checkpoint of PyTorch; return the losses."""
    torch.set_num_threads(1)
    world = ngd.init()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    first, path = 0, Path(folder, str(world.rank), "checkpoint.pt")
    if path.exists():
        saved = torch.load(path)
        first = saved.pop("epoch")
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    step = compile_step(model, loss_of, optimizer, clip_norm=0.5)
    data = make_data()
    sampler = DistributedSampler(data, world.size, world.rank, seed=3)
    losses = []
    for epoch in range(first, 6):
        if epoch == stop:
            break
        sampler.set_epoch(epoch)
        losses += [step(x, y).item() for x, y in DataLoader(data, 4, sampler=sampler)]
        schedule.step()
        state = {name: part.state_dict() for name, part in parts.items()}
        path.parent.mkdir(exist_ok=True)
        torch.save({**state, "epoch": epoch + 1}, path)
    return losses


@harness.needs_ranks
def test_a_resumed_training_has_the_losses_of_an_uninterrupted_one(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("whole", "parts")]
    for folder in folders:
        folder.mkdir()

    def run(folder: Path, stop: int | None) -> list[Any]:
        return torch_ranks.run(train_in_parts, 2, arguments={"folder": str(folder), "stop": stop})

    uninterrupted = run(folders[0], None)
    parts = zip(run(folders[1], 2), run(folders[1], None), strict=True)
    assert [first + second for first, second in parts] == uninterrupted
    saved = [(folders[0] / str(rank) / "checkpoint.pt").read_bytes() for rank in range(2)]
    assert saved[0] == saved[1]


def train_with_accelerate() -> Any:
    """Train in a loop of accelerate, which gives each rank its batches."""
    import accelerate

    torch.set_num_threads(1)
    accelerator = accelerate.Accelerator(cpu=True)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = accelerator.prepare(DataLoader(make_data(), 4, shuffle=False))
    step = compile_step(model, loss_of, optimizer)
    for number, (x, y) in enumerate(loader):
        step(x, y, accumulate=number % 2 == 0)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return [p.detach().numpy().tolist() for p in model.parameters()]


@harness.needs_ranks
def test_a_loop_of_accelerate_equals_one_process() -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    outcomes = torch_ranks.run(train_with_accelerate, 2, launcher="ngd run")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = list(DataLoader(make_data(), 4))
    loss_of(model, *join(batches[:4])).backward()
    optimizer.step()
    for outcome in outcomes:
        for weight, p in zip(outcome, model.parameters(), strict=True):
            np.testing.assert_allclose(weight, p.detach().numpy(), 1e-10)


def join(batches: Any) -> Any:
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers warns about peft
def test_a_model_with_adapters_trains_only_these() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    hf_models = pytest.importorskip(
        "tests.bridges.torch.hf_models", reason="transformers is not installed"
    )
    torch.manual_seed(0)
    base, batch = hf_models.MODELS["gpt2"]()
    config = peft.LoraConfig(r=4, lora_alpha=8, fan_in_fan_out=True, target_modules=["c_attn"])
    model = peft.get_peft_model(base.double(), config).double()
    eager = copy.deepcopy(model)
    optimizers = [
        torch.optim.AdamW([p for p in each.parameters() if p.requires_grad], lr=0.01)
        for each in (model, eager)
    ]

    def loss_of_tokens(model: Any, tokens: Any) -> Any:
        return functional.cross_entropy(model(tokens).logits.flatten(0, 1), tokens.flatten())

    step, tokens = compile_step(model, loss_of_tokens, optimizers[0]), batch["input_ids"]
    for _ in range(3):
        loss = step(tokens)
        optimizers[1].zero_grad()
        expected = loss_of_tokens(eager, tokens)
        expected.backward()
        optimizers[1].step()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    expect_equal_models(model, eager)
    merged = [each.merge_and_unload()(tokens).logits for each in (model, eager)]
    torch.testing.assert_close(*merged)


def train_with_trainer(kind: str, folder: str, parts: int, resume: bool = False) -> Any:
    """Train a language model by a Trainer, and return what it logs."""
    import transformers

    import ngd.torch.transformers as compiled

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates))
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 50, (24, 9), generator=generator)
    labels = torch.where(torch.arange(9) < torch.arange(24)[:, None] % 5, -100, rows)
    data = [{"input_ids": x, "labels": y} for x, y in zip(rows, labels, strict=True)]
    arguments = transformers.TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=parts,
        num_train_epochs=2,
        learning_rate=0.01,
        max_grad_norm=0.5,
        logging_steps=1,
        save_strategy="epoch",
        eval_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = (transformers if kind == "eager" else compiled).Trainer(
        model, arguments, train_dataset=data, eval_dataset=data[:8]
    )
    trainer.train(resume_from_checkpoint=resume)
    history = trainer.state.log_history
    logged = [row[key] for row in history for key in ("loss", "eval_loss") if key in row]
    weights = [p.detach().numpy().ravel().tolist() for p in model.parameters()]
    return logged, weights


@harness.needs_ranks
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_trainer_of_transformers_equals_eager(ranks: int, tmp_path: Path) -> None:
    for module in ("transformers", "accelerate"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    results = {}
    for kind in ("eager", "compiled"):
        arguments = {"kind": kind, "folder": str(tmp_path / kind), "parts": 4 // ranks}
        how = {"launcher": "ngd run", "arguments": arguments}
        results[kind] = torch_ranks.run(train_with_trainer, ranks, **how)
    for expected, logged in zip(*results.values(), strict=True):
        np.testing.assert_allclose(logged[0], expected[0], 1e-4)
        for one, other in zip(logged[1], expected[1], strict=True):
            np.testing.assert_allclose(one, other, 0, 2e-3)
    last = max(tmp_path.glob("compiled/checkpoint-*"), key=lambda path: int(path.name[11:]))
    shutil.rmtree(last)
    resumed = torch_ranks.run(
        train_with_trainer, ranks, launcher="ngd run", arguments={**arguments, "resume": True}
    )
    for first, second in zip(resumed, results["compiled"], strict=True):
        np.testing.assert_allclose(first[0], second[0], 1e-5)
