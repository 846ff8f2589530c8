# SPDX-License-Identifier: Apache-2.0
"""The tensors of a model and of its optimizer, as views of the memory of ngd's variables."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import torch
from torch import nn

from ... import _core
from ...comm import Group
from ...devices.cpu.variable_views import VariableView, assign_written, expect_equal, find_written
from ...dtypes import Array, bfloat16
from ...errors import DTypeError, ShapeError
from ...graph.node import Node
from ...graph.variable import Variable, variable
from .rules.registry import as_array, as_numpy_dtype


def as_tensor(array: Array) -> torch.Tensor:
    """Return a tensor that shares the memory of an array."""
    if array.dtype == bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def expect_shape(where: str, tensor: torch.Tensor, of: Variable) -> None:
    """Raise if a tensor has another shape than its variable."""
    if tuple(tensor.shape) != of.shape:
        raise ShapeError(
            f"{where}: {of.name!r}: expected shape {of.shape}, as in the first step; got "
            f"{tuple(tensor.shape)}. Make a new compiled step."
        )


def expect_type(where: str, tensor: torch.Tensor, of: Variable) -> None:
    """Raise if a tensor has another shape or dtype than its variable."""
    expect_shape(where, tensor, of)
    if as_numpy_dtype(tensor.dtype) != of.dtype:
        raise DTypeError(
            f"{where}: {of.name!r}: expected {of.dtype}, as in the first step; got {tensor.dtype}. "
            "Make a new compiled step."
        )


class SharedTensor:
    """A tensor that is a view of a variable.

    Parameters
    ----------
    tensor : Tensor
        The tensor. Its memory is replaced by that of the variable.
    of : Variable
        The variable.
    group : Group
        The ranks of the step.
    """

    def __init__(self, tensor: torch.Tensor, of: Variable, group: Group) -> None:
        self.tensor = tensor
        self.view = VariableView(of, group)
        self._address = 0
        self.show()

    def show(self) -> None:
        """Make the tensor a view of the variable's memory.

        A step can move a variable to other memory, for example to the memory that the ranks of a
        host share. Call this again after such a move: the old view does not show new values.
        """
        self.view.show()
        self.tensor.data = as_tensor(self.view.array)
        self._address = self.tensor.data_ptr()

    @property
    def is_moved(self) -> bool:
        """True if the user has replaced the memory, for example by `p.data = other`."""
        return bool(self.tensor.data_ptr() != self._address)


class ModelMemory:
    """The variables of a model's parameters and buffers, and of the state of its optimizer.

    A tensor that the model uses in several places, such as a tied weight, has only one variable.

    Parameters
    ----------
    model : Module
        The model.
    group : Group
        The ranks that run the compiled steps.
    """

    def __init__(self, model: nn.Module, group: Group) -> None:
        self.model, self.group = model, group
        self.variables: dict[torch.Tensor, Variable] = {}
        """The variable of each parameter and buffer, by the tensor of the model."""
        self._shared: dict[torch.Tensor, SharedTensor] = {}
        self._moves = -1

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the current parameters and buffers of the model by path."""
        return {
            **dict(self.model.named_parameters(remove_duplicate=False)),
            **dict(self.model.named_buffers(remove_duplicate=False)),
        }

    def variable_of(self, path: str, tensor: torch.Tensor) -> Variable:
        """Return the variable of a parameter or buffer.

        The first call creates the variable with a copy of the values of the tensor. It leaves the
        tensor unchanged. A later call of `show` makes the tensor a view of the variable.
        """
        if tensor not in self.variables:
            self.variables[tensor] = variable(path, as_array(tensor))
        return self.variables[tensor]

    def read_written(self, where: str) -> None:
        """Assign to the variables what the user has written to tensors since the last step.

        All ranks must have written the same values: a parameter is equal on all ranks, and the
        ranks of a host share one copy.

        Raises
        ------
        ShapeError, DTypeError
            A tensor has another shape or dtype than before.
        VariableMismatchError
            The ranks have written different values.
        """
        replaced = [each for each in self._shared.values() if each.is_moved]
        for each in replaced:
            expect_type(where, each.tensor, each.view.variable)
        if replaced:
            values = [as_array(each.tensor) for each in replaced]
            expect_equal(where, [each.view.variable for each in replaced], values, self.group)
            for each, value in zip(replaced, values, strict=True):
                each.view.variable.assign(value)
                each.show()
        views = [each.view for each in self._shared.values()]
        assign_written(where, find_written(views), self.group)

    def assign_all(self) -> None:
        """Assign the values of the model's parameters and buffers to their variables.

        The variables may be poisoned, which means that a step failed while it updated them. The
        assignment makes them valid. `read_state` does this for the optimizer's state.
        """
        for tensor, of in self.variables.items():
            of.assign(as_array(tensor))
        for each in self._shared.values():
            each.show()

    def show(self, computed: Collection[Node]) -> None:
        """Make the model's tensors views of their variables, before a program runs.

        `computed` is `Program.variables`: the variables that the program uses. Only the tensors of
        these variables become views. If a variable has moved to other memory since the last call,
        update all views, including those that earlier calls have made.
        """
        for tensor, of in self.variables.items():
            if of in computed and tensor not in self._shared:
                self.add(tensor, of)
        if self._moves != _core.moves():
            for each in self._shared.values():
                each.show()
            self._moves = _core.moves()

    def add(self, tensor: torch.Tensor, of: Variable) -> None:
        """Make a tensor, of the model or of the optimizer's state, a view of a variable."""
        self._shared[tensor] = SharedTensor(tensor, of, self.group)

    def remove(self, tensor: torch.Tensor) -> None:
        """End the connection of a tensor to the variable of which it is a view.

        The tensor keeps its current memory. When the variable moves to other memory, the tensor no
        longer follows.
        """
        self._shared.pop(tensor, None)

    def constants(self) -> tuple[tuple[int, int], ...]:
        """Return the checksums of the buffers that have no variable.

        Such a buffer is a constant of the programs. If its checksum changes, a new program is
        compiled.
        """
        return tuple(
            _core.checksum(np.ascontiguousarray(as_array(buffer)))
            for buffer in self.model.buffers()
            if buffer not in self.variables
        )

    def count_writes(self, tensors: Iterable[torch.Tensor]) -> None:
        """Increment the versions of tensors that a step has changed, so autograd sees the write."""
        torch.autograd.graph.increment_version(list(tensors))
        for each in self._shared.values():
            each.view.remember()
