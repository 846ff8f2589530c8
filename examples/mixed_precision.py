# SPDX-License-Identifier: Apache-2.0
"""Train one model in float32, bfloat16 and float16, and compare loss, time and memory.

    ngd run -n 2 mixed_precision.py --precision float32 bfloat16

The weights stay float32 in all three forms. float16 needs a loss scale: a step whose gradients
overflow is skipped on all ranks, and the scale is halved. If a CPU has no 16-bit kernels, the steps
stay float32, and ngd warns about it. --device INTERPRETER rounds to 16 bits on every CPU.
"""

import argparse
import json
import time

import numpy as np

import ngd
from ngd import data, nn, ops, optim

INPUTS, CLASSES, SAMPLES = 128, 10, 2048


def make_samples() -> data.Arrays:
    """Return vectors, and the class that a random matrix gives to each of them."""
    random = np.random.default_rng(0)
    x = random.normal(size=(SAMPLES, INPUTS)).astype(np.float32)
    labels = (x @ random.normal(size=(INPUTS, CLASSES))).argmax(1)
    return data.Arrays(x, labels)


def train(precision: str, source: data.Arrays, args: argparse.Namespace) -> dict:
    """Train a new model in a precision, and return what it cost."""
    width = args.width
    hidden = nn.Linear(INPUTS, width), nn.GELU(), nn.Linear(width, width), nn.GELU()
    model = nn.Sequential(*hidden, nn.Linear(width, CLASSES))  # equal in all precisions
    scale = optim.LossScale(args.init_scale) if precision == "float16" else None
    optimizer = optim.AdamW(args.lr, clip_norm=1.0, loss_scale=scale)

    @ngd.function(updates=True, precision=precision, device=args.device)
    def train_step(x: ngd.Node, labels: ngd.Node, weight: ngd.Node) -> tuple:
        loss = ops.mean(ops.softmax_cross_entropy(model(x), labels))
        updates = optimizer.minimize(loss, model.parameters(), weight=weight)
        return ops.all_reduce(loss, op="mean", weight=weight), updates

    loader = data.Loader(source, data.Sampler(len(source), args.batch, drop_last=True))
    losses, seconds = [], []
    for _ in range(args.epochs):
        for batch in loader:
            start = time.perf_counter()
            losses.append(float(train_step(*batch, batch.weight)))
            seconds.append(time.perf_counter() - start)
    report = {"first_loss": losses[0], "loss": float(np.mean(losses[-10:]))}
    report["ms_per_step"] = 1000 * float(np.median(seconds))
    report["activation_bytes"] = train_step.trace(*batch, batch.weight).memory().get("private")
    if scale is not None:
        report |= {"skipped": len(losses) - int(optimizer.step), "scale": float(scale.scale)}
    return report


def main() -> None:
    """Train once per precision, and report as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    precisions = ["float32", "bfloat16", "float16"]
    parser.add_argument("--precision", nargs="+", choices=precisions, default=precisions)
    parser.add_argument("--device", choices=["CPU", "INTERPRETER"], default="CPU")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128, help="samples per step of all ranks")
    parser.add_argument("--width", type=int, default=512, help="the width of the hidden layers")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--init-scale", type=float, default=2.0**15, help="the first loss scale")
    parser.add_argument("--smoke", action="store_true", help="a small model on the INTERPRETER")
    args = parser.parse_args()
    if args.smoke:
        args.epochs, args.width, args.device = 1, 32, "INTERPRETER"
    source, reports = make_samples(), {}
    for precision in args.precision:
        reports[precision] = report = train(precision, source, args)
        if ngd.rank() == 0:
            print(
                f"{precision}: loss {report['loss']:.4f}, {report['ms_per_step']:.2f} ms per step"
            )
    if ngd.rank() == 0:
        print(json.dumps({"ranks": ngd.world_size(), **reports}), flush=True)


if __name__ == "__main__":
    main()
