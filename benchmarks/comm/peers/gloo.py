# SPDX-License-Identifier: Apache-2.0
"""The ranks of gloo in bench.py, through torch.distributed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from method import Array, Case, Way, measure, read_arguments


def slowest(times: Array) -> Array:
    tensor = torch.from_numpy(times.copy())
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.numpy()


def call_of(kind: str, source: torch.Tensor, result: torch.Tensor) -> Callable[[], Any]:
    return {
        "all_reduce": lambda: dist.all_reduce(result),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(result, source),
        "all_gather": lambda: dist.all_gather_into_tensor(result, source),
        "broadcast": lambda: dist.broadcast(result, 0),
        "all_to_all": lambda: dist.all_to_all_single(result, source),
    }[kind]


def main() -> None:
    args = read_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for nbytes in args.bytes:
        case = Case(args.kind, nbytes, dist.get_rank(), dist.get_world_size())
        arrays = case.buffers()
        call = call_of(args.kind, *map(torch.from_numpy, arrays))
        program = f"gloo (PyTorch {torch.__version__.split('+')[0]})"
        measure(program, case, {"array": Way(call, *arrays)}, dist.barrier, slowest)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
