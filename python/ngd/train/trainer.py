# SPDX-License-Identifier: Apache-2.0
"""The training loop: steps, evaluation, checkpoints, logs and callbacks.

    trainer = train.Trainer(
        step, loader, [model.variables(), optimizer.state], epochs=90, model=model,
        evaluate=lambda: {"accuracy": train.evaluate(accuracy, test_loader)[0]},
        callbacks=[train.EarlyStopping("accuracy", mode="max", patience=5)],
        save="checkpoints", resume=True, log="log",
    )
    report = trainer.run()

All ranks call `run`. Rank 0 writes the files.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from .. import checkpoint, metrics
from .._util.signature_errors import check_constructor, format_value
from ..comm.calls import all_reduce
from ..errors import NotFiniteError
from ..graph.live_state import LiveState
from ..graph.variable import Variable
from .callback_hooks import CALLBACKS, callback_states, check_callbacks, has_hook, load_callbacks
from .stop_signals import StopSignals

NUM_REPORTED_LOSSES: Final = 50
"""The number of last steps over which the loss in the report is averaged."""

LOG: Final = "log.jsonl"
"""The name of the log file: one line of JSON per step and per evaluation.

The argument `log` of Trainer gives the folder of this file.
"""


def evaluate(metric: Callable[..., Any], loader: Any, *, group: Any = None) -> list[float]:
    """Return the means of metrics over all samples of a loader, on all ranks.

    All ranks of the group must call it, including ranks that have no sample.

    Parameters
    ----------
    metric : callable
        A function of the arrays of a batch. It returns a scalar or a sequence of scalars, each a
        mean over the samples of the batch. A compiled step with scalar outputs is such a
        function.
    loader : Loader
        The batches. The call always starts at the first batch of the current epoch of the loader.
    group : Group, optional
        The ranks. The default is the world.

    Returns
    -------
    list of float
        One mean per scalar, equal on all ranks. A batch is weighted by its number of samples.

    Raises
    ------
    TypeError
        The metric cannot be called or does not return scalars, or the loader has no sampler.

    Examples
    --------
    >>> import numpy as np
    >>> from ngd import data, train
    >>> loader = data.Loader(data.Arrays(np.arange(5.0)), data.Sampler(5, 2, shuffle=False))
    >>> train.evaluate(lambda x: [np.mean(x), np.mean(x**2)], loader)
    [2.0, 6.0]
    """
    if not callable(metric) or not hasattr(loader, "sampler"):
        raise TypeError(
            "train.evaluate: expected a function and a data.Loader; got "
            f"{type(metric).__name__} and {type(loader).__name__}. Write "
            "train.evaluate(metric, loader)."
        )
    # Restart the epoch: an evaluation that raised an exception may have left it half done.
    loader.sampler.done -= loader.sampler.step
    sums: Any = 0.0
    count = 0
    for batch in loader:
        values = scalars_in(metric(*batch))
        sums = sums + (batch.weight * values if batch.weight else np.zeros_like(values))
        count += batch.total
    means = all_reduce(sums, op="sum", group=group) / count
    return [float(mean) for mean in means]


def scalars_in(result: Any) -> np.ndarray[Any, Any]:
    """Return the scalars that a metric has returned, one or a sequence, as an array."""
    try:
        return np.array([float(value) for value in items_of(result)])
    except (TypeError, ValueError):
        raise TypeError(
            "train.evaluate: metric: expected a function that returns a scalar or a sequence of "
            f"scalars; got {format_value(result)}. Return means over the batch, such as "
            "[accuracy]."
        ) from None


def _check_schedule(epochs: int, every: int | None, save: Any, needs_save: bool) -> None:
    """Raise ValueError if `epochs` or `every` is out of range, or `save` is None but needed.

    `every` is the number of steps between two checkpoints. `needs_save` is True if another argument
    of Trainer needs the folder `save`.
    """
    if epochs < 0:
        raise ValueError(f"train.Trainer: epochs: expected 0 or more; got {epochs}.")
    if every is not None and every < 1:
        raise ValueError(f"train.Trainer: every: expected 1 or more steps; got {every}.")
    if save is None and needs_save:
        raise ValueError(
            "train.Trainer: expected save, a folder to save to, for resume, every and stop_at; "
            'got None. Write save="checkpoints".'
        )


class Trainer:
    """A training loop: steps, evaluation, checkpoints, logs and callbacks.

    If the step weights the loss of each rank by its number of samples, the mean loss over the ranks
    is the mean over the batch, for any number of ranks. All ranks construct the trainer and call
    its methods.

    Parameters
    ----------
    step : callable
        A function of the arrays of a batch. It returns the mean loss over all ranks, or a sequence
        whose first item is the loss. A compiled step and an `@ngd.function` are such functions.
    loader : Loader
        The training batches. Its sampler holds the position in the training.
    variables : structure of variables
        The contents of a checkpoint, in any nested structure: the model's variables, and LiveState
        objects such as `optimizer.state`. A LiveState is a mapping of names to variables, to which
        its owner (here the optimizer) may add variables in the first step.
    epochs : int
        The number of epochs of the whole training.
    evaluate : callable, optional
        A function without arguments, called after each epoch. It returns a mapping of names to
        numbers, the same on all ranks.
    callbacks : sequence of Callback, optional
        Objects with a method `on_step`, `on_epoch` or both, the same on all ranks. The training
        ends if one of them returns True on any rank. See Callback.
    model : nn.Module, optional
        A module with buffers that differ between ranks, for example the statistics of batch
        normalization. A checkpoint keeps the buffers of every rank. An evaluation uses their mean.
    save : path, optional
        The folder of the checkpoint, which is replaced after each epoch and at the end.
    every : int, optional
        Also save every `every` steps.
    resume : bool, default False
        Continue from the checkpoint in `save`, if there is one.
    log : path, optional
        A folder. log.jsonl in it gets one line of JSON per step and per evaluation. If tensorboardX
        is installed, TensorBoard's files are written too.
    progress : bool, default True
        Show a progress bar on rank 0, if tqdm is installed.
    stop_at : sequence of int, optional
        Signals, the same on all ranks. If any rank receives one, all ranks end after the same step,
        save, and return from `run`. A signal during an evaluation takes effect after it.

    Attributes
    ----------
    done : int
        The number of steps, in all runs.
    epoch : int
        The number of finished epochs, in all runs.
    stopped : signal.Signals or None
        The signal that ended the last run.
    has_stopped_early : bool
        True if a callback or `stop()` ended the last run.
    losses : list of float
        The losses of the last 50 steps.
    results : dict
        The results of the last evaluation.

    Raises
    ------
    TypeError
        An unknown argument, or a callback without `on_step` and `on_epoch`.
    ValueError
        A number is out of range, or `save` is missing although another argument needs it. Or the
        checkpoint does not match `variables`; see ngd.checkpoint.load.

    Notes
    -----
    With callbacks that have `on_step`, or with `stop_at`, each step has one more all-reduce of two
    integers.

    Examples
    --------
    >>> import numpy as np
    >>> import ngd
    >>> from ngd import data, ops, optim, train
    >>> w = ngd.variable("w", np.zeros(2, np.float32))
    >>> optimizer = optim.SGD(0.1)
    >>> @ngd.function(updates=True)
    ... def step(x, y):
    ...     loss = ops.mean(ops.square(ops.sum(x * w, 1) - y))
    ...     return [ops.all_reduce(loss, op="mean")], optimizer.minimize(loss, [w])
    >>> x = np.eye(2, dtype=np.float32)[[0, 1] * 8]
    >>> source = data.Arrays(x, x @ np.array([1.0, 2.0], np.float32))
    >>> loader = data.Loader(source, data.Sampler(len(source), batch_size=8))
    >>> trainer = train.Trainer(step, loader, [w, optimizer.state], epochs=20, progress=False)
    >>> report = trainer.run()
    >>> report["steps"], np.round(w.numpy(), 1).tolist()
    (40, [1.0, 2.0])
    """

    @check_constructor("train.Trainer")
    def __init__(
        self,
        step: Callable[..., Any],
        loader: Any,
        variables: Any,
        *,
        epochs: int,
        evaluate: Callable[[], Mapping[str, float]] | None = None,
        callbacks: Sequence[Any] = (),
        model: Any = None,
        save: str | os.PathLike[str] | None = None,
        every: int | None = None,
        resume: bool = False,
        log: str | os.PathLike[str] | None = None,
        progress: bool = True,
        stop_at: Sequence[int] = (),
    ) -> None:
        _check_schedule(epochs, every, save, bool(resume or every or stop_at))
        self.step, self.loader, self.variables, self.epochs = step, loader, variables, epochs
        self.evaluate, self.model, self.save_to, self.every = evaluate, model, save, every
        self.callbacks = check_callbacks(callbacks)
        self.is_first = loader.sampler.rank == 0
        self.progress = progress
        self.stopped: signal.Signals | None = None
        self.has_stopped_early = False
        self.losses: list[float] = []
        self.results: dict[str, float] = {}
        self._signals = StopSignals(*stop_at)
        self._must_stop = False
        self._agrees_each_step = bool(stop_at) or any(
            has_hook(callback, "on_step") for callback in self.callbacks
        )
        if resume and save is not None and checkpoint.exists(save):
            position = checkpoint.load(save, **self._saved())
            loader.sampler.load_state(position)
            load_callbacks(self.callbacks, position)
        self.log_to = log if self.is_first else None
        self._states: list[LiveState] = []
        self._not_finite: set[str] = set()
        if save is not None:
            variables_by_name, self._states = checkpoint.collect_variables("save", **self._saved())
            values = checkpoint.with_pending_values("save", variables_by_name, self._states)
            self._not_finite = {name for name, v in values.items() if not is_finite(v)}

    @property
    def done(self) -> int:
        """The number of steps so far, in this run and in earlier runs of the training."""
        return int(self.loader.sampler.done)

    @property
    def epoch(self) -> int:
        """The number of finished epochs, in this run and in earlier runs of the training."""
        return int(self.loader.sampler.epoch)

    def stop(self) -> None:
        """End the training on all ranks after the current step or epoch.

        Any rank may call it, for example in a callback. All ranks end after the same step, save,
        and return from `run`. If `stop_at` is given or a callback has `on_step`, the ranks agree on
        a stop after each step. Otherwise they agree after each epoch, so the training ends after
        the current epoch.

        Examples
        --------
        >>> import numpy as np
        >>> from ngd import data, train
        >>> loader = data.Loader(data.Arrays(np.zeros(8)), data.Sampler(8, 2))
        >>> class Limit(train.Callback):
        ...     def on_step(self, trainer, loss):
        ...         if trainer.done == 3:
        ...             trainer.stop()
        >>> trainer = train.Trainer(
        ...     lambda x: [0.5], loader, [], epochs=5, callbacks=[Limit()], progress=False
        ... )
        >>> trainer.run()["steps"], trainer.has_stopped_early
        (3, True)
        """
        self._must_stop = True

    def run(self) -> dict[str, Any]:  # long because the results are described
        """Train until the end of the last epoch, or until the training is stopped.

        Returns
        -------
        dict
            "steps", the number of steps in all runs; "loss", the mean of the last 50 losses, or
            None without a step; "samples_per_s", or None without a step; and the results of the
            last evaluation.

        Raises
        ------
        NotFiniteError
            The loss, or a variable to be saved, is NaN or infinite. The last checkpoint is kept.
            With NGD_CHECK_FINITE=1 the step names the op with the first such value.
        ValueError
            A batch has fewer samples than there are ranks. Or, after the first step, the values
            that were loaded into a LiveState (a mapping of variables, such as `optimizer.state`) do
            not match its variables: a value has no variable, or a variable has no value.
        TypeError
            The step did not return a loss, or a callback did not return True, False or None.

        Examples
        --------
        >>> import numpy as np
        >>> from ngd import data, train
        >>> loader = data.Loader(data.Arrays(np.zeros(8)), data.Sampler(8, 2))
        >>> trainer = train.Trainer(lambda x: [0.5], loader, [], epochs=2, progress=False)
        >>> report = trainer.run()
        >>> report["steps"], report["loss"]
        (8, 0.5)
        """
        sampler, first_step, seconds = self.loader.sampler, self.done, 0.0
        self.stopped, self.has_stopped_early, self._must_stop = None, False, False
        with self._signals, contextlib.closing(Log(self.log_to, self.done)) as log:
            while sampler.epoch < self.epochs and not self._is_stopped:
                start = time.perf_counter()
                self._run_epoch(sampler.epoch + 1, log)
                seconds += time.perf_counter() - start
                is_complete = sampler.step == 0
                if is_complete and not self._is_stopped:
                    if self.evaluate is not None:
                        with self._averaged():
                            self.results = {name: float(n) for name, n in self.evaluate().items()}
                        log.write(self.done, sampler.epoch, self.results)
                    self._call("on_epoch", self.results)
                self.save()
                if sampler.epoch < self.epochs and not self._is_stopped:
                    self._agree_on_stop()
        samples = (self.done - first_step) * sampler.batch_size
        return {
            "steps": self.done,
            "loss": float(np.mean(self.losses)) if self.losses else None,
            "samples_per_s": samples / seconds if samples else None,
            **self.results,
        }

    @property
    def _is_stopped(self) -> bool:
        """True if a signal, a callback or `stop()` has ended the run."""
        return self.stopped is not None or self.has_stopped_early

    def _run_epoch(self, number: int, log: Log) -> None:
        """Run the steps from the position of the loader's sampler to the end of the epoch.

        Return earlier if the training is stopped. `number` is the number of the epoch, from 1.
        """
        with progress_bar(self.loader, f"epoch {number}", self.is_first and self.progress) as bar:
            for batch in bar:
                size = self.loader.sampler.size
                if batch.total < size:
                    raise ValueError(
                        f"train.Trainer: expected a sample for each of {size} ranks; got a batch "
                        f"of {batch.total}. Write data.Sampler(..., drop_last=True)."
                    )
                loss = loss_in(self.step(*batch))
                metrics.count(examples=int(batch.weight))
                if not math.isfinite(loss):
                    raise NotFiniteError(
                        f"train.Trainer: expected a finite loss; got {loss} in step {self.done}. "
                        "Run again with NGD_CHECK_FINITE=1: the step then names the op with the "
                        "first NaN or infinity."
                    )
                self.losses = [*self.losses[1 - NUM_REPORTED_LOSSES :], loss]
                log.write(self.done, number, {"training_loss": loss})
                self._call("on_step", loss)
                # At the end of an epoch `run` saves after the evaluation. If it saved before, a
                # training that is killed in between would resume without the evaluation.
                is_inside = self.loader.sampler.step > 0
                if is_inside and self.every and self.done % self.every == 0:
                    self.save()
                if is_inside and self._agrees_each_step:
                    self._agree_on_stop()
                    if self._is_stopped:
                        return

    def _call(self, hook: str, value: Any) -> None:
        """Call the method `hook` of all callbacks that have it, with this trainer and a value.

        The value is the loss for "on_step" and the results of the evaluation for "on_epoch".
        If a callback returns True, set `_must_stop`, so that `_agree_on_stop` ends the training on
        all ranks.
        """
        for callback in self.callbacks:
            if not has_hook(callback, hook):
                continue
            result = getattr(callback, hook)(self, value)
            if result is not None and not isinstance(result, (bool, np.bool_)):
                raise TypeError(
                    f"train.Trainer: callbacks: expected True, False or None from {hook} of "
                    f"{type(callback).__name__}; got {format_value(result)}. True ends the "
                    "training."
                )
            self._must_stop = self._must_stop or bool(result)

    def _agree_on_stop(self) -> None:
        """Set `stopped` and `has_stopped_early` to the same values on all ranks. Collective.

        `stopped` is the highest signal that a rank has received, or None. `has_stopped_early` is
        True if `stop()` or a callback has set `_must_stop` on at least one rank.
        """
        noted = np.array([self._signals.noted, self._must_stop], np.int64)
        number, must_stop = all_reduce(noted, op="max")
        self.stopped = signal.Signals(number) if number else None
        self.has_stopped_early = bool(must_stop)

    def save(self) -> None:
        """Replace the checkpoint in the folder `save`. All ranks must call it.

        If the trainer has no folder, the call does nothing. If the call raises an error, the
        previous checkpoint is kept.

        Raises
        ------
        NotFiniteError
            A variable is NaN or infinite, but was not when the trainer was constructed.
        ValueError
            After the first step, the values that were loaded into a LiveState (a mapping of
            variables, such as `optimizer.state`) do not match its variables: a value has no
            variable, or a variable has no value.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> import ngd
        >>> from ngd import data, train
        >>> folder, w = tempfile.mkdtemp(), ngd.variable("w", np.ones(2))
        >>> loader = data.Loader(data.Arrays(np.zeros(8)), data.Sampler(8, 2))
        >>> trainer = train.Trainer(lambda x: [0.5], loader, [w], epochs=2, save=folder)
        >>> trainer.save()
        >>> ngd.checkpoint.exists(folder)
        True
        """
        if self.save_to is None:
            return
        for state in self._states if self.losses else []:
            state.expect_complete()  # ValueError if a restored value was not used
        for name, variable in checkpoint.collect_variables("save", **self._saved())[0].items():
            if name not in self._not_finite and not is_finite(variable):
                raise NotFiniteError(
                    f"train.Trainer: expected finite variables; got NaN or infinity in {name!r} "
                    f"after step {self.done}, which is not saved. Run again with "
                    "NGD_CHECK_FINITE=1: the step then names the op with the first such value."
                )
        position = self.loader.sampler.state()
        states = callback_states(self.callbacks)
        if states:
            position = {**position, CALLBACKS: states}
        checkpoint.save(self.save_to, **self._saved(), position=position)

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the buffers of the model have their mean over all ranks.

        Without a model, it does nothing.
        """
        return contextlib.nullcontext() if self.model is None else self.model.averaged_buffers()

    def _saved(self) -> dict[str, Any]:
        """Return the arguments `variables` and `private` of checkpoint.save, in a dict.

        `variables` is the argument of the constructor. `private` has the buffers of the model,
        which may differ between ranks. A buffer may be in both.
        """
        private = {} if self.model is None else self.model.buffers()
        return {"variables": self.variables, "private": private}


def items_of(result: Any) -> Sequence[Any]:
    """Return a sequence or array as it is, and a single value as a list with this value."""
    shape: Any = getattr(result, "shape", None)
    is_sequence = isinstance(result, (list, tuple)) or shape
    return result if is_sequence else [result]


def loss_in(result: Any) -> float:
    """Return the loss in the result of a step: the result itself, or its first item."""
    try:
        return float(items_of(result)[0])
    except (TypeError, ValueError, IndexError, KeyError):
        raise TypeError(
            "train.Trainer: step: expected a function that returns the loss, a scalar, or a "
            f"sequence that starts with the loss; got {format_value(result)}. Return "
            'ops.all_reduce(loss, op="mean") of the step\'s mean loss.'
        ) from None


def is_finite(value: Any) -> bool:
    """Return True if all elements of a variable or array are finite."""
    return bool(np.isfinite(value.numpy() if isinstance(value, Variable) else value).all())


def progress_bar(loader: Any, name: str, is_shown: bool) -> Any:
    """Return a context manager whose value iterates over the batches of the loader.

    If `is_shown` is true and the package tqdm is installed, it also shows a progress bar.
    """
    if is_shown:
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            return tqdm(loader, name, initial=loader.sampler.step)
    return contextlib.nullcontext(loader)


def step_of(line: str) -> float:
    """Return the number of the step of a line of the log, or inf if the line is damaged."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


class Log:
    """A log of the losses and results: a file of JSON lines, and files for TensorBoard.

    Without a folder nothing is written. `done` is the step from which the training continues. Old
    lines of steps after `done` are removed from the file, because these steps run again.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, done: int) -> None:
        self.lines: Any = None
        self.board: Any = None
        if folder is None:
            return
        path = Path(folder) / LOG
        path.parent.mkdir(parents=True, exist_ok=True)
        old_lines = path.read_text().splitlines() if done and path.exists() else []
        fresh = path.with_suffix(".part")
        fresh.write_text("".join(f"{line}\n" for line in old_lines if step_of(line) <= done))
        fresh.replace(path)
        self.lines = path.open("a", buffering=1)
        with contextlib.suppress(ImportError):
            from tensorboardX import SummaryWriter

            self.board = SummaryWriter(str(folder), purge_step=done + 1)

    def write(self, step: int, epoch: int, numbers: Mapping[str, float]) -> None:
        """Write named numbers of a step, such as {"training_loss": 0.5}, to the files."""
        if self.lines is not None:
            self.lines.write(json.dumps({"step": step, "epoch": epoch, **numbers}) + "\n")
        if self.board is not None:
            for name, value in numbers.items():
                self.board.add_scalar(name, value, step)

    def close(self) -> None:
        """Close the files."""
        for file in (self.lines, self.board):
            if file is not None:
                file.close()
