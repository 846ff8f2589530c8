# SPDX-License-Identifier: Apache-2.0
"""The training that tests/stress/resume.py kills, made from a drawn scenario."""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ngd
from ngd import checkpoint, data, nn, ops, optim, train
from tests.support import harness

EPOCHS = 4
SAMPLES, FEATURES, CLASSES = 46, 6, 3

SCALE = 2.0**124
"""The first loss scale. After some steps gradients overflow, and updates are skipped."""

HOW = ("compile", "function", "trainer")

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": lambda rate, **how: optim.SGD(rate, momentum=0.9, nesterov=True, **how),
    "SGD plain": lambda rate, **how: optim.SGD(rate, **how),
    "SGD dampened": lambda rate, **how: optim.SGD(rate, momentum=0.9, dampening=0.1, **how),
    "Adam": lambda rate, **how: optim.Adam(rate, amsgrad=True, **how),
    "AdamW": lambda rate, **how: optim.AdamW(rate, weight_decay=0.1, **how),
    "RMSprop": lambda rate, **how: optim.RMSprop(rate, centered=True, momentum=0.5, **how),
    "Adagrad": lambda rate, **how: optim.Adagrad(
        rate, lr_decay=0.1, initial_accumulator_value=0.1, **how
    ),
    "Lion": lambda rate, **how: optim.Lion(rate, weight_decay=0.1, **how),
    "LAMB": lambda rate, **how: optim.LAMB(rate, weight_decay=0.1, **how),
    "LARS": lambda rate, **how: optim.LARS(rate, weight_decay=0.1, **how),
    "Muon": lambda rate, **how: optim.Muon(rate, **how),
}
SCHEDULES: dict[str, Callable[[], Any]] = {
    "number": lambda: 0.02,
    "constant": lambda: optim.constant(0.02),
    "cosine": lambda: optim.cosine(0.05, 15, 0.001),
    "steps": lambda: optim.steps(0.05, {4: 0.5, 9: 0.1}),
    "polynomial": lambda: optim.polynomial(0.05, 15, power=2),
    "warm_up": lambda: optim.warm_up(optim.cosine(0.05, 12), 5),
}
AVERAGES = ("none", "average", "average with warm-up")
SAMPLERS: dict[str, dict[str, bool]] = {
    "shuffled": {},
    "in order": {"shuffle": False},
    "replaced": {"replacement": True},
    "dropped": {"drop_last": True},
}


def draw_scenario(random_: random.Random, number: int) -> dict[str, Any]:
    """Draw a scenario. Its API, optimizer and number of ranks depend on the number of the run."""
    optimizers = [*OPTIMIZERS]
    how, ranks = HOW[number % len(HOW)], 1 + number // len(HOW) % 2
    scenario = {
        "how": how,
        "optimizer": optimizers[number % len(optimizers)],
        "schedule": random_.choice([*SCHEDULES]),
        "average": random_.choice(AVERAGES),
        "scaled": random_.random() < 0.4,
        "clip_norm": random_.choice([None, 0.5]),
        "groups": random_.random() < 0.3,
        "dropout": random_.random() < 0.7,
        "statistics": random_.random() < 0.5,
        "sampler": random_.choice([*SAMPLERS]),
        "workers": random_.choice([0, 0, 0, 1]),
        "batch": random_.choice([8, 10, 23]),
        "every": random_.choice([1, 2, 3]),
        "micro_batches": 1,
        "shard": random_.choice(["none", "none", "host", "world"]) if ranks > 1 else "none",
        "seed": random_.randrange(1000),
    }
    if how != "trainer" and random_.random() < 0.25:
        scenario["micro_batches"] = 2
    return scenario | {"ranks": ranks}


class Training:
    """One training in a new process."""

    def __init__(self, scenario: dict[str, Any], folder: str) -> None:
        self.scenario, self.folder = scenario, folder
        self.world = ngd.init()
        layers: list[Any] = [nn.Linear(FEATURES, 8)]
        layers += [nn.BatchNorm1d(8)] if scenario["statistics"] else []
        layers += [nn.ReLU(), nn.Dropout(0.3) if scenario["dropout"] else nn.Identity()]
        self.model = nn.Sequential(*layers, nn.Linear(8, CLASSES))
        self.random = nn.Random(seed=scenario["seed"])
        self.noise = np.random.default_rng(scenario["seed"])
        self.losses: list[Any] = []
        self._make_optimizers()
        place = {"rank": self.world.rank, "size": self.world.size}
        self.sampler = data.Sampler(
            SAMPLES, scenario["batch"], seed=scenario["seed"], **place,
            **SAMPLERS[scenario["sampler"]],
        )  # fmt: skip
        draws = np.random.default_rng(5)
        x = draws.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
        self.source = data.Arrays(x, draws.integers(0, CLASSES, SAMPLES))
        self.loader = data.Loader(self.source, self.sampler, num_workers=scenario["workers"])
        self._steps: dict[Any, Any] = {}
        self._how = how = {"shard": scenario["shard"]}
        self._function = ngd.function(self._build, updates=True, **how)
        self._adding = ngd.function(self._accumulate, updates=True, **how)

    def _make_optimizers(self) -> None:
        scenario = self.scenario
        rate = SCHEDULES[scenario["schedule"]]()
        self.scale = optim.LossScale(SCALE, growth_interval=3) if scenario["scaled"] else None
        common: dict[str, Any] = {"clip_norm": scenario["clip_norm"]}
        if scenario["groups"]:
            group = optim.ParameterGroup(optim.is_vector, lr_factor=0.5)
            common["groups"] = [group]
        optimizer = OPTIMIZERS[scenario["optimizer"]](rate, loss_scale=self.scale, **common)
        self.optimizers = [optimizer]
        if scenario["optimizer"] == "Muon":  # Muon trains only matrices
            scaled = optim.LossScale(SCALE, name="other", growth_interval=4) if self.scale else None
            self.optimizers.append(optim.AdamW(rate, loss_scale=scaled))
        self.average: optim.ExponentialMovingAverage | None = None
        if scenario["average"] != "none":
            warm_up = scenario["average"] != "average"
            self.average = optim.ExponentialMovingAverage(0.9, warm_up=warm_up)

    def _parts(self) -> list[tuple[optim.Optimizer, list[Any]]]:
        """Return the optimizers, and the parameters of each."""
        parameters = [*self.model.parameters().values()]
        if len(self.optimizers) == 1:
            return [(self.optimizers[0], parameters)]
        matrices = [v for v in parameters if v.ndim == 2]
        vectors = [v for v in parameters if v.ndim < 2]
        return [(self.optimizers[0], matrices), (self.optimizers[1], vectors)]

    def _loss(self, x: Any, y: Any) -> tuple[Any, Any]:
        with nn.training(self.random) as state:
            loss = ops.mean(ops.softmax_cross_entropy(self.model(x), y))
        return loss, state.updates

    def _accumulate(self, x: Any, y: Any, weight: Any) -> Any:
        loss, updates = self._loss(x, y)
        parts = [o.accumulate(loss, vs, weight=weight) for o, vs in self._parts()]
        return [ops.all_reduce(loss, op="mean", weight=weight)], [*parts, updates]

    def _build(self, x: Any, y: Any, weight: Any) -> Any:
        loss, updates = self._loss(x, y)
        micro_batches = self.scenario["micro_batches"]
        all_updates: dict[Any, Any] = {}
        for optimizer, variables in self._parts():
            all_updates |= optimizer.minimize(
                loss, variables, weight=weight, micro_batches=micro_batches
            )
        if self.average is not None:
            all_updates |= self.average.updates(all_updates, self.model.parameters())
        return [ops.all_reduce(loss, op="mean", weight=weight)], [all_updates, updates]

    def _compiled(self, build: Callable[..., Any], x: Any, y: Any) -> Any:
        key = build.__name__, x.shape
        if key not in self._steps:
            placeholders = [ngd.placeholder("x", x.shape), ngd.placeholder("y", y.shape, y.dtype)]
            placeholders.append(ngd.placeholder("weight", ()))
            results, updates = build(*placeholders)
            self._steps[key] = ngd.compile(placeholders, results, updates, **self._how)
        return self._steps[key]

    def step(self, x: Any, y: Any, weight: float, *, is_last: bool = True) -> float:
        """Make a step, or accumulate a micro-batch."""
        build, function = self._build, self._function
        if not is_last:
            build, function = self._accumulate, self._adding
        share = np.float32(weight)
        if self.scenario["how"] == "compile":
            return float(self._compiled(build, x, y)(x, y, share)[0])
        return float(function(x, y, share)[0])

    @property
    def states(self) -> list[Any]:
        """Return the live states."""
        average = [] if self.average is None else [self.average.state]
        return [self.random.state, *average, *(each.state for each in self.optimizers)]

    @property
    def is_collective(self) -> bool:
        """Return if all ranks save together, and rank 0 writes."""
        return self.scenario["statistics"] or self.scenario["shard"] == "world"

    @property
    def save_arguments(self) -> dict[str, Any]:
        """Return the arguments of checkpoint.save."""
        return {
            "variables": [self.model.parameters(), self.states],
            "private": self.model.buffers() if self.is_collective else None,
            "generators": {"noise": self.noise},
        }

    def run(self) -> None:
        """Train to the end, from the checkpoint if there is one."""
        if self.scenario["how"] == "trainer":
            self._run_trainer()
        else:
            self._run_loop()
        self.loader.close()

    def _run_loop(self) -> None:
        every, micro_batches = self.scenario["every"], self.scenario["micro_batches"]
        if checkpoint.exists(self.folder):
            position = checkpoint.load(self.folder, **self.save_arguments)
            self.sampler.load_state(position["sampler"])
            self.losses = position["losses"]
        while self.sampler.epoch < EPOCHS:
            for batch in self.loader:
                (x, y), weight = batch, batch.weight
                x = x * np.float32(self.noise.uniform(0.9, 1.1))
                done = self.sampler.done
                is_last = done % micro_batches == 0
                self.losses.append(self.step(x, y, weight, is_last=is_last))
                if is_last and done // micro_batches % every == 0:
                    self.save()
        self.save()

    def save(self) -> None:
        """Replace the checkpoint. If all ranks have equal values, rank 0 saves."""
        position = {"sampler": self.sampler.state(), "losses": self.losses}
        if self.is_collective or self.world.rank == 0:
            checkpoint.save(self.folder, **self.save_arguments, position=position)
        if not self.is_collective:
            ngd.barrier()  # a rank that is ahead must not save into the folder, too

    def _run_trainer(self) -> None:
        save_arguments = self.save_arguments
        log = Path(self.folder) / "log"

        def step(x: Any, y: Any) -> list[float]:
            return [self.step(x, y, len(x))]

        def evaluate() -> dict[str, float]:
            if self.average is None:
                return {}
            with self.average.applied():
                values = self.model.state_dict().values()
                return {"norm": float(sum(np.abs(value).sum() for value in values))}

        trainer = train.Trainer(
            step, self.loader, save_arguments["variables"], epochs=EPOCHS, evaluate=evaluate,
            model=self.model if self.scenario["statistics"] else None, save=self.folder,
            every=self.scenario["every"], resume=True, log=log, progress=False,
        )  # fmt: skip
        trainer.run()
        if self.world.rank == 0:
            self.losses = [json.loads(line) for line in (log / train.LOG).read_text().splitlines()]

    def _variables(self) -> dict[str, Any]:
        variables = {v.name: v for v in self.model.variables().values()}
        for state in self.states:
            variables |= state.variables
        return variables

    def values(self) -> dict[str, Any]:
        """Return all values that must be equal at the end."""
        values_by_name: dict[str, Any] = {name: v.numpy() for name, v in self._variables().items()}
        for state in self.states:
            values_by_name |= state.pending  # if nothing was left to train
        values_by_name |= {"losses": self.losses, "position": self.sampler.state()}
        return values_by_name | {"noise": self.noise.bit_generator.state}


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names of the values whose bits differ between two trainings."""

    def is_equal(a: Any, b: Any) -> bool:
        if isinstance(a, np.ndarray):
            return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)

    only_one = one.keys() ^ other.keys()
    both = one.keys() & other.keys()
    return sorted([*only_one, *(name for name in both if not is_equal(one[name], other[name]))])


def die_in_a_save(number: int, where: str) -> None:
    """Kill this process at call `number` of `where`, in the middle of a save."""
    remaining = [number]

    def die() -> None:
        remaining[0] -= 1
        if remaining[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if where == "write":
        parts = checkpoint.safetensors

        def dying(values: Any) -> Iterator[Any]:
            for part in parts(values):
                die()
                yield part

        checkpoint.safetensors = dying
        return
    call = getattr(os, where.removeprefix("after "))

    def wrapped(*args: Any, **named: Any) -> Any:
        if not where.startswith("after"):
            die()
        result = call(*args, **named)
        if where.startswith("after"):
            die()
        return result

    setattr(os, call.__name__, wrapped)


def train_and_compare(
    scenario: dict[str, Any], folder: str, victim: int, number: int, where: str
) -> list[str]:
    """Run the training of a rank from its checkpoint to the end, and once more without a kill.

    Returns the names of the values that differ between both.
    """
    ngd.init()
    harness.say("begun")
    if where and ngd.init().rank == victim:
        die_in_a_save(number, where)
    resumed = Training(scenario, folder)
    if checkpoint.exists(folder):
        harness.say("resumes")
    resumed.run()
    harness.say("finished")
    with tempfile.TemporaryDirectory() as other:
        names = ngd.all_gather(np.frombuffer(other.encode().ljust(256), np.uint8)[None])
        shared = bytes(names[0]).decode().strip()
        straight = Training(scenario, shared)
        straight.run()
        ngd.barrier()
    return differences(resumed.values(), straight.values())
