# SPDX-License-Identifier: Apache-2.0
"""Train a GPT on text, data-parallel, on any number of ranks; then let it write.

    mpirun -np 2 python examples/gpt.py --data FILE_OR_FOLDER

Text is read as bytes; a file that ends in .bin holds tokens of 16 bits. A tenth at the end is held
back, and the loss there is reported in bits a token. The variables have the names of Hugging Face's
GPT-2, whose weights --weights takes (with tokens of its own).
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import language

import ngd
from ngd import nn, ops


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


def make_model(tokens: Any, args: argparse.Namespace) -> GPT:
    """The model that the arguments, or the weights, ask for."""
    if args.weights is None:
        if args.heads < 1 or args.width % args.heads:
            raise ValueError(f"--width {args.width} is no multiple of --heads {args.heads}")
        kinds = language.kinds_of(tokens)
        model = GPT(kinds, args.context, args.width, args.layers, args.heads)
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
    if (highest := int(tokens.max())) >= known:
        raise ValueError(f"--data: token {highest} is none of the {known} that --weights knows")
    layers = len({key.split(".")[1] for key in state if key.startswith("h.")})
    model = GPT(known, state["wpe.weight"].shape[0], width, layers, max(1, width // 64))
    model.load_state_dict(state)
    args.context = min(args.context, state["wpe.weight"].shape[0])
    return model


def main() -> None:
    """Read the command line, and train."""
    parser = language.parser_of(
        __doc__.partition("\n")[0] if __doc__ else None, width=192, layers=4
    )
    add = parser.add_argument
    add("--heads", type=int, default=4)
    add("--weights", type=Path, metavar="FILE", help="GPT-2's weights to begin with (safetensors)")
    language.run(language.parsed(parser), make_model)


if __name__ == "__main__":
    main()
