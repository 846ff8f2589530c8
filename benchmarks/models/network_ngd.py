# SPDX-License-Identifier: Apache-2.0
"""One turn of ngd, for turns.py."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from networks import CASES
from timing import read_case, report

case = read_case()
os.environ["NGD_THREADS"] = str(case.threads)

import ngd  # noqa: E402
from ngd import nn, ops, optim  # noqa: E402

of = CASES[case.network]
model = of.make(nn, lambda q, k, v: ops.attention(q, k, v, causal=True))
x = ngd.placeholder("x", (case.batch, *of.sample), "int64" if of.tokens else "float32")
t = ngd.placeholder("t", (case.batch, *of.labels), "int64")
with nn.training() as state:
    scores = ops.reshape(model(x), (-1, of.classes))
    loss = ops.mean(ops.softmax_cross_entropy(scores, ops.reshape(t, (-1,))))
optimizer = optim.SGD(0.01, momentum=0.9) if of.optimizer == "sgd" else optim.AdamW(3e-4)
start = time.perf_counter()
updates = [optimizer.minimize(loss, model.parameters()), state.updates]
how = {"precision": case.precision, "shard": "host" if case.shard else "none"}
step = ngd.compile([x, t], [loss], updates, **how)
compiling = time.perf_counter() - start

random = np.random.default_rng(0)
inputs = random.normal(size=x.shape).astype(np.float32)
if of.tokens:
    inputs = random.integers(of.tokens, size=x.shape)
labels = random.integers(of.classes, size=t.shape)


def steps(count: int) -> None:
    for _ in range(count):
        step(inputs, labels)


report(f"ngd {ngd.build_info()['version']}", case, steps, compiling, step.cost().flops)
