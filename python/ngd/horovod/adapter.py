# SPDX-License-Identifier: Apache-2.0
"""The adapter that runs Horovod's collectives on the tensors of any framework."""

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
    """An object that starts Horovod's collectives, listed in calls.py, on a framework's tensors.

    Parameters
    ----------
    to_readable : callable
        Returns an object that shares the tensor's memory and that NumPy can read.
    from_array : callable
        Returns a tensor that shares the memory of an array.
    """

    def __init__(
        self, to_readable: Callable[[Any], Any], from_array: Callable[[Array], Any]
    ) -> None:
        self.to_readable, self.from_array = to_readable, from_array

    def start(self, call: str, tensors: Any, *args: Any, **kwargs: Any) -> Handle:
        """Start a collective whose results are new tensors.

        `call` is a name in COLLECTIVES, such as "allreduce". `args` and `kwargs` are the other
        arguments of this collective.
        """
        row = COLLECTIVES[call]
        if row.takes_list:
            sources: Any = [self._to_array(tensor, call) for tensor in tensors]
            outs: Any = [np.empty_like(source) for source in sources]
        else:
            sources = self._to_array(tensors, call)
            outs = np.empty_like(sources) if row.fills else None
        operands = (sources, outs) if row.fills else (sources,)
        return row.start(*operands, *args, **kwargs).then(self._from_arrays)

    def start_in_place(self, call: str, tensors: Any, *args: Any, **kwargs: Any) -> Handle:
        """Start a collective that overwrites the given tensor, or each tensor of a list, in place.

        `call` is allreduce, grouped_allreduce or broadcast: the result has the operand's shape.
        """
        row = COLLECTIVES[call]
        if row.takes_list:
            pairs = [self._to_array_and_memory(tensor, call) for tensor in tensors]
            operands: Any = [source for source, _ in pairs], [memory for _, memory in pairs]
        else:
            operands = self._to_array_and_memory(tensors, call)
        result = list(tensors) if row.takes_list else tensors
        return row.start(*operands, *args, **kwargs).then(lambda _: result)

    def start_each(self, call: str, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Handle:
        """Start a collective for each tensor of a list; return one handle for them."""
        handles = [self.start(call, tensor, *args, **kwargs) for tensor in tensors]
        return handle_of_all(f"grouped_{call}", handles)

    def _to_array(self, tensor: Any, call: str) -> Array:
        """Return a contiguous array: the tensor's memory, or a copy if it is not contiguous."""
        return operand(self.to_readable(tensor), f"hvd.{call}")

    def _to_array_and_memory(self, tensor: Any, call: str) -> tuple[Array, Array]:
        """Return two arrays that share the tensor's memory: the operand and the destination.

        Both are views of the same elements. A collective reads the first one and overwrites the
        second one, so the result replaces the tensor's values. Raise ShapeError if the tensor is
        not contiguous or not writable.
        """
        source = self._to_array(tensor, call)
        memory = check_out(self.to_readable(tensor), source.dtype, source.shape, f"hvd.{call}")
        return source, memory

    def _from_arrays(self, result: Any) -> Any:
        """Convert an array, or the arrays of a list or tuple, to tensors."""
        if isinstance(result, (list, tuple)):
            return type(result)(self.from_array(array) for array in result)
        return self.from_array(result)


def with_parameters_of(
    model: Callable[Parameters, Any],
) -> Callable[[Callable[..., Result]], Callable[Parameters, Result]]:
    """Return a decorator that gives a function the parameters of the function `model`.

    The decorated function takes `*args, **kwargs` and passes them on. Type checkers and
    `inspect.signature` show the parameters of `model`. So each signature of ngd.horovod is written
    only once, in `numpy.py`.
    """

    def decorate(function: Callable[..., Result]) -> Callable[Parameters, Result]:
        returned = inspect.signature(function).return_annotation
        shown_signature = inspect.signature(model).replace(return_annotation=returned)
        function.__signature__ = shown_signature  # type: ignore[attr-defined]
        return function

    return decorate
