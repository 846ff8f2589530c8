# SPDX-License-Identifier: Apache-2.0
"""Drivers of ngd.ray for the tests of this folder: a cluster of two nodes on this machine.

    python ray_jobs.py NAME

It prints what came of it as the last line, JSON.
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
    """A worker on arrays: a round moves each weight by INNER * (1 + number)."""

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
    """Number 1 sleeps in round 2."""

    def train(self, round: int) -> dict[str, Any]:
        if self.number == 1 and round == 2:
            time.sleep(600)
        return super().train(round)


class Faulty(Walker):
    """Raises in round 1."""

    def train(self, round: int) -> dict[str, Any]:
        if round == 1:
            raise ArithmeticError("as it happens")
        return super().train(round)


class Unmade(Walker):
    """Cannot be made."""

    def __init__(self, number: int) -> None:
        raise ArithmeticError("as it happens")


class Pair:
    """A worker of two ranks, which share a host: they average what they have moved."""

    def __init__(self, number: int) -> None:
        self.number, self.world = number, ngd.init()
        self.w = ngd.variable("w", np.zeros(3))
        self.parameters = {"w": self.w}

    def train(self, round: int) -> dict[str, Any]:
        mine = np.full(3, 2.0 * self.world.rank + self.number)
        self.w.assign(self.w.numpy() - ngd.all_reduce(mine, op="mean"))
        return {"size": self.world.size, "pid": os.getpid()}


def of_two_nodes(cpus: int = 2) -> Cluster:
    """The driver's node, which has no place for workers, and two others."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        cluster.add_node(num_cpus=cpus)
    ray.init(address=cluster.address, log_to_driver=False)
    return cluster


def undisturbed() -> Any:
    """Three rounds with each wire."""
    of_two_nodes()
    made: dict[str, Any] = {}
    for wire in ("float32", "bfloat16", "int8"):
        with ngd.ray.DiLoCo(Walker, workers=3, wire=wire) as diloco:
            told = [diloco.step() for _ in range(3)]
            nodes = {each["node"] for each in told[0].values()}
            weights = [w.tolist() for w in diloco.weights]
            made[wire] = {"weights": weights, "nodes": len(nodes)}
    return made


def killed_node() -> Any:
    """A node with two of four workers is lost in a round; another comes later."""
    cluster = of_two_nodes()
    sgd = optim.SGD(1.0)
    with ngd.ray.DiLoCo(Walker, workers=4, max_restarts=2, outer=sgd, deadline=120) as diloco:
        told = [diloco.step()]
        where = {number: each["node"] for number, each in told[0].items()}
        victim = next(n for n in cluster.worker_nodes if n.node_id == where[0])
        cluster.remove_node(victim, allow_graceful=False)
        told.append(diloco.step())
        weights = [diloco.weights[1][0].item()]
        cluster.add_node(num_cpus=2)
        limit = time.monotonic() + 120
        while len(told[-1]) < 4 and time.monotonic() < limit:
            told.append(diloco.step())
        weights.append(diloco.weights[1][0].item())
        return {
            "lost": sorted(number for number, node in where.items() if node == where[0]),
            "numbers": [sorted(each) for each in told],
            "inner": {number: each["inner"] for number, each in told[-1].items()},
            "round": diloco.round,
            "weights": weights,
        }


def killed_process() -> Any:
    of_two_nodes()
    with ngd.ray.DiLoCo(Walker, workers=2, outer=optim.SGD(1.0)) as diloco:
        told = diloco.step()
        os.kill(told[1]["pid"], signal.SIGKILL)
        after = diloco.step()
        return {"numbers": sorted(after), "weight": diloco.weights[1][0].item()}


def late() -> Any:
    of_two_nodes()
    with ngd.ray.DiLoCo(Late, workers=2, outer=optim.SGD(1.0), deadline=15) as diloco:
        return {"numbers": [sorted(diloco.step()) for _ in range(4)]}


def too_few() -> Any:
    of_two_nodes()
    with ngd.ray.DiLoCo(Walker, workers=2, min_workers=2) as diloco:
        os.kill(diloco.step()[1]["pid"], signal.SIGKILL)
        diloco.step()
        try:
            diloco.step()
        except ngd.errors.WorkerError as error:
            return {"error": str(error)}
    return {}


def no_place() -> Any:
    of_two_nodes()
    try:
        ngd.ray.DiLoCo(Walker, workers=5, deadline=15)
    except ngd.errors.WorkerError as error:
        return {"error": str(error)}
    return {}


def faulty() -> Any:
    """Workers that raise in a round, and as they are made."""
    of_two_nodes()
    told = []
    for make in (Faulty, Unmade):
        try:
            with ngd.ray.DiLoCo(make, workers=2, max_restarts=5) as diloco:
                for _ in range(2):
                    diloco.step()
        except ArithmeticError as error:
            told.append(str(error))
    return {"errors": told}


def pairs() -> Any:
    """Two workers of two ranks each, one of which is killed."""
    of_two_nodes()
    sgd = optim.SGD(1.0)
    how = {"ranks": 2, "max_restarts": 1, "outer": sgd, "deadline": 90}
    with ngd.ray.DiLoCo(Pair, workers=2, **how) as diloco:
        told = [diloco.step()]
        first = diloco.weights[0].tolist()
        os.kill(told[0][0]["pid"], signal.SIGKILL)
        told.append(diloco.step())
        second = diloco.weights[0].tolist()
        limit = time.monotonic() + 90
        while len(told[-1]) < 2 and time.monotonic() < limit:
            time.sleep(0.2)
            told.append(diloco.step())
        return {
            "sizes": {n: each["size"] for n, each in told[-1].items()},
            "weights": [first, second],
            "numbers": [sorted(each) for each in told],
        }


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])), flush=True)
    ray.shutdown()
