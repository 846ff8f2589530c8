# SPDX-License-Identifier: Apache-2.0
"""Graphs for training and for evaluation.

A graph is built for evaluation, except inside a block `with training() as state:`. In such a block,
dropout draws random numbers, and batch normalization uses the statistics of the batch. A training
step must also update some variables that no optimizer trains, such as running statistics and the
step counter of `Random`. The dict `state.updates` has a node for the new value of each of them, for
ngd.compile. A module has no mode of its own. See docs/adr/0018-training-and-evaluation.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from .. import errors, ops
from .._util.blocks import open_block, suspend_block
from ..graph.live_state import LiveState
from ..graph.node import Node
from ..graph.variable import Variable

SEEDS: Final = 2**32
"""The number of seeds that a user can choose for a source of random numbers, nn.Random.

With nn.Random(seed, per_rank=True), a rank draws with the seed `seed + rank * SEEDS`. So no two
ranks of the group have the same seed.
"""
DRAWS: Final = 2**40
"""The difference between the offsets of two successive random draws in a step.

Draw i of a step has the offset i * DRAWS plus the number of earlier steps. So no two draws have the
same offset in the first DRAWS steps. Draws with equal seeds and different offsets give different
numbers, because the random generator (Philox) computes each number from seed and offset.
"""
MAX_DRAWS: Final = 2**63 // DRAWS
"""The maximum number of random draws per step, 2**23. For example, a dropout layer draws once.

Draw i of a step gives the random generator the offset i * DRAWS plus the number of earlier steps.
With more draws, this offset would exceed int64.
"""


class Random:
    """A source of random numbers for training steps: a seed and a counter of steps.

    Parameters
    ----------
    seed : int, default 0
        The seed, in [0, 2**32).
    per_rank : bool, default True
        Draw different numbers on each rank. Set it to False if several ranks compute
        one sample together.
    group : Group, optional
        The ranks that draw different numbers. The default is the group of the compiled step.
    name : str, default "random"
        The prefix of the counter's name. Two sources in one compiled step need two names.

    Attributes
    ----------
    state : LiveState
        The mapping {"<name>.step": step}, for checkpoints. The default name is "random".
    step : Variable
        The number of steps that have drawn random numbers, an int64 scalar.

    Notes
    -----
    A draw is a function of the seed, the rank, the number of steps so far, and the number of the
    draw in its step. The generator is Philox, see `ops.random_uniform`. Each iteration of
    `ops.scan` is a draw of its own. A training that resumes from a checkpoint draws the numbers
    that an uninterrupted training would draw.

    Examples
    --------
    >>> random = nn.Random(seed=1)
    >>> with nn.training(random) as state:
    ...     dropped = nn.Dropout(0.5)(ngd.placeholder("features", (4, 3)))
    >>> list(random.state.variables)
    ['random.step']
    """

    def __init__(
        self, seed: int = 0, *, per_rank: bool = True, group: Any = None, name: str = "random"
    ) -> None:
        if not 0 <= seed < SEEDS:
            raise ValueError(f"nn.Random: expected a seed in [0, 2^32); got {seed}")
        self.seed, self.per_rank, self.group, self.name = int(seed), per_rank, group, name
        self.state = LiveState(name)
        """The mapping {"<name>.step": step}, for checkpoints. The default name is "random"."""
        self.step = self.state.variable(f"{name}.step", lambda: np.int64(0))
        """The number of steps that have drawn random numbers, an int64 scalar."""


class Updates(dict[Variable, Node]):
    """A dict from a variable to the node of the new value that a step computes and assigns to it.

    The variables are buffers and the step counter of `Random`. Users pass the dict to ngd.compile.

    For example, a call of nn.BatchNorm2d sets the new values of its running statistics. At the end
    of the call, the module calls `expect`, which adds a note to the nodes that the call returns.
    Because of this note, ngd.compile warns about a step that computes the nodes without updating
    the running statistics.
    """

    def __init__(self, changes: bool) -> None:
        super().__init__()
        self.changes = changes
        """If False, this dict stays empty: `updates[variable] = node` has no effect."""
        self.pending: list[tuple[Variable, str]] = []
        """A pair (variable, layer) per assignment `updates[variable] = node`.

        `layer` is the text of the nn module that made the assignment, such as "a: BatchNorm(16)".
        `expect` uses the pairs for warnings of ngd.compile, and removes them.
        """

    def __setitem__(self, variable: Variable, value: Node) -> None:
        if self.changes:
            super().__setitem__(variable, value)
            self.pending.append((variable, errors.LAYER.get()))

    update = MutableMapping.update
    setdefault = MutableMapping.setdefault

    def expect(self, since: int, results: Iterable[Any]) -> None:
        """Make ngd.compile warn if a step computes `results` but does not update some variables.

        `Module.__call__` calls this method after `forward`. `results` are the nodes that `forward`
        returned, and `since` is the length of `pending` before `forward`. So `pending[since:]` has
        the variables for which `forward` has set new values. ngd.compile warns if a step computes
        a node of `results` but does not update all these variables. At the end, this method
        removes `pending[since:]`.
        """
        nodes = [node for node in results if isinstance(node, Node)]
        for changed, layer in self.pending[since:]:
            for node in nodes:
                changed.expect_update(node, layer)
        del self.pending[since:]


class Training:
    """The state of a graph for training, which `with training() as state:` returns.

    Parameters
    ----------
    random : Random, optional
        The source of random numbers.
    updates : bool, default True
        If False, `updates` stays empty.

    Attributes
    ----------
    random : Random or None
        The source of random numbers.
    updates : dict
        A dict from a variable to the node of the new value that a step computes and assigns to
        it. The variables are buffers, such as running statistics, and the step counter of `random`.
        Give the dict to ngd.compile among the updates.

    Examples
    --------
    >>> with nn.training(nn.Random(seed=1)) as state:
    ...     logits = model(x)
    >>> isinstance(state, nn.Training)
    True
    """

    def __init__(self, random: Random | None = None, updates: bool = True) -> None:
        self.random = random
        self.updates = Updates(updates)
        """A dict from buffers and the step counter of `random` to the nodes of their new values."""
        self._draws = 0

    def now(self, of: Variable) -> Node:
        """Return the node of a buffer's newest value, which a second update in one step needs.

        Parameters
        ----------
        of : Variable
            A buffer of any shape.

        Returns
        -------
        Node
            The new value in `updates` if a module has set one in this block. Otherwise the buffer
            itself, which is its value before the step.
        """
        return self.updates.get(of, of)

    def draw(self, who: str) -> dict[str, Any]:
        """Return the arguments `seed` and `offset` of a random op, with a new offset in each call.

        Parameters
        ----------
        who : str
            The name of the caller, such as "nn.Dropout", for error messages.

        Returns
        -------
        dict
            The arguments by name.

        Raises
        ------
        ValueError
            The block `with nn.training(...)` has no `nn.Random`, or it has more than MAX_DRAWS
            (2**23) draws.

        Notes
        -----
        Each run of a random op is a draw. The draws of a step are numbered from 0. Draw i has the
        offset i * DRAWS + n, where DRAWS is 2**40 and n is the number of earlier steps.

        A random op in the body of ops.scan is built once, but runs in each iteration. In iteration
        t, ops.scan adds t * DRAWS to the offset of the op. So one call of this method in the body
        uses one draw number per iteration.
        """
        random = self.random
        if random is None:
            raise ValueError(
                f"{who}: expected a source of random numbers; got none. Build the graph within "
                "`with nn.training(nn.Random(seed))`."
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
_BLOCK: Final = "nn.training"


def current() -> Training | None:
    """Return the state of the innermost block of `training`, or None in evaluation.

    Examples
    --------
    >>> nn.current() is None
    True
    """
    return _current.get()


@contextmanager
def training(random: Random | None = None, *, updates: bool = True) -> Iterator[Training]:
    """Build graphs for training within this block.

    Parameters
    ----------
    random : Random, optional
        The source of random numbers. It is needed if a module draws random numbers. Several steps
        may share one source. Each call of any of these steps then adds 1 to the source's counter.
    updates : bool, default True
        If False, `state.updates` stays empty. A step then draws the same numbers in each call, for
        example to compare losses with one dropout mask.

    Yields
    ------
    Training
        The state of the block. Give `state.updates` to ngd.compile among the updates of the step.

    Notes
    -----
    Build all random draws of one step within one block, because each block numbers its draws from
    zero.

    A step that does not update the variables in `state.updates` draws the same numbers in each
    call, and its running statistics do not change. ngd.compile then issues an
    `errors.UpdatesWarning`.

    Examples
    --------
    >>> with nn.training(nn.Random(seed=1)) as state:
    ...     loss = ops.mean(ops.softmax_cross_entropy(model(x), y))
    >>> updates = optimizer.minimize(loss, model.parameters())
    >>> step = ngd.compile([x, y], [loss], [updates, state.updates])
    """
    state = Training(random, updates)
    token = _current.set(state)
    try:
        with open_block(_BLOCK):
            yield state
    finally:
        _current.reset(token)


@contextmanager
def evaluation() -> Iterator[None]:
    """Build graphs for evaluation within this block, even inside a block of `training`.

    Use it for frozen parts of a model.

    Examples
    --------
    >>> with nn.training(nn.Random(seed=1)):
    ...     with nn.evaluation():
    ...         features = model(x)
    """
    token = _current.set(None)
    try:
        with suspend_block(_BLOCK):
            yield
    finally:
        _current.reset(token)
