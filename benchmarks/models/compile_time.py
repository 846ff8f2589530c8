# SPDX-License-Identifier: Apache-2.0
"""Measure the time to build, differentiate and compile graphs: one line of JSON per case.

python benchmarks/models/compile_time.py [--peer-python PATH] [--turns 3] [--cases layers:500 ...]

A turn is a fresh process, warmed up by a small graph. Times are CPU seconds. --peer-python is a
Python with another build of ngd. Then the builds take turns, and `speedup` is the median of the
paired ratios. `seconds` has the phases: the calls of the user's script (build, grad), the passes
by name, `emit` (the program), and `executor` (kernels and buffers). The case with all-reduces is
compiled for one rank of two on the NULL device, so it has no `executor`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

WIDTH = 8
CASES = (
    "layers:500",
    "layers:1000",
    "layers:2000",
    "layers:4000",
    "additions:10000",
    "additions:20000",
    "additions:100000",
    "variables:1000",
    "variables:10000",
    "all_reduces:200",
)
DEADLINE_SECONDS = 600


class Clock:
    """Seconds by phase. The time of a phase inside another one is not counted twice."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.inner = [0.0]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block as a phase."""
        self.inner.append(0.0)
        start = time.thread_time()
        try:
            yield
        finally:
            total = time.thread_time() - start
            own = total - self.inner.pop()
            self.inner[-1] += total
            self.seconds[name] = self.seconds.get(name, 0.0) + own

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, measured as a phase."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return function(*args, **kwargs)

        return call


class Two:
    """A stand-in for a group, with the attributes that the compiler reads."""

    rank, size = 0, 2


def layers(n: int, clock: Clock, reduced: bool = False) -> dict[str, Any]:
    """Return layers with weights and biases, the gradients of all of them, and their updates."""
    import ngd
    from ngd import ops

    with clock.phase("build"):
        x = ngd.placeholder("x", (WIDTH, WIDTH))
        variables, hidden = [], x
        for i in range(n):
            weights = ngd.variable(f"W{i}", np.zeros((WIDTH, WIDTH), np.float32))
            bias = ngd.variable(f"b{i}", np.zeros(WIDTH, np.float32))
            variables += [weights, bias]
            hidden = ops.relu(hidden @ weights + bias)
        loss = ops.mean(hidden)
    with clock.phase("grad"):
        gradients = ngd.grad(loss, variables)
    with clock.phase("build"):
        if reduced:
            gradients = [ops.all_reduce(g, op="mean") for g in gradients]
        updates = {v: v - 0.01 * g for v, g in zip(variables, gradients, strict=True)}
    return {"inputs": [x], "outputs": [loss], "updates": updates}


def all_reduces(n: int, clock: Clock) -> dict[str, Any]:
    """Return layers whose gradients are all-reduced."""
    return layers(n, clock, reduced=True) | {"device": "NULL", "group": Two()}


def additions(n: int, clock: Clock) -> dict[str, Any]:
    """Return a chain of additions."""
    import ngd

    with clock.phase("build"):
        x = y = ngd.placeholder("x", (WIDTH,))
        for _ in range(n):
            y = y + x
    return {"inputs": [x], "outputs": [y]}


def variables(n: int, clock: Clock) -> dict[str, Any]:
    """Return updates of many variables in one step."""
    import ngd

    with clock.phase("build"):
        x = ngd.placeholder("x", (WIDTH,))
        given = [ngd.variable(f"v{i}", np.zeros(WIDTH, np.float32)) for i in range(n)]
        updates = {v: v - 0.01 * x for v in given}
    return {"inputs": [x], "outputs": [], "updates": updates}


BUILDERS: dict[str, Callable[[int, Clock], dict[str, Any]]] = {
    "layers": layers,
    "additions": additions,
    "variables": variables,
    "all_reduces": all_reduces,
}


def watch_compiler(clock: Clock) -> None:
    """Measure all phases of ngd.compile with the clock."""
    from ngd import _core
    from ngd.compiler import driver as compiler
    from ngd.graph.graph import Graph
    from ngd.passes import pipeline

    run_pass = pipeline.run_pass
    pipeline.run_pass = lambda each, *given: clock.timed(each.__name__, run_pass)(each, *given)
    for owner, name, phase in (
        (pipeline, "schedule", "schedule"),
        (pipeline, "plan_memory", "plan_memory"),
        (Graph, "verify", "verify"),
        (compiler, "emit", "emit"),
        (_core, "Executable", "executor"),
    ):
        setattr(owner, name, clock.timed(phase, getattr(owner, name)))


def turn(case: str) -> None:
    """Measure a case in this process, and print it."""
    os.environ["NGD_THREADS"] = "1"
    import ngd

    name, _, n = case.partition(":")
    ngd.compile(**BUILDERS[name](2, Clock()))  # work of the first compilation only
    clock = Clock()
    watch_compiler(clock)
    start = time.thread_time()
    arguments = BUILDERS[name](int(n), clock)
    with clock.phase("compile: the rest"):
        step = ngd.compile(**arguments)
    total = time.thread_time() - start
    del step
    print(json.dumps({"total": total} | clock.seconds))


def measure(python: str, case: str) -> dict[str, float]:
    """Run one turn with a Python."""
    command = [python, __file__, "--turn", case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    if done.returncode != 0:
        raise SystemExit(f"{case} by {python} returned {done.returncode}:\n{done.stderr}")
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def median(turns: list[dict[str, float]]) -> dict[str, float]:
    """Return the medians of the phases."""
    return {k: round(statistics.median(t.get(k, 0.0) for t in turns), 4) for k in turns[0]}


def main() -> None:
    """Measure all cases, or one case in this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--peer-python")
    parser.add_argument("--turn", help="one case, in this process")
    options = parser.parse_args()
    if options.turn:
        turn(options.turn)
        return
    for case in options.cases:
        ours, peers = [], []
        for _ in range(options.turns):
            ours.append(measure(sys.executable, case))
            if options.peer_python:
                peers.append(measure(options.peer_python, case))
        line: dict[str, Any] = {"case": case, "seconds": median(ours)}
        if peers:
            ratios = [p["total"] / o["total"] for o, p in zip(ours, peers, strict=True)]
            line |= {"peer": median(peers), "speedup": round(statistics.median(ratios), 2)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
