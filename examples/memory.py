# SPDX-License-Identifier: Apache-2.0
"""Compare the memory of a training step: plain, remat, memory_limit and shard.

    ngd run -n 2 memory.py --layers 4 --batch 4096

Each form trains the same model from the same first values. The variables are weights and optimizer
state. The arena holds activations and gradients. The sizes of both are known before a step runs.
mixed_precision.py shows 16-bit floats, which save memory too.
"""

import argparse
import json

import numpy as np

import ngd
from ngd import nn, ops, optim

FORMS = ["plain", "remat", "memory_limit", "shard"]


class Block(nn.Module):
    """A block with a residual connection, whose inner values are four times as wide."""

    def __init__(self, width: int) -> None:
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: ngd.Node) -> ngd.Node:
        """Return the next hidden states [batch, width]."""
        return x + self.down(ops.gelu(self.up(self.norm(x))))


def compile_step(form: str, args: argparse.Namespace, limit: int | None = None) -> ngd.Executable:
    """Compile the training step of a new model."""
    model = nn.Sequential(*(Block(args.width) for _ in range(args.layers)))
    optimizer = optim.AdamW(1e-3)
    shape = (args.batch // ngd.world_size(), args.width)
    x, y = ngd.placeholder("x", shape), ngd.placeholder("y", shape)
    hidden = x
    for block in model:
        hidden = ngd.remat(block)(hidden) if form == "remat" else block(hidden)
    loss = ops.mean(ops.square(hidden - y))
    updates = optimizer.minimize(loss, model.parameters())
    return ngd.compile(
        [x, y],
        ops.all_reduce(loss, op="mean"),
        updates,
        shard="host" if form == "shard" else "none",
        memory_limit=limit,
    )


def compile_with_limit(args: argparse.Namespace) -> ngd.Executable:
    """Compile the step with a limit of three quarters of the arena of the plain step."""
    plain = compile_step("plain", args).memory()
    return compile_step("memory_limit", args, (plain["private"] + plain["shared"]) * 3 // 4)


def main() -> None:
    """Train in each form, print a table, and report as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4096, help="rows per step of all ranks")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="a small model for 3 steps")
    args = parser.parse_args()
    if args.smoke:
        args.layers, args.width, args.batch, args.steps = 3, 32, 256, 3
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, args.batch, args.width)).astype(np.float32)
    rank, size, reports = ngd.rank(), ngd.world_size(), {}
    rows = slice(rank * (args.batch // size), (rank + 1) * (args.batch // size))
    for form in args.forms:
        step = compile_with_limit(args) if form == "memory_limit" else compile_step(form, args)
        losses = [float(step(x[rows], y[rows])) for _ in range(args.steps)]
        memory = step.memory()
        bytes_per_rank = (
            memory["variables"] - memory["sharded"] + memory["private"] + memory["shared"]
        )
        report = {key: memory[key] for key in ("variables", "private", "shared", "sharded")}
        report |= {"host_bytes": size * bytes_per_rank + memory["sharded"]}
        reports[form] = {**report, "first_loss": losses[0], "loss": losses[-1]}
        if rank == 0:
            mebibytes = report["host_bytes"] / 2**20
            print(f"{form:12} {mebibytes:8.1f} MiB on this host, loss {losses[-1]:.6f}")
    if rank == 0:
        print(json.dumps({"ranks": size, **reports}), flush=True)


if __name__ == "__main__":
    main()
