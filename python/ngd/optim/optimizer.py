# SPDX-License-Identifier: Apache-2.0
"""What all optimizers share: gradients, their mean over the ranks, state, groups, accumulation."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import numpy as np

from .. import Node, Variable, float32, float64, grad, ops, trees, variable
from .clipping import clip_by_global_norm
from .loss_scale import LossScale

Rate: TypeAlias = float | Node | Callable[[Node], Node]
"""A learning rate: a number, a node, or a schedule (a function of the number of updates)."""


def is_vector(of: Variable) -> bool:
    """Whether a variable has fewer than two axes: a bias, or a norm's scale."""
    return of.ndim < 2


class ParameterGroup:
    """Some of the parameters, and the options that they have instead of the optimizer's.

    `of` is a pattern of names ("*.bias"), a function that is true for those that are meant
    (`is_vector`), or a structure of variables. Where two groups hold a variable, the first counts.

        AdamW(1e-3, weight_decay=0.1, groups=[ParameterGroup(is_vector, weight_decay=0.0)])

    Beside the optimizer's own options there is `learning_rate_factor`.
    """

    def __init__(self, of: Any, **options: Any) -> None:
        self.of, self.options = of, options
        self._variables = [] if isinstance(of, str) or callable(of) else trees.leaves_of(of)

    def holds(self, of: Variable) -> bool:
        """Whether this variable is one of the group's."""
        if isinstance(self.of, str):
            return fnmatchcase(of.name, self.of)
        if callable(self.of):
            return bool(self.of(of))
        return any(of is other for other in self._variables)


def updated(before: Variable, value: Node, where: Node | None) -> Node:
    """The next value of a variable, which stays as it is where `where` is false."""
    return value if where is None else ops.where(where, value, before)


class State:
    """What a rule sees of one variable: its options, the step's scalars, and its state."""

    def __init__(
        self,
        optimizer: Optimizer,
        of: Variable,
        rate: Node,
        step: Node,
        options: dict[str, Any],
        where: Node | None,
    ) -> None:
        self._optimizer, self._variable, self.options = optimizer, of, options
        self._where = where
        self.dtype = of.dtype if of.dtype == float64 else float32
        self.rate = rate * options["learning_rate_factor"]
        """The learning rate, in float64."""
        self.step = step
        """Which update this is, from 1, in float64."""
        self.next: dict[Variable, Node] = {}
        """The updates of the state."""

    def __getitem__(self, option: str) -> Any:
        return self.options[option]

    def scalar(self, value: Node) -> Node:
        """A scalar in the variable's dtype; before, all scalars are float64."""
        node: Node = ops.cast(value, self.dtype)
        return node

    def now(self, name: str, initial: float = 0.0) -> Variable:
        """A part of the state, of the variable's shape."""
        key = f"{self._variable.name}.{name}"
        return self._optimizer.state_variable(key, self._variable.shape, self.dtype, initial)

    def keep(self, name: str, value: Node) -> Node:
        """Set the next value of a part of the state; returns it."""
        before = self.now(name)
        self.next[before] = updated(before, value, self._where)
        return self.next[before]


class Optimizer:
    """The base of all optimizers: a subclass has `rule`, and hands its options on.

    Parameters
    ----------
    learning_rate
        A number, which becomes the variable `learning_rate` (assign to it between steps); a
        variable or a node; or a schedule, a function from the number of updates that were made (a
        float64 node) to the rate.
    groups
        Parameters with other options; see ParameterGroup.
    clip_norm
        The largest global norm of the gradients; see clip_by_global_norm.
    loss_scale
        What `update` multiplies the loss by, for steps in float16; see LossScale. Its variables are
        a part of `state`.
    name
        What the names of the state begin with; by default the class's, in small letters. Two
        optimizers in one step need two names.
    """

    def __init__(
        self,
        learning_rate: Rate,
        *,
        groups: Sequence[ParameterGroup] = (),
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        self.name = name or type(self).__name__.lower()
        self.options = {"learning_rate_factor": 1.0, **options}
        self.groups, self.clip_norm, self.loss_scale = list(groups), clip_norm, loss_scale
        for group in self.groups:
            for option in group.options.keys() - self.options.keys():
                raise TypeError(
                    f"{self.name}: a group has no option {option!r}; there are "
                    f"{', '.join(self.options)}"
                )
        self._state: dict[str, Variable] = {}
        self._accumulators: dict[Variable, Variable] = {}
        self._weighted: bool | None = None  # the micro-batches; None: not known yet
        self.step = self.state_variable("step", (), np.dtype(np.int64))
        """How many updates were made."""
        self.learning_rate: Node | Callable[[Node], Node]
        if isinstance(learning_rate, Node) or callable(learning_rate):
            self.learning_rate = learning_rate
        elif learning_rate >= 0:
            self.learning_rate = self.state_variable("learning_rate", (), float64, learning_rate)
        else:
            raise ValueError(f"{self.name}: expected a learning rate >= 0; got {learning_rate}")

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """The next value of a variable, from its value and its gradient."""
        raise NotImplementedError(type(self).__name__)

    @property
    def state(self) -> dict[str, Variable]:
        """The optimizer's own variables by name, for checkpoints.

        They are made as `update` or `updates` meets the parameters.
        """
        return self._state | (self.loss_scale.state if self.loss_scale else {})

    def apart(self, name: str) -> Optimizer:
        """The same rule, options and learning rate with a count of updates and a state of its own.

        It does not clip: a norm over some of the parameters is none over all. It scales no loss.
        """
        other = copy.copy(self)
        other.name, other.clip_norm, other.loss_scale = name, None, None
        other._state, other._accumulators, other._weighted = {}, {}, None
        other.step = other.state_variable("step", (), np.dtype(np.int64))
        return other

    def state_variable(
        self, key: str, shape: tuple[int, ...], dtype: Any, initial: float = 0.0
    ) -> Variable:
        """A variable of the state, which is made the first time."""
        name = f"{self.name}.{key}"
        if name not in self._state:
            self._state[name] = variable(name, np.full(shape, initial, dtype))
        return self._state[name]

    def update(
        self,
        loss: Node,
        parameters: Any,
        *,
        weight: Any = None,
        group: Any = None,
        micro_batches: int = 1,
    ) -> dict[Variable, Node]:
        """Differentiate, average over the ranks, and return the updates for ngd.compile.

        Parameters
        ----------
        loss
            A floating scalar: this rank's own loss.
        parameters
            The variables that are trained, in any structure.
        weight
            How much this rank's loss counts, a scalar (how many samples it has); by default all
            ranks count alike. A rank of weight 0 counts nothing, also if its loss is NaN.
        group
            The ranks to average over; by default those of the executable.
        micro_batches
            Of how many micro-batches this is the last one: the others were added up by programs
            with the updates of `accumulate`. The gradient is their mean.
        """
        variables = self._variables("update", parameters)
        gradients = self._gradients("update", loss, variables, weight, group)
        reset: dict[Variable, Node] = {}
        if micro_batches > 1:
            self._expect_weights("update", weight)
            sums = [self._accumulator(v) for v in variables]
            pairs = zip(sums, gradients, strict=True)
            gradients = [(a + ops.cast(g, a.dtype)) / micro_batches for a, g in pairs]
            reset = {a: ops.zeros(a.shape, a.dtype) for a in sums}
        kind = "mean" if weight is None else "sum"
        averaged = [ops.all_reduce(g, op=kind, group=group) for g in gradients]
        found = dict(zip(variables, averaged, strict=True))
        if self.loss_scale is None:
            return self.updates(found) | reset
        found, finite = self.loss_scale.unscaled(found)
        return self.updates(found, where=finite) | self.loss_scale.updates(finite) | reset

    def accumulate(
        self, loss: Node, parameters: Any, *, weight: Any = None, group: Any = None
    ) -> dict[Variable, Node]:
        """Return the updates that only add this rank's gradients up, for `micro_batches`.

        Weight and group are as in `update`, of this micro-batch. The sums are the rank's own, and
        no part of `state`: zero after each update.
        """
        variables = self._variables("accumulate", parameters)
        self._expect_weights("accumulate", weight)
        sums = [self._accumulator(v) for v in variables]
        gradients = self._gradients("accumulate", loss, variables, weight, group)
        return {a: a + ops.cast(g, a.dtype) for a, g in zip(sums, gradients, strict=True)}

    def _gradients(
        self, where: str, loss: Node, variables: list[Any], weight: Any, group: Any
    ) -> list[Node]:
        """Differentiate the sum over ranks of weight * loss / sum of the weights, scaled.

        The loss is weighted, not its gradient: if the loss reaches a collective, as it does with
        synchronized batch normalization, the gradient has parts of the other ranks' losses.
        """
        gradients: list[Node]
        if self.loss_scale is not None:
            loss = self.loss_scale.scaled(loss)
        if weight is None:
            gradients = grad(loss, variables)
            return gradients
        share = ops.cast(weight, float64)
        if share.shape:
            raise ValueError(f"{self.name}: {where}: expected a scalar weight; got {share!r}")
        total = ops.all_reduce(share, op="sum", group=group)
        part = ops.where(total == 0, 0.0, share / total)
        gradients = grad(loss * ops.stop_gradient(ops.cast(part, loss.dtype)), variables)
        return [ops.where(share == 0, 0, g) for g in gradients]

    def _expect_weights(self, where: str, weight: Any) -> None:
        """Refuse micro-batches of which some have weights and others have none."""
        weighted = weight is not None
        if self._weighted is None:
            self._weighted = weighted
        if self._weighted != weighted:
            raise ValueError(
                f"{self.name}: {where}: expected weights for all micro-batches, or for none"
            )

    def updates(
        self, gradients: Mapping[Variable, Node], *, where: Node | None = None
    ) -> dict[Variable, Node]:
        """Return the updates for ngd.compile, from gradients that are equal on all ranks.

        Where the bool `where` is false, all stay as they are. `loss_scale` is for `update` alone:
        gradients that come here are those of the loss itself.
        """
        self._variables("updates", list(gradients))
        if self.clip_norm is not None:
            gradients, _ = clip_by_global_norm(dict(gradients), self.clip_norm)
        done = ops.cast(self.step, float64)
        rate = self.learning_rate
        rate = ops.cast(rate if isinstance(rate, Node) else rate(done), float64)
        made: dict[Variable, Node] = {self.step: updated(self.step, self.step + 1, where)}
        for v, g in gradients.items():
            options = next((o.options for o in self.groups if o.holds(v)), {})
            state = State(self, v, rate, done + 1.0, {**self.options, **options}, where)
            new = self.rule(ops.cast(v, state.dtype), ops.cast(g, state.dtype), state)
            made[v] = updated(v, ops.cast(new, v.dtype), where)
            made |= state.next
        return made

    def _accumulator(self, of: Variable) -> Variable:
        if of not in self._accumulators:
            dtype = of.dtype if of.dtype == float64 else float32
            name = f"{self.name}.{of.name}.accumulated"
            zeros = np.zeros(of.shape, dtype)
            self._accumulators[of] = variable(name, zeros, per_rank=True)
        return self._accumulators[of]

    def _variables(self, where: str, parameters: Any) -> list[Any]:
        leaves, structure = trees.flatten(parameters)
        for leaf, path in zip(leaves, structure.paths("parameters"), strict=True):
            if not isinstance(leaf, Variable):
                raise TypeError(f"{self.name}: {where}: {path}: expected a variable; got {leaf!r}")
        for name, count in Counter(v.name for v in leaves).items():
            if count > 1:
                raise ValueError(f"{self.name}: {where}: {count} parameters are called {name!r}")
        return leaves
