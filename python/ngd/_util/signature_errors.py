# SPDX-License-Identifier: Apache-2.0
"""Errors of calls with wrong arguments. They name the public call and the argument to use.

Public functions are wrapped. If a call raises an error, the wrapper compares the arguments with the
signature and raises an error that names the call as users write it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, ParamSpec, TypeVar, cast

from ..errors import DTypeError, Error, ShapeError
from .callsite import Owner, owner
from .unknown_names import attribute_errors, similar_name

Params = ParamSpec("Params")
Result = TypeVar("Result")

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
    "rate": ("lr",),
    "lr": ("lr_factor",),
    "learning_rate": ("lr",),
    "init_value": ("lr",),
    "peak_value": ("lr",),
    "base_lr": ("lr",),
    "max_lr": ("lr",),
    "end_value": ("final_lr",),
    "end_factor": ("final_lr",),
    "eta_min": ("final_lr",),
    "min_lr": ("final_lr",),
    "alpha": ("final_lr",),
    "T_max": ("steps",),
    "total_iters": ("steps",),
    "total_steps": ("steps",),
    "decay_steps": ("steps",),
    "transition_steps": ("steps",),
    "warmup_steps": ("steps",),
    "num_warmup_steps": ("steps",),
    "milestones": ("factors",),
    "boundaries_and_scales": ("factors",),
    "epsilon": ("eps",),
    "eps_root": ("eps",),
    "b1": ("betas",),
    "b2": ("betas",),
    "beta": ("betas", "momentum"),
    "beta1": ("betas",),
    "beta2": ("betas",),
    "beta_1": ("betas",),
    "beta_2": ("betas",),
    "mu": ("momentum",),
    "mass": ("momentum",),
    "momentum_factor": ("momentum",),
    "decay": ("alpha", "weight_decay"),
    "decay_rate": ("alpha", "lr_decay"),
    "rho": ("alpha",),
    "smoothing_constant": ("alpha",),
    "wd": ("weight_decay",),
    "l2": ("weight_decay",),
    "l2_regularization": ("weight_decay",),
    "initial": ("init_scale", "initial_accumulator_value"),
    "eta": ("trust_coefficient",),
    "backend_steps": ("ns_steps",),
    "max_norm": ("clip_norm",),
    "max_grad_norm": ("clip_norm",),
    "grad_clip": ("clip_norm",),
    "gradient_clip_norm": ("clip_norm",),
    "gradient_clip_val": ("clip_norm",),
    "clipnorm": ("clip_norm",),
    "global_clipnorm": ("clip_norm",),
    "grad_scaler": ("loss_scale",),
    "scaler": ("loss_scale",),
    "lr_mult": ("lr_factor",),
    "lr_scale": ("lr_factor",),
}
"""A dict from the name of a parameter in other libraries to its possible names in ngd.

For example, "dim" of PyTorch is "axis" or "axes" in ngd.
"""

ELSEWHERE: Final = {
    ("ngd.function", "memory_limit"): "Use ngd.compile(..., memory_limit=) or ngd.remat",
}
"""The advice for a keyword that a call does not accept, but another call of ngd does.

The key is (call, keyword). The value ends the error message, and has no period.
"""

SEE_ALSO: Final = {"ops.gather": " Use ops.take(x, indices, axis) to take elements by index."}
"""A dict from a call to the last sentence of its error messages.

The sentence recommends another call, which users may have meant.
"""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that the user probably meant, or None."""
    names = list(known)
    for synonym in SYNONYMS.get(name, ()):
        if synonym in names:
            return synonym
    return similar_name(name.lower(), names)


REDUCTIONS: Final = 'op="sum", "mean", "min", "max" or "prod"'
CHOICES: Final = {
    "all_reduce": REDUCTIONS,
    "reduce": REDUCTIONS,
    "reduce_scatter": REDUCTIONS,
}
"""The possible values of the required keyword `op` of each collective, as text for messages."""


GRADIENT_CALL: Final = ContextVar("gradient_call", default=("grad", ""))
"""A pair of strings for the errors of ngd.grad: the public call, and the name of its argument.

If the user calls ngd.grad, the pair is ("grad", ""), and the errors name no argument. An optimizer
calls ngd.grad itself. Then the pair is, for example, ("adam: minimize", "parameters"): the
optimizer's public call, and its argument with the variables to train.
"""


def expect_fit(call: str, signature: inspect.Signature, args: Any, kwargs: Any) -> None:
    """Raise a TypeError that names the public call if the arguments do not fit its signature."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        fault = misfit(call, signature, args, kwargs) or f"got other arguments: {error}."
        wanted = f"expected {call}{format_signature(signature)}"
        raise TypeError(f"{call}: {wanted}; {fault}{SEE_ALSO.get(call, '')}") from None


def misfit(call: str, signature: inspect.Signature, args: Any, kwargs: Any) -> str:
    """Return a text that describes the first fault of the arguments of a call, and its fix.

    The faults are an unknown keyword, too many positional arguments, an argument that is given
    twice, and a missing argument. If there is no such fault, return an empty text.
    """
    parameters = signature.parameters.values()
    named = {p.name: p for p in parameters if p.kind not in NAMELESS}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for name in kwargs:
        if name not in named and not takes_any:
            correct_name = nearest(name, named)
            fix = f"`{name}` is called `{correct_name}`" if correct_name else f"Remove `{name}`"
            fix = ELSEWHERE.get((call, name), fix)
            return f"got an unexpected keyword argument '{name}'. {fix}."
    positional = [p for p in parameters if p.kind in POSITIONAL]
    if len(args) > len(positional) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        count = "1 positional argument" if len(args) == 1 else f"{len(args)} positional arguments"
        return f"got {count}. {by_keyword(args[len(positional) :], named)}"
    twice = [p.name for p in positional[: len(args)] if p.name in kwargs]
    if twice:
        return f"got `{twice[0]}` by position and by keyword. Give it once."
    given_names = {p.name for p in positional[: len(args)]} | set(kwargs)
    missing = [p.name for p in parameters if is_required(p) and p.name not in given_names]
    if not missing:
        return ""
    fix = CHOICES.get(call.split(".")[-1], "") if missing == ["op"] else ""
    fix = fix or " and ".join(f"`{name}`" for name in missing)
    return f"got no {' and no '.join(f'`{name}`' for name in missing)}. Give {fix}."


def by_keyword(surplus: Sequence[Any], named: Mapping[str, inspect.Parameter]) -> str:
    """Return the advice for `surplus`, the positional arguments of a call that are too many.

    `named` has the parameters of the function. If it has enough keyword-only parameters for
    `surplus`, advise to give `surplus` by keyword. Otherwise advise to remove these arguments.
    """
    keywords = [name for name, p in named.items() if p.kind is p.KEYWORD_ONLY]
    if len(surplus) > len(keywords):
        return f"Remove the last {'one' if len(surplus) == 1 else len(surplus)}."
    pairs = zip(keywords, surplus, strict=False)
    return f"Write {', '.join(f'{name}={format_value(value)}' for name, value in pairs)}."


def is_required(parameter: inspect.Parameter) -> bool:
    """Return True if a call must give the parameter."""
    is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not is_variadic


POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
NAMELESS: Final = (
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
    inspect.Parameter.POSITIONAL_ONLY,
)


def format_signature(signature: inspect.Signature) -> str:
    """Return the signature without annotations, for a message."""
    empty = inspect.Parameter.empty
    parameters = [p.replace(annotation=empty) for p in signature.parameters.values()]
    return str(inspect.Signature(parameters))


def without_self(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature of a method without its first parameter."""
    _, *parameters = signature.parameters.values()
    return signature.replace(parameters=parameters)


def format_arguments(signature: inspect.Signature, args: Any, kwargs: Any) -> str:
    """Return the arguments of a call for a message, by name. Arrays are shown by their type."""
    arguments = signature.bind(*args, **kwargs).arguments
    return ", ".join(f"{name} = {format_value(value)}" for name, value in arguments.items())


def format_value(value: Any) -> str:
    """Return the dtype and shape of an array, or the repr of another value.

    A repr longer than MOST_LETTERS is cut after MOST_LETTERS and ends in "...".
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return f"{dtype}{list(shape)}"
    text = repr(value)
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}..."


def not_a_number(attrs: Mapping[str, Any], site: Any) -> TypeError:
    """Return the error for a node that is used as a number, as in float(node).

    `attrs` are the attributes of the node, and `site` is its call site.
    """
    if attrs.get("weak") is True:  # a placeholder for a Python float
        name = attrs["name"]
        return TypeError(
            f"{name}: expected a number that is fixed in the graph; got a Node, because the float "
            "arguments of a traced function may change in each call. Fix it: "
            f"functools.partial(f, {name}=2.0)."
        )
    return TypeError(
        f"float: expected a number; got a Node without a value (made at {site}): a step computes "
        "it. Return it from an @ngd.function, or make it an output of ngd.compile, and call that. "
        "In the graph, use ngd.ops on it."
    )


MOST_LETTERS: Final = 60

VALUE_ERRORS: Final = (ValueError, ArithmeticError, IndexError)
"""The errors that Python and NumPy raise for an argument of the right type with a wrong value."""


def comes_from_user(error: BaseException) -> bool:
    """Return True if an error was raised by a function that the user passed as an argument."""
    trace = error.__traceback__
    trace = trace and trace.tb_next  # skip the frame of the wrapper
    while trace is not None:
        if owner(trace.tb_frame.f_code.co_filename) is Owner.USER:
            return True
        trace = trace.tb_next
    return False


def name_call(call: str, signature: inspect.Signature, args: Any, kwargs: Any, error: Any) -> None:
    """Raise an error that names the public call, in place of `error`, which the call raised.

    Return without an error in the cases below. The caller, a wrapper, then raises `error` again.

    - Code of ngd made the call, not the user. Then the wrapper of the function that the user
      called gets `error` next.
    - A function that the user passed as an argument raised `error`.
    - The message of `error` names the public call already, and the arguments fit its signature.
    - `error` is an OSError, or an error of ngd except ShapeError and DTypeError.
    """
    if owner(sys._getframe(2).f_code.co_filename) is Owner.NGD or comes_from_user(error):
        return
    if isinstance(error, TypeError):
        expect_fit(call, signature, args, kwargs)
    if isinstance(error, OSError) or call.split(".")[-1] in str(error):
        return
    if isinstance(error, (ShapeError, DTypeError)):  # raised by an op that the call uses
        raise type(error)(f"{call}: {error}") from None
    if isinstance(error, Error):
        return
    kind = ValueError if isinstance(error, VALUE_ERRORS) else TypeError
    texts = format_arguments(signature, args, kwargs)
    raise kind(
        f"{call}: expected arguments that fit {call}{format_signature(signature)}; got {texts}: "
        f"{str(error).rstrip('.')}."
    ) from error


ARGUMENT_ERRORS: Final = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""The errors that Python or NumPy raise if a call of ngd does not check an argument itself.

Wrappers of public calls catch these errors and replace them by errors that name the call.
"""


def name_errors(call: str, function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Wrap a public function, so that errors for wrong arguments show its public name."""

    @functools.wraps(function)
    def checked(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except ARGUMENT_ERRORS as error:
            name_call(call, inspect.signature(function), args, kwargs, error)
            raise

    return checked


def name_method_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `__call__` of a subclass of `Op`, so that errors name the op, such as ops.matmul."""

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except ARGUMENT_ERRORS as error:
            bound = inspect.signature(method.__get__(self))
            name_call(f"ops.{self.name}", bound, args, kwargs, error)
            raise

    return checked


def name_signature(
    call: str, function: Callable[Params, Result], *, is_method: bool = False
) -> Callable[Params, Result]:
    """Wrap a public function, so that errors about its signature show the public name.

    An example is an error about a missing argument. Unlike `name_errors`, the wrapper does not
    change errors about the values of arguments.
    """

    @functools.wraps(function)
    def checked(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except TypeError:
            signature = inspect.signature(function)
            if is_method:
                expect_fit(call, without_self(signature), args[1:], kwargs)
            else:
                expect_fit(call, signature, args, kwargs)
            raise

    return checked


class Required:
    """The default of a parameter that every call must give."""

    def __repr__(self) -> str:
        return "<required>"


REQUIRED: Final[Any] = Required()


def with_signature(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Hide `*surplus` and the default of `op` in the visible signature; return `function`.

    `function` is a collective with a reduction `op`, such as ngd.all_reduce. In its code, `op` has
    the default REQUIRED, and `*surplus` takes all further positional arguments. So Python accepts a
    call without `op` or with too many arguments, and `function` raises the error with `expect_op`.
    A wrapper could raise the same error, but would make each call slower.
    """
    signature = inspect.signature(function)
    empty = inspect.Parameter.empty
    parameters = [
        p.replace(default=empty) if p.default is REQUIRED else p
        for p in signature.parameters.values()
        if p.name != "surplus"
    ]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def expect_op(call: str, function: Callable[..., Any], args: Sequence[Any], op: Any) -> None:
    """Raise a TypeError unless a collective got its operand by position and `op` by keyword."""
    expect_fit(call, inspect.signature(function), args, {} if op is REQUIRED else {"op": op})


SHORT_CALLS: Final = frozenset(
    {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier"}
)
"""The collectives on arrays that may take only a few microseconds.

These functions must not have a wrapper. Their fast path reads the call site from the frame of the
caller, and is used only if this frame is outside of ngd. A wrapper is in ngd, so with a wrapper the
fast path would never be used.
"""


def name_calls(package: str, namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Wrap the public functions and methods in the namespace of a package with `name_signature`.

    Constructors are not wrapped. The collectives in `SHORT_CALLS` are not wrapped either, because
    one more frame between them and their caller would make them slower.
    """
    for name in names:
        public = namespace.get(name)
        if not getattr(public, "__module__", "").startswith(f"{__package__.partition('.')[0]}."):
            continue
        if inspect.isfunction(public) and name not in SHORT_CALLS:
            checked = name_signature(f"{package}.{name}", public)
            checked.__module__ = namespace["__name__"]  # where pickles find it
            namespace[name] = checked
        elif inspect.isclass(public):
            for key, method in list(vars(public).items()):
                if inspect.isfunction(method) and not (key.startswith("_") or key in SHORT_CALLS):
                    setattr(public, key, name_signature(f"{name}.{key}", method, is_method=True))


def check_public_names(namespace: dict[str, Any]) -> None:
    """Make a package raise clear errors for wrong arguments and for unknown names.

    `namespace` is the globals() of the package. If arguments do not fit the signature of a public
    function or method, the error shows the public name of that function or method. The error for an
    unknown name gives a similar name, or the page of the documentation that lists all names, such
    as "api/nn" for "ngd.nn". This function sets `__getattr__` in `namespace` at run time: if the
    source of the package defined `__getattr__`, type checkers would accept any name.
    """
    module, known = namespace["__name__"], namespace["__all__"]
    package = module.removeprefix("ngd.")
    name_calls(package, namespace, known)
    namespace["__getattr__"] = attribute_errors(module, known, f"api/{package}")


Constructor = TypeVar("Constructor", bound=Callable[..., None])


def check_constructor(
    call: str, elsewhere: Mapping[str, str] | None = None
) -> Callable[[Constructor], Constructor]:
    """Return a decorator for the `__init__` of a public class that checks its arguments.

    Parameters
    ----------
    call : str
        The class as users write it.
    elsewhere : mapping, optional
        A dict from arguments that this class does not accept, but users may expect, to the public
        call that accepts them: {"batch_size": "data.Sampler"} for data.Loader.
    """

    def decorate(init: Constructor) -> Constructor:
        signature = without_self(inspect.signature(init))

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
