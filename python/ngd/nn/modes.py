# SPDX-License-Identifier: Apache-2.0
"""Training and evaluation: in which of the two a graph is built, and what training adds to it.

A graph is built for evaluation, but inside of `with training() as state:`. There, dropout draws and
batch normalization normalizes by the batch; what they want to change, the counter of random draws
and the running statistics, is in `state.updates`. Two programs over the same variables are so two
ways to build the graph; nothing in a module says in which mode it is. See
docs/adr/0018-training-and-evaluation.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from .. import Function, LiveState, Node, Variable, errors, ops

SEEDS: Final = 2**32
DRAWS: Final = 2**40
MAX_DRAWS: Final = 2**63 // DRAWS


class Random:
    """Where the random draws of training steps come from: a seed, and a counter of steps.

    A draw is a function (Philox, ngd.ops.random) of the seed, of which draw of its program it is,
    of how many steps were made, and of the rank. In the body of ops.scan each iteration counts as
    a draw of its own. So draws differ between steps and ranks,
    and a training that goes on from a checkpoint draws what it would have drawn.

    Parameters
    ----------
    seed
        In [0, 2^32).
    per_rank
        False: all ranks draw alike, as ranks that share the work on one sample have to.
    group
        The ranks that draw differently; by default those of the executable.
    name
        What the counter's name begins with: two that are used in one program need two names.
    """

    def __init__(
        self, seed: int = 0, *, per_rank: bool = True, group: Any = None, name: str = "random"
    ) -> None:
        if not 0 <= seed < SEEDS:
            raise ValueError(f"nn.Random: expected a seed in [0, 2^32); got {seed}")
        self.seed, self.per_rank, self.group, self.name = int(seed), per_rank, group, name
        self.state = LiveState(name)
        """The counter by name, for checkpoints."""
        self.step = self.state.variable(f"{name}.step", lambda: np.int64(0))
        """The number of steps that have drawn, int64."""


class Updates(dict[Variable, Node]):
    """The next values of buffers and counters, for ngd.compile.

    It remembers which variables were set, and in which layer, until a module has noted on its
    results that a step which computes them should update these variables.
    """

    def __init__(self, changes: bool) -> None:
        super().__init__()
        self.changes = changes
        """If False, no variable is to be updated, and next values are dropped."""
        self.pending: list[tuple[Variable, str]] = []

    def __setitem__(self, variable: Variable, value: Node) -> None:
        if self.changes:
            super().__setitem__(variable, value)
            self.pending.append((variable, errors.LAYER.get()))

    update = MutableMapping.update
    setdefault = MutableMapping.setdefault

    def expect(self, since: int, results: Iterable[Any]) -> None:
        """Note on results, those that are nodes, which variables were set for them."""
        nodes = [node for node in results if isinstance(node, Node)]
        for changed, layer in self.pending[since:]:
            for node in nodes:
                changed.expect_update(node, layer)
        del self.pending[since:]


class Training:
    """What a graph of training has beside its nodes; `with training() as state:` makes one."""

    def __init__(self, random: Random | None = None, updates: bool = True) -> None:
        self.random = random
        self.updates = Updates(updates)
        """Buffer, or counter, -> its next value: a part of the updates for ngd.compile."""
        self._draws = 0

    def now(self, of: Variable) -> Node:
        """The value of a buffer after the updates so far."""
        return self.updates.get(of, of)

    def draw(self, who: str) -> dict[str, Any]:
        """Return the arguments seed= and offset= of a random op, other ones each time.

        The body of ops.scan is traced once; ops.scan adds the number of the iteration to the
        offset, so a draw there reserves one number per iteration.
        """
        random = self.random
        if random is None:
            raise ValueError(
                f"{who}: expected a source of random numbers: build the graph within "
                "`with nn.training(nn.Random(seed))`"
            )
        seed: Any = random.seed
        if random.per_rank:
            seed = random.seed + SEEDS * ops.own_rank(group=random.group)
        self.updates[random.step] = random.step + 1
        offset = random.step + DRAWS * self._draws
        if self.updates.changes:
            random.step.expect_update(offset, errors.LAYER.get() or who)
        self._draws += max(1, ops.iterations())
        if self._draws > MAX_DRAWS:
            raise ValueError(
                f"{who}: expected at most {MAX_DRAWS} random draws per step; got {self._draws}. "
                "Each iteration of ops.scan counts as one."
            )
        return {"seed": seed, "offset": offset}


_current: ContextVar[Training | None] = ContextVar("training", default=None)
Function.blocks["nn.training"] = _current


def current() -> Training | None:
    """What a graph that is built now is trained with; None: it is built for evaluation."""
    return _current.get()


@contextmanager
def training(random: Random | None = None, *, updates: bool = True) -> Iterator[Training]:
    """Build graphs for training within this block.

        with nn.training(nn.Random(seed=1)) as state:
            loss = ops.mean(ops.softmax_cross_entropy(model(x), y))
        step = ngd.compile(
            [x, y], [loss], [optimizer.minimize(loss, model.parameters()), state.updates]
        )

    `random` is needed where something draws. Several programs may share one; each of their steps
    counts. What one program draws is built within one block: another one begins to count anew.

    A step that does not update what state.updates names draws the same numbers in each call, and
    its statistics do not change; ngd.compile warns of it (errors.UpdatesWarning). With
    updates=False this is wanted, as to compare losses with one mask: state.updates stays empty.
    """
    state = Training(random, updates)
    token = _current.set(state)
    try:
        yield state
    finally:
        _current.reset(token)


@contextmanager
def evaluation() -> Iterator[None]:
    """Build graphs for evaluation within this block, also inside of `training`: frozen parts."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)
