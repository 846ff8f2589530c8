# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch.optim as updates in ngd programs.

ngd's variables have the state of the optimizer. The tensors in PyTorch's `optimizer.state` are
views of the variables, or copies if the variables are sharded.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from ... import optim
from ...graph.node import Node
from ...graph.variable import Variable
from .memory import ModelMemory, as_tensor, expect_shape
from .rules.registry import as_array, as_torch_dtype


class Translation(NamedTuple):
    """The class of ngd.optim that computes the same updates as a class of torch.optim.

    Attributes
    ----------
    optimizer : type
        The class of ngd.optim.
    options : tuple of str
        The names of the options that both classes have.
    state : dict of str to str
        The names of a parameter's state tensors: PyTorch's name to ngd's name.
    counts : bool
        True if PyTorch's state of a parameter contains the number of its updates, `step`.
    """

    optimizer: type[optim.Optimizer]
    options: tuple[str, ...]
    state: dict[str, str]
    counts: bool = True


ADAM: Final = {
    "exp_avg": "first_moment",
    "exp_avg_sq": "second_moment",
    "max_exp_avg_sq": "largest_second_moment",
}
TRANSLATIONS: Final[dict[type, Translation]] = {
    SGD: Translation(
        optim.SGD,
        ("momentum", "dampening", "nesterov", "weight_decay"),
        {"momentum_buffer": "momentum"},
        counts=False,
    ),
    Adam: Translation(optim.Adam, ("betas", "eps", "weight_decay", "amsgrad"), ADAM),
    AdamW: Translation(optim.AdamW, ("betas", "eps", "weight_decay", "amsgrad"), ADAM),
    RMSprop: Translation(
        optim.RMSprop,
        ("alpha", "eps", "weight_decay", "momentum", "centered"),
        {"square_avg": "square", "grad_avg": "mean", "momentum_buffer": "momentum"},
    ),
    Adagrad: Translation(
        optim.Adagrad,
        ("lr_decay", "initial_accumulator_value", "eps", "weight_decay"),
        {"sum": "square"},
    ),
}
"""The supported classes of torch.optim, each with its translation to a class of ngd.optim.
Subclasses are refused, because they may compute other updates."""

REFUSED: Final = ("maximize", "capturable", "differentiable")
"""Options of PyTorch's optimizers that change the update and have no translation."""


def expect_translatable(where: str, optimizer: Any) -> Translation:
    """Return the translation of an optimizer.

    Raise a TypeError if ngd does not support its class, or a ValueError for an option in REFUSED.
    """
    translation = TRANSLATIONS.get(type(optimizer))
    if translation is None:
        names = ", ".join(kind.__name__ for kind in TRANSLATIONS)
        raise TypeError(
            f"{where}: optimizer: expected one of torch.optim's {names}; got "
            f"{type(optimizer).__qualname__}. A subclass may compute another update. Use one of "
            'these classes, or train with loss.backward() over the backend "ngd".'
        )
    for group in optimizer.param_groups:
        for option in REFUSED:
            if group.get(option):
                raise ValueError(
                    f"{where}: optimizer: expected {option}=False; got True. Leave it out."
                )
    return translation


class Cohort(NamedTuple):
    """Parameters of one group that have had the same number of updates.

    PyTorch counts the updates of each parameter; a parameter without a gradient is not updated. A
    program has one count per cohort.

    Attributes
    ----------
    group : int
        The index of the group in `param_groups` of PyTorch's optimizer.
    optimizer : ngd.optim.Optimizer
        A copy of ngd's optimizer of the group. Its attribute `step` is the variable with the number
        of updates of these parameters.
    parameters : dict of Tensor to None
        The parameters, in the order of the group. The dict serves as an ordered set: its keys are
        the parameters, and its values are None. If a program trains only some of the parameters,
        the cohort is split.
    """

    group: int
    optimizer: optim.Optimizer
    parameters: dict[torch.Tensor, None]


class TranslatedOptimizer:
    """A translation of a PyTorch optimizer: ngd computes its updates and stores its state.

    The updates are nodes of the graph of a step. The state, such as the momentum, is in
    variables of ngd.

    Parameters
    ----------
    where : str
        The public call that error messages begin with, such as "ngd.torch.compile_step".
    optimizer : torch.optim.Optimizer
        The optimizer.
    memory : ModelMemory
        The variables of the model.
    """

    def __init__(self, where: str, optimizer: Optimizer, memory: ModelMemory) -> None:
        self.where, self.optimizer, self.memory = where, optimizer, memory
        self.translation = expect_translatable(where, optimizer)
        self.generation = 0
        """The number of splits so far. A split divides a cohort (parameters with equal numbers of
        updates). Programs from before a split are dropped: their counts of updates are wrong."""
        self._groups: dict[int, optim.Optimizer] = {}
        self._rates: dict[int, float] = {}
        self._cohorts: list[Cohort] = []
        self._names = itertools.count()
        self._states: dict[torch.Tensor, dict[str, Variable]] = {}
        self._shown: dict[tuple[torch.Tensor, str], torch.Tensor] = {}
        """The tensors in PyTorch's state, by parameter and name. A tensor is a view of ngd's state
        variable, or a copy if the variable is sharded."""
        optimizer.register_state_dict_pre_hook(self._gather_state)

    def options(self) -> tuple[Any, ...]:
        """Return the options of all parameter groups, without the learning rates.

        A program contains the options as constants, so it is valid only for these options.
        """
        return tuple(
            tuple(group[name] for name in self.translation.options)
            for group in self.optimizer.param_groups
        )

    def read_rates(self) -> None:
        """Assign the learning rates that have changed, for example by a scheduler.

        A learning rate is a variable of ngd, because the compiler assumes that a variable is equal
        on all ranks. If the rate were an argument of the program, the compiler would assume that
        the rate, and the parameters after the update, may differ between ranks. All ranks must
        therefore set equal learning rates.
        """
        for number, group_optimizer in self._groups.items():
            rate = float(self.optimizer.param_groups[number]["lr"])
            if rate != self._rates[number]:
                self._rates[number] = rate
                cast(Variable, group_optimizer.lr).assign(rate)

    def updates(self, gradients: Mapping[Variable, Node]) -> dict[Variable, Node]:
        """Return the nodes of the new values of parameters and optimizer state, by variable.

        Parameters
        ----------
        gradients : mapping of Variable to Node
            The gradients after all-reduce and clipping.
        """
        updates_: dict[Variable, Node] = {}
        tensors = self.memory.variables
        for number, group in enumerate(self.optimizer.param_groups):
            trained = [p for p in group["params"] if tensors.get(p) in gradients]
            options = {name: group[name] for name in self.translation.options}
            for cohort in self._cohorts_of(number, trained):
                cohort.optimizer.options = {**cohort.optimizer.options, **options}
                parameters = [p for p in trained if p in cohort.parameters]
                updates_ |= cohort.optimizer.apply(
                    {tensors[p]: gradients[tensors[p]] for p in parameters}
                )
                self._add_states(cohort, parameters)
        return updates_

    def _cohorts_of(self, number: int, trained: Sequence[torch.Tensor]) -> list[Cohort]:
        """Return the cohorts of one parameter group that contain the parameters `trained`.

        A cohort is a set of parameters of the group with the same number of updates. If `trained`
        has only some parameters of a cohort, the others first move to a new cohort. Parameters
        without a cohort get one.

        Parameters
        ----------
        number : int
            The number of the group.
        trained : sequence of Tensor
            The parameters of the group that the program trains.
        """
        trained_set = set(trained)
        for cohort in [c for c in self._cohorts if c.group == number]:
            others = [p for p in cohort.parameters if p not in trained_set]
            if 0 < len(others) < len(cohort.parameters):
                self._split(cohort, others)
        known = {p for c in self._cohorts for p in c.parameters}
        by_count: dict[int, list[torch.Tensor]] = {}
        for p in trained:
            if p not in known:
                by_count.setdefault(self._count_of(p), []).append(p)
        for count, parameters in by_count.items():
            self._add_cohort(number, count, parameters)
        return [c for c in self._cohorts if c.group == number and trained_set & set(c.parameters)]

    def _count_of(self, p: torch.Tensor) -> int:
        """Return the number of updates of a parameter, from PyTorch's state.

        PyTorch's state for SGD has no such number. Then return 1 for a parameter that has state,
        and 0 for a parameter without state. SGD needs no other numbers: only the first update,
        which initializes the momentum, differs from the later ones.
        """
        state = self.optimizer.state.get(p, {})
        if self.translation.counts:
            return int(state.get("step", 0))
        return int(any(value is not None for value in state.values()))

    def _add_cohort(self, number: int, count: int, parameters: Sequence[torch.Tensor]) -> Cohort:
        """Create a cohort of parameters of parameter group `number`, each with `count` updates."""
        cohort_optimizer = copy.copy(self._group(number))
        cohort_optimizer.step = cohort_optimizer.state_variable(
            f"step_{next(self._names)}", (), np.dtype(np.int64)
        )
        if count:
            cohort_optimizer.step.assign(count)
        cohort = Cohort(number, cohort_optimizer, dict.fromkeys(parameters))
        self._cohorts.append(cohort)
        return cohort

    def _group(self, number: int) -> optim.Optimizer:
        """Return ngd's optimizer of a parameter group.

        Each cohort (the parameters with the same number of updates) has a copy of this optimizer
        with its own count of updates.
        """
        if number not in self._groups:
            group = self.optimizer.param_groups[number]
            rate = float(group["lr"])
            options = {name: group[name] for name in self.translation.options}
            name = f"optimizer_{number}"
            self._groups[number] = self.translation.optimizer(rate, name=name, **options)
            self._rates[number] = rate
        return self._groups[number]

    def _split(self, cohort: Cohort, others: Sequence[torch.Tensor], count: int = -1) -> None:
        """Move the parameters `others` of a cohort to a new cohort.

        The parameters of a cohort have equal numbers of updates. `count` is the number for the new
        cohort. If it is -1, the number does not change. All compiled programs become invalid.
        """
        for p in others:
            del cohort.parameters[p]
        self._add_cohort(cohort.group, int(cohort.optimizer.step) if count < 0 else count, others)
        self.generation += 1

    def _add_states(self, cohort: Cohort, parameters: Sequence[torch.Tensor]) -> None:
        """Add the state variables of parameters, such as their momentum, to `_states`.

        The variables are those of `cohort.optimizer`, ngd's optimizer of these parameters. If
        PyTorch's state already has a value, for example from a checkpoint, copy it to the variable.
        Skip parameters that are already in `_states`.
        """
        by_name = cohort.optimizer.state.variables
        for p in parameters:
            if p in self._states:
                continue
            prefix = f"{cohort.optimizer.name}.{self.memory.variables[p].name}."
            names = {theirs: prefix + ours for theirs, ours in self.translation.state.items()}
            self._states[p] = {t: by_name[name] for t, name in names.items() if name in by_name}
            for name, of in self._states[p].items():
                value = self.optimizer.state.get(p, {}).get(name)
                if value is not None:
                    self._assign(of, value)

    def _assign(self, of: Variable, value: torch.Tensor) -> None:
        """Assign a tensor of PyTorch's state to a variable; raise if the shapes differ."""
        expect_shape(f"{self.where}: optimizer.state", value, of)
        of.assign(as_array(value))

    def read_state(self) -> None:
        """Copy the state tensors to ngd's variables if the user has replaced them.

        For example, `load_state_dict` replaces state tensors.
        """
        state = self.optimizer.state
        replaced = [
            (p, name, of)
            for p, variables in self._states.items()
            for name, of in variables.items()
            if state[p].get(name) is not self._shown.get((p, name))
        ]
        if not replaced:
            return
        for p, name, of in replaced:
            value = state[p].get(name)
            shown = self._shown.pop((p, name), None)
            if shown is not None:
                self.memory.remove(shown)
            self._assign(of, torch.zeros(of.shape) if value is None else value)
        for cohort in list(self._cohorts):
            self._read_counts(cohort)
        self.show_state()

    def _read_counts(self, cohort: Cohort) -> None:
        """Read from PyTorch's state how often the parameters of a cohort have been updated.

        All parameters of a cohort must have the same number of updates. Parameters whose number
        differs from that of the first parameter move to new cohorts.
        """
        by_count: dict[int, list[torch.Tensor]] = {}
        for p in cohort.parameters:
            by_count.setdefault(self._count_of(p), []).append(p)
        (first, _), *rest = by_count.items()
        cohort.optimizer.step.assign(first)
        for count, parameters in rest:
            self._split(cohort, parameters, count)

    def show_state(self) -> None:
        """Replace PyTorch's state tensors by new tensors that are views of ngd's state.

        The old tensors keep their memory. `load_state_dict` may have put tensors of the user's dict
        into PyTorch's state, and steps must not change the user's tensors.
        """
        for p, variables in self._states.items():
            missing = [name for name in variables if (p, name) not in self._shown]
            if not missing:
                continue
            state = self.optimizer.state[p]
            if self.translation.counts:
                state["step"] = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32).clone()
            for name in missing:
                of = variables[name]
                state.pop(name, None)
                if of.kept_by is None:
                    shown = torch.empty(0, dtype=as_torch_dtype(of.dtype))
                    state[name] = self._shown[p, name] = shown
                    self.memory.add(shown, of)

    def count(self, trained: Collection[Variable]) -> None:
        """Add 1 to the entry "step" of PyTorch's state for each trained parameter.

        `trained` has the variables of the parameters that a step has just updated. PyTorch's state
        for SGD has no such entry.
        """
        if self.translation.counts:
            variables = self.memory.variables
            steps = [
                self.optimizer.state[p]["step"] for p in self._states if variables[p] in trained
            ]
            if steps:
                torch._foreach_add_(steps, 1)
        self.optimizer._opt_called = True  # otherwise a scheduler warns that no step was made

    def _gather_state(self, optimizer: Optimizer) -> None:
        """Copy sharded state into PyTorch's state before PyTorch saves it.

        State is sharded if each rank keeps only a part of it. With `shard="world"`, the parts are
        on several hosts, so all ranks must call this together.
        """
        for p, variables in self._states.items():
            for name, of in variables.items():
                if of.kept_by is not None:
                    copied = as_tensor(of.numpy())
                    self.optimizer.state[p][name] = self._shown[p, name] = copied
