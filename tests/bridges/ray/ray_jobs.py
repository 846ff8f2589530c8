# SPDX-License-Identifier: Apache-2.0
"""Drivers of ngd.ray for the tests of this folder, on a cluster of two nodes on this machine.

    python ray_jobs.py NAME

The last line of the output is the result as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

import ngd
import ngd.ray
from ngd import optim

INNER = 3


class Walker:
    """A worker on arrays. A round moves each weight by INNER * (1 + number)."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.parameters = [np.ones((2, 3), "f4"), np.zeros(2, "f4")]
        self.carried = [np.zeros(1)]

    def train(self, round: int) -> dict[str, Any]:
        time.sleep(0.2)
        self.carried[0] += INNER
        for p in self.parameters:
            p -= INNER * (1 + self.number)
        node = ray.get_runtime_context().get_node_id()
        return {
            "round": round,
            "inner": float(self.carried[0][0]),
            "node": node,
            "pid": os.getpid(),
        }


class Late(Walker):
    """A worker that sleeps in round 2 if its number is 1."""

    def train(self, round: int) -> dict[str, Any]:
        if self.number == 1 and round == 2:
            time.sleep(600)
        return super().train(round)


class Faulty(Walker):
    """A worker that raises in round 1."""

    def train(self, round: int) -> dict[str, Any]:
        if round == 1:
            raise ArithmeticError("as it happens")
        return super().train(round)


class Unmade(Walker):
    """A worker whose constructor raises."""

    def __init__(self, number: int) -> None:
        raise ArithmeticError("as it happens")


class Pair:
    """A worker of two ranks on one host. They average their moves."""

    def __init__(self, number: int) -> None:
        self.number, self.world = number, ngd.init()
        self.w = ngd.variable("w", np.zeros(3))
        self.parameters = {"w": self.w}

    def train(self, round: int) -> dict[str, Any]:
        mine = np.full(3, 2.0 * self.world.rank + self.number)
        self.w.assign(self.w.numpy() - ngd.all_reduce(mine, op="mean"))
        return {"size": self.world.size, "pid": os.getpid()}


def start_two_nodes(cpus: int = 2) -> Cluster:
    """Start a cluster with a driver node, which cannot run workers, and two other nodes."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        cluster.add_node(num_cpus=cpus)
    ray.init(address=cluster.address, log_to_driver=False)
    return cluster


def undisturbed() -> Any:
    """Run three rounds with each dtype of transfers."""
    start_two_nodes()
    reports: dict[str, Any] = {}
    for wire in ("float32", "bfloat16", "int8"):
        with ngd.ray.DiLoCo(Walker, workers=3, wire=wire) as diloco:
            results = [diloco.step() for _ in range(3)]
            nodes = {each["node"] for each in results[0].values()}
            weights = [w.tolist() for w in diloco.weights]
            reports[wire] = {"weights": weights, "nodes": len(nodes)}
    return reports


def killed_node() -> Any:
    """Lose a node with two of four workers in a round, and add another node later."""
    cluster = start_two_nodes()
    sgd = optim.SGD(1.0)
    with ngd.ray.DiLoCo(Walker, workers=4, max_restarts=2, outer=sgd, deadline=120) as diloco:
        results = [diloco.step()]
        where = {number: each["node"] for number, each in results[0].items()}
        victim = next(n for n in cluster.worker_nodes if n.node_id == where[0])
        cluster.remove_node(victim, allow_graceful=False)
        results.append(diloco.step())
        weights = [diloco.weights[1][0].item()]
        cluster.add_node(num_cpus=2)
        limit = time.monotonic() + 120
        while len(results[-1]) < 4 and time.monotonic() < limit:
            results.append(diloco.step())
        weights.append(diloco.weights[1][0].item())
        return {
            "lost": sorted(number for number, node in where.items() if node == where[0]),
            "numbers": [sorted(each) for each in results],
            "inner": {number: each["inner"] for number, each in results[-1].items()},
            "round": diloco.round,
            "weights": weights,
        }


def killed_process() -> Any:
    start_two_nodes()
    with ngd.ray.DiLoCo(Walker, workers=2, outer=optim.SGD(1.0)) as diloco:
        results = diloco.step()
        os.kill(results[1]["pid"], signal.SIGKILL)
        after = diloco.step()
        return {"numbers": sorted(after), "weight": diloco.weights[1][0].item()}


def late() -> Any:
    start_two_nodes()
    with ngd.ray.DiLoCo(Late, workers=2, outer=optim.SGD(1.0), deadline=15) as diloco:
        return {"numbers": [sorted(diloco.step()) for _ in range(4)]}


def too_few() -> Any:
    start_two_nodes()
    with ngd.ray.DiLoCo(Walker, workers=2, min_workers=2) as diloco:
        os.kill(diloco.step()[1]["pid"], signal.SIGKILL)
        diloco.step()
        try:
            diloco.step()
        except ngd.errors.WorkerError as error:
            return {"error": str(error)}
    return {}


def no_place() -> Any:
    start_two_nodes()
    try:
        ngd.ray.DiLoCo(Walker, workers=5, deadline=15)
    except ngd.errors.WorkerError as error:
        return {"error": str(error)}
    return {}


def faulty() -> Any:
    """Run workers that raise in a round, and workers that raise in their constructor."""
    start_two_nodes()
    results = []
    for make in (Faulty, Unmade):
        try:
            with ngd.ray.DiLoCo(make, workers=2, max_restarts=5) as diloco:
                for _ in range(2):
                    diloco.step()
        except ArithmeticError as error:
            results.append(str(error))
    return {"errors": results}


def pairs() -> Any:
    """Run two workers of two ranks each, and kill one rank."""
    start_two_nodes()
    sgd = optim.SGD(1.0)
    how = {"ranks": 2, "max_restarts": 1, "outer": sgd, "deadline": 90}
    with ngd.ray.DiLoCo(Pair, workers=2, **how) as diloco:
        results = [diloco.step()]
        first = diloco.weights[0].tolist()
        os.kill(results[0][0]["pid"], signal.SIGKILL)
        results.append(diloco.step())
        second = diloco.weights[0].tolist()
        limit = time.monotonic() + 90
        while len(results[-1]) < 2 and time.monotonic() < limit:
            time.sleep(0.2)
            results.append(diloco.step())
        return {
            "sizes": {n: each["size"] for n, each in results[-1].items()},
            "weights": [first, second],
            "numbers": [sorted(each) for each in results],
        }


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])), flush=True)
    ray.shutdown()
