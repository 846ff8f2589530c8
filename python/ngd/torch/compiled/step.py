# SPDX-License-Identifier: Apache-2.0
"""ngd.torch.compile_step: train a PyTorch model as one ngd program per shape of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ... import ops, optim
from ...compiler import compile
from ...devices.executable import Executable
from ...differentiation import grad
from ...ir import Node, topological
from ...variables import Variable, placeholder, variable
from .capture import Capture, capture
from .memory import ModelMemory, as_tensor
from .optimizers import TranslatedOptimizer
from .rules import Draws
from .rules.registry import as_array, as_node, as_numpy_dtype
from .translate import translate

WHERE = "ngd.torch.compile_step"


class Program(NamedTuple):
    """A compiled step for one signature of the batch."""

    executable: Executable
    results: pytree.TreeSpec
    variables: frozenset[Node]
    """All variables of the step."""
    written: list[torch.Tensor]
    """The parameters and buffers that the step replaces."""


class CompiledStep:
    """A training step of a PyTorch model; see compile_step."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        *,
        clip_norm: float | None,
        shard: str,
        precision: Any,
        memory_limit: int | None,
    ) -> None:
        self.model, self.loss = model, loss
        self.clip_norm = clip_norm
        self.options = {"shard": shard, "precision": precision, "memory_limit": memory_limit}
        self._memory = ModelMemory(model)
        self._optimizer = TranslatedOptimizer(WHERE, optimizer)
        self._programs: dict[Any, Program] = {}
        self._draws = variable("random_step", np.int64(0))

    def __call__(self, *batch: Any) -> Any:
        """Run one step: forward, backward, all-reduce, clipping and update.

        Parameters
        ----------
        *batch
            The arguments of the loss function after the model: tensors in any structure.

        Returns
        -------
        Tensor, or what the loss function returns
            The loss of this rank, before the update.
        """
        results = self._run(batch, trains=True)
        self._optimizer.show_state()
        return results

    def evaluate(self, *batch: Any) -> Any:
        """Return the loss in evaluation mode, without an update.

        Parameters
        ----------
        *batch
            As in a step.
        """
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            return self._run(batch, trains=False)
        finally:
            for module, is_training in modes:
                module.training = is_training

    def _run(self, batch: tuple[Any, ...], *, trains: bool) -> Any:
        leaves, structure = pytree.tree_flatten(batch)
        self._memory.read_moved(WHERE)
        key = (
            trains,
            structure,
            tuple(map(_signature, leaves)),
            self._modes(),
            self._optimizer.options(),
            self._memory.constants(),
        )
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._compile(batch, trains)
        arrays = [as_array(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if trains:
            self._optimizer.read_rates()
        results = program.executable(*arrays)
        self._memory.share(program.variables)
        self._memory.count_writes(program.written)
        tensors = [as_tensor(np.asarray(result)) for result in results]
        return pytree.tree_unflatten(tensors, program.results)

    def _modes(self) -> tuple[Any, ...]:
        """Return the training modes and the frozen parameters: a change needs a new program."""
        modes = tuple(module.training for module in self.model.modules())
        return modes, tuple(p.requires_grad for p in self.model.parameters())

    def _compile(self, batch: tuple[Any, ...], trains: bool) -> Program:
        captured = capture(WHERE, self.model, self.loss, batch)
        values, inputs = self._inputs(captured)
        draws = Draws(self._draws * np.int64(2**32) + ops.cast(ops.own_rank(), "int64"))
        outputs = translate(WHERE, captured.module, values, draws)
        tensors = self._memory.tensors()
        count = len(captured.mutated)
        results = [as_node(each) for each in outputs[count:]]
        updates = self._statistics(captured, outputs[:count], tensors)
        if draws.count:
            updates[self._draws] = self._draws + 1
        if trains:
            gradients = self._gradients(results[0])
            updates |= self._optimizer.updates(gradients, self._memory.variables)
        executable = compile(inputs, results, updates, **self.options)
        written = [t for t, v in self._memory.variables.items() if v in updates]
        variables = frozenset(executable.graph.variables)
        return Program(executable, captured.results, variables, written)

    def _inputs(self, captured: Capture) -> tuple[dict[str, Any], list[Node]]:
        """Return the values of the inputs of a captured graph, and the placeholders among them."""
        tensors = self._memory.tensors()
        values: dict[str, Any] = {}
        inputs = []
        for each in captured.inputs:
            if each.kind == "argument" and isinstance(each.value, torch.Tensor):
                shape = tuple(int(n) for n in each.value.shape)
                node = placeholder(each.name, shape, as_numpy_dtype(each.value.dtype))
                values[each.name] = node
                inputs.append(node)
            elif each.kind in ("argument", "constant"):
                values[each.name] = each.value
            else:
                values[each.name] = self._value_of(str(each.target), each.kind, captured, tensors)
        return values, inputs

    def _value_of(
        self, path: str, kind: str, captured: Capture, tensors: dict[str, torch.Tensor]
    ) -> Any:
        """Return a parameter or a buffer as a variable; a buffer that is only read is constant."""
        tensor = tensors[path]
        is_fixed = kind == "buffer" and path not in captured.mutated
        if is_fixed and tensor not in self._memory.variables:
            return tensor.detach()
        return self._memory.variable_of(path, tensor)

    def _statistics(
        self, captured: Capture, outputs: list[Any], tensors: dict[str, torch.Tensor]
    ) -> dict[Variable, Node]:
        """Return the next values of buffers, such as running statistics."""
        pairs = zip(captured.mutated, outputs, strict=True)
        return {self._memory.variable_of(path, tensors[path]): as_node(new) for path, new in pairs}

    def _gradients(self, loss: Node) -> dict[Variable, Node]:
        """Return the mean over the ranks of the gradients of trained parameters, clipped."""
        used = _differentiated(loss)
        pairs = self._memory.variables.items()
        trained = [v for tensor, v in pairs if tensor.requires_grad and v in used]
        found = grad(loss, trained, unused="zero")
        averaged = {v: ops.all_reduce(g, op="mean") for v, g in zip(trained, found, strict=True)}
        if self.clip_norm is None:
            return averaged
        clipped, _ = optim.clip_by_global_norm(averaged, self.clip_norm)
        return dict(clipped)


def _differentiated(loss: Node) -> set[Node]:
    """Return the nodes that a loss depends on, except through detached values.

    PyTorch's optimizers leave other parameters as they are, even with a weight decay.
    """
    detached = [node for node in topological([loss]) if node.op.name == "stop_gradient"]
    return set(topological([loss], detached))


def _signature(leaf: Any) -> Any:
    """Return what a program depends on of an argument: the type of a tensor, any other value."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, tuple(leaf.shape)
    return leaf


def compile_step(
    model: nn.Module,
    loss: Callable[..., Any],
    optimizer: Optimizer,
    *,
    clip_norm: float | None = None,
    shard: str = "host",
    precision: Any = "float32",
    memory_limit: int | None = None,
) -> CompiledStep:
    """Return a function that trains a PyTorch model: one ngd program for each step.

    Parameters
    ----------
    model : torch.nn.Module
        The model. Its parameters and running statistics become views of ngd's memory.
    loss : callable
        A function of the model and the batch that returns the loss, a scalar tensor, or a tuple
        that begins with it.
    optimizer : torch.optim.Optimizer
        SGD, Adam, AdamW, RMSprop or Adagrad. The learning rate of each group is read in each call.
    clip_norm : float, optional
        The largest global norm of the gradients.
    shard : {"host", "world", "none"}, default "host"
        See ngd.compile.
    precision, memory_limit
        See ngd.compile.

    Returns
    -------
    CompiledStep
        A function of a batch that returns the loss.
    """
    return CompiledStep(
        model,
        loss,
        optimizer,
        clip_norm=clip_norm,
        shard=shard,
        precision=precision,
        memory_limit=memory_limit,
    )
