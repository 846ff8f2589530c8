# SPDX-License-Identifier: Apache-2.0
"""The Trainer of Hugging Face transformers, with compiled steps.

    from ngd.torch.transformers import Trainer     # instead of: from transformers import Trainer

docs/torch_models.md describes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
import transformers
from torch import nn

from .compiled import CompiledStep, compile_step

__all__ = ["Trainer"]


class Trainer(transformers.Trainer):
    """A transformers.Trainer whose training steps are ngd programs.

    The arguments are those of transformers.Trainer. `max_grad_norm`, `bf16`, gradient accumulation,
    schedulers, callbacks, checkpoints and evaluation work as usual. The ranks are those of
    torch.distributed, which accelerate initializes. Evaluation runs in PyTorch.

    Raises
    ------
    CompileError
        The model cannot be translated. The message names the line of the model.
    TypeError
        ngd.torch.compile_step cannot translate the optimizer.
    """

    _compiled: CompiledStep | None = None

    def create_accelerator_and_postprocess(self) -> None:
        """Create the accelerator, but let it leave the model unwrapped.

        The accelerator does not need DistributedDataParallel, because the compiled step contains
        the all-reduce of the gradients.
        """
        super().create_accelerator_and_postprocess()
        self.accelerator.prepare_model = _unwrapped

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> Any:
        """Create the scheduler, and replace the optimizer's `step` by a method that does nothing.

        The compiled step updates the parameters, so the Trainer's call of `optimizer.step()` must
        not. A scheduler of PyTorch wraps the method when it is created. The method is therefore
        replaced, not removed, and before the scheduler is created.
        """
        self.optimizer.step = MethodType(_no_step, self.optimizer)  # schedulers need a method
        return super().create_scheduler(num_training_steps, optimizer)

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Accumulate the gradients of a micro-batch.

        The call for the last micro-batch of an update also updates the parameters.

        Parameters
        ----------
        model : Module
            The model.
        inputs : dict
            The arguments of the model.
        num_items_in_batch : Tensor or int, optional
            The number of labels in all micro-batches of an update. It is an argument of
            `compute_loss`, which may divide the loss by it.

        Returns
        -------
        Tensor
            This micro-batch's part of the loss, as transformers.Trainer returns it.
        """
        model.train()
        step, batch = self._step(), self._prepare_inputs(inputs)
        count = self.current_gradient_accumulation_steps
        is_part = self._is_part_of_a_sum(num_items_in_batch)
        items = None if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
        # The compiled step divides by the number of micro-batches. A loss that is already a part of
        # a sum is therefore multiplied by that number.
        scale = torch.tensor(float(count if is_part else 1))
        loss = step(batch, items, scale, accumulate=not self.accelerator.sync_gradients)
        return loss.detach() / count

    def _step(self) -> CompiledStep:
        """Return the compiled step. Create it at the first call, or if the optimizer changed."""
        optimizer = self.optimizer.optimizer  # the optimizer that accelerate has wrapped
        if self._compiled is None or self._compiled.optimizer is not optimizer:
            norm = self.args.max_grad_norm
            self._compiled = compile_step(
                self.model,
                self._loss,
                optimizer,
                clip_norm=norm if norm and norm > 0 else None,
                precision="bfloat16" if self.args.bf16 else "float32",
            )
        return self._compiled

    def _loss(
        self, model: nn.Module, batch: Mapping[str, Any], items: Any, scale: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of a micro-batch multiplied by `scale`."""
        return self.compute_loss(model, dict(batch), num_items_in_batch=items) * scale

    def _is_part_of_a_sum(self, num_items_in_batch: Any) -> bool:
        """Return True if the loss of an update is the sum of the losses of its micro-batches.

        Each of these losses has usually been divided by the number of labels in all micro-batches
        of the update. Return False if the loss of the update is the mean of the losses.
        """
        is_scaled = getattr(self, "loss_is_scaled_for_ga", None)
        if is_scaled is not None:
            return bool(is_scaled)
        has_count = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        return has_count or self.compute_loss_func is not None

    def _clip_grad_norm(self, model: nn.Module) -> None:
        """Do nothing, because the compiled step clips the gradients."""

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> None:
        """Return None, so that no norm is logged: only the compiled step has the gradients."""


def _unwrapped(model: nn.Module, *args: Any, **options: Any) -> nn.Module:
    """Return the model unchanged. This replaces accelerate's `prepare_model`."""
    return model


def _no_step(*args: Any, **options: Any) -> None:
    """Do nothing. This replaces `step` of the optimizer: the compiled step makes the updates."""
