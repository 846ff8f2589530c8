# SPDX-License-Identifier: Apache-2.0
"""Checks that refuse model code whose gradients torch.export would lose.

An exported graph has only the forward pass. It does not contain gradients that Python code defines
in a custom autograd.Function, or in a hook that changes a gradient.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import torch
from torch import nn

from ..._util.callsite import call_site
from ...errors import CompileError

ADVICE = (
    "Write it with ops that have a gradient, or train with loss.backward() over the backend "
    '"ngd" of torch.distributed.'
)


class UntranslatableError(CompileError):
    """An error that is raised if ngd cannot translate a model to a program.

    Attributes
    ----------
    expected : str
        The words after "expected" in the message, such as "a model whose gradient ngd can derive".
    got : str
        The words after "got" in the message, such as "a hook on the gradient of 'weight'".
    """

    expected = ""
    got = ""

    @classmethod
    def of(cls, where: str, expected: str, got: str, advice: str) -> UntranslatableError:
        """Return an error with the message `{where}: expected {expected}; got {got}. {advice}`.

        `where` is the public call.
        """
        error = cls(f"{where}: expected {expected}; got {got}. {advice}")
        error.expected, error.got = expected, got
        return error


def refuse(where: str, what: str) -> NoReturn:
    """Raise an UntranslatableError for code whose gradient is not in an exported graph.

    `what` describes the code, such as "a backward hook of the module 'encoder'".
    """
    raise UntranslatableError.of(where, "a model whose gradient ngd can derive", what, ADVICE)


def expect_no_hooks(where: str, model: nn.Module) -> None:
    """Raise a CompileError if a module or a parameter has a hook on its gradient."""
    for path, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            refuse(where, f"a backward hook of the module {path or 'itself'!r}")
    for path, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            refuse(where, f"a hook on the gradient of {path!r}")


State = dict[tuple[str, str], Any]


def python_state(model: nn.Module) -> State:
    """Return the public attributes of all modules, by (path of the module, name of the attribute).

    The values are comparable forms of the attributes (see `_plain`). The attribute `training`,
    parameters, buffers and submodules are left out.
    """
    return {
        (path, name): _plain(value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "training"
    }


def _plain(value: Any) -> Any:
    """Return an immutable copy of a Python value that can be compared with a later copy.

    Numbers, strings and None are returned unchanged. A list becomes a tuple, and a dict becomes a
    tuple of (repr(key), value). Any other object becomes its class, so a change within it is not
    found.
    """
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return tuple((repr(key), _plain(each)) for key, each in value.items())
    return type(value)


def changed_state(before: State, model: nn.Module) -> list[tuple[str, str]]:
    """Return (path of the module, name) of each attribute that has changed since `before`."""
    after = python_state(model)
    return [key for key in after if before.get(key, ...) != after[key]]


def refuse_state(where: str, path: str, name: str) -> NoReturn:
    """Raise a CompileError for attribute `name` of the module at `path`.

    Each forward pass changes the attribute and uses its value. An example is a counter of calls
    that is a Python int.
    """
    raise CompileError(
        f"{where}: expected a model that computes the same in each step; got one whose forward "
        f"pass changes and uses the attribute {f'{path}.{name}' if path else name!r}, which would "
        "keep the value of the first step. Make it a buffer: "
        "self.register_buffer(name, torch.tensor(value))."
    )


_watching: Final = threading.RLock()


@contextmanager
def watched(where: str) -> Iterator[None]:
    """Return a context manager in which custom gradients raise a CompileError.

    Custom gradients are calls of a torch.autograd.Function that is not PyTorch's own, and of
    Tensor.register_hook. Only the thread that enters the context is watched; one thread at a time
    can enter it.
    """
    with _watching, _replaced_methods(where, threading.get_ident()):
        yield


@contextmanager
def _replaced_methods(where: str, thread: int) -> Iterator[None]:
    """Return a context manager that replaces the methods by which Python code defines a gradient.

    Until the exit, `torch.autograd.Function.apply` and `torch.Tensor.register_hook` raise an error
    if one thread calls them: the thread whose `threading.get_ident()` is `thread`. Calls in other
    threads, and calls of PyTorch's own subclasses of Function, work as usual. The caller `watched`
    holds a lock, so that only one thread at a time replaces the methods.
    """
    function, hook = vars(torch.autograd.Function)["apply"], torch.Tensor.register_hook

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        is_watched = threading.get_ident() == thread
        if not is_watched or cls.__module__.partition(".")[0] == "torch":
            return function.__get__(None, cls)(*args, **kwargs)
        refuse(where, f"the torch.autograd.Function {cls.__qualname__} (called at {call_site()})")

    def register_hook(self: torch.Tensor, added: Any) -> Any:
        if threading.get_ident() != thread:
            return hook(self, added)
        refuse(where, f"Tensor.register_hook (called at {call_site()})")

    torch.autograd.Function.apply = classmethod(apply)
    torch.Tensor.register_hook = register_hook
    try:
        yield
    finally:
        torch.autograd.Function.apply = function
        torch.Tensor.register_hook = hook
