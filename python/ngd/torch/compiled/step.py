# SPDX-License-Identifier: Apache-2.0
"""compile_step: a training step of a PyTorch model as one ngd program."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ...comm import Group
from ...comm.world import group_or_world
from ...compiler.driver import without_collector
from ...errors import CompileError, FallbackWarning, RetraceWarning
from .broadcasts import broadcast_model
from .capture import capture
from .coverage import Coverage, coverage_of
from .eager import EagerStep
from .guards import PoisonGuard, StepGuard, is_poisoned, refuse_backward
from .memory import ModelMemory, as_tensor
from .optimizers import TranslatedOptimizer
from .programs import Form, Program, ProgramBuilder
from .rules import UnsupportedOpError
from .rules.registry import as_array, as_numpy_dtype

WHERE: Final = "ngd.torch.compile_step"
MANY_PROGRAMS: Final = 8
"""A CompiledStep warns once, when it has compiled this number of programs. The warning lists what
has changed since the previous program: the batch, the model, the optimizer or the buffers."""
MAX_PROGRAMS: Final = 64
"""The largest number of compiled programs that a CompiledStep keeps. When it is exceeded, the least
recently used program is dropped."""
Fallback = Literal["error", "torch"]


class CompiledStep:
    """A training step of a PyTorch model, which `compile_step` returns.

    Attributes
    ----------
    model : Module
        The model.
    optimizer : torch.optim.Optimizer
        The optimizer.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        *,
        clip_norm: float | None,
        fallback: Fallback,
        options: dict[str, Any],
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self._fallback = fallback
        self._group: Group = group_or_world(None)
        self._memory = ModelMemory(model, self._group)
        self._state = TranslatedOptimizer(WHERE, optimizer, self._memory)
        self._builder = ProgramBuilder(WHERE, self._memory, self._state, clip_norm, options)
        self._programs: OrderedDict[Any, Program] = OrderedDict()
        self._generation = 0
        self._num_compiled = 0
        self._last_key: Any = None
        self._coverage = Coverage({}, {}, {})
        self._guard = StepGuard(optimizer)
        self._poison: PoisonGuard | None = None
        self._eager: EagerStep | None = None
        self._clip_norm = clip_norm
        self._total = 0.0  # the sum of the micro-batches' weights since the last update
        self._num_micro_batches = 0
        broadcast_model(WHERE, model, self._group)

    def __call__(self, *batch: Any, accumulate: bool = False, weight: Any = None) -> Any:
        """Run one step: forward, backward, all-reduce, clipping and update.

        All ranks call this.

        Parameters
        ----------
        *batch
            The arguments of the loss function after the model: tensors in any structure. Each shape
            has its own program.
        accumulate : bool, default False
            True for a micro-batch: its gradients are added up on this rank, and the parameters do
            not change. The next call with False updates them, by the mean over all micro-batches.
        weight : float, optional
            The weight of this loss in the mean over the ranks and micro-batches, for example its
            number of samples or tokens. The default is 1. A loss of weight 0 does not count, even
            if it is NaN.

        Returns
        -------
        Tensor, or the structure that the loss function returns
            The loss of this rank, before the update, without a gradient.

        Raises
        ------
        CompileError
            The model cannot be translated. The message names the line.
        PoisonedVariableError
            An earlier step failed while it updated the parameters.
        """
        has_sums = self._num_micro_batches > 0
        has_weight = accumulate or has_sums or weight is not None
        form = Form(not accumulate, accumulate, has_sums and not accumulate, has_weight)
        amount = 1.0 if weight is None else _weight(weight)
        total = self._total + amount
        results = self._run(batch, form, amount, total)
        self._total = total if accumulate else 0.0
        self._num_micro_batches = self._num_micro_batches + 1 if accumulate else 0
        pytree.tree_leaves(results)[0].backward = refuse_backward
        return results

    def evaluate(self, *batch: Any) -> Any:
        """Return the loss in evaluation mode, without a gradient and without an update.

        Parameters
        ----------
        *batch
            The arguments of the loss function after the model, as in a step.
        """
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            return self._run(batch, Form(trains=False), 1.0, 1.0)
        finally:
            for module, is_training in modes:
                module.training = is_training

    def coverage(self) -> Coverage:
        """Return the ops of the model: those that ngd runs, constants, and untranslatable ones.

        ngd captures the model for each new batch shape: torch.export records its ops as a graph.
        The result describes the last captured graph, even if ngd could not compile it. Before the
        first capture, the result is empty.
        """
        return self._coverage

    def _run(self, batch: tuple[Any, ...], form: Form, weight: float, total: float) -> Any:
        """Run a batch in its program, or in eager PyTorch after a fallback; return the results."""
        if self._eager is not None:
            return self._eager.run(batch, form, weight, total)
        if self._poison is not None:
            self._poison.refuse(WHERE)
        self._memory.read_written(WHERE)
        self._state.read_state()
        self._builder.random.read()
        leaves, structure = pytree.tree_flatten(batch)
        try:
            program = self._program(batch, (form, structure, *map(_signature, leaves)), form)
        except CompileError as error:
            if self._fallback == "error":
                raise
            self._eager = self._fall_back(error)
            return self._eager.run(batch, form, weight, total)
        arrays: list[Any] = [as_array(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if form.has_weight:
            arrays.append(np.float64(weight))
            if form.trains:
                arrays.append(np.float64(total))
        if form.trains:
            self._state.read_rates()
        self._memory.show(program.variables)
        results = self._execute(program, arrays)
        self._memory.count_writes(program.updated_tensors)
        if program.has_draws:
            self._builder.random.count()
        if form.trains:
            self._state.show_state()
            self._state.count(program.trained_variables)
        tensors = [as_tensor(np.asarray(result)) for result in results]
        return pytree.tree_unflatten(tensors, program.results)

    def _execute(self, program: Program, arrays: list[Any]) -> list[Any]:
        """Run a program.

        If it fails during the updates, the parameters may be invalid. Then add hooks that make the
        model raise until a checkpoint is loaded (PoisonGuard).
        """
        try:
            return list(program.executable(*arrays))
        except BaseException:
            if is_poisoned(self._memory.variables.values()):
                self._poison = PoisonGuard(self.model, self.optimizer, self._repair)
            raise

    def _repair(self) -> None:
        """Make the step usable again, after a failed update and the loading of a checkpoint.

        After the failed update, the model's variables are poisoned: reading them raises an error.
        Assign the loaded values of the model's tensors to the variables.
        """
        self._poison = None
        self._memory.assign_all()

    def _program(self, batch: tuple[Any, ...], signature: Any, form: Form) -> Program:
        """Return the program for a batch. Compile it if no stored program has this signature."""
        if self._generation != self._state.generation:
            self._programs.clear()
            self._generation = self._state.generation
        key = signature, _structure(self.model), self._state.options(), self._memory.constants()
        if key in self._programs:
            self._programs.move_to_end(key)
            return self._programs[key]
        with without_collector():
            captured = capture(WHERE, self.model, self.loss, batch)
            self._coverage = coverage_of(captured)
            program = self._builder.build(captured, form)
        if self._generation != self._state.generation:  # `build` has split a cohort
            self._programs.clear()
            self._generation = self._state.generation
        # A buffer that the program updates is not a constant any more.
        key = *key[:-1], self._memory.constants()
        self._programs[key] = program
        self._warn_of_many(key)
        while len(self._programs) > MAX_PROGRAMS:
            self._programs.popitem(last=False)
        return program

    def _warn_of_many(self, key: Any) -> None:
        """Count a compiled program, and warn once when MANY_PROGRAMS have been compiled."""
        self._num_compiled += 1
        previous, self._last_key = self._last_key, key
        if self._num_compiled != MANY_PROGRAMS:
            return
        changed = [
            name
            for name, new, old in zip(("batch", "model", "optimizer"), key, previous, strict=False)
            if new != old
        ]
        warnings.warn(
            f"{WHERE}: compiled {MANY_PROGRAMS} programs, the last because of another signature of "
            f"the {', '.join(changed) or 'buffers'}. Each shape has its own program. Pad batches "
            "to few shapes, drop the last smaller batch, and give numbers that change as tensors.",
            RetraceWarning,
            stacklevel=5,
        )

    def _fall_back(self, error: CompileError) -> EagerStep:
        """Warn that ngd cannot translate the model, and return a step in eager PyTorch.

        That step runs this batch and all later ones.
        """
        warnings.warn(
            f"{WHERE}: fallback='torch': the model runs in eager PyTorch, with ngd's collectives: "
            f"{error}",
            FallbackWarning,
            stacklevel=4,
        )
        return EagerStep(
            self.model, self.loss, self.optimizer, self._clip_norm, self._group, self._guard
        )


def _weight(weight: Any) -> float:
    """Return the weight of a loss as a float; ValueError unless it is a number in [0, inf)."""
    try:
        value = float(weight)
    except (TypeError, ValueError, RuntimeError):
        value = -1.0
    if not 0 <= value < np.inf:
        raise ValueError(
            f"{WHERE}: weight: expected a number >= 0; got {weight!r}. Give the number of samples "
            "or tokens of this rank."
        )
    return value


def _structure(model: nn.Module) -> tuple[Any, ...]:
    """Return the properties of a model that a program depends on.

    For each module, these are its mode (training or evaluation), the ids of its parameters and
    buffers, and `requires_grad` of each parameter.
    """
    return tuple(
        (
            module.training,
            *((id(p), p.requires_grad) for p in module._parameters.values() if p is not None),
            *map(id, module._buffers.values()),
        )
        for module in model.modules()
    )


def _signature(leaf: Any) -> Any:
    """Return the properties of an argument that a program depends on.

    For a tensor these are its dtype and shape. For any other value it is the value itself, so
    another value needs another program.
    """
    if not isinstance(leaf, torch.Tensor):
        return leaf
    try:
        as_numpy_dtype(leaf.dtype)
    except UnsupportedOpError as error:
        raise CompileError(
            f"{WHERE}: batch: expected tensors that ngd supports; got {error}."
        ) from None
    if leaf.device.type != "cpu":
        raise CompileError(
            f"{WHERE}: batch: expected tensors on the CPU; got one on {leaf.device}. Call "
            '.to("cpu").'
        )
    return leaf.dtype, tuple(leaf.shape)


def _expect_arguments(model: Any, loss: Any, fallback: Any) -> None:
    """Raise if the arguments of compile_step are not valid."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"{WHERE}: model: expected a torch.nn.Module; got {type(model).__name__}. Pass the "
            "model first, then the loss function, then the optimizer."
        )
    if not callable(loss):
        raise TypeError(
            f"{WHERE}: loss: expected a function of the model and the batch; got {loss!r}. Write "
            "lambda model, x, y: cross_entropy(model(x), y)."
        )
    if fallback not in ("error", "torch"):
        raise ValueError(
            f"{WHERE}: fallback: expected 'error' or 'torch'; got {fallback!r}. Leave it out."
        )


def compile_step(
    model: nn.Module,
    loss: Callable[..., Any],
    optimizer: Optimizer,
    *,
    clip_norm: float | None = None,
    shard: str = "host",
    precision: Any = "float32",
    memory_limit: int | None = None,
    fallback: Fallback = "error",
) -> CompiledStep:  # long because each argument is described
    """Return a function that trains a PyTorch model: one ngd program per shape of the batch.

    All ranks call this. The parameters and buffers of rank 0 are sent to the other ranks.

    Parameters
    ----------
    model : torch.nn.Module
        The model, on the CPU. Its parameters and running statistics become views of ngd's memory.
        The ranks of a host share one copy.
    loss : callable
        A function of the model and the batch that returns the loss, a scalar tensor, or a tuple
        that begins with it.
    optimizer : torch.optim.Optimizer
        SGD, Adam, AdamW, RMSprop or Adagrad over the parameters of the model. Schedulers work as
        usual: the learning rate of each group is read in each call.
    clip_norm : float, optional
        The largest global norm of the gradients, as in torch.nn.utils.clip_grad_norm_.
    shard : {"host", "world", "none"}, default "host"
        The ranks that share one copy of weights and optimizer state. See ngd.compile.
    precision : {"float32", "bfloat16", "float16"}, default "float32"
        The precision of matrix multiplications and convolutions. See ngd.compile.
    memory_limit : int, optional
        The limit of the activations in bytes, above which values are recomputed. See ngd.compile.
    fallback : {"error", "torch"}, default "error"
        The treatment of a model that ngd cannot translate: an error, or a warning and steps in
        eager PyTorch with ngd's collectives.

    Returns
    -------
    CompiledStep
        A function of a batch that returns the loss.

    Raises
    ------
    VariableMismatchError
        The models of the ranks have different parameters.

    Examples
    --------
    >>> import torch
    >>> import ngd.torch
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> step = ngd.torch.compile_step(model, lambda m, x: m(x).square().mean(), optimizer)
    >>> first = step(torch.ones(4, 2))
    >>> bool(step(torch.ones(4, 2)) < first)
    True
    """
    _expect_arguments(model, loss, fallback)
    options = {"shard": shard, "precision": precision, "memory_limit": memory_limit}
    return CompiledStep(
        model, loss, optimizer, clip_norm=clip_norm, fallback=fallback, options=options
    )
