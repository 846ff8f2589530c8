# SPDX-License-Identifier: Apache-2.0
"""Train a GPT with DiLoCo: each rank takes many steps on its own, then all ranks take one.

    ngd run -n 4 --min-ranks 2 --max-restarts 4 diloco.py --data FILE_OR_FOLDER

If a rank is killed, the other ranks continue, and a new rank takes its place. To try it, kill a
process, or give --lose MEMBER:ROUND. With another launcher the number of ranks is fixed.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

import ngd
from ngd import data, nn, ops, optim, train


class Block(nn.Module):
    """Causal self-attention and an MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        self.norm1, self.attention = nn.LayerNorm(width), nn.MultiHeadAttention(width, heads)
        hidden = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
        self.mlp = nn.Sequential(nn.LayerNorm(width), *hidden)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x), causal=True)
        return x + self.mlp(x)


class GPT(nn.Module):
    """A language model of bytes: tokens [N, L] to logits [N, L, 256]."""

    def __init__(self, context: int, width: int, layers: int, heads: int) -> None:
        normal = nn.initializers.normal(std=0.02)
        self.tokens = nn.Embedding(256, width, initializer=normal)
        self.positions = nn.Embedding(context, width, initializer=normal)
        blocks = [Block(width, heads) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, tokens: Any) -> Any:
        return self.blocks(self.tokens(tokens) + self.positions.weight)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train, and return the report."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    texts = [f for f in sorted(args.data.rglob("*")) if f.suffix in (".md", ".txt", ".py")]
    tokens = np.frombuffer(b"".join(f.read_bytes() for f in texts or [args.data]), np.uint8)
    split = len(tokens) * 9 // 10
    windows = data.Tokens(tokens[:split], args.context + 1, stride=1)
    test = data.Tokens(tokens[split:], args.context + 1, stride=args.context)
    model = GPT(args.context, args.width, args.layers, args.heads)
    steps = args.rounds * args.every
    rate = optim.warm_up(optim.cosine(args.lr, steps, args.lr / 10), steps // 20 + 1)
    inner = optim.AdamW(rate, betas=(0.9, 0.95), weight_decay=0.1, clip_norm=1.0)

    def loss_of(tokens: Any) -> Any:
        return ops.mean(ops.softmax_cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]))

    @ngd.function(updates=True)
    def step(tokens: Any) -> Any:  # without a collective
        loss, parameters = loss_of(tokens), list(model.parameters().values())
        gradients = ngd.grad(loss, parameters)
        return loss, inner.apply(dict(zip(parameters, gradients, strict=True)))

    parameters = model.parameters()
    diloco = train.DiLoCo(parameters, every=args.every, wire=args.wire, carried=inner.state)
    member, _, last = args.lose.partition(":")
    while diloco.round < args.rounds:
        if os.environ.get("NGD_MEMBER") == member and diloco.round >= int(last):
            os.kill(os.getpid(), signal.SIGKILL)
        # The batches depend on the round, so that a new rank can continue.
        random, losses = np.random.default_rng([args.seed, diloco.round, ngd.rank()]), []
        for _ in range(args.every):
            (batch,) = windows[random.integers(0, len(windows), args.batch)]
            losses.append(float(step(batch)))
            diloco.step()
        logging.info("round %d: loss %.4f", diloco.round, np.mean(losses))

    report = {"ranks": ngd.world_size(), "rounds": diloco.round}
    if ngd.rank() == 0:
        metric = ngd.function(loss_of)
        rows = np.arange(min(len(test) // args.batch, 64) * args.batch).reshape(-1, args.batch)
        loss = float(np.mean([metric(*test[row]) for row in rows]))
        report |= {"loss": loss, "bits_a_token": loss / math.log(2)}
    return report


def parse_arguments() -> argparse.Namespace:
    """Read the command line. Settings without an option are here too."""
    parser = argparse.ArgumentParser(description="Train a GPT with DiLoCo.")
    parser.set_defaults(batch=8, context=64, width=64, layers=2, heads=4, lr=2e-3, seed=0)
    add, sources = parser.add_argument, Path(ngd.__file__).parent
    add("--data", type=Path, default=sources, help="a text, or a folder of texts")
    add("--rounds", type=int, default=30, help="outer steps")
    add("--every", type=int, default=50, help="inner steps per outer step")
    add("--wire", choices=["float32", "bfloat16", "int8"], default="float32")
    add("--lose", default=":0", metavar="MEMBER:ROUND", help="kill this member in this round")
    add("--smoke", action="store_true", help="train a tiny model for 2 rounds")
    args = parser.parse_args()
    if args.smoke:
        vars(args).update(rounds=2, every=5, context=32, width=32, layers=1)
    return args


if __name__ == "__main__":
    report = run(parse_arguments())
    if ngd.rank() == 0:
        print(json.dumps(report), flush=True)
