# SPDX-License-Identifier: Apache-2.0
"""One turn of PyTorch, for ../turns.py. Several ranks communicate over gloo."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))
from networks import CASES
from timing import read_case, report

case = read_case()

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

torch.manual_seed(0)
torch.set_num_threads(case.threads)
of = CASES[case.network]
made = of.make(nn, lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True))
images = len(of.sample) == 3
model = made.to(memory_format=torch.channels_last) if images else made
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
forward = torch.compile(model) if case.compile else model
optimizer = (
    torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    if of.optimizer == "sgd"
    else torch.optim.AdamW(model.parameters(), 3e-4)
)
shape = (case.batch, *of.sample)
x = torch.randint(of.tokens, shape) if of.tokens else torch.randn(shape)
x = x.to(memory_format=torch.channels_last) if images else x
t = torch.randint(of.classes, (case.batch, *of.labels))


def steps(count: int) -> None:
    for _ in range(count):
        with torch.autocast("cpu", torch.bfloat16, enabled=case.precision == "bfloat16"):
            loss = functional.cross_entropy(forward(x).reshape(-1, of.classes), t.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


report(f"torch {torch.__version__}{' compiled' if case.compile else ''}", case, steps)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # PyTorch 2.13 aborts in one of six exits, because a thread of gloo still runs
