# SPDX-License-Identifier: Apache-2.0
"""The ranks of ngd in bench.py, which starts them with `ngd run`.

Collectives are measured from arrays and in a graph. In the graph, the operand is computed by the
same step, in memory that the ranks share. The time is that of the step minus that of an equal step
without the collective, which runs in the same turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from method import Array, Case, Way, measure, measure_tail, read_arguments

import ngd
from ngd import ops

COLUMNS = 1024
"""The columns of a step's operand. It is an outer product, so it is written but hardly read."""


def from_arrays(case: Case) -> Way:
    source, result = case.buffers()
    call: Callable[[], Any] = {
        "all_reduce": lambda: ngd.all_reduce(result, op="sum", out=result),
        "reduce_scatter": lambda: ngd.reduce_scatter(source, op="sum", out=result),
        "all_gather": lambda: ngd.all_gather(source, out=result),
        "broadcast": lambda: ngd.broadcast(result, out=result),
        "all_to_all": lambda: ngd.all_to_all(source, out=result),
    }[case.kind]
    return Way(call, source, result)


def in_the_graph(case: Case, collective: bool) -> Way:
    count = case.count // (case.ranks if case.kind == "all_gather" else 1)
    columns = max(1, min(COLUMNS, count // case.ranks))
    rows = count // columns
    left, right = (ngd.placeholder("x", shape, "float32") for shape in ((rows, 1), (1, columns)))
    value = left * right
    if collective:
        value = {
            "all_reduce": lambda: ops.all_reduce(value, op="sum"),
            "reduce_scatter": lambda: ops.reduce_scatter(value, op="sum"),
            "all_gather": lambda: ops.all_gather(value),
            "broadcast": lambda: ops.broadcast(value),
            "all_to_all": lambda: ops.all_to_all(value),
        }[case.kind]()
    step = ngd.compile([left, right], [value[:1, :1]], device="CPU")
    source, ones = np.empty((rows, 1), np.float32), np.ones((1, columns), np.float32)
    return Way(lambda: step(source, ones), source)


def slowest(times: Array) -> Array:
    return np.asarray(ngd.all_reduce(times, op="max"))


def main() -> None:
    args, world = read_arguments(), ngd.init()
    for nbytes in args.bytes:
        case = Case(args.kind, nbytes, world.rank, world.size)
        program = f"ngd {ngd.__version__}"
        if args.tail:
            way = from_arrays(case)
            measure_tail(program, case, way.call, args.tail, ngd.barrier, slowest)
            continue
        ways: dict[str, Way] = {}
        if "array" in args.origins:
            ways["array"] = from_arrays(case)
        less = {}
        if "graph" in args.origins:
            ways["graph"] = in_the_graph(case, True)
            ways["without"] = in_the_graph(case, False)
            less = {"graph": "without"}
        measure(program, case, ways, ngd.barrier, slowest, less)


if __name__ == "__main__":
    main()
