# SPDX-License-Identifier: Apache-2.0
"""DiLoCo between the hosts of a Ray cluster, whose workers may be lost and replaced.

    class Worker:
        def __init__(self, number): ...  # sets self.parameters (and self.carried, see below)
        def train(self, round): ...      # makes the inner steps of a round and returns a report

    ray.init(address="auto")
    with ngd.ray.DiLoCo(Worker, workers=8, resources={"num_cpus": 4}) as diloco:
        while diloco.round < 100:
            reports = diloco.step()

Ray manages the membership, placement and transport. Each worker is an actor, or several actors of
one host that form a world of ngd over shared memory. In a round, each worker gets the weights of
the driver (outer weights) and trains alone for some steps (inner steps). Then the driver applies
the workers' mean change to its weights (outer step). Weights and changes are sent through Ray's
object store.

The optional attribute `carried` has other state of a worker, such as the state of its inner
optimizer. A replacement for a lost worker copies the values of `carried` from another worker.
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
from ..train.local_sgd import (
    WIRES,
    encode_int8,
    is_state,
    set_value,
    state_values,
    value_of,
    widen_to_float32,
)

logger = logging.getLogger("ngd")

POLL_SECONDS: Final = 0.2
"""The time between two checks for new workers, in seconds."""


class Rank:
    """The actor of one rank of a worker. By default a worker has one rank."""

    def __init__(
        self,
        make: Callable[[int], Any],
        number: int,
        member: tuple[int, int, str],
        threads: int,
        wire: Any,
    ) -> None:
        rank, ranks, key = member
        os.environ.setdefault("NGD_THREADS", str(threads))
        variables = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "NGD_JOB": key}
        os.environ.update(variables | {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)})
        os.environ.pop("NGD_SURROUNDINGS", None)
        self.make, self.number, self.is_first, self.wire = make, number, rank == 0, np.dtype(wire)
        self.encode: Any = None

    def begin(self) -> Any:
        """Create the worker. Return its initial weights on the first rank, and None on others."""
        self.worker = self.make(self.number)
        self.leaves = trees.leaves_of(self.worker.parameters)
        return [widen_to_float32(value_of(leaf)) for leaf in self.leaves] if self.is_first else None

    def get_carried(self) -> list[Any]:
        """Return the values of the variables and arrays in the attribute `carried` of the worker.

        A replacement for a lost worker sets these values, and receives the outer weights as well.
        """
        return [
            state_values(leaf) if isinstance(leaf, LiveState) else value_of(leaf)
            for leaf in self.carried()
        ]

    def set_carried(self, carried: list[Any]) -> None:
        """Set the values that `get_carried` returned on another worker."""
        for leaf, value in zip(self.carried(), carried, strict=True):
            if isinstance(leaf, LiveState):
                values, is_complete = value
                leaf.load(values, source="a peer", is_complete=is_complete)
            else:
                set_value(leaf, value)

    def carried(self) -> list[Any]:
        """Return the leaves of the attribute `carried` of the user's worker.

        A leaf is a variable, an array or a LiveState: a mapping from names to variables, such as
        `optimizer.state`. If the worker has no such attribute, return an empty list.
        """
        return trees.flatten(getattr(self.worker, "carried", ()), is_state)[0]

    def train(self, number: int, weights: list[Any]) -> tuple[Any, Any]:
        """Run round `number` on this rank: set these weights and make the worker's inner steps.

        The first rank returns the result of the worker's method `train`, and the change of its
        weights, encoded by `encoder`. The other ranks return (None, None).
        """
        for leaf, value in zip(self.leaves, weights, strict=True):
            set_value(leaf, value)
        reports = self.worker.train(number)
        if not self.is_first:
            return None, None
        after = [widen_to_float32(value_of(leaf)) for leaf in self.leaves]
        if self.encode is None:
            self.encode = encoder(after, self.wire)
        parts = self.encode(*weights, *after)
        parts_per_leaf = len(parts) // len(after)
        return reports, [
            parts[i * parts_per_leaf : (i + 1) * parts_per_leaf] for i in range(len(after))
        ]


def encoder(arrays: list[Any], wire: Any) -> Any:
    """Return a compiled step that encodes the change of the weights in a round.

    The inputs of the step are the weights before the round, then the weights after it. The outputs
    are the differences (before - after) in the format `wire`.
    """
    before, after = (
        [placeholder(f"{name}{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
        for name in ("before", "after")
    )
    parts: list[Any] = []
    for b, a in zip(before, after, strict=True):
        parts += (
            encode_int8(b - a) if wire == int8 else [ops.cast(b - a, wire_dtype_of(a.dtype, wire))]
        )
    return compile([*before, *after], parts)


def wire_dtype_of(dtype: Any, wire: Any) -> Any:
    """Return the dtype in which a change of weights, an array of dtype `dtype`, is sent.

    This is `dtype` itself if `wire` is float32, and bfloat16 if `wire` is bfloat16. The third
    format, int8, is encoded by `encode_int8` without this function.
    """
    return dtype if wire == float32 else bfloat16


def decode(parts: list[Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the array that `parts` encodes, with this shape and dtype.

    The array is a change of weights in a round. If it was sent as int8, `parts` has an array of
    integers and the scale that multiplies them. Otherwise `parts` has only the array, as float32 or
    bfloat16.
    """
    values = parts[0].astype(dtype)
    return (values if len(parts) == 1 else values * parts[1].astype(dtype)).reshape(shape)


@dataclass(eq=False)
class Worker:
    """The driver's record of a worker: its actors by rank, and their placement group."""

    number: int
    placement: Any
    actors: list[Any]
    begin_refs: list[Any]
    """The references to the results of `Rank.begin`. The first result is the initial weights."""
    is_ready: bool = False


class DiLoCo:
    """The driver of DiLoCo over workers that Ray places and may lose. It makes the outer steps.

    A worker is one replica of the model: one rank, or several ranks on one host. In a round, each
    worker gets the outer weights, makes its inner steps, and returns the change of its weights.
    Then the driver makes an outer step: the outer optimizer applies the mean change of all workers
    to the outer weights (see `ngd.train.DiLoCo`).

    A worker is lost if its process or host dies, or if it does not answer within `deadline`. It is
    dropped from the round. If `max_restarts` allows it, another worker is started immediately, on
    any host where Ray finds free resources. It takes part from the first round that starts after it
    is ready, and it gets a copy of the attribute `carried` (see `make`) of another worker. The
    logger "ngd" reports each event.

    Parameters
    ----------
    make : callable
        A function or class that each rank of a worker calls with the number of the worker, from 0.
        It returns an object with the attribute `parameters` (as `ngd.train.DiLoCo` takes them), the
        method `train(round)`, and optionally the attribute `carried`: state besides the weights,
        such as that of the inner optimizer. An exception in `make` or `train` ends the training.
    workers : int
        The number of workers.
    min_workers : int
        The smallest number of workers for a step. With fewer workers, `step` waits up to `deadline`
        for new ones, and then fails.
    max_restarts : int
        The number of workers that may be started as replacements.
    ranks : int
        The number of actors per worker, all on one host. `ngd.init()` in `make` joins them to a
        world, as under `ngd run`. All ranks keep equal weights; those of rank 0 are sent.
    resources : mapping, optional
        The resources of one actor, as Ray's `options` takes them: "num_cpus", "memory",
        "resources".
    outer : Optimizer, optional
        The outer optimizer, as in `ngd.train.DiLoCo`.
    wire : dtype
        The format in which changes are sent, as in `ngd.train.DiLoCo`. With "bfloat16", each change
        is rounded, but not their mean. (`ngd.train.DiLoCo` rounds the sum of the changes, too.)
    deadline : float
        The longest time in seconds for a round, and for creating the workers of the first round.

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
        self._make, self._min_workers, self._ranks = make, min_workers, ranks
        self._restarts_left, self._deadline = max_restarts, deadline
        self._resources = {"num_cpus": 1, **(resources or {})}
        self._outer = outer or optim.SGD(0.7, momentum=0.9, nesterov=True, name="outer")
        self._workers: list[Worker] = []
        self._next_number = 0
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
        """The number of outer steps that were made."""
        return int(self._round.numpy())

    @property
    def weights(self) -> list[Any]:
        """The outer weights, which the driver updates, as arrays in the order of the parameters.

        float16 and bfloat16 weights are widened to float32.
        """
        return [v.numpy() for v in self._weights]

    def step(self) -> dict[int, Any]:
        """Let all ready workers train for one round, then make an outer step.

        Return a dict from the number of each worker to the result of its method `train`. Workers
        that are lost in the round are left out.
        """
        while True:
            self._admit(self._min_workers)
            reports, deltas = self._train(ray.put(self.weights))
            if deltas:
                break
        means = []
        for i, v in enumerate(self._weights):
            parts = [decode(each[i], v.shape, v.dtype) for each in deltas]
            means.append(sum(parts[1:], parts[0]) / v.dtype.type(len(parts)))
        self._update(*means)
        logger.info("ngd.ray.DiLoCo: outer step %d, %d workers", self.round, len(deltas))
        return reports

    def close(self) -> None:
        """Kill the processes of all workers immediately, and release their resources in Ray."""
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
    def _ready_workers(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.is_ready]

    def _compile(self, initial_weights: list[Any]) -> None:
        """Create the driver's weights, and compile the outer step.

        The outer step applies the mean of the workers' weight changes to the driver's weights.
        """
        self.state = LiveState(f"{self._outer.name}.diloco", self._outer.state)
        """The state to save by `ngd.checkpoint`. It has variables for the weights that the driver
        keeps, for the state of the outer optimizer, and for the number of rounds made."""
        self._weights = [
            self.state.variable(f"weights[{i}]", partial(np.asarray, value))
            for i, value in enumerate(initial_weights)
        ]
        self._round = self.state.variable(f"{self._outer.name}.round", lambda: np.int64(0))
        means = [placeholder(v.name, v.shape, v.dtype) for v in self._weights]
        updates = self._outer.apply(dict(zip(self._weights, means, strict=True)))
        self._update = compile(means, [], updates | {self._round: self._round + 1})

    def _start(self) -> None:
        """Ask Ray to start a worker on any host with free resources."""
        number, key, ranks = self._next_number, secrets.token_hex(16), self._ranks
        self._next_number += 1
        cpus = self._resources["num_cpus"]
        bundle = {"CPU": cpus, **self._resources.get("resources", {})}
        if "memory" in self._resources:
            bundle["memory"] = self._resources["memory"]
        placement = placement_group([bundle] * ranks, strategy="STRICT_PACK")
        actors = [
            ray.remote(Rank)
            .options(
                **self._resources,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement, placement_group_bundle_index=rank
                ),
            )
            .remote(self._make, number, (rank, ranks, key), max(1, int(cpus)), self._wire.name)
            for rank in range(ranks)
        ]
        begin_refs = [actor.begin.remote() for actor in actors]
        self._workers.append(Worker(number, placement, actors, begin_refs))
        logger.info("ngd.ray.DiLoCo: worker %d starts", number)

    def _admit(self, num_workers: int) -> None:
        """Wait until `num_workers` workers are ready.

        A worker becomes ready after `Rank.begin` has returned on all its ranks (`_add_worker`).
        Raise WorkerError if the deadline has passed, or if fewer than `num_workers` workers are
        ready or starting. In the second case, workers were lost, and no restart is left to replace
        them.
        """
        limit = time.monotonic() + self._deadline
        while True:
            for worker in [worker for worker in self._workers if not worker.is_ready]:
                begin_refs = worker.begin_refs
                if len(ray.wait(begin_refs, num_returns=len(begin_refs), timeout=0)[0]) == len(
                    begin_refs
                ):
                    results = self._results_of(worker, begin_refs)
                    if results is not None:
                        self._add_worker(worker, results[0])
            num_missing = num_workers - len(self._ready_workers)
            if num_missing <= 0:
                return
            if (
                num_missing > len(self._workers) - len(self._ready_workers)
                or time.monotonic() > limit
            ):
                raise WorkerError(
                    f"ngd.ray.DiLoCo: expected {num_workers} workers; got "
                    f"{len(self._ready_workers)}, and "
                    f"{len(self._workers) - len(self._ready_workers)} that Ray has not placed, or "
                    f"that are not ready, in {self._deadline:g} s. Add hosts, or wait longer by "
                    "deadline="
                )
            time.sleep(POLL_SECONDS)

    def _add_worker(self, worker: Worker, initial_weights: list[Any]) -> None:
        """Mark a new worker as ready for the next round.

        After the first round, the new worker first gets a copy of the attribute `carried` of a
        ready worker: state besides the weights, such as that of the inner optimizer. If the new
        worker is lost before it has stored this state, it does not become ready.
        """
        if self._update is None:
            self._compile(initial_weights)
        for peer in self._ready_workers if self.round else ():
            carried_ref = peer.actors[0].get_carried.remote()
            if self._results_of(peer, [carried_ref]) is None:
                continue  # ask the next worker
            if (
                self._results_of(
                    worker, [actor.set_carried.remote(carried_ref) for actor in worker.actors]
                )
                is None
            ):
                return
            logger.info(
                "ngd.ray.DiLoCo: worker %d got the state of worker %d", worker.number, peer.number
            )
            break
        worker.is_ready = True
        logger.info("ngd.ray.DiLoCo: worker %d is ready", worker.number)

    def _train(self, weights: Any) -> tuple[dict[int, Any], list[Any]]:
        """Let all ready workers train for one round; leave out workers that are lost in the round.

        Return a dict from the number of each worker to the result of its method `train`, and a list
        with the encoded weight change of each worker.
        """
        refs_by_worker = {
            worker: [
                actor.train.options(num_returns=2).remote(self.round, weights)
                for actor in worker.actors
            ]
            for worker in self._ready_workers
        }
        limit = time.monotonic() + self._deadline
        reports: dict[int, Any] = {}
        deltas = []
        for worker, refs in refs_by_worker.items():
            results = self._results_of(worker, [ref for pair in refs for ref in pair], limit)
            if results is not None:
                reports[worker.number] = results[0]
                deltas.append(results[1])
        return reports, deltas

    def _results_of(self, worker: Worker, refs: list[Any], limit: float | None = None) -> Any:
        """Return the values of `refs`, the Ray references to a worker's results.

        If the worker is lost or late, drop it and return None. `limit` is the latest time for the
        results, as a value of `time.monotonic()`. None means now plus the argument `deadline` of
        `DiLoCo`.
        """
        limit = time.monotonic() + self._deadline if limit is None else limit
        try:
            return ray.get(refs, timeout=max(0.0, limit - time.monotonic()))
        except GetTimeoutError:
            self._lose(worker, f"did not answer in {self._deadline:g} s")
        except RayTaskError as error:
            # A CollectiveError means that another rank of this worker is lost.
            if not isinstance(error.cause, CollectiveError):
                raise
            self._lose(worker, str(error.cause))
        except RayError as error:
            self._lose(worker, f"{type(error).__name__}: {error}".partition("\n")[0])
        return None

    def _lose(self, worker: Worker, reason: str) -> None:
        """Drop a worker, and start another one if a restart is left."""
        logger.warning("ngd.ray.DiLoCo: worker %d is lost: %s", worker.number, reason)
        self._end(worker)
        if self._restarts_left > 0:
            self._restarts_left -= 1
            self._start()

    def _end(self, worker: Worker) -> None:
        """Remove a worker, kill its processes, and release its resources in Ray."""
        self._workers.remove(worker)
        for actor in worker.actors:
            with contextlib.suppress(RayError):
                ray.kill(actor)
        with contextlib.suppress(RayError):
            remove_placement_group(worker.placement)


__all__ = ["DiLoCo"]
