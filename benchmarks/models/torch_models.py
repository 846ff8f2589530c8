# SPDX-License-Identifier: Apache-2.0
"""Compare training steps of PyTorch models: ngd.torch.compile_step and PyTorch, in turns.

    python benchmarks/models/torch_models.py                       # one process: eager and inductor
    python benchmarks/models/torch_models.py --ranks 2             # two ranks: DDP over gloo
    python benchmarks/models/torch_models.py --models mlp lstm --ways ngd eager --turns 15
    python benchmarks/models/torch_models.py --ways backend eager  # torch.compile(backend="ngd")

Without ranks, all ways run in one process, one after the other in each turn. With ranks, each turn
starts a job per way. One JSON line per model has the median times, the seconds of the first step,
and the median of the paired ratios. A ratio > 1 means that ngd is faster.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__)
sys.path.insert(0, str(HERE.parents[1]))
from timing import cpu_name, last_line  # noqa: E402

ALONE = ("ngd", "eager", "inductor")
OF_RANKS = ("ngd", "ddp", "ddp-compiled")
"""The ways to train: of one process, and of ranks. The first is compared with the others."""
MORE_WAYS = ("backend",)
"""Ways that are measured only if they are named."""

Step = Callable[[], Any]
Case = tuple[Any, Callable[..., Any], tuple[Any, ...]]
"""A model, its loss function, and a batch."""


def mlp() -> Case:
    """Return a perceptron of images of digits."""
    import torch
    from torch import nn

    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    batch = torch.rand(64, 784), torch.randint(0, 10, (64,))
    return nn.Sequential(*layers), classification, batch


def classification(model: Any, x: Any, y: Any) -> Any:
    """Return the loss of a classifier of images."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(x), y)


def gpt2() -> Case:
    """Return GPT-2 of 6 layers of 384."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=8192, n_positions=128, n_embd=384, n_layer=6, n_head=6)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    tokens = torch.randint(0, 8192, (4, 128))
    return GPT2LMHeadModel(config), lambda m, x: m(x, labels=x).loss, (tokens,)


def bert() -> Case:
    """Return BERT of 6 layers of 384."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=8192,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=1536,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    batch = torch.randint(0, 8192, (4, 128)), torch.randint(0, 2, (4,))
    return BertForSequenceClassification(config), lambda m, x, y: m(x, labels=y).loss, batch


def resnet18() -> Case:
    """Return ResNet-18 on images of 96 x 96."""
    import timm
    import torch

    batch = torch.randn(8, 3, 96, 96), torch.randint(0, 10, (8,))
    return timm.create_model("resnet18", num_classes=10), classification, batch


def vit() -> Case:
    """Return ViT-Tiny on images of 224 x 224."""
    import timm
    import torch

    batch = torch.randn(8, 3, 224, 224), torch.randint(0, 10, (8,))
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10)
    return model, classification, batch


def lstm() -> Case:
    """Return a language model of two LSTM layers of 256."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(2000, 256)
            self.lstm = nn.LSTM(256, 256, 2, batch_first=True)
            self.head = nn.Linear(256, 2000)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.lstm(self.embedding(tokens))[0])

    def loss(model: Any, tokens: Any) -> Any:
        return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return Model(), loss, (torch.randint(0, 2000, (16, 33)),)


MODELS: dict[str, Callable[[], Case]] = {
    each.__name__: each for each in (mlp, gpt2, bert, resnet18, vit, lstm)
}


class Training(NamedTuple):
    """One way to train a copy of a model; `step` takes a batch, and returns the loss."""

    model: Any
    optimizer: Any
    step: Callable[..., float]

    def on(self, batch: Sequence[Any]) -> Step:
        """Return a function that trains on this batch again and again."""
        return functools.partial(self.step, *batch)


def make_training(way: str, case: Case) -> Training:
    """Return one way to train a copy of a model."""
    import torch

    model, loss = copy.deepcopy(case[0]), case[1]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=way != "ngd" or None)
    if way == "ngd":
        import ngd.torch

        compiled = ngd.torch.compile_step(model, loss, optimizer)
        return Training(model, optimizer, lambda *batch: compiled(*batch).item())
    trained: Any = model
    if way.startswith("ddp"):
        trained = torch.nn.parallel.DistributedDataParallel(model)
    if way in ("inductor", "ddp-compiled"):
        trained = torch.compile(trained)
    if way == "backend":
        trained = torch.compile(trained, backend="ngd")

    def eager_step(*batch: Any) -> float:
        optimizer.zero_grad()
        found = loss(trained, *batch)
        found.backward()
        optimizer.step()
        return float(found.item())

    return Training(model, optimizer, eager_step)


def seconds_of(step: Step, least: float) -> float:
    """Return the mean time of a step. The steps run for at least `least` seconds."""
    count, begin = 0, time.perf_counter()
    while (taken := time.perf_counter() - begin) < least or count == 0:
        step()
        count += 1
    return taken / count


def measure_alone(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the times of all ways in one process."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    case = MODELS[name]()
    steps, first = {}, {}
    for way in args.ways:
        begin = time.perf_counter()
        steps[way] = make_training(way, case).on(case[2])
        steps[way]()
        first[way] = round(time.perf_counter() - begin, 2)
        seconds_of(steps[way], args.seconds)
    turns = [
        {way: seconds_of(step, args.seconds) for way, step in steps.items()}
        for _ in range(args.turns)
    ]
    return {"first_step_s": first, **summary(turns)}


def summary(turns: list[dict[str, float]]) -> dict[str, Any]:
    """Return the median times, and the medians of the ratios of each way to ngd."""
    ways = list(turns[0])
    return {
        "ms_per_step": {w: round(statistics.median(t[w] for t in turns) * 1e3, 3) for w in ways},
        "ratio": {
            w: round(statistics.median(t[w] / t[ways[0]] for t in turns), 3) for w in ways[1:]
        },
    }


def run_rank(args: argparse.Namespace) -> None:
    """Measure one way on this rank, and print the time of a step on rank 0."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    (way,), (name,) = args.ways, args.models
    if way != "ngd":
        torch.distributed.init_process_group("gloo")
    case = MODELS[name]()
    step = make_training(way, case).on(case[2])
    for _ in range(5):
        step()
    count = args.steps
    begin = time.perf_counter()
    for _ in range(count):
        step()
    taken = (time.perf_counter() - begin) / count
    if int(os.environ["RANK"]) == 0:
        print(json.dumps({"seconds": taken}), flush=True)
    if way != "ngd":
        torch.distributed.destroy_process_group()


def measure_ranks(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the times of all ways on ranks. Each turn starts a job per way."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks)]
    env = {"OMP_NUM_THREADS": str(args.threads), **os.environ}
    options = ["--threads", str(args.threads), "--steps", str(args.steps), "--models", name]
    turns = []
    for _ in range(args.turns):
        turn = {}
        for way in args.ways:
            command = [sys.executable, *launcher, str(HERE), *options, "--ways", way]
            turn[way] = float(last_line(command, way, env)["seconds"])
        turns.append(turn)
    return summary(turns)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print one JSON line per model, then the geometric means of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--ways", nargs="+", choices=[*ALONE, *OF_RANKS[1:], *MORE_WAYS])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="threads per rank")
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=1.0, help="per way and turn, alone")
    parser.add_argument("--steps", type=int, default=30, help="per way and turn, on ranks")
    args = parser.parse_args(argv)
    os.environ["NGD_THREADS"] = str(args.threads)
    if "RANK" in os.environ:
        run_rank(args)
        return
    args.ways = args.ways or list(ALONE if args.ranks == 1 else OF_RANKS)
    ratios: dict[str, list[float]] = {}
    for name in args.models:
        result = measure_alone(name, args) if args.ranks == 1 else measure_ranks(name, args)
        for way, ratio in result["ratio"].items():
            ratios.setdefault(way, []).append(ratio)
        about = {"model": name, "ranks": args.ranks, "threads": args.threads, "cpu": cpu_name()}
        print(json.dumps({**about, **result}), flush=True)
    means = {way: round(statistics.geometric_mean(r), 3) for way, r in ratios.items()}
    print(json.dumps({"geometric_mean_of_ratios": means}), flush=True)


if __name__ == "__main__":
    main()
