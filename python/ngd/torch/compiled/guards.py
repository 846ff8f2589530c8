# SPDX-License-Identifier: Apache-2.0
"""Guards that raise if the user misuses the model or optimizer of a compiled step.

Misuses are calls of `loss.backward()` or `optimizer.step()`, and uses of a model that a failed step
has left with invalid values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from ...errors import PoisonedVariableError
from ...graph.variable import Variable

TWO_WAYS: Final = (
    "Train with `loss = step(batch)`, which updates the parameters, or without compile_step: "
    'torch.compile(model, backend="ngd"), loss.backward() and optimizer.step().'
)


def refuse_backward(*args: Any, **options: Any) -> None:
    """Raise a RuntimeError. The loss of a compiled step has this function as `backward`."""
    raise RuntimeError(
        "ngd.torch.compile_step: loss.backward: expected no backward pass, because the step has "
        f"computed the gradients and updated the parameters; got a call. {TWO_WAYS}"
    )


class StepGuard:
    """A guard that makes `optimizer.step()` raise, except in a `with` block of this guard.

    The user must not call `optimizer.step()`, because the compiled step updates the parameters.
    Only EagerStep, the step in eager PyTorch, calls `optimizer.step()`, in such a `with` block.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._is_open = False
        optimizer.register_step_pre_hook(self._refuse)

    def _refuse(self, *args: Any) -> None:
        """Raise a RuntimeError outside a `with` block of the guard. A hook of `optimizer.step`."""
        if not self._is_open:
            raise RuntimeError(
                "ngd.torch.compile_step: optimizer.step: expected no call, because the compiled "
                f"step updates the parameters; got one. {TWO_WAYS}"
            )

    def __enter__(self) -> None:
        self._is_open = True

    def __exit__(self, *error: object) -> None:
        self._is_open = False


def is_poisoned(variables: Iterable[Variable]) -> bool:
    """Return True if a step failed while it updated at least one of `variables`."""
    return any(of.cell.poisoned for of in variables)


class PoisonGuard:
    """A guard that makes the model and the optimizer raise after a failed update.

    A step that fails while it updates parameters may leave some old and some new values: the model
    is poisoned. PyTorch could still read these values, so hooks raise in the forward pass and in
    `state_dict`, until a complete checkpoint is loaded.

    Parameters
    ----------
    model : Module
        The model.
    optimizer : torch.optim.Optimizer
        Its optimizer.
    repair : callable
        A function that makes the model valid again. It is called after `load_state_dict` of the
        model has loaded all values.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, repair: Callable[[], None]) -> None:
        self._repair = repair
        self._handles: list[Any] = []
        for module in model.modules():
            self._handles += [
                module.register_forward_pre_hook(self._refuse_forward),
                module.register_state_dict_pre_hook(self._refuse_state),
            ]
        self._handles += [
            model.register_load_state_dict_post_hook(self._after_load),
            optimizer.register_state_dict_pre_hook(self._refuse_optimizer),
        ]

    def refuse(self, use: str) -> None:
        """Raise a PoisonedVariableError whose message begins with `use`, the call that was made."""
        raise PoisonedVariableError(
            f"{use}: expected a model with valid values; got one whose last step failed while it "
            "updated the parameters. Load a complete checkpoint with model.load_state_dict and "
            "optimizer.load_state_dict."
        )

    def _refuse_forward(self, module: nn.Module, *args: Any) -> None:
        """Raise in a forward pass, except while torch.compile traces it."""
        if not torch.compiler.is_compiling():
            self.refuse(f"{type(module).__name__}.forward")

    def _refuse_state(self, module: nn.Module, *args: Any) -> None:
        self.refuse(f"{type(module).__name__}.state_dict")

    def _refuse_optimizer(self, optimizer: Optimizer) -> None:
        self.refuse(f"{type(optimizer).__name__}.state_dict")

    def _after_load(self, module: nn.Module, incompatible: Any) -> None:
        """If the loaded checkpoint had all keys, remove the hooks and call `repair`."""
        if not incompatible.missing_keys:
            for handle in self._handles:
                handle.remove()
            self._repair()
