# SPDX-License-Identifier: Apache-2.0
"""Callbacks of `model.fit` for ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from .. import numpy as arrays
from ..world import ProcessSet, global_process_set, rank, size
from .training import broadcast_variables

SEEDS = "seed_generator_state"
"""What Keras calls the state of a random layer."""


def bring_back(model: Any) -> None:
    """On JAX, put into the variables what the steps of this epoch have made; they go on from it."""
    bring = getattr(model, "jax_state_sync", None)
    if bring is not None:
        bring()


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Give all ranks the model and the optimizer of one, when training begins.

    Where the model has no variables yet, after its first batch. The seeds of random layers stay
    each rank's own.

    Parameters
    ----------
    root_rank
        The rank that has the values.
    device
        Nothing.
    local_variables
        Variables that stay each rank's own.
    process_set
        The ranks.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Any = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        self.root_rank, self.process_set = root_rank, process_set
        self.local = {id(variable) for variable in local_variables or ()}
        self.done = False

    def register_local_var(self, var: Any) -> None:
        """Let a variable stay each rank's own."""
        self.local.add(id(var))

    def on_train_begin(self, logs: Any = None) -> None:
        """Overwrite what the model has."""
        self.done = False
        if self.model.built:
            self.send()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Do so after the first batch, if nothing was there before."""
        if not self.done:
            self.send()

    def send(self) -> None:
        """Broadcast."""
        model, self.done = self.model, True
        bring_back(model)
        if not self.process_set.included():
            return
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        of_optimizer = [] if model.optimizer is None else model.optimizer.variables
        there = {id(v): v for v in (*model.variables, *of_optimizer)}
        shared = [v for v in there.values() if id(v) not in self.local and v.name != SEEDS]
        broadcast_variables(shared, self.root_rank, self.process_set)


class MetricAverageCallback(keras.callbacks.Callback):
    """Average the metrics over the ranks at the end of each epoch; put it before their readers."""

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Overwrite the numbers in `logs`."""
        if logs:
            names = sorted(logs)
            mine = np.array([float(logs[name]) for name in names])
            means = arrays.allreduce(mine, process_set=self.process_set)
            logs.update(zip(names, means.tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Set the learning rate to `initial_lr * multiplier(epoch)`.

    Parameters
    ----------
    initial_lr
        Of one process.
    multiplier
        A function of the epoch; or a number, whose powers are taken.
    start_epoch, end_epoch
        Where it holds: from the first, and before the second.
    staircase
        Whether the rate changes once an epoch; else each batch, with epochs as fractions.
    momentum_correction
        Nothing: Keras 3 compiles the momentum into the step.
    steps_per_epoch
        Needed where Keras does not know it.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr, self.staircase = initial_lr, staircase
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.steps_per_epoch = steps_per_epoch
        self.epoch = 0
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            self.multiplier = lambda epoch: multiplier ** (epoch - start_epoch)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set the rate, in steps of an epoch."""
        self.epoch = epoch
        if self.staircase:
            self.set_rate(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate, in steps of a batch."""
        if self.staircase:
            return
        self.set_rate(self.epoch + batch / self.steps())

    def steps(self) -> int:
        """The batches of an epoch."""
        steps = self.steps_per_epoch or (self.params or {}).get("steps")
        if not steps:
            raise ValueError(
                "hvd.callbacks: steps_per_epoch: expected a number; got none, and Keras does not "
                "know the length of the data. Give steps_per_epoch."
            )
        return int(steps)

    def set_rate(self, epoch: float) -> None:
        """Set the rate, where the callback holds."""
        bring_back(self.model)
        if epoch >= self.start_epoch and (self.end_epoch is None or epoch < self.end_epoch):
            self.model.optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Tell the rate."""
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Let the learning rate rise from that of one process to `initial_lr`.

    P. Goyal et al. 2017, Accurate, Large Minibatch SGD (arXiv:1706.02677), section 2.2.

    Parameters
    ----------
    initial_lr
        At the end: of all processes together, usually theirs times `hvd.size()`.
    warmup_epochs
        How long it rises.
    verbose
        1: print when it has risen.
    momentum_correction, steps_per_epoch
        As of `LearningRateScheduleCallback`.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def risen(epoch: float) -> float:
            reached = epoch + 1.0 / self.steps()  # so that the last batch has the whole rate
            return (reached * (size() - 1) / warmup_epochs + 1) / size()

        super().__init__(
            initial_lr,
            risen,
            end_epoch=warmup_epochs,
            staircase=False,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Say that it has risen."""
        super().on_epoch_end(epoch, logs)
        if (
            self.end_epoch is not None
            and epoch == self.end_epoch - 1
            and self.verbose > 0
            and rank() == 0
        ):
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
