# SPDX-License-Identifier: Apache-2.0
"""The ranks of an MPI in bench.py, through mpi4py, under the mpirun of that MPI."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parents[1]))
from method import Array, Case, Way, measure, measure_tail, read_arguments


def slowest(times: Array) -> Array:
    result = np.empty_like(times)
    MPI.COMM_WORLD.Allreduce(times, result, MPI.MAX)
    return result


def call_of(kind: str, source: Array, result: Array) -> Callable[[], Any]:
    world = MPI.COMM_WORLD
    return {
        "all_reduce": lambda: world.Allreduce(MPI.IN_PLACE, result),
        "reduce_scatter": lambda: world.Reduce_scatter_block(source, result),
        "all_gather": lambda: world.Allgather(source, result),
        "broadcast": lambda: world.Bcast(result),
        "all_to_all": lambda: world.Alltoall(source, result),
    }[kind]


def main() -> None:
    args, world = read_arguments(), MPI.COMM_WORLD
    name, version = MPI.get_vendor()
    program = f"{name} {'.'.join(map(str, version))}"
    for nbytes in args.bytes:
        case = Case(args.kind, nbytes, world.rank, world.size)
        source, result = case.buffers()
        way = Way(call_of(args.kind, source, result), source, result)
        if args.tail:
            measure_tail(program, case, way.call, args.tail, world.Barrier, slowest)
            continue
        measure(program, case, {"array": way}, world.Barrier, slowest)


if __name__ == "__main__":
    main()
