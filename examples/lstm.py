# SPDX-License-Identifier: Apache-2.0
"""Train an LSTM on text, data-parallel, and generate text.

    ngd run -n 2 lstm.py --data FILE_OR_FOLDER --save checkpoint

The text is read as bytes. The last tenth is for the evaluation.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import ngd
from ngd import checkpoint, data, nn, ops, optim, train


class LanguageModel(nn.Module):
    """Zaremba et al., 2014 (arXiv:1409.2329): tokens [N, L] to logits [N, L, vocab_size]."""

    def __init__(self, vocab_size: int, width: int, layers: int, dropout: float) -> None:
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocab_size, width)
        self.rnn = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.decoder = nn.Linear(width, vocab_size)

    def forward(self, tokens: Any) -> Any:
        hidden, _ = self.rnn(self.drop(self.encoder(tokens)))
        return self.decoder(self.drop(hidden))


def loss_of(model: LanguageModel, tokens: Any) -> Any:
    """Return the mean loss of predicting each token from the tokens before it."""
    return ops.mean(ops.softmax_cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]))


def generate(model: LanguageModel, prompt: Any, args: argparse.Namespace) -> str:
    """Return the prompt and the text that the model draws."""

    @ngd.function
    def predict(tokens: Any, state: Any) -> Any:
        hidden, state = model.rnn(model.encoder(tokens), state)
        return model.decoder(hidden)[0, -1], state

    random, state, new, text = np.random.default_rng(0), None, prompt, bytes(prompt)
    for _ in range(args.generate):
        logits, state = predict(new[None], state)
        new = np.array([np.argmax(logits / 0.8 + random.gumbel(size=256))], np.uint8)
        text += bytes(new)
    return text.decode(errors="replace")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train, evaluate, and return the report."""
    with ngd.raise_together():  # one rank may fail to read a file
        texts = [f for f in sorted(args.data.rglob("*")) if f.suffix in (".md", ".txt", ".py")]
        tokens = np.frombuffer(b"".join(f.read_bytes() for f in texts or [args.data]), np.uint8)
        split = len(tokens) * 9 // 10
        windows = data.Tokens(tokens[:split], args.context + 1, stride=1)
        held_out = tokens[split:][: 64 * args.batch * args.context + 1]
        test = data.Tokens(held_out, args.context + 1, stride=args.context)
    model = LanguageModel(256, args.width, args.layers, args.dropout)
    rate = optim.warm_up(optim.cosine(args.lr, args.steps + 1), args.steps // 20 + 1)
    optimizer, random = optim.AdamW(rate, clip_norm=1.0), nn.Random()

    @ngd.function(updates=True)
    def step(tokens: Any, weight: Any) -> Any:
        with nn.training(random) as state:
            loss = loss_of(model, tokens)
        updates = optimizer.minimize(loss, model.parameters(), weight=weight)
        return ops.all_reduce(loss, op="mean", weight=weight), [updates, state.updates]

    sampler = data.Sampler(len(windows), args.batch, replacement=True)
    state = [model.variables(), optimizer.state, random.state]
    if args.resume:
        sampler.load_state(checkpoint.load(args.resume, state, private={}))
    losses, start = [], time.perf_counter()
    batches = itertools.chain.from_iterable(itertools.repeat(data.Loader(windows, sampler)))
    for batch in itertools.islice(batches, args.steps - sampler.done):
        losses.append(float(step(*batch, batch.weight)))
        if ngd.rank() == 0 and sampler.done % 100 == 0:
            print(f"step {sampler.done}: loss {losses[-1]:.3f}", flush=True)
        if args.save and (sampler.done % args.every == 0 or sampler.done == args.steps):
            checkpoint.save(args.save, state, private={}, position=sampler.state())
    seconds = time.perf_counter() - start
    loader = data.Loader(test, data.Sampler(len(test), args.batch, shuffle=False))
    (loss,) = train.evaluate(ngd.function(lambda tokens: [loss_of(model, tokens)]), loader)
    if ngd.rank() == 0 and args.generate:
        print(generate(model, held_out[:16], args))
    return {
        "ranks": ngd.world_size(),
        "device": os.environ.get("NGD_DEVICE", "CPU"),
        "steps": sampler.done,
        "loss": float(np.mean(losses[-50:])) if losses else None,
        "bits_a_token": loss / math.log(2),
        "tokens_per_s": len(losses) * args.batch * args.context / seconds if losses else None,
    }


def parse_arguments() -> argparse.Namespace:
    """Read the command line. Settings without an option are here too."""
    parser = argparse.ArgumentParser(description="Train an LSTM on text, and generate text.")
    parser.set_defaults(
        batch=32, context=128, width=256, layers=2, lr=2e-3, every=500, generate=200
    )
    add, sources = parser.add_argument, Path(ngd.__file__).parent
    add("--data", type=Path, default=sources, help="a text, or a folder of texts")
    add("--steps", type=int, default=1000)
    add("--dropout", type=float, default=0.0)
    add("--save", type=Path, metavar="DIR", help="where checkpoints are written")
    add("--resume", type=Path, metavar="DIR", help="the checkpoint to continue from")
    add("--smoke", action="store_true", help="train a tiny model for 20 steps")
    args = parser.parse_args()
    if args.smoke:
        vars(args).update(steps=20, batch=8, context=32, width=32, layers=2, every=10, generate=20)
    return args


if __name__ == "__main__":
    report = run(parse_arguments())
    if ngd.rank() == 0:
        print(json.dumps(report))
