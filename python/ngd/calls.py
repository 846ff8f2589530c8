# SPDX-License-Identifier: Apache-2.0
"""Errors of calls whose arguments do not fit a signature: they name the public call."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, ParamSpec, TypeVar, cast

from .errors import DTypeError, Error, ShapeError
from .sites import Owner, owner

Given = ParamSpec("Given")
Made = TypeVar("Made")

SYNONYMS: Final = {
    "dim": ("axis", "axes"),
    "dims": ("axes", "axis"),
    "keepdim": ("keepdims",),
    "input": ("x", "logits", "prediction"),
    "other": ("y", "b"),
    "eps": ("epsilon", "eps"),
    "min": ("low", "minimum"),
    "max": ("high", "maximum"),
    "ahead": ("prefetch_factor",),
    "batch": ("batch_size",),
    "classes": ("num_classes",),
    "count": ("num_samples",),
    "dataset": ("source",),
    "data_source": ("source",),
    "num_replicas": ("size",),
    "replace": ("replacement",),
    "root": ("folder",),
    "workers": ("num_workers",),
    "world_size": ("size",),
}
"""Other libraries' names of parameters, and what ngd may call them."""

SEE_ALSO: Final = {"ops.gather": " ops.take(x, indices, axis) takes elements by index."}
"""For a call, what users of other libraries may have meant."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant."""
    names = list(known)
    for synonym in SYNONYMS.get(name, ()):
        if synonym in names:
            return synonym
    return next(iter(get_close_matches(name, names, 1)), None)


def expect_fit(call: str, signature: inspect.Signature, args: Any, kwargs: Any) -> None:
    """Raise a TypeError that names the public call, where arguments do not fit its signature."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        message = f"{call}: expected {call}{format_signature(signature)}; {error}"
        parameters = signature.parameters.values()
        named = {p.name for p in parameters if p.kind not in NAMELESS}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        for name in kwargs:
            if name in named or takes_any:
                continue
            found = nearest(name, named)
            message += f". `{name}` is called `{found}`" if found else f". It takes no `{name}`"
        raise TypeError(f"{message}.{SEE_ALSO.get(call, '')}") from None


NAMELESS: Final = (
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
    inspect.Parameter.POSITIONAL_ONLY,
)


def format_signature(signature: inspect.Signature) -> str:
    """Return the signature as a message shows it: without annotations."""
    empty = inspect.Parameter.empty
    parameters = [p.replace(annotation=empty) for p in signature.parameters.values()]
    return str(inspect.Signature(parameters))


def format_arguments(signature: inspect.Signature, args: Any, kwargs: Any) -> str:
    """Return the arguments of a call as a message shows them: by name, arrays by their type."""
    given = signature.bind(*args, **kwargs).arguments
    return ", ".join(f"{name} = {format_value(value)}" for name, value in given.items())


def format_value(value: Any) -> str:
    """Return a value in few words."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return f"{dtype}{list(shape)}"
    words = repr(value)
    return words if len(words) <= MOST_LETTERS else f"{words[:MOST_LETTERS]}..."


def not_a_number(attrs: Mapping[str, Any], site: Any) -> TypeError:
    """Return the error for a node, of these attributes and this line, that is used as a number."""
    if attrs.get("weak") is True:  # a placeholder for a Python float
        name = attrs["name"]
        return TypeError(
            f"{name}: expected a number that is fixed in the graph; got a Node, because the float "
            "arguments of a traced function may change in each call. Fix it: "
            f"functools.partial(f, {name}=2.0)."
        )
    return TypeError(
        f"a Node is no number: a step computes its value (made at {site}); return it from the "
        "step, or use ngd.ops on it"
    )


MOST_LETTERS: Final = 60

AS_VALUE: Final = (ValueError, ArithmeticError, IndexError)
"""Errors of Python and NumPy that a value of the right type causes."""


def comes_from_user(error: BaseException) -> bool:
    """Return whether the user's code raised: a function that the call was given."""
    trace = error.__traceback__
    trace = trace and trace.tb_next  # the wrapper
    while trace is not None:
        if owner(trace.tb_frame.f_code.co_filename) is Owner.USER:
            return True
        trace = trace.tb_next
    return False


def name_call(call: str, signature: inspect.Signature, args: Any, kwargs: Any, error: Any) -> None:
    """Raise an error that names the public call instead of one that does not.

    Returns for errors that name it already, for those of the user's functions, and where ngd itself
    has made the call: then the call that the user has made is named.
    """
    if owner(sys._getframe(2).f_code.co_filename) is Owner.NGD or comes_from_user(error):
        return
    if isinstance(error, TypeError):
        expect_fit(call, signature, args, kwargs)
    if isinstance(error, OSError) or call.split(".")[-1] in str(error):
        return
    if isinstance(error, (ShapeError, DTypeError)):  # of an op that the call is made of
        raise type(error)(f"{call}: {error}") from None
    if isinstance(error, Error):
        return
    kind = ValueError if isinstance(error, AS_VALUE) else TypeError
    given = format_arguments(signature, args, kwargs)
    raise kind(f"{call}: expected other arguments: {error}; got {given}.") from error


CAUSED: Final = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""Errors that arguments cause which a call does not check itself."""


def name_errors(call: str, function: Callable[Given, Made]) -> Callable[Given, Made]:
    """Wrap a public function, so that the errors of its arguments name it as users call it."""

    @functools.wraps(function)
    def checked(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        try:
            return function(*args, **kwargs)
        except CAUSED as error:
            name_call(call, inspect.signature(function), args, kwargs, error)
            raise

    return checked


def name_method_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the call of an op, whose instance has the name."""

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except CAUSED as error:
            bound = inspect.signature(method.__get__(self))
            name_call(f"ops.{self.name}", bound, args, kwargs, error)
            raise

    return checked


Constructor = TypeVar("Constructor", bound=Callable[..., None])


def check_constructor(
    call: str, elsewhere: Mapping[str, str] | None = None
) -> Callable[[Constructor], Constructor]:
    """Return a decorator of a public class's `__init__` that checks the names of its arguments.

    Parameters
    ----------
    call : str
        The class as users write it.
    elsewhere : mapping, optional
        Arguments that users expect here, and the public call that takes each.
    """

    def decorate(init: Constructor) -> Constructor:
        _, *parameters = inspect.signature(init).parameters.values()
        signature = inspect.Signature(parameters)

        @functools.wraps(init)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            for name in kwargs:
                if elsewhere and name in elsewhere and name not in signature.parameters:
                    raise TypeError(
                        f"{call}: expected {call}{format_signature(signature)}; got an unexpected "
                        f"keyword argument '{name}'. `{name}` is an argument of {elsewhere[name]}."
                    )
            expect_fit(call, signature, args, kwargs)
            init(self, *args, **kwargs)

        return cast(Constructor, checked)

    return decorate
