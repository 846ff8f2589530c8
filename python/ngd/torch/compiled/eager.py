# SPDX-License-Identifier: Apache-2.0
"""The step in eager PyTorch with ngd's collectives, for models that ngd cannot translate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ...comm import Group
from .guards import StepGuard
from .memory import as_tensor
from .programs import Form
from .rules.registry import as_array


class EagerStep:
    """A step that runs in eager PyTorch; the gradients are averaged over the ranks.

    Parameters
    ----------
    model : Module
        The model.
    loss : callable
        The loss function of the step.
    optimizer : torch.optim.Optimizer
        The optimizer.
    clip_norm : float or None
        The largest global norm of the gradients.
    group : Group
        The ranks.
    guard : StepGuard
        The guard that makes `optimizer.step()` raise outside of the step.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        clip_norm: float | None,
        group: Group,
        guard: StepGuard,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.clip_norm, self.group, self.guard = clip_norm, group, guard

    def run(self, batch: tuple[Any, ...], form: Form, weight: float, total: float) -> Any:
        """Run a step, a micro-batch or an evaluation, and return the results of the loss function.

        Parameters
        ----------
        batch : tuple
            The arguments of the loss function.
        form : Form
            The kind of call. If `form.trains` is True, the call updates the parameters. If
            `form.accumulates` is True, it adds up the gradients of a micro-batch without an update.
            If both are False, the call is an evaluation.
        weight : float
            The factor of this rank's loss before the backward pass. If it is 0, there is no
            backward pass.
        total : float
            The sum of this rank's weights since the last update, including `weight`. An update
            adds up the gradients of all ranks, and divides them by the sum of `total` over all
            ranks.
        """
        if not form.trains and not form.accumulates:
            with torch.no_grad():
                return self.loss(self.model, *batch)
        results = self.loss(self.model, *batch)
        loss = results[0] if isinstance(results, (tuple, list)) else results
        if weight != 0:
            (loss * weight).backward()
        if form.trains:
            self._update(total)
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, results)

    def _update(self, total: float) -> None:
        """Average the gradients over the ranks, clip and apply them, and clear them.

        `total` is the sum of the weights of this rank's losses since the last update.
        """
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        has_gradient = np.array([p.grad is not None for p in parameters], np.int32)
        has_gradient = self.group.all_reduce(has_gradient, op="max")
        weights = float(self.group.all_reduce(np.array([total]), op="sum")[0])
        for p, is_used in zip(parameters, has_gradient, strict=True):
            if is_used:
                gradient = torch.zeros_like(p) if p.grad is None else p.grad
                summed = as_tensor(self.group.all_reduce(as_array(gradient), op="sum"))
                p.grad = summed.div_(weights) if weights else torch.zeros_like(p)
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self.clip_norm)
        with self.guard:
            self.optimizer.step()
        self.optimizer.zero_grad()
