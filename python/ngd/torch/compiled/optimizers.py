# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch.optim as updates of an ngd program, with their state as torch's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from ... import optim
from ...ir import Node
from ...variables import Variable
from .memory import as_tensor


class Translation(NamedTuple):
    """An optimizer of ngd that computes what one of PyTorch computes.

    Attributes
    ----------
    optimizer : type
        The class of ngd.optim.
    options : tuple of str
        The options that both have, by name.
    state : dict of str to str
        ngd's names of the state by PyTorch's.
    counts : bool
        True if PyTorch's state has the number of updates, `step`.
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
"""The optimizers that can be translated. A subclass may compute something else."""

REFUSED: Final = ("maximize", "capturable", "differentiable")
"""Options of PyTorch's optimizers that change the update and have no translation."""


def expect_translatable(where: str, optimizer: Any) -> Translation:
    """Return the translation of an optimizer, or raise a TypeError or a ValueError."""
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


class TranslatedOptimizer:
    """An optimizer of PyTorch with the updates and the state of its groups in an ngd program.

    Parameters
    ----------
    where : str
        The public call, for messages.
    optimizer : torch.optim.Optimizer
        The optimizer.
    """

    def __init__(self, where: str, optimizer: Optimizer) -> None:
        self.translation = expect_translatable(where, optimizer)
        self.optimizer = optimizer
        self.groups: dict[int, optim.Optimizer] = {}
        """The ngd optimizer of each group, by the group's number."""
        self._rates: dict[int, float] = {}
        self._states: dict[torch.Tensor, dict[str, Variable]] = {}
        self._shown: set[torch.Tensor] = set()

    def options(self) -> tuple[Any, ...]:
        """Return the options of all groups but the learning rate: a change needs a new program."""
        return tuple(
            tuple(group[name] for name in self.translation.options)
            for group in self.optimizer.param_groups
        )

    def read_rates(self) -> None:
        """Assign the learning rates that have changed, for example by a scheduler.

        They are variables and not arguments, so that the next values of parameters are equal on
        all ranks. All ranks change them in the same way.
        """
        for number, known in self.groups.items():
            rate = float(self.optimizer.param_groups[number]["lr"])
            if rate != self._rates[number]:
                self._rates[number] = rate
                cast(Variable, known.lr).assign(rate)

    def updates(
        self, gradients: Mapping[Variable, Node], tensors: Mapping[torch.Tensor, Variable]
    ) -> dict[Variable, Node]:
        """Return the updates of one program.

        Parameters
        ----------
        gradients : mapping of Variable to Node
            The gradients after all-reduce and clipping.
        tensors : mapping of Tensor to Variable
            The variable of each parameter.
        """
        made: dict[Variable, Node] = {}
        for number, group in enumerate(self.optimizer.param_groups):
            made |= self._updates_of_group(number, group, gradients, tensors)
        return made

    def _updates_of_group(
        self,
        number: int,
        group: Mapping[str, Any],
        gradients: Mapping[Variable, Node],
        tensors: Mapping[torch.Tensor, Variable],
    ) -> dict[Variable, Node]:
        found = {
            tensors[p]: gradients[tensors[p]]
            for p in group["params"]
            if p in tensors and tensors[p] in gradients
        }
        if not found:
            return {}
        options = {name: group[name] for name in self.translation.options}
        known = self.groups.get(number)
        if known is None:
            name, rate = f"optimizer_{number}", float(group["lr"])
            known = self.groups[number] = self.translation.optimizer(rate, name=name, **options)
            self._rates[number] = rate
        known.options = {**known.options, **options}
        made = known.apply(found)
        for p in group["params"]:
            if p in tensors and tensors[p] in gradients:
                self._states[p] = self._state_of(known, tensors[p])
        return made

    def _state_of(self, known: optim.Optimizer, of: Variable) -> dict[str, Variable]:
        """Return the state of a parameter by PyTorch's names."""
        prefix = f"{known.name}.{of.name}."
        names = {theirs: prefix + ours for theirs, ours in self.translation.state.items()}
        by_name = known.state.variables
        return {theirs: by_name[name] for theirs, name in names.items() if name in by_name}

    def show_state(self) -> None:
        """Let torch's state of each parameter be a view of ngd's, and count the update."""
        steps = []
        for tensor, variables in self._states.items():
            state = self.optimizer.state[tensor]
            if tensor not in self._shown:
                self._shown.add(tensor)
                state.update({name: as_tensor(v.view()) for name, v in variables.items()})
                if self.translation.counts:
                    state.setdefault("step", torch.tensor(0.0))
            if "step" in state:
                steps.append(state["step"])
        if steps:
            torch._foreach_add_(steps, 1)
        self.optimizer._opt_called = True  # else a scheduler warns that no step was made
