# SPDX-License-Identifier: Apache-2.0
"""Horovod's collectives on the tensors of a framework: the one adapter of all front ends."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..comm.buffers import operand
from ..comm.checks import check_out
from ..dtypes import Array
from .calls import COLLECTIVES, Handle, handle_of_all

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Adapter:
    """Starts the collectives of the table `COLLECTIVES` on the tensors of one framework.

    Parameters
    ----------
    to_readable : callable
        Returns an object that NumPy can read, of the tensor's memory.
    from_array : callable
        Returns a tensor of an array's memory.
    """

    def __init__(
        self, to_readable: Callable[[Any], Any], from_array: Callable[[Array], Any]
    ) -> None:
        self.to_readable, self.from_array = to_readable, from_array

    def start(self, call: str, given: Any, *args: Any, **kwargs: Any) -> Handle:
        """Start a collective whose results are new tensors."""
        row = COLLECTIVES[call]
        if row.takes_list:
            sources: Any = [self._to_array(tensor, call) for tensor in given]
            outs: Any = [np.empty_like(source) for source in sources]
        else:
            sources = self._to_array(given, call)
            outs = np.empty_like(sources) if row.fills else None
        operands = (sources, outs) if row.fills else (sources,)
        return row.start(*operands, *args, **kwargs).then(self._from_arrays)

    def start_in_place(self, call: str, given: Any, *args: Any, **kwargs: Any) -> Handle:
        """Start a collective that fills the given tensor, or list of tensors."""
        row = COLLECTIVES[call]
        if row.takes_list:
            pairs = [self._to_array_and_memory(tensor, call) for tensor in given]
            operands: Any = [source for source, _ in pairs], [memory for _, memory in pairs]
        else:
            operands = self._to_array_and_memory(given, call)
        result = list(given) if row.takes_list else given
        return row.start(*operands, *args, **kwargs).then(lambda _: result)

    def start_each(self, call: str, given: Sequence[Any], *args: Any, **kwargs: Any) -> Handle:
        """Start a collective for each tensor of a list; return one handle for them."""
        handles = [self.start(call, tensor, *args, **kwargs) for tensor in given]
        return handle_of_all(f"grouped_{call}", handles)

    def _to_array(self, tensor: Any, call: str) -> Array:
        """Return a contiguous array: of the tensor's memory, or of a copy."""
        return operand(self.to_readable(tensor), f"hvd.{call}")

    def _to_array_and_memory(self, tensor: Any, call: str) -> tuple[Array, Array]:
        """Return the tensor as an array, and its memory; ShapeError if it is not contiguous."""
        source = self._to_array(tensor, call)
        memory = check_out(self.to_readable(tensor), source.dtype, source.shape, f"hvd.{call}")
        return source, memory

    def _from_arrays(self, result: Any) -> Any:
        """Return an array, or the arrays of a list or tuple, as tensors."""
        if isinstance(result, (list, tuple)):
            return type(result)(self.from_array(array) for array in result)
        return self.from_array(result)


def with_parameters_of(
    model: Callable[Parameters, Any],
) -> Callable[[Callable[..., Result]], Callable[Parameters, Result]]:
    """Give a function that passes its arguments on the parameters of another function.

    Type checkers and `inspect.signature` show them. So each signature of the bridge is written
    once, in `numpy.py`.
    """

    def decorate(function: Callable[..., Result]) -> Callable[Parameters, Result]:
        returned = inspect.signature(function).return_annotation
        shown = inspect.signature(model).replace(return_annotation=returned)
        function.__signature__ = shown  # type: ignore[attr-defined]
        return function

    return decorate
