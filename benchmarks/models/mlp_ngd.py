# SPDX-License-Identifier: Apache-2.0
"""One turn of ngd, for mlp.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from timing import LEARNING_RATE, read_case, report

case = read_case()
os.environ["NGD_THREADS"] = str(case.threads)

import ngd  # noqa: E402
from ngd import ops  # noqa: E402

random = np.random.default_rng(0)
images = ngd.placeholder("images", (case.batch, case.sizes[0]), "float32")
labels = ngd.placeholder("labels", (case.batch,), "int64")
variables = []
hidden = images
for layer, (rows, columns) in enumerate(zip(case.sizes, case.sizes[1:], strict=False)):
    initial = random.standard_normal((rows, columns)) * 0.05
    weights = ngd.variable(f"W{layer}", initial.astype("float32"))
    bias = ngd.variable(f"b{layer}", np.zeros(columns, "float32"))
    variables += [weights, bias]
    scores = hidden @ weights + bias
    hidden = ops.relu(scores)
loss = ops.mean(ops.softmax_cross_entropy(scores, labels))
gradients = [ops.all_reduce(g, op="mean") for g in ngd.grad(loss, variables)]
updates = {v: v - LEARNING_RATE * g for v, g in zip(variables, gradients, strict=True)}
how = {"precision": case.precision, "shard": "host" if case.shard else "none"}
step = ngd.compile([images, labels], [loss], updates, **how)

x = random.random((case.batch, case.sizes[0]), dtype=np.float32)
t = random.integers(0, case.sizes[-1], case.batch)


def steps(count: int) -> None:
    for _ in range(count):
        step(x, t)


report(f"ngd {ngd.build_info()['version']}", case, steps, flops=step.cost().flops)
