# SPDX-License-Identifier: Apache-2.0
"""The registry of ops and of the functions of ngd.ops, by name.

`ngd.ops` fills it when it is imported. The operators and methods of nodes, and NumPy's functions on
nodes, look ops up here. The package `ngd.graph` cannot import `ngd.ops`, which imports `ngd.graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Protocol, TypeVar

from .._util.signature_errors import Params, Result, name_errors

OPS: Final[dict[str, Any]] = {}
"""Every op by its name, in the order of definition."""
PUBLIC: Final[dict[str, Callable[..., Any]]] = {}
"""The functions of ngd.ops by name: ops, and functions that are composed of ops."""
NUMPY_FUNCTIONS: Final[dict[Any, Callable[..., Any]]] = {}
"""A dict from a function of NumPy to the function that replaces it if an argument is a node."""
NUMPY_UFUNCS: Final[dict[str, str]] = {}
"""A dict from the name of a universal function of NumPy to its name in ngd.ops, if they differ."""
NUMPY_METHODS: Final[dict[str, Callable[..., Any]]] = {}
"""A dict from a method of a universal function, such as "add.reduce", to the function to call."""
NUMPY_ADVICE: Final[dict[Any, str]] = {}
"""A dict from a function of NumPy that has no op to the advice in the error message."""


class Registrable(Protocol):
    """The interface of an op for `register`. `Op` is not used: its module imports this one."""

    name: ClassVar[str]
    public: ClassVar[bool]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the op, and return its node, or a tuple of nodes if it has several results."""
        ...


AnyOp = TypeVar("AnyOp", bound=Registrable)


def register(op: AnyOp) -> AnyOp:
    """Add an op, the only instance of its class, to the registry and return it."""
    if op.name in OPS:
        raise ValueError(f"two ops are called {op.name}")
    if op.public and PUBLIC.setdefault(op.name, op) is not op:
        raise ValueError(f"a function of ngd.ops is called {op.name} too")
    OPS[op.name] = op
    op.__doc__ = type(op).__doc__
    return op


def public(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Add a function that is composed of ops to ngd.ops, and return it."""
    wrapped = name_errors(f"ops.{function.__name__}", function)
    if PUBLIC.setdefault(function.__name__, wrapped) is not wrapped:
        raise ValueError(f"two functions of ngd.ops are called {function.__name__}")
    return wrapped


def register_numpy(
    functions: Mapping[Any, Callable[..., Any]],
    methods: Mapping[str, Callable[..., Any]],
    ufuncs: Mapping[str, str],
    advice: Mapping[Any, str],
) -> None:
    """Add entries to the tables of NumPy's functions.

    If a function of NumPy gets a node as an argument, ngd calls the function that these tables have
    for it. `advice` is for error messages about functions that have no replacement.
    """
    NUMPY_FUNCTIONS.update(functions)
    NUMPY_METHODS.update(methods)
    NUMPY_UFUNCS.update(ufuncs)
    NUMPY_ADVICE.update(advice)


def op_named(name: str) -> Any:
    """Return the op of a name."""
    return OPS[name]


def public_function(name: str) -> Callable[..., Any]:
    """Return a function of ngd.ops by its name."""
    return PUBLIC[name]
