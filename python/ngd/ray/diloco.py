# SPDX-License-Identifier: Apache-2.0
"""DiLoCo between hosts on Ray, whose workers may be lost and replaced (pip install ray).

    class Worker:
        def __init__(self, number): ...  # makes self.parameters, and may make self.carried
        def train(self, round): ...      # makes the inner steps of a round; what it gives is told

    ray.init(address="auto")
    with ngd.ray.DiLoCo(Worker, workers=8, resources={"num_cpus": 4}) as diloco:
        while diloco.round < 100:
            reports = diloco.step()

Membership, placement and transport are Ray's: each worker is an actor, or several of one host that
make a world of ngd over its shared memory; weights and outer gradients go through Ray's object
store. The driver has the outer weights and makes the outer steps.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from .. import ops, optim, trees
from ..compiler.driver import compile
from ..dtypes import bfloat16, float32, int8
from ..errors import CollectiveError, WorkerError
from ..graph.live_state import LiveState
from ..graph.variable import placeholder
from ..train.local_sgd import WIRES, encoded, give, is_state, state_values, value_of, wide

logger = logging.getLogger("ngd")

LOOKS_EACH: Final = 0.2
"""Seconds that are waited at a time for new workers."""


class Rank:
    """The actor: a worker, or one rank of it."""

    def __init__(
        self,
        make: Callable[[int], Any],
        number: int,
        place: tuple[int, int, str],
        threads: int,
        wire: Any,
    ) -> None:
        rank, ranks, key = place
        os.environ.setdefault("NGD_THREADS", str(threads))
        mine = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "NGD_JOB": key}
        os.environ.update(mine | {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)})
        os.environ.pop("NGD_SURROUNDINGS", None)
        self.make, self.number, self.first, self.wire = make, number, rank == 0, np.dtype(wire)
        self.encode: Any = None

    def begin(self) -> Any:
        """Make the worker; the weights that it begins with."""
        self.worker = self.make(self.number)
        self.leaves = trees.leaves_of(self.worker.parameters)
        return [wide(value_of(leaf)) for leaf in self.leaves] if self.first else None

    def lend(self) -> list[Any]:
        """Return the values that a new worker gets beside the weights."""
        return [
            state_values(leaf) if isinstance(leaf, LiveState) else value_of(leaf)
            for leaf in self.carried()
        ]

    def heal(self, carried: list[Any]) -> None:
        """Take the values that `lend` returned on a peer."""
        for leaf, value in zip(self.carried(), carried, strict=True):
            if isinstance(leaf, LiveState):
                values, is_complete = value
                leaf.load(values, source="a peer", is_complete=is_complete)
            else:
                give(leaf, value)

    def carried(self) -> list[Any]:
        """Return the worker's variables, arrays and live states that a new worker gets."""
        return trees.flatten(getattr(self.worker, "carried", ()), is_state)[0]

    def train(self, number: int, weights: list[Any]) -> tuple[Any, Any]:
        """A round from these weights: what the worker tells, and how far it has moved, encoded."""
        for leaf, value in zip(self.leaves, weights, strict=True):
            give(leaf, value)
        told = self.worker.train(number)
        if not self.first:
            return None, None
        after = [wide(value_of(leaf)) for leaf in self.leaves]
        if self.encode is None:
            self.encode = encoder(after, self.wire)
        parts = self.encode(*weights, *after)
        width = len(parts) // len(after)
        return told, [parts[i * width : (i + 1) * width] for i in range(len(after))]


def encoder(arrays: list[Any], wire: Any) -> Any:
    """A step that takes weights before and after, and gives their differences as they travel."""
    before, after = (
        [placeholder(f"{name}{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
        for name in ("before", "after")
    )
    parts: list[Any] = []
    for b, a in zip(before, after, strict=True):
        parts += encoded(b - a) if wire == int8 else [ops.cast(b - a, wire_of(a.dtype, wire))]
    return compile([*before, *after], parts)


def wire_of(dtype: Any, wire: Any) -> Any:
    """What floats of this dtype travel as; float64 stays what it is beside float32."""
    return dtype if wire == float32 else bfloat16


def decoded(parts: list[Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """What has travelled, as an array of this shape and dtype."""
    wanted = parts[0].astype(dtype)
    return (wanted if len(parts) == 1 else wanted * parts[1].astype(dtype)).reshape(shape)


@dataclass(eq=False)
class Worker:
    """What the driver knows of a worker: its actors by rank, and where they are placed."""

    number: int
    place: Any
    actors: list[Any]
    begun: list[Any]
    """What becomes of making its ranks; the first gives the weights that it begins with."""
    ready: bool = False


class DiLoCo:
    """The driver: outer steps of train.DiLoCo over workers that Ray places, and may lose.

    A round: each worker gets the outer weights, makes its inner steps, and gives back how far it
    has moved; the mean goes to the outer optimizer. A worker that is lost (its process or host
    dies), or does not answer within `deadline`, is dropped from the round; where `max_restarts`
    allows another is started at once, wherever Ray finds a place, and takes part from the first
    round that begins after it is ready. It gets the `carried` values of a peer. Each event is
    logged, by the logger "ngd".

    Parameters
    ----------
    make
        Called with the worker's number, from 0, on each of its ranks; a class, say. What it gives
        has `parameters` (as train.DiLoCo takes them), `train(round)`, and may have `carried`. What
        it raises, or `train`, ends the training.
    workers
        How many there are to be.
    min_workers
        With fewer left the next step waits up to `deadline` for new ones, and fails then.
    max_restarts
        How many may be started in the place of lost ones.
    ranks
        Actors of a worker, all on one host: ngd.init() in `make` joins them to a world, as under
        `ngd run`. All ranks keep equal weights; what rank 0 has is taken.
    resources
        Of an actor, in the words of Ray's `options`: "num_cpus", "memory", "resources".
    outer, wire
        As in train.DiLoCo. With "bfloat16" nothing is rounded after the sum.
    deadline
        Seconds for a round, and for making the workers of the first one.

    Raises
    ------
    WorkerError
        There are too few workers.
    """

    def __init__(
        self,
        make: Callable[[int], Any],
        *,
        workers: int,
        min_workers: int = 1,
        max_restarts: int = 0,
        ranks: int = 1,
        resources: Mapping[str, Any] | None = None,
        outer: optim.Optimizer | None = None,
        wire: Any = float32,
        deadline: float = 600.0,
    ) -> None:
        if not 1 <= min_workers <= workers or ranks < 1 or max_restarts < 0:
            raise ValueError(
                "ngd.ray.DiLoCo: expected 1 <= min_workers <= workers, ranks >= 1 and "
                f"max_restarts >= 0; got {min_workers}, {workers}, {ranks} and {max_restarts}"
            )
        self._wire = np.dtype(wire)
        if self._wire not in WIRES:
            raise ValueError(f"ngd.ray.DiLoCo: wire: expected one of {WIRES}; got {wire!r}")
        self._make, self._least, self._ranks = make, min_workers, ranks
        self._restarts_left, self._deadline = max_restarts, deadline
        self._resources = {"num_cpus": 1, **(resources or {})}
        self._outer = outer or optim.SGD(0.7, momentum=0.9, nesterov=True, name="outer")
        self._workers: list[Worker] = []
        self._next = 0
        self._update: Any = None
        try:
            for _ in range(workers):
                self._start()
            self._admit(workers)
        except BaseException:
            self.close()
            raise

    @property
    def round(self) -> int:
        """How many outer steps were made."""
        return int(self._round.numpy())

    @property
    def weights(self) -> list[Any]:
        """The outer weights, in the order of a worker's parameters: arrays, float32 at least."""
        return [v.numpy() for v in self._weights]

    def step(self) -> dict[int, Any]:
        """Make a round with all workers that are ready; what each of them told, by its number."""
        while True:
            self._admit(self._least)
            told, moved = self._train(ray.put(self.weights))
            if moved:
                break
        means = []
        for i, v in enumerate(self._weights):
            parts = [decoded(each[i], v.shape, v.dtype) for each in moved]
            means.append(sum(parts[1:], parts[0]) / v.dtype.type(len(parts)))
        self._update(*means)
        logger.info("ngd.ray.DiLoCo: outer step %d, %d workers", self.round, len(moved))
        return told

    def close(self) -> None:
        """End all workers."""
        for worker in list(self._workers):
            self._end(worker)

    def __enter__(self) -> DiLoCo:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _ready(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.ready]

    def _compile(self, beginning: list[Any]) -> None:
        """The outer weights, and the step that takes the means and moves them."""
        self.state = LiveState(f"{self._outer.name}.diloco", self._outer.state)
        """The outer weights, the outer optimizer's state and the round, for ngd.checkpoint."""
        self._weights = [
            self.state.variable(f"weights[{i}]", partial(np.asarray, value))
            for i, value in enumerate(beginning)
        ]
        self._round = self.state.variable(f"{self._outer.name}.round", lambda: np.int64(0))
        means = [placeholder(v.name, v.shape, v.dtype) for v in self._weights]
        updates = self._outer.apply(dict(zip(self._weights, means, strict=True)))
        self._update = compile(means, [], updates | {self._round: self._round + 1})

    def _start(self) -> None:
        """Have Ray start a worker where it finds a place."""
        number, key, ranks = self._next, secrets.token_hex(16), self._ranks
        self._next += 1
        cpus = self._resources["num_cpus"]
        bundle = {"CPU": cpus, **self._resources.get("resources", {})}
        if "memory" in self._resources:
            bundle["memory"] = self._resources["memory"]
        place = placement_group([bundle] * ranks, strategy="STRICT_PACK")
        actors = [
            ray.remote(Rank)
            .options(
                **self._resources,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    place, placement_group_bundle_index=rank
                ),
            )
            .remote(self._make, number, (rank, ranks, key), max(1, int(cpus)), self._wire.name)
            for rank in range(ranks)
        ]
        begun = [actor.begin.remote() for actor in actors]
        self._workers.append(Worker(number, place, actors, begun))
        logger.info("ngd.ray.DiLoCo: worker %d starts", number)

    def _admit(self, wanted: int) -> None:
        """Take in workers that are ready; wait until there are so many, or no more can come."""
        limit = time.monotonic() + self._deadline
        while True:
            for worker in [worker for worker in self._workers if not worker.ready]:
                begun = worker.begun
                if len(ray.wait(begun, num_returns=len(begun), timeout=0)[0]) == len(begun):
                    got = self._got(worker, begun)
                    if got is not None:
                        self._take_in(worker, got[0])
            missing = wanted - len(self._ready)
            if missing <= 0:
                return
            if missing > len(self._workers) - len(self._ready) or time.monotonic() > limit:
                raise WorkerError(
                    f"ngd.ray.DiLoCo: expected {wanted} workers; got {len(self._ready)}, and "
                    f"{len(self._workers) - len(self._ready)} that Ray has not placed, or that are "
                    f"not ready, in {self._deadline:g} s. Add hosts, or wait longer by deadline="
                )
            time.sleep(LOOKS_EACH)

    def _take_in(self, worker: Worker, beginning: list[Any]) -> None:
        """Count a worker in; where the training has begun, a peer first lends it what it needs."""
        if self._update is None:
            self._compile(beginning)
        for peer in self._ready if self.round else ():
            lent = peer.actors[0].lend.remote()
            if self._got(peer, [lent]) is None:
                continue  # the next one
            if self._got(worker, [actor.heal.remote(lent) for actor in worker.actors]) is None:
                return
            logger.info("ngd.ray.DiLoCo: worker %d healed by %d", worker.number, peer.number)
            break
        worker.ready = True
        logger.info("ngd.ray.DiLoCo: worker %d is ready", worker.number)

    def _train(self, weights: Any) -> tuple[dict[int, Any], list[Any]]:
        """Let all that are ready make a round: what they told, and how far they have moved."""
        asked = {
            worker: [
                actor.train.options(num_returns=2).remote(self.round, weights)
                for actor in worker.actors
            ]
            for worker in self._ready
        }
        limit = time.monotonic() + self._deadline
        told: dict[int, Any] = {}
        moved = []
        for worker, refs in asked.items():
            got = self._got(worker, [ref for pair in refs for ref in pair], limit)
            if got is not None:
                told[worker.number] = got[0]
                moved.append(got[1])
        return told, moved

    def _got(self, worker: Worker, refs: list[Any], limit: float | None = None) -> Any:
        """What a worker answers; None, and it is dropped, where it is lost or late."""
        limit = time.monotonic() + self._deadline if limit is None else limit
        try:
            return ray.get(refs, timeout=max(0.0, limit - time.monotonic()))
        except GetTimeoutError:
            self._lose(worker, f"did not answer in {self._deadline:g} s")
        except RayTaskError as error:
            if not isinstance(error.cause, CollectiveError):  # of another of its ranks
                raise
            self._lose(worker, str(error.cause))
        except RayError as error:
            self._lose(worker, f"{type(error).__name__}: {error}".partition("\n")[0])
        return None

    def _lose(self, worker: Worker, why: str) -> None:
        """Go on without a worker, with a new one in its place if there may be one."""
        logger.warning("ngd.ray.DiLoCo: worker %d is lost: %s", worker.number, why)
        self._end(worker)
        if self._restarts_left > 0:
            self._restarts_left -= 1
            self._start()

    def _end(self, worker: Worker) -> None:
        self._workers.remove(worker)
        for actor in worker.actors:
            with contextlib.suppress(RayError):
                ray.kill(actor)
        with contextlib.suppress(RayError):
            remove_placement_group(worker.place)


__all__ = ["DiLoCo"]
