# SPDX-License-Identifier: Apache-2.0
"""The base class of all optimizers.

It differentiates the loss, averages the gradients over the ranks, and has the state, the parameter
groups and the gradient accumulation.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar, TypeAlias

import numpy as np

from .. import ops, trees
from .._util.signature_errors import GRADIENT_CALL
from ..dtypes import float32, float64
from ..graph.live_state import LiveState
from ..graph.node import Node
from ..graph.variable import Variable, variable
from ..graph.variable_names import UniqueNames
from ..transforms.gradient import grad
from .clipping import clip_by_global_norm
from .loss_scale import LossScale
from .options import (
    Check,
    add_names,
    at_least,
    check_call,
    checked,
    count,
    describe,
    number,
    positive,
    public_name,
    unknown_option,
)

Rate: TypeAlias = float | Node | Callable[[Node], Node]
"""A learning rate: a number, a node, or a schedule.

A schedule is a function from the number of updates so far (a node) to the rate (a node).
"""


def is_vector(of: Variable) -> bool:
    """Return True if a variable has at most one axis, such as biases and weights of normalizations.

    Parameters
    ----------
    of : Variable
        A variable of any shape.

    Examples
    --------
    >>> parameters = model.parameters()
    >>> is_vector(parameters["0.bias"]), is_vector(parameters["0.weight"])
    (True, False)
    """
    return of.ndim < 2


class ParameterGroup:
    """A part of the parameters that has its own options.

    A variable that two groups contain belongs to the first of them.

    Parameters
    ----------
    of : str, callable or structure of Variable
        A pattern of names ("*.bias"), a function that is true for the variables of the group
        (`is_vector`), or the variables.
    **options
        Options that replace the options of the optimizer for these variables. `lr_factor` is the
        factor of the learning rate (default 1).

    Examples
    --------
    >>> groups = [ParameterGroup(is_vector, weight_decay=0.0)]
    >>> optimizer = AdamW(1e-3, weight_decay=0.1, groups=groups)
    """

    def __init__(self, of: Any, **options: Any) -> None:
        self.of, self.options = of, options
        self._variables = [] if isinstance(of, str) or callable(of) else trees.leaves_of(of)

    def holds(self, of: Variable) -> bool:
        """Return True if the group contains a variable.

        Parameters
        ----------
        of : Variable
            A variable of any shape.
        """
        if isinstance(self.of, str):
            return fnmatchcase(of.name, self.of)
        if callable(self.of):
            return bool(self.of(of))
        return any(of is variable for variable in self._variables)


def update_where(old: Variable, value: Node, where: Node | None) -> Node:
    """Return a node that selects `value` if the bool node `where` is true, and `old` otherwise.

    Return `value` if `where` is None.
    """
    return value if where is None else ops.where(where, value, old)


def decay_gradient(w: Node, g: Node, state: State) -> Node:
    """Return g + weight_decay * w: the gradient of the loss plus an L2 penalty on the weight w."""
    return g + state["weight_decay"] * w if state["weight_decay"] else g


def decay_weight(w: Node, state: State) -> Node:
    """Return the weight w after decoupled weight decay: w - lr * weight_decay * w."""
    if not state["weight_decay"]:
        return w
    return w * state.scalar(1.0 - state.lr * state["weight_decay"])


class State:
    """The argument `state` of `Optimizer.rule`: the data of one variable in one update.

    A State has the learning rate, the number of the update, and the optimizer state of the
    variable: `now` reads it, and `keep` sets it. `state["momentum"]` is the value of the option
    "momentum". `Optimizer.apply` makes one State per variable.

    Attributes
    ----------
    lr : Node
        The learning rate for this variable, a float64 scalar.
    step : Node
        The number of this update, counted from 1, a float64 scalar.
    dtype : dtype
        The dtype of the computation: float64 for a float64 variable, and float32 otherwise.
    next : dict of Variable to Node
        The new values that `keep` has set, by state variable.

    Examples
    --------
    >>> class SignMomentum(optim.Optimizer):
    ...     def rule(self, w, g, state):
    ...         m = state.keep("momentum", 0.9 * state.now("momentum") + 0.1 * g)
    ...         return w - state.scalar(state.lr) * ops.sign(m)
    >>> updates = SignMomentum(1e-3).minimize(loss, parameters)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        of: Variable,
        lr: Node,
        step: Node,
        options: dict[str, Any],
        where: Node | None,
    ) -> None:
        self._optimizer, self._variable, self.options = optimizer, of, options
        self._where = where
        self.dtype = of.dtype if of.dtype == float64 else float32
        self.lr = lr * options["lr_factor"]
        """The learning rate of this variable, in float64."""
        self.step = step
        """The number of this update, counted from 1, in float64."""
        self.next: dict[Variable, Node] = {}
        """A dict from each state variable, such as a momentum, to the value that `keep` has set."""

    def __getitem__(self, option: str) -> Any:
        return self.options[option]

    def scalar(self, value: Node) -> Node:
        """Cast a scalar from float64 to `self.dtype`, in which the update is computed.

        Parameters
        ----------
        value : Node
            A scalar.
        """
        return ops.cast(value, self.dtype)

    def now(self, name: str, initial: float = 0.0) -> Variable:
        """Return a variable of the state, with the shape of the parameter. The first call makes it.

        Parameters
        ----------
        name : str
            The name of the state, such as "momentum".
        initial : float, default 0
            The value of all elements when the variable is made.
        """
        key = f"{self._optimizer._names.names[self._variable]}.{name}"
        return self._optimizer.state_variable(key, self._variable.shape, self.dtype, initial)

    def keep(self, name: str, value: Node) -> Node:
        """Set the value that the update assigns to a variable of the state, and return this value.

        Parameters
        ----------
        name : str
            The name of the variable, as given to `State.now`, such as "momentum".
        value : Node
            The new value, of the shape of the parameter.
        """
        old = self.now(name)
        self.next[old] = update_where(old, value, self._where)
        return self.next[old]


class Optimizer:
    """The base class of all optimizers. A subclass implements `rule`.

    Parameters
    ----------
    lr : float, Node or schedule
        The learning rate. A number becomes the variable `optimizer.lr`, to which you can assign
        between steps. A schedule is a function from the number of updates so far (a float64 node)
        to the learning rate.
    groups : sequence of ParameterGroup
        Parameters with options of their own.
    clip_norm : float, optional
        The maximum of the global norm of the gradients. See clip_by_global_norm.
    loss_scale : LossScale, optional
        The factor of the loss in `minimize`, for steps in float16. The variables of the loss scale
        are part of `state`.
    name : str, optional
        The prefix of the names of the state. The default is the name of the class in lower case.
        Two optimizers in one compiled step need different names.

    Examples
    --------
    >>> optimizer = ngd.optim.AdamW(3e-4, weight_decay=0.1, clip_norm=1.0)
    >>> updates = optimizer.minimize(loss, model.parameters())
    """

    checks: ClassVar[Mapping[str, Check]] = {}
    """The checks of the options that a subclass adds, by the name of the option; see `Check`."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Check that the call has no unknown keyword, and no parameters of a model.

        __init__ does not check this, because the __init__ of a subclass may accept any keyword.
        """
        check_call(public_name(cls), cls, args, options)
        return super().__new__(cls)

    def __init__(
        self,
        lr: Rate,
        *,
        groups: Sequence[ParameterGroup] = (),
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        where = public_name(type(self))
        check_common(where, groups, loss_scale, name)
        checks = {**self.checks, "lr_factor": at_least(0)}
        self.name = name or type(self).__name__.lower()
        self.options = checked(where, checks, {"lr_factor": 1.0, **options})
        self.clip_norm = None if clip_norm is None else positive(where, "clip_norm", clip_norm)
        self.groups, self.loss_scale = list(groups), loss_scale
        for group in self.groups:
            for option in group.options.keys() - self.options.keys():
                raise unknown_option(f"{where}: groups", option, [*self.options])
            group.options = checked(f"{where}: groups", checks, group.options)
        self.state = LiveState(self.name, *([loss_scale.state] if loss_scale else []))
        """The optimizer state by name, for checkpoints.

        The first call of `minimize` or `apply` makes the state variables of each parameter, such as
        its moments. If a checkpoint is loaded earlier, the state keeps the loaded values, and the
        new variables get them in that call.
        """
        self._accumulators: dict[Variable, Variable] = {}
        self._names = UniqueNames()
        self._has_weights: bool | None = None
        """True if `accumulate`, or `minimize` with micro_batches > 1, was called with a `weight`.

        False if it was called without `weight`; None before the first such call. All these calls
        must agree.
        """
        self.step = self.state_variable("step", (), np.dtype(np.int64))
        """The number of updates so far."""
        self.lr: Node | Callable[[Node], Node]
        """The learning rate: a scalar node or a schedule. A number is stored as a variable."""
        if isinstance(lr, Node) and lr.shape != ():
            raise ValueError(
                f"{where}: lr: expected a scalar; got {lr!r} (made at {lr.site}). Reduce it to one "
                "number."
            )
        if isinstance(lr, Node) or callable(lr):
            self.lr = lr
        else:
            self.lr = self.state_variable("lr", (), float64, number(where, "lr", lr, least=0))

    def rule(self, w: Node, g: Node, state: State) -> Node:
        """Return the new value of a variable after one update. A subclass implements this method.

        Parameters
        ----------
        w : Node
            The value of the variable, in `state.dtype`.
        g : Node
            The gradient, of the same shape and dtype.
        state : State
            The options, the learning rate and the state of the variable.

        Returns
        -------
        Node
            The new value, of the same shape.
        """
        raise NotImplementedError(type(self).__name__)

    def with_own_state(self, name: str) -> Optimizer:
        """Return an optimizer with the same rule, options and learning rate, and its own state.

        The state of the copy is new. The copy is for a part of the parameters: for example, the
        tables of ngd.kvstore have one optimizer per key. The copy does not clip gradients, because
        it cannot compute the norm of the gradients of all parameters. The copy does not scale the
        loss.

        Parameters
        ----------
        name : str
            The name of the copy.

        Returns
        -------
        Optimizer
            The copy.
        """
        copied = copy.copy(self)
        copied.name, copied.clip_norm, copied.loss_scale = name, None, None
        copied.state, copied._accumulators, copied._names = LiveState(name), {}, UniqueNames()
        copied._has_weights = None
        copied.step = copied.state_variable("step", (), np.dtype(np.int64))
        return copied

    def state_variable(
        self, key: str, shape: tuple[int, ...], dtype: Any, initial: float = 0.0
    ) -> Variable:
        """Return a variable of the state. The first call makes it.

        Parameters
        ----------
        key : str
            The part of the variable's name that follows the optimizer's name, such as "lr".
        shape : tuple of ints
            The shape of the variable.
        dtype : dtype
            The dtype of the variable.
        initial : float, default 0
            The first value of all elements.
        """
        number = np.asarray(initial, dtype)
        return self.state.variable(f"{self.name}.{key}", lambda: np.broadcast_to(number, shape))

    def minimize(
        self,
        loss: Node,
        parameters: Any,
        *,
        weight: Any = None,
        group: Any = None,
        micro_batches: int = 1,
    ) -> dict[Variable, Node]:
        """Differentiate a loss, average the gradients over the ranks, and return the updates.

        Parameters
        ----------
        loss : Node
            A floating scalar: the loss of this rank.
        parameters : structure of Variable
            The variables to train, in nested dicts, lists, tuples or dataclasses.
        weight : scalar, optional
            The weight of this rank's loss in the mean, such as its number of samples. By default
            all weights are equal. The mean excludes a rank with weight 0, even if its loss is NaN.
        group : Group, optional
            The ranks to average over. The default is the group of the compiled step.
        micro_batches : int, default 1
            The number of micro-batches of this update. `loss` is the loss of the last micro-batch.
            The gradients of the other micro-batches were added by steps with the updates of
            `accumulate`. The gradient of the update is the mean over all micro-batches.

        Returns
        -------
        dict of Variable to Node
            The new values of the parameters and of the optimizer state, for `updates=` of
            ngd.compile or for ngd.function(updates=True).
        """
        count(f"{self.name}: minimize", "micro_batches", micro_batches)
        variables = self._variables("minimize", parameters)
        gradients = self._gradients("minimize", loss, parameters, weight, group)
        reset: dict[Variable, Node] = {}
        if micro_batches > 1:
            self._expect_weights("minimize", weight)
            sums = [self._accumulator(v) for v in variables]
            pairs = zip(sums, gradients, strict=True)
            gradients = [(a + ops.cast(g, a.dtype)) / micro_batches for a, g in pairs]
            reset = {a: ops.zeros(a.shape, a.dtype) for a in sums}
        kind = "mean" if weight is None else "sum"
        averaged = [ops.all_reduce(g, op=kind, group=group) for g in gradients]
        by_variable = dict(zip(variables, averaged, strict=True))
        if self.loss_scale is None:
            return self.apply(by_variable) | reset
        by_variable, finite = self.loss_scale.unscaled(by_variable)
        return self.apply(by_variable, where=finite) | self.loss_scale.updates(finite) | reset

    def accumulate(
        self, loss: Node, parameters: Any, *, weight: Any = None, group: Any = None
    ) -> dict[Variable, Node]:
        """Return updates that add this rank's gradients of one micro-batch to sums.

        For n micro-batches, run a step with these updates n - 1 times. Then run a step with the
        updates of `minimize(..., micro_batches=n)`, which uses the sums and sets them to zero.

        Parameters
        ----------
        loss : Node
            A floating scalar: the loss of this rank for this micro-batch.
        parameters : structure of Variable
            The variables to train, in nested dicts, lists, tuples or dataclasses.
        weight, group
            See `minimize`. They apply to this micro-batch.

        Returns
        -------
        dict of Variable to Node
            The new values of the sums, for `updates=` of ngd.compile.

        Notes
        -----
        Each rank has its own sums. They are not part of `state`, because they are zero after each
        update.

        Examples
        --------
        >>> optimizer = ngd.optim.SGD(0.1)
        >>> add = ngd.compile([x, y], [loss], optimizer.accumulate(loss, parameters))
        >>> updates = optimizer.minimize(loss, parameters, micro_batches=2)
        >>> update = ngd.compile([x, y], [loss], updates)
        """
        variables = self._variables("accumulate", parameters)
        self._expect_weights("accumulate", weight)
        sums = [self._accumulator(v) for v in variables]
        gradients = self._gradients("accumulate", loss, parameters, weight, group)
        return {a: a + ops.cast(g, a.dtype) for a, g in zip(sums, gradients, strict=True)}

    def _gradients(
        self, where: str, loss: Node, parameters: Any, weight: Any, group: Any
    ) -> list[Node]:
        """Return the gradient of this rank's weighted and scaled loss for each parameter.

        With a weight, they are the gradients of loss * loss_scale * weight / total, where total is
        the sum of the weights of all ranks. Their sum over the ranks is the gradient of the
        weighted mean. Without a weight, they are the gradients of loss * loss_scale.

        The weight multiplies the loss and not the gradient. If the loss depends on a collective, as
        with synchronized batch normalization, a gradient on this rank also has parts from other
        ranks' losses. Each part needs the weight of the rank whose loss it comes from.
        """
        call = f"{self.name}: {where}"

        def differentiate(loss: Node) -> list[Node]:
            token = GRADIENT_CALL.set((call, "parameters"))
            try:
                return trees.leaves_of(grad(loss, parameters))
            finally:
                GRADIENT_CALL.reset(token)

        if self.loss_scale is not None:
            loss = self.loss_scale.scaled(loss)
        if weight is None:
            return differentiate(loss)
        own_weight = ops.cast(weight, float64)
        if own_weight.shape:
            raise ValueError(
                f"{call}: expected a scalar weight; got {own_weight!r}. Give the number "
                "of samples of this rank."
            )
        total = ops.all_reduce(own_weight, op="sum", group=group)
        fraction = ops.where(total == 0, 0.0, own_weight / total)
        gradients = differentiate(loss * ops.stop_gradient(ops.cast(fraction, loss.dtype)))
        return [ops.where(own_weight == 0, 0, g) for g in gradients]

    def _expect_weights(self, where: str, weight: Any) -> None:
        """Raise ValueError if only some calls for micro-batches have the argument `weight`.

        These are the calls of `accumulate`, and of `minimize` with micro_batches > 1.
        """
        has_weight = weight is not None
        if self._has_weights is None:
            self._has_weights = has_weight
        if self._has_weights != has_weight:
            raise ValueError(
                f"{self.name}: {where}: expected weights for all micro-batches, or for none; got "
                "some"
            )

    def apply(
        self, gradients: Mapping[Variable, Node], *, where: Node | None = None
    ) -> dict[Variable, Node]:
        """Return the updates from gradients that are equal on all ranks.

        Parameters
        ----------
        gradients : mapping of Variable to Node
            The gradients of the loss without a scale. Only `minimize` uses `loss_scale`.
        where : Node of bool, optional
            A scalar. If it is false, the update changes no parameter and no optimizer state.

        Returns
        -------
        dict of Variable to Node
            The new values of the parameters and of the optimizer state, for `updates=` of
            ngd.compile or for ngd.function(updates=True).
        """
        self._variables("apply", list(gradients))
        if self.clip_norm is not None:
            gradients, _ = clip_by_global_norm(dict(gradients), self.clip_norm)
        num_done = ops.cast(self.step, float64)
        lr = self.lr if isinstance(self.lr, Node) else self.lr(num_done)
        lr = ops.cast(lr, float64)
        updates: dict[Variable, Node] = {self.step: update_where(self.step, self.step + 1, where)}
        for v, g in gradients.items():
            options = next((o.options for o in self.groups if o.holds(v)), {})
            state = State(self, v, lr, num_done + 1.0, {**self.options, **options}, where)
            new = self.rule(ops.cast(v, state.dtype), ops.cast(g, state.dtype), state)
            updates[v] = update_where(v, ops.cast(new, v.dtype), where)
            updates |= state.next
        return updates

    def _accumulator(self, of: Variable) -> Variable:
        """Return the variable that sums the gradients of the micro-batches for a parameter.

        Each rank has its own sum.
        """
        if of not in self._accumulators:
            dtype = of.dtype if of.dtype == float64 else float32
            name = f"{self.name}.{self._names.names[of]}.accumulated"
            zeros = np.zeros(of.shape, dtype)
            self._accumulators[of] = variable(name, zeros, per_rank=True)
        return self._accumulators[of]

    def _variables(self, where: str, parameters: Any) -> list[Any]:
        """Return the parameters of a call as a list of variables.

        Raise an error if one is not a variable, occurs twice, or has the name of another one.
        """
        leaves, structure = trees.flatten(parameters)
        for leaf, path in zip(leaves, structure.paths("parameters"), strict=True):
            if not isinstance(leaf, Variable):
                raise TypeError(
                    f"{self.name}: {where}: {path}: expected a variable; got {leaf!r}. Pass "
                    "model.parameters()."
                )
        for leaf, times in Counter(leaves).items():
            if times > 1:
                raise ValueError(
                    f"{self.name}: {where}: expected each parameter once; got {leaf.name!r} "
                    f"{times} times. Give it once."
                )
        add_names(f"{self.name}: {where}", leaves, self._names)
        return leaves


def check_common(where: str, groups: Any, loss_scale: Any, name: Any) -> None:
    """Check the types of the arguments groups, loss_scale and name, which all optimizers have."""
    if not isinstance(groups, (list, tuple)) or not all(
        isinstance(group, ParameterGroup) for group in groups
    ):
        raise TypeError(
            f"{where}: groups: expected a list of optim.ParameterGroup; got {describe(groups)}. "
            "Write optim.ParameterGroup(optim.is_vector, weight_decay=0.0) for each."
        )
    if loss_scale is not None and not isinstance(loss_scale, LossScale):
        raise TypeError(
            f"{where}: loss_scale: expected optim.LossScale(); got {describe(loss_scale)}"
        )
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"{where}: name: expected a non-empty text; got {name!r}")
