# SPDX-License-Identifier: Apache-2.0
"""Train a GPT on text, data-parallel, and generate text.

    ngd run -n 2 gpt.py --data FILE_OR_FOLDER --save checkpoint

A text is read as bytes, and a .bin file as uint16 tokens. The last tenth is for the evaluation.
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


class Projection(nn.Module):
    """A linear layer whose weight has the layout of GPT-2's files: [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int, std: float = 0.02) -> None:
        self.weight = nn.Parameter((inputs, outputs), nn.initializers.normal(std=std))
        self.bias = nn.Parameter(outputs)

    def forward(self, x: Any) -> Any:
        return x @ self.weight + self.bias


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int, std: float) -> None:
        self.heads = heads
        self.c_attn, self.c_proj = Projection(width, 3 * width), Projection(width, width, std)

    def forward(self, x: Any) -> Any:
        qkv = ops.reshape(self.c_attn(x), (*x.shape[:2], 3, self.heads, -1))
        q, k, v = (ops.transpose(qkv[:, :, i], (0, 2, 1, 3)) for i in range(3))
        y = ops.transpose(ops.attention(q, k, v, causal=True), (0, 2, 1, 3))
        return self.c_proj(ops.reshape(y, x.shape))


class MLP(nn.Module):
    """Two layers, with a hidden layer that is four times as wide."""

    def __init__(self, width: int, std: float) -> None:
        self.c_fc, self.c_proj = Projection(width, 4 * width), Projection(4 * width, width, std)

    def forward(self, x: Any) -> Any:
        return self.c_proj(ops.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int, std: float) -> None:
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads, std)
        self.ln_2, self.mlp = nn.LayerNorm(width), MLP(width, std)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2 (Radford et al., 2019), with the names of Hugging Face: tokens [N, L] to logits."""

    def __init__(self, vocab_size: int, context: int, width: int, layers: int, heads: int) -> None:
        normal, std = nn.initializers.normal, 0.02 / math.sqrt(2 * layers)
        self.wte = nn.Embedding(vocab_size, width, initializer=normal(std=0.02))
        self.wpe = nn.Embedding(context, width, initializer=normal(std=0.01))
        self.h = nn.ModuleList([Block(width, heads, std) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens: Any) -> Any:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


def read_tokens(path: Path) -> Any:
    """Return the tokens of a .bin file, or the bytes of a text or of all texts in a folder."""
    if path.suffix == ".bin":
        return np.memmap(path, np.uint16, "r")
    texts = [f for f in sorted(path.rglob("*")) if f.suffix in (".md", ".txt", ".py")]
    return np.frombuffer(b"".join(f.read_bytes() for f in texts or [path]), np.uint8)


def make_model(tokens: Any, args: argparse.Namespace) -> GPT:
    """Return a model with random weights, or with those of a GPT-2."""
    state, vocab_size = {}, 256 if tokens.dtype == np.uint8 else int(tokens.max()) + 1
    if args.weights:
        loaded = checkpoint.read_safetensors(args.weights)
        state = {key.removeprefix("transformer."): value for key, value in loaded.items()}
        state["wpe.weight"] = state["wpe.weight"][: args.context]
        args.context, vocab_size = len(state["wpe.weight"]), len(state["wte.weight"])
        args.width = state["wte.weight"].shape[1]
        args.layers, args.heads = sum(k.endswith("ln_1.weight") for k in state), args.width // 64
    if tokens.max() >= vocab_size:
        raise ValueError(f"--weights: expected tokens below {vocab_size}; got {tokens.max()}")
    model = GPT(vocab_size, args.context, args.width, args.layers, args.heads)
    model.load_state_dict({k: v for k, v in state.items() if k in model.variables()}, bool(state))
    return model


def loss_of(model: GPT, tokens: Any) -> Any:
    """Return the mean loss of predicting each token from the tokens before it."""
    return ops.mean(ops.softmax_cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]))


def generate(model: GPT, prompt: Any, args: argparse.Namespace) -> str:
    """Return the prompt and the tokens that the model draws, as text or as numbers."""
    logits_of = ngd.function(lambda tokens, last: model(tokens)[0, last])
    random, tokens = np.random.default_rng(0), [int(token) for token in prompt]
    for _ in range(args.generate):
        window = np.array(tokens[-args.context :])
        padded = np.pad(window, (0, args.context - len(window)))
        logits = logits_of(padded[None], np.int64(len(window) - 1))
        tokens.append(int(np.argmax(logits / 0.8 + random.gumbel(size=logits.shape))))
    return bytes(tokens).decode(errors="replace") if prompt.dtype == np.uint8 else str(tokens)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train, evaluate, and return the report."""
    with ngd.raise_together():  # one rank may fail to read a file
        tokens = read_tokens(args.data)
        model, split = make_model(tokens, args), len(tokens) * 9 // 10
        windows = data.Tokens(tokens[:split], args.context + 1, stride=1)
        held_out = tokens[split:][: 64 * args.batch * args.context + 1]
        test = data.Tokens(held_out, args.context + 1, stride=args.context)
    rate = optim.warm_up(optim.cosine(args.lr, args.steps + 1), args.steps // 20 + 1)
    vectors = optim.ParameterGroup(optim.is_vector, weight_decay=0.0)
    optimizer = optim.AdamW(rate, weight_decay=0.1, groups=[vectors], clip_norm=1.0)

    @ngd.function(updates=True, precision=args.precision)
    def step(tokens: Any, weight: Any) -> Any:
        loss = loss_of(model, tokens)
        updates = optimizer.minimize(loss, model.parameters(), weight=weight)
        return ops.all_reduce(loss, op="mean", weight=weight), updates

    sampler = data.Sampler(len(windows), args.batch, replacement=True)
    state = [model.variables(), optimizer.state]
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
    parser = argparse.ArgumentParser(description="Train a GPT on text, and generate text.")
    parser.set_defaults(batch=32, context=128, width=192, layers=4, heads=4, lr=2e-3)
    parser.set_defaults(every=500, generate=200)
    add, sources = parser.add_argument, Path(ngd.__file__).parent
    add("--data", type=Path, default=sources, help="a text, a folder of texts, or tokens (.bin)")
    add("--steps", type=int, default=1000)
    add("--precision", choices=["float32", "bfloat16"], default="float32")
    add("--weights", type=Path, metavar="FILE", help="weights of a GPT-2 (safetensors)")
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
