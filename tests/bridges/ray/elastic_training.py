# SPDX-License-Identifier: Apache-2.0
"""Train a weight that moves by -1.5 per step, on any number of hosts, for test_ray_elastic.py.

    python elastic_training.py FOLDER [COUNT]

Rank 0 appends one line per step to FOLDER/progress. The training ends when FOLDER/enough exists.
Each rank then appends one line to FOLDER/ends. The world whose NGD_RESTART_COUNT is COUNT makes no
commit.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

import torch

import ngd.horovod.torch as hvd

COMMITS_EACH = 4

folder = Path(sys.argv[1])
commits = sys.argv[2:] != [os.environ["NGD_RESTART_COUNT"]]
hvd.init()
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
sgd = torch.optim.SGD(model.parameters(), lr=1.0)
optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    enough = False
    while not enough:
        optimizer.zero_grad()
        model(torch.tensor([[1.0 + hvd.local_rank()]])).sum().backward()
        optimizer.step()
        state.step += 1
        if hvd.rank() == 0:
            line = {"step": state.step, "weight": model.weight.item(), "size": hvd.size()}
            with open(folder / "progress", "a", encoding="utf-8") as file:
                print(json.dumps({**line, "host": socket.gethostname()}), file=file)
        time.sleep(0.05)
        if commits and state.step % COMMITS_EACH == 0:
            state.commit()
        is_enough = torch.tensor([float((folder / "enough").exists())])
        enough = bool(hvd.allreduce(is_enough, op=hvd.Max))


train(hvd.elastic.TorchState(model, optimizer, step=0))
print("the end")
with open(folder / "ends", "a", encoding="utf-8") as file:
    print(hvd.rank(), file=file)
