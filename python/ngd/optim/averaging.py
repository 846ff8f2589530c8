# SPDX-License-Identifier: Apache-2.0
"""Averages of variables over the steps of a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .. import ops, trees
from ..dtypes import float64
from ..graph.live_state import LiveState
from ..graph.node import Node
from ..graph.variable import Variable
from ..graph.variable_names import UniqueNames
from .options import add_names, flag, fraction


class ExponentialMovingAverage:
    """An exponential moving average of variables.

    The averages start with the values that the variables have when `updates` is called.

    Parameters
    ----------
    decay : float, default 0.999
        The factor of the old average in each update, in [0, 1).
    warm_up : bool, default False
        Limit the decay to (1 + t) / (10 + t) after t updates, so that the first values soon lose
        their weight. The first update has t = 0.
    name : str, default "ema"
        The prefix of the names of the state.

    Notes
    -----
    a <- decay * a + (1 - decay) * w after each update (Polyak and Juditsky, 1992).

    Examples
    --------
    >>> average = ngd.optim.ExponentialMovingAverage(0.999)
    >>> updates = optimizer.minimize(loss, parameters)
    >>> updates |= average.updates(updates, parameters)
    """

    def __init__(self, decay: float = 0.999, *, warm_up: bool = False, name: str = "ema") -> None:
        where = "optim.ExponentialMovingAverage"
        self.decay, self.warm_up = fraction(where, "decay", decay), flag(where, "warm_up", warm_up)
        self.name = name
        self.averages: dict[Variable, Variable] = {}
        """For each variable, the variable that has its average."""
        self._names = UniqueNames()
        self.state = LiveState(name)
        """The averages and the step counter by name, for checkpoints.

        The first call of `updates` makes the variables of the averages. If a checkpoint is loaded
        earlier, the state keeps the loaded values, and the new variables get them in that call.
        """
        self._step = self.state.variable(f"{name}.step", lambda: 0)

    def updates(self, next: Mapping[Variable, Node], of: Any = None) -> dict[Variable, Node]:
        """Return the updates of the averages.

        Parameters
        ----------
        next : mapping of Variable to Node
            The new values of the variables, for example from `optimizer.minimize`. The averages
            include these values.
        of : structure of Variable, optional
            The variables to average, in nested dicts, lists, tuples or dataclasses. The default is
            all variables in `next`. These include the optimizer's state if `next` is the result of
            `optimizer.minimize`, so give the parameters.

        Returns
        -------
        dict of Variable to Node
            The new values of the averages and of the step counter, for `updates=` of ngd.compile.
        """
        variables = list(next) if of is None else trees.leaves_of(of)
        step = ops.cast(self._step, float64)
        decay = ops.full((), self.decay, float64)
        if self.warm_up:
            decay = ops.minimum(decay, (1.0 + step) / (10.0 + step))
        updates: dict[Variable, Node] = {self._step: self._step + 1}
        add_names(f"{self.name}: updates", variables, self._names)
        for v in variables:
            if v not in next:
                raise ValueError(
                    f"{self.name}: updates: expected a next value of {v!r}; got none. Add it to "
                    "the updates."
                )
            name = f"{self.name}.{self._names.names[v]}"
            a = self.averages[v] = self.state.variable(name, v.numpy)
            old_weight = ops.cast(decay, v.dtype)
            updates[a] = old_weight * a + (1.0 - old_weight) * next[v]
        return updates

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Assign the averages to the variables within a block, for example for an evaluation.

        After the block the variables have their own values again.

        Raises
        ------
        RuntimeError
            Averages were loaded from a checkpoint, but their variables do not exist yet, because
            `updates` was not called.

        Examples
        --------
        >>> average = ngd.optim.ExponentialMovingAverage()
        >>> updates = optimizer.minimize(loss, parameters)
        >>> updates |= average.updates(updates, parameters)
        >>> with average.applied():
        ...     state = model.state_dict()
        """
        if self.state.pending:
            raise RuntimeError(
                f"{self.name}: applied: expected the averages of variables; got pending ones, "
                "from a file. Run a step, or call step.trace(...), before."
            )
        own_values = {v: v.numpy() for v in self.averages}
        try:
            for v, a in self.averages.items():
                v.assign(a.numpy())
            yield
        finally:
            for v, value in own_values.items():
                v.assign(value)
