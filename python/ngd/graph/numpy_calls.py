# SPDX-License-Identifier: Apache-2.0
"""NumPy's functions on nodes: find the op in the registry, and apply it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .registry import NUMPY_ADVICE, NUMPY_FUNCTIONS, NUMPY_METHODS, NUMPY_UFUNCS, PUBLIC


def call_ufunc(ufunc: Any, method: str, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Apply the op that corresponds to a ufunc of NumPy, or to a method such as np.add.reduce."""
    called = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    if called in NUMPY_METHODS:
        axis = {} if called.endswith(".outer") else {"axis": 0}
        return apply(f"numpy.{called}", NUMPY_METHODS[called], inputs, {**axis, **kwargs})
    name = NUMPY_UFUNCS.get(called, called)
    if kwargs or name not in PUBLIC:
        raise TypeError(
            f"numpy.{called}: expected arrays; got a Node, for which this function has no op. "
            "Write it with functions of ngd.ops, or call NumPy in the step by ngd.call_host."
        )
    return PUBLIC[name](*inputs)


def call_function(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Apply the op that corresponds to a function of NumPy; raise a TypeError if it has none."""
    name = f"{function.__module__}.{function.__name__}"
    op = NUMPY_FUNCTIONS.get(function)
    if op is None:
        instead = NUMPY_ADVICE.get(function, "use the functions of ngd.ops, or ngd.call_host")
        raise TypeError(f"{name}: expected arrays; got a Node, for which it has no op: {instead}")
    return apply(name, op, args, kwargs)


def apply(name: str, op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an op with NumPy's arguments, or raise a TypeError if they do not fit its signature."""
    signature = inspect.signature(op)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        parameter_names = ", ".join(signature.parameters)
        raise TypeError(
            f"{name}: expected ({parameter_names}) on a Node; got other arguments: {error}"
        ) from None
    return op(*args, **kwargs)
