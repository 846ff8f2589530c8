# SPDX-License-Identifier: Apache-2.0
"""What the examples of language models share: tokens, training, evaluation, writing, the report.

A model takes tokens [rows, places] to the scores of each place's next token [rows, places, kinds].
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from low_level_mnist import all_or_none

import ngd
from ngd import data, nn, ops, optim

SUFFIXES = (".md", ".txt", ".rst", ".py", ".pyx", ".pxi", ".cpp", ".hpp")
HELD_BACK = 0.1
TEMPERATURE = 0.8


def read_tokens(path: Path) -> Any:
    """The tokens of a file or of a folder's texts, as int64 where they are used."""
    if path.suffix == ".bin":
        return np.memmap(path, np.uint16, "r")
    files = [path]
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.suffix in SUFFIXES and f.is_file())
    return np.frombuffer(b"".join(f.read_bytes() for f in files), np.uint8)


def kinds_of(tokens: Any) -> int:
    """How many kinds of tokens there are."""
    return 256 if tokens.dtype == np.uint8 else int(tokens.max()) + 1


def loss_of(model: nn.Module, tokens: Any) -> Any:
    """The mean loss of guessing each token but the first: [rows, places + 1] to a scalar."""
    scores = model(tokens[:, :-1])
    flat = ops.reshape(scores, (-1, scores.shape[-1]))
    labels = ops.reshape(tokens[:, 1:], (-1,))
    return ops.mean(ops.softmax_cross_entropy(flat, labels))


class Training:
    """The compiled steps, and where the training stands."""

    def __init__(self, model: nn.Module, tokens: Any, world: Any, args: argparse.Namespace) -> None:
        self.args, self.world, self.model = args, world, model
        self.windows = data.Tokens(tokens, args.context + 1, stride=1)
        self.sampler = data.Sampler(
            len(self.windows), batch_size=args.batch, seed=args.seed, replacement=True
        )
        rate = optim.warm_up(
            optim.cosine(args.lr, max(args.steps, 1), args.lr / 10), args.steps // 20 + 1
        )
        self.optimizer = optim.AdamW(
            rate,
            betas=(0.9, 0.95),
            weight_decay=0.1,
            groups=[optim.ParameterGroup(optim.is_vector, weight_decay=0.0)],
            clip_norm=1.0,
            loss_scale=optim.LossScale() if args.precision == "float16" else None,
        )
        self.rows = args.batch // world.size
        given = ngd.placeholder("tokens", (self.rows, args.context + 1), "int64")
        random = nn.Random(args.seed)
        with nn.training(random) as state:
            loss = loss_of(model, given)
        updates = [self.optimizer.minimize(loss, model.parameters()), state.updates]
        trained = ops.all_reduce(loss, op="mean")
        how = {"device": args.device, "precision": args.precision, "shard": args.shard}
        self.step = ngd.compile([given], [trained], updates, **how)
        judged = ops.all_reduce(loss_of(model, given), op="mean")
        self.judge = ngd.compile([given], [judged], device=args.device)
        self.state = [model.variables(), self.optimizer.state, random.state]

    def run(self) -> float:
        """Train; returns the mean loss of the last steps."""
        from tqdm import tqdm

        losses = [math.nan]
        steps = range(self.sampler.done, self.args.steps)
        with tqdm(steps, "training", disable=self.world.rank != 0) as bar:
            for number in bar:
                (loss,) = self.step(*self.windows[self.sampler.shard(number).indices])
                losses = [*losses[-49:], float(loss)]
                bar.set_postfix_str(f"{losses[-1] / math.log(2):.2f} bits")
                self.sampler.done = number + 1
                if self.args.save and self.sampler.done % self.args.every == 0:
                    self.save()
        return float(np.nanmean(losses)) if len(losses) > 1 else math.nan

    def evaluate(self, tokens: Any) -> float:
        """The mean loss over windows that lie side by side, as many as fill whole batches."""
        windows = data.Tokens(tokens, self.args.context + 1, stride=self.args.context)
        size = self.world.size
        rows = np.resize(np.arange(len(windows)), max(len(windows), self.rows * size))
        sampler = data.Sampler(len(rows), self.rows * size, shuffle=False, drop_last=True)
        losses = [self.judge(*windows[rows[shard.indices]]) for shard in sampler]
        return float(np.mean([float(loss) for (loss,) in losses]))

    def save(self) -> None:
        """Rank 0 replaces the checkpoint."""
        if self.world.rank == 0:
            ngd.checkpoint.save(self.args.save, self.state, position=self.sampler.state())

    def resume(self) -> None:
        """Go on where the checkpoint stands."""
        self.sampler.load_state(ngd.checkpoint.load(self.args.resume, self.state))


def write(model: nn.Module, beginning: Any, count: int, args: argparse.Namespace) -> list[int]:
    """Draw so many tokens, each from the scores of what is written so far."""
    given = ngd.placeholder("tokens", (1, args.context), "int64")
    scores = ngd.compile([given], [model(given)[0]], device=args.device)
    random, text = np.random.default_rng(args.seed), [int(t) for t in beginning]
    for _ in range(count):
        window = text[-args.context :]
        padded = np.zeros((1, args.context), np.int64)
        padded[0, : len(window)] = window
        row = scores(padded)[0][len(window) - 1].astype(np.float64) / TEMPERATURE
        chances = np.exp(row - row.max())
        text.append(int(random.choice(len(row), p=chances / chances.sum())))
    return text


def shown(tokens: Any, written: list[int]) -> str:
    """What was written, as text; where the data are tokens, their numbers."""
    if tokens.dtype == np.uint8:
        return bytes(written).decode(errors="replace")
    return " ".join(map(str, written))


def check(args: argparse.Namespace, world: Any) -> None:
    """Refuse what cannot work, before anything is loaded."""
    for name in ("steps", "sample"):
        if getattr(args, name) < 0:
            raise ValueError(f"--{name} {getattr(args, name)} is negative")
    for name in ("batch", "context", "width", "layers", "every"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} {getattr(args, name)}: at least 1 is needed")
    if args.batch % world.size:
        raise ValueError(f"--batch {args.batch} is no multiple of the {world.size} ranks")
    if not 0 < args.lr < math.inf:
        raise ValueError(f"--lr {args.lr} is not a positive number")
    if args.seed < 0:
        raise ValueError(f"--seed {args.seed} is negative")
    if args.save and args.save.exists() and not args.save.is_dir():
        raise ValueError(f"--save: {args.save} is not a directory")


def parser_of(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """The options of every language model."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    here = Path(__file__).resolve().parent
    add("--data", type=Path, default=here, help="a text, a folder of texts, or tokens (.bin)")
    add("--steps", type=int, default=1000)
    add("--batch", type=int, default=32, help="rows a step, of all ranks together")
    add("--context", type=int, default=128, help="tokens a row")
    add("--width", type=int)
    add("--layers", type=int)
    add("--lr", type=float, default=2e-3)
    add("--seed", type=int, default=0)
    add("--sample", type=int, default=200, help="how many tokens to write at the end")
    add("--device", choices=["CPU", "INTERPRETER"], default="CPU")
    precisions = ["float32", "bfloat16", "float16"]
    add("--precision", choices=precisions, default="float32", help="of training")
    add("--shard", choices=["none", "host"], default="none", help="host: weights once a host")
    add("--save", type=Path, metavar="DIR", help="where checkpoints go")
    add("--every", type=int, default=500, help="steps between two checkpoints")
    add("--resume", type=Path, metavar="DIR", help="the checkpoint to go on from")
    add("--smoke", action="store_true", help="a small model for 20 steps: does it run?")
    parser.set_defaults(**defaults)
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line; --smoke makes everything small."""
    args = parser.parse_args()
    if args.smoke:
        args.steps, args.batch, args.context, args.sample = 20, 8, 32, 20
        args.width, args.layers, args.every = 32, 2, 10
    return args


def run(args: argparse.Namespace, make: Callable[[Any, argparse.Namespace], nn.Module]) -> None:
    """Train a model that is made for these tokens; evaluate, write, report as one line of JSON."""
    world = ngd.init()
    with all_or_none(world):
        check(args, world)
        tokens = read_tokens(args.data)
        edge = int(len(tokens) * (1 - HELD_BACK))
        if min(edge, len(tokens) - edge) <= args.context:
            raise ValueError(f"--data: {args.data}: {len(tokens)} tokens are too few to train on")
        model = make(tokens, args)
        training = Training(model, tokens[:edge], world, args)
        if args.resume:
            training.resume()
    start, before = time.perf_counter(), training.sampler.done
    loss = training.run()
    seconds = time.perf_counter() - start
    held_back = training.evaluate(tokens[edge:])
    if args.save:
        training.save()
    if world.rank == 0:
        if args.sample:
            written = write(model, tokens[edge : edge + 16], args.sample, args)
            print(shown(tokens, written), file=sys.stderr)
        done = (training.sampler.done - before) * args.batch * args.context
        report = {
            "ranks": world.size,
            "device": args.device,
            "steps": training.sampler.done,
            "loss": None if math.isnan(loss) else loss,
            "bits_a_token": held_back / math.log(2),
            "tokens_per_s": done / seconds if done else None,
        }
        print(json.dumps(report), flush=True)
    ngd.barrier()
