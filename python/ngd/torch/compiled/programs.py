# SPDX-License-Identifier: Apache-2.0
"""Build the programs of a training step: forward pass, gradients and updates.

A program is compiled for batches with equal structure, shapes, dtypes and Python values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ... import _core, ops, optim
from ...compiler.driver import compile_in
from ...devices.executable import Executable
from ...dtypes import is_float
from ...errors import GradientError
from ...graph.node import Node, topological
from ...graph.variable import Variable, placeholder, variable
from ...transforms.gradient import grad
from .capture import Capture
from .counters import RandomCounter
from .memory import ModelMemory
from .optimizers import TranslatedOptimizer
from .rules import Draws
from .rules.registry import as_node, as_numpy_dtype
from .translate import translate


class Form(NamedTuple):
    """The kind of a program. A program that neither trains nor accumulates is an evaluation.

    Attributes
    ----------
    trains : bool
        True if it updates the parameters.
    accumulates : bool
        True if it adds the gradients of a micro-batch to this rank's sums, without an update.
    has_sums : bool
        True if it trains with the sum of the gradients of this and of earlier micro-batches.
    has_weight : bool
        True if the program has an argument for the weight of this rank's loss.
    """

    trains: bool
    accumulates: bool = False
    has_sums: bool = False
    has_weight: bool = False


class Program(NamedTuple):
    """A step that is compiled for batches with equal structure, shapes, dtypes and Python values.

    Attributes
    ----------
    executable : Executable
        The step.
    results : TreeSpec
        The structure of the results of the loss function.
    variables : frozenset of Node
        All variables of the step.
    updated_tensors : list of Tensor
        The parameters and buffers to which the step assigns new values.
    trained_variables : frozenset of Variable
        The parameters that the step trains.
    has_draws : bool
        True if the step draws random numbers.
    """

    executable: Executable
    results: pytree.TreeSpec
    variables: frozenset[Node]
    updated_tensors: list[torch.Tensor]
    trained_variables: frozenset[Variable]
    has_draws: bool


class ProgramBuilder:
    """A builder of the programs of one step, which share variables.

    Parameters
    ----------
    where : str
        The public call that error messages begin with, such as "ngd.torch.compile_step".
    memory : ModelMemory
        The variables of the model.
    optimizer : TranslatedOptimizer
        The optimizer, which builds the updates of the parameters.
    clip_norm : float or None
        The largest global norm of the gradients.
    options : dict
        Options of ngd.compile.
    """

    def __init__(
        self,
        where: str,
        memory: ModelMemory,
        optimizer: TranslatedOptimizer,
        clip_norm: float | None,
        options: dict[str, Any],
    ) -> None:
        self.where, self.memory, self.optimizer = where, memory, optimizer
        self.clip_norm, self.options = clip_norm, options
        self.random = RandomCounter(optimizer.optimizer, memory.group)
        self._sums: dict[Variable, Variable] = {}
        self._arena = _core.Arena()

    def build(self, captured: Capture, form: Form) -> Program:
        """Return the program of a captured model and loss.

        `form` states if the program trains, only accumulates gradients, or evaluates.

        Raises
        ------
        CompileError
            An op has no translation rule.
        GradientError
            The program needs gradients, but the first result of the loss function is not a scalar
            of a float dtype.
        """
        values, inputs = self._inputs(captured)
        draws = Draws(self.random.offset())
        outputs = translate(self.where, captured.module, values, draws)
        count = len(captured.mutated)
        results = [as_node(each) for each in outputs[count:]]
        updates = self._statistics(captured, outputs[:count])
        if draws.count:
            updates[self.random.variable] = self.random.variable + 1
        trained: dict[Variable, Node] = {}
        if form.trains or form.accumulates:
            self._expect_loss(results)
            trained = self._gradients(results[0], form, inputs, updates)
        if form.trains:
            updates |= self.optimizer.updates(trained)
        executable = compile_in(self._arena, inputs, results, updates, **self.options)
        written = [t for t, v in self.memory.variables.items() if v in updates]
        variables = frozenset(executable.graph.variables)
        return Program(
            executable, captured.results, variables, written, frozenset(trained), draws.count > 0
        )

    def _inputs(self, captured: Capture) -> tuple[dict[str, Any], list[Node]]:
        """Return the value of each input of a captured graph by name, and the placeholders.

        The value of a tensor of the batch is a placeholder. The value of a parameter is a variable.
        The value of a buffer is a variable if this graph writes to it, or if it already has a
        variable, for example from the program of another batch shape. Other inputs are constants.
        """
        tensors = self.memory.tensors()
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
        self, path: str, kind: str, captured: Capture, tensors: Mapping[str, torch.Tensor]
    ) -> Any:
        """Return the variable of the parameter or buffer at `path`, or the tensor of a constant.

        A buffer is constant if the captured graph does not write to it, and it has no variable yet.
        The program of another batch shape may have created one. `kind` is "parameter" or "buffer".
        """
        tensor = tensors[path]
        is_fixed = kind == "buffer" and path not in captured.mutated
        if is_fixed and tensor not in self.memory.variables:
            return tensor.detach()
        return self.memory.variable_of(path, tensor)

    def _statistics(self, captured: Capture, outputs: list[Any]) -> dict[Variable, Node]:
        """Return the new values of the buffers to which the forward pass writes, by variable.

        Running statistics are an example. If a new value may differ between ranks, it is replaced
        by a value that is equal on all ranks. For a buffer of a float dtype, this is the mean over
        the ranks. For any other buffer, it is the value of rank 0.
        """
        tensors = self.memory.tensors()
        updates = {}
        for path, output in zip(captured.mutated, outputs, strict=True):
            new = as_node(output)
            if not new.uniform:
                is_mean = is_float(new.dtype)
                new = ops.all_reduce(new, op="mean") if is_mean else ops.broadcast(new)
            updates[self.memory.variable_of(path, tensors[path])] = new
        return updates

    def _expect_loss(self, results: list[Node]) -> None:
        """Raise GradientError unless the first result, the loss, is a scalar of floats."""
        if not results or results[0].shape != () or not is_float(results[0].dtype):
            got = str(results[0].type) if results else "nothing"
            raise GradientError(
                f"{self.where}: loss: expected a function that returns a scalar of floats, or a "
                f"tuple that begins with one; got {got}. Reduce it, for example by its mean."
            )

    def _gradients(
        self, loss: Node, form: Form, inputs: list[Node], updates: dict[Variable, Node]
    ) -> dict[Variable, Node]:
        """Return the gradients of trained parameters, averaged over the ranks and clipped.

        `updates` has the new value of each variable that the program changes. Each rank has
        variables for the sums of its gradients over micro-batches. Two kinds of programs change
        these sums:

        - If `form.accumulates`, add the gradients of this micro-batch to the sums. Return these
          gradients without the average over the ranks.
        - If `form.has_sums`, add the sums to the gradients before the average over the ranks, and
          set the sums to 0.

        Add to `inputs` the placeholders that the program needs: "weight", the factor of this
        rank's loss, and "total", the sum of these factors since the last update.
        """
        weight = total = None
        if form.has_weight or form.accumulates:
            weight = placeholder("weight", (), np.float64)
            inputs.append(weight)
            loss = loss * ops.cast(weight, loss.dtype)
        used = _differentiated(loss)
        pairs = self.memory.variables.items()
        trained = [v for tensor, v in pairs if tensor.requires_grad and v in used]
        gradients = dict(zip(trained, grad(loss, trained, unused="zero"), strict=True))
        if weight is not None:
            gradients = {v: ops.where(weight == 0, 0, g) for v, g in gradients.items()}
        if form.accumulates:
            updates |= {self._sum(v): self._sum(v) + g for v, g in gradients.items()}
            return gradients
        if form.has_sums:
            gradients = {v: self._sum(v) + g for v, g in gradients.items()}
            updates |= {self._sum(v): ops.zeros(v.shape, v.dtype) for v in gradients}
        if form.has_weight:
            total = placeholder("total", (), np.float64)
            inputs.append(total)
        return self._clipped(_reduced(gradients, total))

    def _sum(self, of: Variable) -> Variable:
        """Return the variable with the sum of a parameter's gradients over micro-batches.

        `of` is the variable of the parameter. Each rank has its own sum.
        """
        if of not in self._sums:
            zeros = np.zeros(of.shape, of.dtype)
            self._sums[of] = variable(f"{of.name}.accumulated", zeros, per_rank=True)
        return self._sums[of]

    def _clipped(self, gradients: dict[Variable, Node]) -> dict[Variable, Node]:
        """Return the gradients, clipped to the global norm `clip_norm` if that is set."""
        if self.clip_norm is None:
            return gradients
        clipped, _ = optim.clip_by_global_norm(gradients, self.clip_norm)
        return dict(clipped)


def _reduced(gradients: Mapping[Variable, Node], total: Node | None) -> dict[Variable, Node]:
    """Return the mean of the gradients over the ranks.

    `total` is the sum of the weights of this rank's losses since the last update. If it is given,
    return instead the sum of the gradients over all ranks, divided by the sum of `total` over all
    ranks, or 0 if that sum is 0.
    """
    if total is None:
        return {v: ops.all_reduce(g, op="mean") for v, g in gradients.items()}
    weights = ops.all_reduce(total, op="sum")
    factor = ops.where(weights == 0, 0.0, 1 / ops.where(weights == 0, 1.0, weights))
    return {
        v: ops.all_reduce(g, op="sum") * ops.cast(factor, g.dtype) for v, g in gradients.items()
    }


def _differentiated(loss: Node) -> set[Node]:
    """Return the nodes with respect to which the loss has a gradient.

    These are the nodes that the loss depends on, without those that it depends on only through
    detached values. The training step updates only the parameters among these nodes. Any other
    parameter has no gradient, and PyTorch's optimizers leave such a parameter unchanged, too, even
    with a weight decay.
    """
    detached = [node for node in topological([loss]) if node.op.name == "stop_gradient"]
    return set(topological([loss], detached))
