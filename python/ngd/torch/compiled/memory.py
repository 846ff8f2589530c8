# SPDX-License-Identifier: Apache-2.0
"""The tensors of a model as views of the memory of ngd's variables."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from ...dtype import bfloat16
from ...errors import DTypeError, ShapeError
from ...ir import Array, Node
from ...variables import Variable, variable
from .rules.registry import as_array, as_numpy_dtype


def as_tensor(array: Array) -> torch.Tensor:
    """Return a tensor that shares the memory of an array."""
    if array.dtype == bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def expect_type(where: str, tensor: torch.Tensor, of: Variable) -> None:
    """Raise if a tensor has another shape or dtype than its variable."""
    if tuple(tensor.shape) != of.shape:
        raise ShapeError(
            f"{where}: {of.name!r}: expected shape {of.shape}, as in the first step; got "
            f"{tuple(tensor.shape)}. Make a new compiled step."
        )
    if as_numpy_dtype(tensor.dtype) != of.dtype:
        raise DTypeError(
            f"{where}: {of.name!r}: expected {of.dtype}, as in the first step; got {tensor.dtype}. "
            "Make a new compiled step."
        )


class ModelMemory:
    """The variables of a model's parameters and buffers: one per tensor, however often it is used.

    Parameters
    ----------
    model : Module
        The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.variables: dict[torch.Tensor, Variable] = {}
        """The variable of each tensor."""
        self._addresses: dict[torch.Tensor, int] = {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the present parameters and buffers of the model by path."""
        return {
            **dict(self.model.named_parameters(remove_duplicate=False)),
            **dict(self.model.named_buffers(remove_duplicate=False)),
        }

    def variable_of(self, path: str, tensor: torch.Tensor) -> Variable:
        """Return the variable of a parameter or buffer. The first call makes it."""
        if tensor not in self.variables:
            self.variables[tensor] = variable(path, as_array(tensor))
        return self.variables[tensor]

    def read_moved(self, where: str) -> None:
        """Assign the values of tensors whose memory was replaced, for example by `p.data = other`.

        Raises
        ------
        ShapeError, DTypeError
            The tensor has another shape or dtype than before.
        """
        for tensor, address in self._addresses.items():
            if tensor.data_ptr() != address:
                of = self.variables[tensor]
                expect_type(where, tensor, of)
                of.assign(as_array(tensor))

    def share(self, computed: Collection[Node]) -> None:
        """Let each tensor be a view of its variable's memory, for the variables of a program."""
        for tensor, of in self.variables.items():
            if of in computed and self._addresses.get(tensor) != tensor.data_ptr():
                tensor.data = as_tensor(of.view())
                self._addresses[tensor] = tensor.data_ptr()

    def constants(self) -> tuple[Any, ...]:
        """Return the states of the buffers that are constants of programs."""
        return tuple(
            (buffer.data_ptr(), buffer._version)
            for buffer in self.model.buffers()
            if buffer not in self.variables
        )

    def count_writes(self, written: Iterable[torch.Tensor]) -> None:
        """Count a write to tensors whose values a step has replaced, as autograd expects."""
        torch.autograd.graph.increment_version(list(written))
