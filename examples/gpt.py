# SPDX-License-Identifier: Apache-2.0
"""Train a GPT on text, data-parallel, on any number of ranks; then let it write.

    mpirun -np 2 python examples/gpt.py --data FILE_OR_FOLDER

Text is read as bytes; a file that ends in .bin holds tokens of 16 bits. A tenth at the end is held
back, and the loss there is reported in bits a token. The variables have the names of Hugging Face's
GPT-2, whose weights --weights takes (with tokens of its own).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from dist_mnist_mlp import all_or_none

import ngd
from ngd import data, nn, ops, optim

SUFFIXES = (".md", ".txt", ".rst", ".py", ".pyx", ".pxi", ".cpp", ".hpp")
HELD_BACK = 0.1
TEMPERATURE = 0.8


class Projection(nn.Module):
    """x @ weight + bias, with the weight as GPT-2's files have it: [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int, std: float = 0.02) -> None:
        self.weight = nn.Parameter((inputs, outputs), nn.initializers.normal(std=std))
        self.bias = nn.Parameter(outputs)

    def forward(self, x: Any) -> Any:
        """[..., inputs] to [..., outputs]."""
        return x @ self.weight + self.bias


class Attention(nn.Module):
    """Each place looks at itself and at those before it."""

    def __init__(self, width: int, heads: int, std: float) -> None:
        self.heads = heads
        self.c_attn, self.c_proj = Projection(width, 3 * width), Projection(width, width, std)

    def forward(self, x: Any) -> Any:
        """[batch, places, width] to the same."""
        batch, places, width = x.shape
        parts = ops.reshape(self.c_attn(x), (batch, places, 3, self.heads, width // self.heads))
        q, k, v = (ops.transpose(parts[:, :, i], (0, 2, 1, 3)) for i in range(3))
        seen = ops.transpose(ops.attention(q, k, v, causal=True), (0, 2, 1, 3))
        return self.c_proj(ops.reshape(seen, x.shape))


class MLP(nn.Module):
    """Two layers, four times as wide inside."""

    def __init__(self, width: int, std: float) -> None:
        self.c_fc, self.c_proj = Projection(width, 4 * width), Projection(4 * width, width, std)

    def forward(self, x: Any) -> Any:
        """[..., width] to the same."""
        return self.c_proj(ops.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and MLP, each beside a way around it."""

    def __init__(self, width: int, heads: int, std: float) -> None:
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads, std)
        self.ln_2, self.mlp = nn.LayerNorm(width), MLP(width, std)

    def forward(self, x: Any) -> Any:
        """[batch, places, width] to the same."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Radford et al., 2019, "Language models are unsupervised multitask learners"."""

    def __init__(self, tokens: int, context: int, width: int, layers: int, heads: int) -> None:
        normal = nn.initializers.normal
        self.wte = nn.Embedding(tokens, width, initializer=normal(std=0.02))
        self.wpe = nn.Embedding(context, width, initializer=normal(std=0.01))
        std = 0.02 / math.sqrt(2 * layers)
        self.h = nn.ModuleList([Block(width, heads, std) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens: Any) -> Any:
        """The scores of each place's next token: [batch, places] to [batch, places, tokens]."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T

    def loss(self, tokens: Any) -> Any:
        """The mean loss of guessing each token but the first: [batch, places + 1] to a scalar."""
        scores = self(tokens[:, :-1])
        flat = ops.reshape(scores, (-1, scores.shape[-1]))
        labels = ops.reshape(tokens[:, 1:], (-1,))
        return ops.mean(ops.softmax_cross_entropy(flat, labels))


def read_tokens(path: Path) -> Any:
    """The tokens of a file or of a folder's texts, as int64 where they are used."""
    if path.suffix == ".bin":
        return np.memmap(path, np.uint16, "r")
    files = [path]
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.suffix in SUFFIXES and f.is_file())
    return np.frombuffer(b"".join(f.read_bytes() for f in files), np.uint8)


def make_model(tokens: Any, args: argparse.Namespace) -> GPT:
    """The model that the arguments, or the weights, ask for."""
    if args.weights is None:
        known = 256 if tokens.dtype == np.uint8 else int(tokens.max()) + 1
        model = GPT(known, args.context, args.width, args.layers, args.heads)
        model.initialize(args.seed)
        return model
    state = {
        key.removeprefix("transformer."): value
        for key, value in ngd.checkpoint.read_safetensors(args.weights).items()
        if not key.endswith((".attn.bias", ".attn.masked_bias", "lm_head.weight"))
    }
    if "wte.weight" not in state or "wpe.weight" not in state:
        raise ValueError(f"--weights: {args.weights} holds no GPT-2")
    known, width = state["wte.weight"].shape
    layers = len({key.split(".")[1] for key in state if key.startswith("h.")})
    model = GPT(known, state["wpe.weight"].shape[0], width, layers, max(1, width // 64))
    model.load_state_dict(state)
    args.context = min(args.context, state["wpe.weight"].shape[0])
    return model


class Training:
    """The compiled steps, and where the training stands."""

    def __init__(self, model: GPT, tokens: Any, world: Any, args: argparse.Namespace) -> None:
        self.args, self.world, self.model = args, world, model
        self.windows = data.Tokens(tokens, args.context + 1, stride=1)
        self.parts = data.Sampler(
            len(self.windows),
            args.batch,
            rank=world.rank,
            size=world.size,
            seed=args.seed,
            replace=True,
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
        )
        self.rows = args.batch // world.size
        given = ngd.placeholder("tokens", (self.rows, args.context + 1), "int64")
        loss = model.loss(given)
        updates = self.optimizer.update(loss, model.parameters())
        mean = ops.all_reduce(loss, op="mean")
        self.step = ngd.compile([given], [mean], updates, device=args.device)
        self.judge = ngd.compile([given], [mean], device=args.device)
        self.state = [model.variables(), self.optimizer.state]

    def run(self) -> float:
        """Train; returns the mean loss of the last steps."""
        from tqdm import tqdm

        losses = [math.nan]
        steps = range(self.parts.done, self.args.steps)
        with tqdm(steps, "training", disable=self.world.rank != 0) as bar:
            for number in bar:
                (loss,) = self.step(*self.windows[self.parts.part(number).indices])
                losses = [*losses[-49:], float(loss)]
                bar.set_postfix_str(f"{losses[-1] / math.log(2):.2f} bits")
                self.parts.done = number + 1
                if self.args.save and self.parts.done % self.args.every == 0:
                    self.save()
        return float(np.nanmean(losses)) if len(losses) > 1 else math.nan

    def evaluate(self, tokens: Any) -> float:
        """The mean loss over windows that lie side by side, as many as fill whole batches."""
        windows = data.Tokens(tokens, self.args.context + 1, stride=self.args.context)
        size, rank = self.world.size, self.world.rank
        rows = np.resize(np.arange(len(windows)), max(len(windows), self.rows * size))
        parts = data.Sampler(
            len(rows), self.rows * size, rank=rank, size=size, shuffle=False, drop_last=True
        )
        losses = [self.judge(*windows[rows[part.indices]]) for part in parts]
        return float(np.mean([float(loss) for (loss,) in losses]))

    def save(self) -> None:
        """Rank 0 replaces the checkpoint."""
        if self.world.rank == 0:
            ngd.checkpoint.save(self.args.save, self.state, position=self.parts.state())

    def resume(self) -> None:
        """Go on where the checkpoint stands."""
        self.parts.load_state(ngd.checkpoint.load(self.args.resume, self.state))


def write(model: GPT, beginning: Any, count: int, args: argparse.Namespace) -> list[int]:
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


def check(args: argparse.Namespace, world: Any) -> None:
    """Refuse what cannot work, before anything is loaded."""
    for name in ("steps", "sample"):
        if getattr(args, name) < 0:
            raise ValueError(f"--{name} {getattr(args, name)} is negative")
    for name in ("batch", "context", "width", "layers", "heads", "every"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} {getattr(args, name)}: at least 1 is needed")
    if args.batch % world.size:
        raise ValueError(f"--batch {args.batch} is no multiple of the {world.size} ranks")
    if args.width % args.heads:
        raise ValueError(f"--width {args.width} is no multiple of --heads {args.heads}")
    if not 0 < args.lr < math.inf:
        raise ValueError(f"--lr {args.lr} is not a positive number")
    if args.seed < 0:
        raise ValueError(f"--seed {args.seed} is negative")
    if args.save and args.save.exists() and not args.save.is_dir():
        raise ValueError(f"--save: {args.save} is not a directory")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add = parser.add_argument
    here = Path(__file__).resolve().parent
    add("--data", type=Path, default=here, help="a text, a folder of texts, or tokens (.bin)")
    add("--weights", type=Path, metavar="FILE", help="GPT-2's weights to begin with (safetensors)")
    add("--steps", type=int, default=1000)
    add("--batch", type=int, default=32, help="rows a step, of all ranks together")
    add("--context", type=int, default=128, help="tokens a row")
    add("--width", type=int, default=192)
    add("--layers", type=int, default=4)
    add("--heads", type=int, default=4)
    add("--lr", type=float, default=2e-3)
    add("--seed", type=int, default=0)
    add("--sample", type=int, default=200, help="how many tokens to write at the end")
    add("--device", choices=["CPU", "INTERPRETER"], default="CPU")
    add("--save", type=Path, metavar="DIR", help="where checkpoints go")
    add("--every", type=int, default=500, help="steps between two checkpoints")
    add("--resume", type=Path, metavar="DIR", help="the checkpoint to go on from")
    add("--smoke", action="store_true", help="a small model for 20 steps: does it run?")
    args = parser.parse_args()
    if args.smoke:
        args.steps, args.batch, args.context, args.sample = 20, 8, 32, 20
        args.width, args.layers, args.heads, args.every = 32, 2, 2, 10
    return args


def main() -> None:
    """Train, evaluate, write, and report as one line of JSON."""
    args = parse_arguments()
    world = ngd.init()
    with all_or_none(world):
        check(args, world)
        tokens = read_tokens(args.data)
        edge = int(len(tokens) * (1 - HELD_BACK))
        if min(edge, len(tokens) - edge) <= args.context:
            raise ValueError(f"--data: {args.data}: {len(tokens)} tokens are too few to train on")
        model = make_model(tokens, args)
        training = Training(model, tokens[:edge], world, args)
        if args.resume:
            training.resume()
    start, before = time.perf_counter(), training.parts.done
    loss = training.run()
    seconds = time.perf_counter() - start
    held_back = training.evaluate(tokens[edge:])
    if args.save:
        training.save()
    if world.rank == 0:
        if args.sample and tokens.dtype == np.uint8:
            text = write(model, tokens[edge : edge + 16], args.sample, args)
            print(bytes(text).decode(errors="replace"), file=sys.stderr)
        done = (training.parts.done - before) * args.batch * args.context
        report = {
            "ranks": world.size,
            "device": args.device,
            "steps": training.parts.done,
            "loss": None if math.isnan(loss) else loss,
            "bits_a_token": held_back / math.log(2),
            "tokens_per_s": done / seconds if done else None,
        }
        print(json.dumps(report), flush=True)
    ngd.barrier()


if __name__ == "__main__":
    main()
