# SPDX-License-Identifier: Apache-2.0
"""Adapt a frozen model by low-rank adapters (LoRA), on any number of ranks.

    ngd run -n 2 lora.py --rank 4 --save adapters

A base model learns a task. Then it is frozen, and adapters learn a second task, whose weights
differ by a matrix of rank 2. Only the adapters have gradients, all-reduces, optimizer state and a
checkpoint. At the end they are merged into the weights of the base model.
"""

import argparse
import json

import numpy as np

import ngd
from ngd import data, nn, ops, optim

WIDTH, OUTPUTS, SAMPLES = 32, 8, 2048


class LowRank(nn.Module):
    """A frozen linear layer plus an adapter (Hu et al., 2021, arXiv:2106.09685, section 4.1)."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float) -> None:
        outputs, inputs = linear.weight.shape
        self.linear, self.factor = linear, alpha / rank
        self.lora_a = nn.Parameter((rank, inputs), nn.initializers.normal(std=inputs**-0.5))
        self.lora_b = nn.Parameter((outputs, rank))  # zeros: the first result is the base model's

    def forward(self, x: ngd.Node) -> ngd.Node:
        """Return the sum of both results."""
        adapted = ops.matmul(ops.matmul(x, self.lora_a.T), self.lora_b.T)
        return self.linear(x) + self.factor * adapted

    def merge(self) -> None:
        """Add the adapter to the weight of the linear layer."""
        delta = self.factor * self.lora_b.numpy() @ self.lora_a.numpy()
        self.linear.weight.assign(self.linear.weight.numpy() + delta)


def make_task(seed: int, change: float) -> data.Arrays:
    """Return the samples of a random network; the tasks differ by a matrix of rank 2."""
    random = np.random.default_rng(0)
    first, last = random.normal(size=(2, WIDTH, WIDTH)) / WIDTH**0.5
    left, right = random.normal(size=(2, WIDTH, 2)) / WIDTH**0.5
    x = np.random.default_rng(seed).normal(size=(SAMPLES, WIDTH))
    y = np.tanh(x @ (first + change * left @ right.T)) @ last[:, :OUTPUTS]
    return data.Arrays(x.astype(np.float32), y.astype(np.float32))


def add_adapters(base: nn.Sequential, rank: int, alpha: float) -> nn.Sequential:
    """Return a model that has the layers of the base model, with adapters of the linear ones."""
    return nn.Sequential(
        *(LowRank(part, rank, alpha) if isinstance(part, nn.Linear) else part for part in base)
    )


def train(model: nn.Module, parameters: dict, source: data.Arrays, steps: int, lr: float) -> list:
    """Train some parameters of a model, and return the losses of all steps."""
    optimizer = optim.AdamW(optim.cosine(lr, steps), weight_decay=0.0)

    @ngd.function(updates=True)
    def train_step(x: ngd.Node, y: ngd.Node, weight: ngd.Node) -> tuple:
        loss = ops.mean(ops.square(model(x) - y))
        updates = optimizer.minimize(loss, parameters, weight=weight)  # of these parameters only
        return ops.all_reduce(loss, op="mean", weight=weight), updates

    loader, losses = data.Loader(source, data.Sampler(len(source), batch_size=64)), []
    while len(losses) < steps:
        losses += [float(train_step(*batch, batch.weight)) for batch in loader]
    return losses


def main() -> None:
    """Train the base model, adapt it, merge the adapters, and report as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rank", type=int, default=4, help="the rank of the adapters")
    parser.add_argument("--alpha", type=float, default=8.0, help="the scale of the adapters")
    parser.add_argument("--steps", type=int, default=320, help="steps of each training")
    parser.add_argument("--lr", type=float, default=2e-2)
    parser.add_argument("--save", help="the folder of a checkpoint of the adapters")
    parser.add_argument("--smoke", action="store_true", help="few steps, for a test")
    args = parser.parse_args()
    steps = 64 if args.smoke else args.steps
    base = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, OUTPUTS))
    base_losses = train(base, base.parameters(), make_task(seed=1, change=0.0), steps, args.lr)

    model = add_adapters(base, args.rank, args.alpha)
    adapters = {name: v for name, v in model.parameters().items() if "lora_" in name}
    losses = train(model, adapters, make_task(seed=2, change=8.0), steps, args.lr)
    if args.save:
        ngd.checkpoint.save(args.save, adapters, private={})
    x = np.random.default_rng(3).normal(size=(16, WIDTH)).astype(np.float32)
    predict = ngd.function(lambda model, x: model(x))
    separate = predict(model, x)
    for part in model:
        if isinstance(part, LowRank):
            part.merge()
    report = {"ranks": ngd.world_size(), "first_task_loss": np.mean(base_losses[-10:])}
    report |= {"loss_before": losses[0], "loss": np.mean(losses[-10:])}
    report |= {"trained_numbers": sum(v.size for v in adapters.values())}
    report |= {"frozen_numbers": sum(v.size for v in base.parameters().values())}
    report |= {"merged_difference": float(np.abs(predict(base, x) - separate).max())}
    if ngd.rank() == 0:
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
