# SPDX-License-Identifier: Apache-2.0
"""Train a GPT by DiLoCo: ranks make many steps alone, and one together, and may come and go.

    ngd run -n 4 --min-ranks 2 --max-restarts 4 examples/diloco.py --data FILE_OR_FOLDER

Kill a rank meanwhile (or let it do that itself, with --lose MEMBER:ROUND): the others go on, and a
new one takes its place. Under other launchers the ranks are fixed. docs/diloco.md tells more.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import gpt
import language
import numpy as np

import ngd
from ngd import data, optim, train

MOST_JUDGED = 64
"""Batches of what is held back."""


def make_step(model: Any, args: argparse.Namespace) -> tuple[Any, Any, Any]:
    """A step of a rank alone, what judges a batch, and the inner optimizer."""
    parameters = list(model.parameters().values())
    steps = args.rounds * args.every
    rate = optim.warm_up(optim.cosine(args.lr, steps, args.lr / 10), steps // 20 + 1)
    inner = optim.AdamW(rate, betas=(0.9, 0.95), weight_decay=0.1, clip_norm=1.0)
    given = ngd.placeholder("tokens", (args.batch, args.context + 1), "int64")
    loss = language.loss_of(model, given)
    gradients = ngd.grad(loss, parameters)
    updates = inner.apply(dict(zip(parameters, gradients, strict=True)))
    return ngd.compile([given], [loss], updates), ngd.compile([given], [loss]), inner


def batches(windows: Any, args: argparse.Namespace, number: int) -> Any:
    """What this rank learns from in a round: drawn anew, by the seed, the round and the rank."""
    random = np.random.default_rng([args.seed, number, ngd.init().rank])
    for _ in range(args.every):
        (tokens,) = windows[random.integers(0, len(windows), args.batch)]
        yield tokens


def train_rounds(windows: Any, step: Any, diloco: train.DiLoCo, args: argparse.Namespace) -> None:
    """All rounds that are left, and what each took."""
    member, _, lost_in = args.lose.partition(":")
    while diloco.round < args.rounds:
        number, start = diloco.round, time.perf_counter()
        if os.environ.get("NGD_MEMBER") == member and number >= int(lost_in):
            os.kill(os.getpid(), signal.SIGKILL)
        losses = []
        for tokens in batches(windows, args, number):
            losses.append(float(step(tokens)[0]))
            diloco.step()
        took = time.perf_counter() - start
        logging.info("round %d: loss %.4f, %.1f s", number + 1, np.mean(losses), took)


def judged(judge: Any, tokens: Any, args: argparse.Namespace) -> float:
    """The mean loss over windows that lie side by side in what is held back."""
    windows = data.Tokens(tokens, args.context + 1, stride=args.context)
    count = min(len(windows) // args.batch, MOST_JUDGED)
    rows = np.arange(count * args.batch).reshape(count, args.batch)
    return float(np.mean([judge(*windows[row])[0] for row in rows]))


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add = parser.add_argument
    here = Path(__file__).resolve().parent
    add("--data", type=Path, default=here, help="a text, a folder of texts, or tokens (.bin)")
    add("--rounds", type=int, default=30, help="outer steps")
    add("--every", type=int, default=50, help="inner steps to an outer one")
    add("--batch", type=int, default=8, help="rows a step, of each rank")
    add("--context", type=int, default=64, help="tokens a row")
    add("--width", type=int, default=64)
    add("--layers", type=int, default=2)
    add("--heads", type=int, default=4)
    add("--lr", type=float, default=2e-3, help="of the inner steps")
    add("--wire", choices=["float32", "bfloat16", "int8"], default="float32")
    add("--seed", type=int, default=0)
    add("--lose", default=":0", metavar="MEMBER:ROUND", help="this member kills itself then")
    parser.set_defaults(weights=None)
    return parser.parse_args()


def main() -> None:
    """Train, and report as one line of JSON."""
    args = parsed()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    tokens = language.read_tokens(args.data)
    edge = int(len(tokens) * (1 - language.HELD_BACK))
    if min(edge, len(tokens) - edge) <= args.batch * (args.context + 1):
        raise ValueError(f"--data: {args.data}: {len(tokens)} tokens are too few to train on")
    model = gpt.make_model(tokens, args)
    step, judge, inner = make_step(model, args)
    windows = data.Tokens(tokens[:edge], args.context + 1, stride=1)
    parameters = list(model.parameters().values())
    diloco = train.DiLoCo(parameters, every=args.every, wire=args.wire, carried=inner.state)
    train_rounds(windows, step, diloco, args)
    if ngd.init().rank == 0:
        loss = judged(judge, tokens[edge:], args)
        report = {
            "ranks": ngd.init().size,
            "rounds": diloco.round,
            "loss": loss,
            "bits_a_token": loss / math.log(2),
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
