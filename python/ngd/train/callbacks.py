# SPDX-License-Identifier: Apache-2.0
"""Callbacks of the trainer: the base class and early stopping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from .._util.signature_errors import check_constructor
from .callback_hooks import empty_hook
from .trainer import Trainer

MODES: Final = ("min", "max")


class Callback:
    """The base class of callbacks of a Trainer. Override `on_step`, `on_epoch` or both.

    A callback need not derive from this class. All ranks call the callbacks of their trainer after
    the same steps, so a callback may use collectives. The results may differ between ranks: if one
    rank returns True, all ranks end after the same step.

    If a callback has the methods `state()` and `load_state(state)`, a checkpoint keeps its state.
    `state()` returns a value that JSON can hold. The checkpoint has the state of rank 0, and
    `load_state` gets it on every rank when the training resumes. The key of the state in the
    checkpoint is the name of the class and an index among the callbacks of this class, such as
    "EarlyStopping.0" for the first EarlyStopping.

    Examples
    --------
    >>> import numpy as np
    >>> from ngd import data, train
    >>> class StopAtLoss(train.Callback):
    ...     def __init__(self, limit):
    ...         self.limit = limit
    ...
    ...     def on_step(self, trainer, loss):
    ...         return loss < self.limit
    >>> loader = data.Loader(data.Arrays(np.zeros(8)), data.Sampler(8, 2))
    >>> losses = iter([0.9, 0.5, 0.1, 0.05])
    >>> trainer = train.Trainer(
    ...     lambda x: [next(losses)], loader, [], epochs=9, callbacks=[StopAtLoss(0.2)],
    ...     progress=False,
    ... )
    >>> trainer.run()["steps"]
    3
    """

    @empty_hook
    def on_step(self, trainer: Trainer, loss: float) -> bool | None:
        """Act after a step.

        Parameters
        ----------
        trainer : Trainer
            The trainer. `trainer.done` is the number of steps.
        loss : float
            The mean loss of the step over all ranks.

        Returns
        -------
        bool or None
            True ends the training on all ranks after this step.
        """
        return None

    @empty_hook
    def on_epoch(self, trainer: Trainer, results: Mapping[str, float]) -> bool | None:
        """Act after an epoch and its evaluation, before the checkpoint is saved.

        Parameters
        ----------
        trainer : Trainer
            The trainer. `trainer.epoch` is the number of finished epochs.
        results : mapping of str to float
            The results of the evaluation, empty without one.

        Returns
        -------
        bool or None
            True ends the training on all ranks after this epoch.
        """
        return None


class EarlyStopping(Callback):
    """A callback that ends the training when a result of the evaluation no longer improves.

    Parameters
    ----------
    monitor : str
        The name of the result, as the trainer's `evaluate` returns it.
    patience : int, default 3
        The number of epochs without an improvement after which the training ends, at least 1.
    min_delta : float, default 0
        A result is an improvement if it is better than the best one by more than this number.
    mode : {"min", "max"}, default "min"
        "min" if a lower result is better, and "max" if a higher result is better.

    Attributes
    ----------
    best : float or None
        The best result so far.
    num_epochs_without_improvement : int
        The number of epochs since the best result.

    Raises
    ------
    TypeError
        An unknown argument.
    ValueError
        A number is out of range, or the mode is unknown.

    Notes
    -----
    NaN does not count as an improvement. The state is part of the checkpoint, so that a resumed
    training ends after the same epoch.

    Examples
    --------
    >>> import numpy as np
    >>> from ngd import data, train
    >>> loader = data.Loader(data.Arrays(np.zeros(8)), data.Sampler(8, 2))
    >>> losses = iter([0.9, 0.5, 0.6, 0.7, 0.4])
    >>> trainer = train.Trainer(
    ...     lambda x: [0.0], loader, [], epochs=5, progress=False,
    ...     evaluate=lambda: {"loss": next(losses)},
    ...     callbacks=[train.EarlyStopping("loss", patience=2)],
    ... )
    >>> trainer.run()["loss"], trainer.epoch
    (0.7, 4)
    """

    @check_constructor("train.EarlyStopping")
    def __init__(
        self, monitor: str, *, patience: int = 3, min_delta: float = 0.0, mode: str = "min"
    ) -> None:
        if patience < 1:
            raise ValueError(f"train.EarlyStopping: patience: expected 1 or more; got {patience}.")
        if not 0 <= min_delta < math.inf:
            raise ValueError(
                f"train.EarlyStopping: min_delta: expected a number >= 0; got {min_delta}."
            )
        if mode not in MODES:
            raise ValueError(
                f"train.EarlyStopping: mode: expected 'min' or 'max'; got {mode!r}. Write 'max' if "
                "a higher result is better."
            )
        self.monitor, self.patience, self.min_delta, self.mode = monitor, patience, min_delta, mode
        self.best: float | None = None
        self.num_epochs_without_improvement = 0

    def on_epoch(self, trainer: Trainer, results: Mapping[str, float]) -> bool:
        """Return True if the training should end.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        results : mapping of str to float
            The results of the evaluation.

        Returns
        -------
        bool
            True if the last `patience` epochs had no improvement.

        Raises
        ------
        ValueError
            The evaluation has no result of the name `monitor`.
        """
        if self.monitor not in results:
            known = ", ".join(results) or "no results"
            raise ValueError(
                f"train.EarlyStopping: monitor: expected a result of the evaluation, {known}; got "
                f"{self.monitor!r}. Return it from the trainer's `evaluate`."
            )
        value = results[self.monitor]
        if self._is_better(value):
            self.best, self.num_epochs_without_improvement = value, 0
        else:
            self.num_epochs_without_improvement += 1
        return self.num_epochs_without_improvement >= self.patience

    def _is_better(self, value: float) -> bool:
        """Return True if a result is better than the best one so far by more than `min_delta`.

        If there is no best result yet, any result except NaN is better. NaN is never better.
        """
        if self.best is None:
            return not math.isnan(value)
        change = value - self.best if self.mode == "max" else self.best - value
        return change > self.min_delta

    def state(self) -> dict[str, Any]:
        """Return the best result and the number of epochs since that result, for a checkpoint.

        Returns
        -------
        dict
            Values that JSON can hold.

        Examples
        --------
        >>> from ngd import train
        >>> train.EarlyStopping("loss").state()
        {'best': None, 'num_epochs_without_improvement': 0}
        """
        names = ("best", "num_epochs_without_improvement")
        return {name: getattr(self, name) for name in names}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the best value and the number of epochs without improvement.

        Parameters
        ----------
        state : mapping
            A result of `state()`.

        Examples
        --------
        >>> from ngd import train
        >>> stopping = train.EarlyStopping("loss")
        >>> stopping.load_state({"best": 0.5, "num_epochs_without_improvement": 1})
        >>> stopping.best
        0.5
        """
        self.best = state["best"]
        self.num_epochs_without_improvement = state["num_epochs_without_improvement"]
