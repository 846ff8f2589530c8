# SPDX-License-Identifier: Apache-2.0
"""A loop for who does not want to write one: nothing in it needs more than the public API.

    trainer = train.Trainer(
        step, loader, [model.variables(), optimizer.state], epochs=90, model=model,
        evaluate=lambda: dict(zip(["loss", "accuracy"], train.evaluate(judge, test_loader))),
        save="checkpoints", resume=True, log="log",
    )
    report = trainer.run()

`step` is a compiled step, or whatever takes the columns of a batch and gives the mean loss of all
ranks first. All ranks call `run`; rank 0 writes.
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
from types import FrameType
from typing import Any, Final

import numpy as np

from .. import LiveState, Variable, all_reduce, checkpoint, metrics
from ..errors import NotFiniteError

LAST: Final = 50
"""Of how many steps the loss that is reported is the mean."""

LOG: Final = "log.jsonl"


def evaluate(judge: Callable[..., Any], loader: Any, *, group: Any = None) -> list[float]:
    """The means, over all samples of a loader of data on all ranks, of what `judge` gives.

    It takes the columns of a batch and gives scalars, each a mean over the batch's samples. Batches
    count as much as they have samples. Collective: every rank of the group, by default the world's,
    has to call it, also one that gets samples of no weight.
    """
    if not callable(judge) or not hasattr(loader, "sampler"):
        raise TypeError(
            "train.evaluate: expected a function and a data.Loader; got "
            f"{type(judge).__name__} and {type(loader).__name__}"
        )
    # From the beginning, also if an earlier one broke off.
    loader.sampler.done -= loader.sampler.step
    sums: Any = 0.0
    judged = 0
    for columns, weight, total in loader:
        values = np.array([float(value) for value in judge(*columns)])
        sums = sums + (weight * values if weight else np.zeros_like(values))
        judged += total
    means = all_reduce(sums, op="sum", group=group) / judged
    return [float(mean) for mean in means]


class StopSignals:
    """Signals that ask for the end of a training; all ranks hear of them at the same step.

        with train.StopSignals(signal.SIGTERM) as stop:
            for batch in batches:
                step(batch)
                if stop.asked():
                    save()
                    sys.exit(os.EX_TEMPFAIL)

    A scheduler sends one before it ends a job. It reaches the ranks at different times, or some of
    them only. Inside the context it is noted and nothing else happens; the handlers that were there
    before come back at the end.

    Parameters
    ----------
    signals
        Which; the same on all ranks. Python takes handlers in the main thread only (ValueError),
        and none of SIGKILL and SIGSTOP (OSError).
    group
        The ranks that stop together; by default the world.
    """

    def __init__(self, *signals: int, group: Any = None) -> None:
        self.signals, self.group = [signal.Signals(number) for number in signals], group
        self.noted = 0
        """The signal that this rank has got, or 0."""
        self._handlers = contextlib.ExitStack()

    def __enter__(self) -> StopSignals:
        self.noted = 0
        with contextlib.ExitStack() as handlers:
            for number in self.signals:
                before = signal.signal(number, self._note)
                handlers.callback(signal.signal, number, before or signal.SIG_DFL)
            self._handlers = handlers.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.noted = number

    def asked(self) -> signal.Signals | None:
        """The signal that any rank has got, or None; the same on all ranks. Collective.

        Without signals it is None and asks nobody.
        """
        if not self.signals:
            return None
        number = int(all_reduce(np.array(self.noted), op="max", group=self.group))
        return signal.Signals(number) if number else None


class Trainer:
    """A training: steps, evaluations, checkpoints, and what is written of them.

    Parameters
    ----------
    step
        Takes the columns of a batch, and gives the mean loss of all ranks as its first result.
    loader
        A data.Loader, whose sampler says where the training stands. Each batch needs a sample for
        each rank (ValueError). Where parts are unlike, the step weighs them by their rows.
    variables
        The contents of a checkpoint, in any structure: the model's variables, and
        `optimizer.state` and the like, which may get their variables in the first step.
    epochs
        How many the whole training has.
    evaluate
        Called after each epoch; gives numbers by name, the same on all ranks.
    model
        A module whose buffers each rank has of its own, as batch normalization's statistics. A
        checkpoint keeps every rank's; in an evaluation all have their mean.
    save
        The folder of checkpoints: one after each epoch, and each `every` steps.
    resume
        True: continue from the checkpoint in `save`, if there is one. ValueError at the first
        step, and at the first `save` after it, if a restored value of a state has no variable, or
        a variable had no value.
    log
        A folder that gets a line of JSON for each step and each evaluation in log.jsonl, and the
        same for TensorBoard where tensorboardX is installed.
    progress
        Whether rank 0 shows a bar, where tqdm is installed.
    stop_at
        Signals, the same on all ranks: where any rank gets one, all make the same last step, save,
        and `run` returns, with the signal in `stopped`. One that comes in an evaluation counts
        after it. Each step then asks all ranks (a few microseconds on one host).
    """

    def __init__(
        self,
        step: Callable[..., Any],
        loader: Any,
        variables: Any,
        *,
        epochs: int,
        evaluate: Callable[[], Mapping[str, float]] | None = None,
        model: Any = None,
        save: str | os.PathLike[str] | None = None,
        every: int | None = None,
        resume: bool = False,
        log: str | os.PathLike[str] | None = None,
        progress: bool = True,
        stop_at: Sequence[int] = (),
    ) -> None:
        if epochs < 0 or (every is not None and every < 1):
            raise ValueError(
                f"train.Trainer: expected epochs >= 0 and every >= 1; got {epochs}, {every}"
            )
        if save is None and (resume or every or stop_at):
            raise ValueError(
                "train.Trainer: expected a folder to save to, for resume, every and stop_at"
            )
        self.step, self.loader, self.variables, self.epochs = step, loader, variables, epochs
        self.evaluate, self.model, self.save_to, self.every = evaluate, model, save, every
        self.first = loader.sampler.rank == 0
        self.progress = progress
        self.stop = StopSignals(*stop_at)
        self.stopped: signal.Signals | None = None
        """What has ended the last run before its time."""
        self.losses: list[float] = []
        """The last steps'."""
        self.results: dict[str, float] = {}
        """The last evaluation's."""
        if resume and save is not None and checkpoint.exists(save):
            position = checkpoint.load(save, **self._saved())
            loader.sampler.load_state(position)
        self.log_to = log if self.first else None
        self._states: list[LiveState] = []
        self._not_finite: set[str] = set()
        if save is not None:
            held, self._states = checkpoint.collected("save", **self._saved())
            values = checkpoint.with_pending("save", held, self._states)
            self._not_finite = {name for name, v in values.items() if not is_finite(v)}

    @property
    def done(self) -> int:
        """How many steps were made, in all runs."""
        return int(self.loader.sampler.done)

    def run(self) -> dict[str, Any]:
        """Train to the end; what came of it: steps, loss, samples a second, the last evaluation.

        NotFiniteError where the loss is none any more, or a variable that is to be saved; what was
        saved before is left alone. With NGD_CHECK_FINITE=1 the step itself names the op that began
        it.
        """
        sampler, before, seconds = self.loader.sampler, self.done, 0.0
        self.stopped = None
        with self.stop, contextlib.closing(Log(self.log_to, self.done)) as log:
            while sampler.epoch < self.epochs and self.stopped is None:
                start = time.perf_counter()
                self._epoch(sampler.epoch + 1, log)
                seconds += time.perf_counter() - start
                if self.evaluate is not None and self.stopped is None:
                    with self._averaged():
                        self.results = {name: float(n) for name, n in self.evaluate().items()}
                    log.write(self.done, sampler.epoch, self.results)
                self.save()
                if sampler.epoch < self.epochs:
                    self.stopped = self.stopped or self.stop.asked()
        samples = (self.done - before) * sampler.batch
        return {
            "steps": self.done,
            "loss": float(np.mean(self.losses)) if self.losses else None,
            "samples_per_s": samples / seconds if samples else None,
            **self.results,
        }

    def _epoch(self, number: int, log: Log) -> None:
        """Make the rest of an epoch's steps, or those up to a signal."""
        with bar_of(self.loader, f"epoch {number}", self.first and self.progress) as bar:
            for columns, weight, total in bar:
                if total < self.loader.sampler.size:
                    raise ValueError(
                        f"train.Trainer: expected a sample for each of "
                        f"{self.loader.sampler.size} ranks; a batch has {total}: "
                        "data.Sampler(..., drop_last=True) leaves it out"
                    )
                loss = float(self.step(*columns)[0])
                metrics.count(examples=weight)
                if not math.isfinite(loss):
                    raise NotFiniteError(
                        f"train.Trainer: the loss of step {self.done} is {loss}; "
                        "NGD_CHECK_FINITE=1 names the op that began it"
                    )
                self.losses = [*self.losses[1 - LAST :], loss]
                log.write(self.done, number, {"training_loss": loss})
                # At the end of an epoch `run` saves, after the evaluation: else a training that is
                # killed between both would resume without the evaluation.
                is_inside = self.loader.sampler.step > 0
                if is_inside and self.every and self.done % self.every == 0:
                    self.save()
                if is_inside and (stopped := self.stop.asked()):
                    self.stopped = stopped
                    return

    def save(self) -> None:
        """Replace the checkpoint; all ranks have to call it.

        The old one stays if this raises: ValueError, if a restored value has no variable, and
        NotFiniteError, where a variable that began finite is so no more.
        """
        if self.save_to is None:
            return
        for state in self._states if self.losses else []:
            state.expect_complete()  # restored values that no step has taken
        for name, variable in checkpoint.collected("save", **self._saved())[0].items():
            if name not in self._not_finite and not is_finite(variable):
                raise NotFiniteError(
                    f"train.Trainer: variable {name!r} is not finite after step "
                    f"{self.done}, which is not saved; "
                    "NGD_CHECK_FINITE=1 names the op that began it"
                )
        checkpoint.save(self.save_to, **self._saved(), position=self.loader.sampler.state())

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        """With the mean of what each rank has of its own."""
        return contextlib.nullcontext() if self.model is None else self.model.averaged_buffers()

    def _saved(self) -> dict[str, Any]:
        """Return the arguments `variables` and `private` of checkpoint.save."""
        return {"variables": self.variables, "private": self._private()}

    def _private(self) -> Any:
        """What each rank has of its own."""
        return {} if self.model is None else self.model.buffers()


def is_finite(value: Any) -> bool:
    """Return whether all elements of a variable or array are finite."""
    return bool(np.isfinite(value.numpy() if isinstance(value, Variable) else value).all())


def bar_of(loader: Any, name: str, shown: bool) -> Any:
    """A loader with a bar, as a context."""
    if shown:
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            return tqdm(loader, name, initial=loader.sampler.step)
    return contextlib.nullcontext(loader)


def step_of(line: str) -> float:
    """The step of a line of the log; none of one that a full disk has cut off."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


class Log:
    """Numbers by step, as lines of JSON and for TensorBoard; nothing where there is no folder."""

    def __init__(self, folder: str | os.PathLike[str] | None, done: int) -> None:
        self.lines: Any = None
        self.board: Any = None
        if folder is None:
            return
        path = Path(folder) / LOG
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = path.read_text().splitlines() if done and path.exists() else []
        fresh = path.with_suffix(".part")
        fresh.write_text("".join(f"{line}\n" for line in kept if step_of(line) <= done))
        fresh.replace(path)
        self.lines = path.open("a", buffering=1)
        with contextlib.suppress(ImportError):
            from tensorboardX import SummaryWriter

            self.board = SummaryWriter(str(folder), purge_step=done + 1)

    def write(self, step: int, epoch: int, numbers: Mapping[str, float]) -> None:
        """Note numbers of a step."""
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
