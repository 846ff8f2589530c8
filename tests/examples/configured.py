# SPDX-License-Identifier: Apache-2.0
"""Run an example with settings that are not options of its command line.

    python configured.py EXAMPLE.py JSON OPTIONS...

JSON is an object of the arguments of `program`.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import ngd
from ngd import nn, ops, train
from tests.examples.runs import EXAMPLES, report_of, start


def program(
    example: str,
    *options: Any,
    function: dict[str, str] | None = None,
    dtype: str = "float32",
    stop_after: int | None = None,
    **settings: Any,
) -> list[str]:
    """Return the command, without the launcher, that runs an example.

    Parameters
    ----------
    example : str
        The name of the example, with .py.
    options : Any
        Arguments of the example's command line.
    function : dict
        Arguments of `ngd.function` for all functions with updates.
    dtype : str
        The dtype of the variables.
    stop_after : int
        The number of steps after which a Trainer stops.
    settings : Any
        Values that replace parsed arguments of the command line.
    """
    changes = {"function": function or {}, "dtype": dtype, "stop_after": stop_after}
    return [__file__, example, json.dumps({**changes, "settings": settings}), *map(str, options)]


def train_configured(example: str, ranks: int, *options: Any, **changes: Any) -> dict[str, Any]:
    """Run an example on some ranks, and return its report."""
    file, *arguments = program(example, *options, **changes)
    return report_of(start(file, ranks, *arguments))


def with_options(options: dict[str, Any]) -> Any:
    """Return a form of `ngd.function` that adds options to functions with updates."""
    original = ngd.function

    @functools.wraps(original)
    def function(*args: Any, updates: bool = False, **kwargs: Any) -> Any:
        more = options if updates else {}
        return original(*args, updates=updates, **{**kwargs, **more})

    return function


def in_dtype(model: type[nn.Module], dtype: str) -> type[nn.Module]:
    """Return a subclass of a model whose variables and inputs have the dtype."""

    class Converted(model):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.astype(dtype)

        def forward(self, x: Any) -> Any:
            return super().forward(ops.cast(x, dtype))

    return Converted


class StopAfter(train.Callback):
    """A callback that stops the training after a number of steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step(self, trainer: Any, loss: float) -> bool:
        return bool(trainer.done == self.steps)


class Trainer(train.Trainer):
    """A trainer that evaluates even if no training is left."""

    def run(self) -> dict[str, Any]:
        report = super().run()
        assert self.evaluate is not None
        return report if self.done else {**report, **self.evaluate()}


def main() -> None:
    """Run the example, and print its report."""
    name, changes = Path(sys.argv[1]).stem, json.loads(sys.argv[2])
    sys.argv = [sys.argv[1], *sys.argv[3:]]
    sys.path.insert(0, str(EXAMPLES))
    ngd.function = with_options(changes["function"])
    callbacks = [StopAfter(changes["stop_after"])] if changes["stop_after"] else []
    train.Trainer = functools.partial(Trainer, callbacks=callbacks)  # type: ignore[assignment, misc]
    example: Any = importlib.import_module(name)
    if changes["dtype"] != "float32" and hasattr(example, "ResNet"):
        example.ResNet = in_dtype(example.ResNet, changes["dtype"])
    args = example.parse_arguments()
    vars(args).update(changes["settings"], dtype=changes["dtype"])
    report = example.run(args)
    if ngd.rank() == 0:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
