# SPDX-License-Identifier: Apache-2.0
"""One turn of PyTorch, for ../mlp.py. Several ranks communicate over gloo."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from timing import LEARNING_RATE, read_case, report

case = read_case()

import torch  # noqa: E402
from torch import nn  # noqa: E402

torch.manual_seed(0)
torch.set_num_threads(case.threads)
layers: list[nn.Module] = []
for rows, columns in pairwise(case.sizes):
    layers += [nn.Linear(rows, columns), nn.ReLU()]
model: nn.Module = nn.Sequential(*layers[:-1])
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
x = torch.rand(case.batch, case.sizes[0])
t = torch.randint(0, case.sizes[-1], (case.batch,))


def steps(count: int) -> None:
    for _ in range(count):
        with torch.autocast("cpu", torch.bfloat16, enabled=case.precision == "bfloat16"):
            loss = nn.functional.cross_entropy(model(x), t)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


report(f"torch {torch.__version__}", case, steps)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # PyTorch 2.13 aborts in one of six exits, because a thread of gloo still runs
