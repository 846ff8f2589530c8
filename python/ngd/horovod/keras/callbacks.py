# SPDX-License-Identifier: Apache-2.0
"""Callbacks for `model.fit` on several ranks. They correspond to `horovod.keras.callbacks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from .. import numpy as arrays
from ..world import ProcessSet, global_process_set, rank, size
from .training import broadcast_variables

SEEDS = "seed_generator_state"
"""The name of every seed variable of Keras. Each random layer has such a variable.

The callbacks do not copy seed variables between ranks.
"""


def sync_jax_state(model: Any) -> None:
    """Copy weights, optimizer state and metrics into the model's variables, on Keras's JAX backend.

    During an epoch, this backend keeps the current values in arrays outside of the variables. After
    the copy, a callback can read and change the variables, and the next step starts from the
    variables. On the other backends, do nothing: the variables have the current values.
    """
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """A callback that copies the model and the optimizer of one rank to all ranks.

    The copy is made when the training starts. If the model has no variables then, it is made after
    the first batch. Each rank keeps its own seeds of random layers.

    Corresponds to `horovod.keras.callbacks.BroadcastGlobalVariablesCallback`.

    Parameters
    ----------
    root_rank : int
        The rank of the world whose values are copied.
    device : str
        Ignored.
    local_variables : sequence of keras.Variable, optional
        Variables that are not copied.
    process_set : ProcessSet
        The ranks; by default the world.
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
        """Exclude a variable from those that the callback copies."""
        self.local.add(id(var))

    def on_train_begin(self, logs: Any = None) -> None:
        """Copy the variables, if the model already has variables."""
        self.done = False
        if self.model.built:
            self.send()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Copy the variables after the first batch, if `on_train_begin` has not copied them."""
        if not self.done:
            self.send()

    def send(self) -> None:
        """Overwrite the variables of model and optimizer on all ranks by those of `root_rank`.

        If the optimizer has no variables yet, they are created first. Seeds of random layers and
        the excluded variables keep their values.
        """
        model, self.done = self.model, True
        sync_jax_state(model)
        if not self.process_set.included():
            return
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        optimizer_variables = [] if model.optimizer is None else model.optimizer.variables
        by_id = {id(v): v for v in (*model.variables, *optimizer_variables)}
        shared = [v for v in by_id.values() if id(v) not in self.local and v.name != SEEDS]
        broadcast_variables(shared, self.root_rank, self.process_set)


class MetricAverageCallback(keras.callbacks.Callback):
    """A callback that averages the metrics over the ranks at the end of each epoch.

    Put it before callbacks that read the metrics.

    Corresponds to `horovod.keras.callbacks.MetricAverageCallback`.

    Parameters
    ----------
    device : str
        Ignored.
    process_set : ProcessSet
        The ranks; by default the world.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replace the metrics in `logs` by their averages over the ranks."""
        if logs:
            names = sorted(logs)
            mine = np.array([float(logs[name]) for name in names])
            means = arrays.allreduce(mine, process_set=self.process_set)
            logs.update(zip(names, means.tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """A callback that sets the learning rate to `initial_lr * multiplier(epoch)`.

    Corresponds to `horovod.keras.callbacks.LearningRateScheduleCallback`.

    Parameters
    ----------
    initial_lr : float
        The learning rate that is multiplied by the factor of `multiplier`.
    multiplier : callable or float
        A function of the epoch that returns a factor. If it is a number m, the factor is
        `m ** (epoch - start_epoch)`.
    start_epoch : int
        The first epoch in which the callback sets the learning rate.
    end_epoch : int, optional
        The first epoch in which the callback no longer sets it. By default, the callback sets it
        until the training ends.
    staircase : bool
        If True, the learning rate is set once per epoch. If False, it is set before each batch, and
        `multiplier` gets a fractional epoch.
    momentum_correction : bool
        Ignored: the momentum stays unchanged, because Keras 3 compiles its value into the training
        function.
    steps_per_epoch : int, optional
        The number of batches per epoch. It is needed if Keras cannot determine it.
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
        """Set the learning rate of the epoch, if `staircase` is True."""
        self.epoch = epoch
        if self.staircase:
            self.set_rate(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate of the batch, if `staircase` is False."""
        if self.staircase:
            return
        self.set_rate(self.epoch + batch / self.steps())

    def steps(self) -> int:
        """Return the number of batches per epoch."""
        steps = self.steps_per_epoch or (self.params or {}).get("steps")
        if not steps:
            raise ValueError(
                "hvd.callbacks: steps_per_epoch: expected a number; got none, and Keras does not "
                "know the length of the data. Give steps_per_epoch."
            )
        return int(steps)

    def set_rate(self, epoch: float) -> None:
        """Set the learning rate to `initial_lr * multiplier(epoch)`; `epoch` may be fractional.

        If `epoch` is less than `start_epoch`, or at least `end_epoch`, leave the learning rate
        unchanged.
        """
        sync_jax_state(self.model)
        if epoch >= self.start_epoch and (self.end_epoch is None or epoch < self.end_epoch):
            self.model.optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the learning rate to `logs`, as "lr"."""
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """A callback that raises the learning rate linearly to `initial_lr` in the first epochs.

    The first batch gets about `initial_lr` divided by the number of ranks.

    P. Goyal et al. 2017, Accurate, Large Minibatch SGD (arXiv:1706.02677), section 2.2.

    Corresponds to `horovod.keras.callbacks.LearningRateWarmupCallback`.

    Parameters
    ----------
    initial_lr : float
        The learning rate after the warmup. Usually it is `hvd.size()` times the learning rate that
        suits a training with one process.
    warmup_epochs : int
        The number of epochs of the warmup.
    momentum_correction : bool
        Ignored: the momentum stays unchanged, because Keras 3 compiles its value into the training
        function.
    steps_per_epoch : int, optional
        The number of batches per epoch. It is needed if Keras cannot determine it.
    verbose : int
        If it is greater than 0, rank 0 prints a line when the warmup ends.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def warmup(epoch: float) -> float:
            progress = epoch + 1.0 / self.steps()  # the last batch of the warmup gets initial_lr
            return (progress * (size() - 1) / warmup_epochs + 1) / size()

        super().__init__(
            initial_lr,
            warmup,
            end_epoch=warmup_epochs,
            staircase=False,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the learning rate to `logs`, and print a line after the last epoch of the warmup."""
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
