# SPDX-License-Identifier: Apache-2.0
"""Errors of calls whose arguments do not fit a signature: they name the public call."""

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
"""Other libraries' names of parameters, and what ngd may call them."""

ELSEWHERE: Final = {
    ("ngd.function", "memory_limit"): "Use ngd.compile(..., memory_limit=) or ngd.remat",
}
"""For a call and a keyword that it does not take, the call that does."""

SEE_ALSO: Final = {"ops.gather": " Use ops.take(x, indices, axis) to take elements by index."}
"""For a call, what users of other libraries may have meant."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant."""
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
"""For a collective, the values of its required keyword."""


GRADIENT_CALL: Final = ContextVar("gradient_call", default=("grad", ""))
"""The public call that errors of ngd.grad name, and its argument with the variables."""


def expect_fit(call: str, signature: inspect.Signature, args: Any, kwargs: Any) -> None:
    """Raise a TypeError that names the public call if arguments do not fit its signature."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        fault = misfit(call, signature, args, kwargs) or f"got other arguments: {error}."
        wanted = f"expected {call}{format_signature(signature)}"
        raise TypeError(f"{call}: {wanted}; {fault}{SEE_ALSO.get(call, '')}") from None


def misfit(call: str, signature: inspect.Signature, args: Any, kwargs: Any) -> str:
    """Return the first fault of the arguments of a call, and the fix; empty for another fault."""
    parameters = signature.parameters.values()
    named = {p.name: p for p in parameters if p.kind not in NAMELESS}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for name in kwargs:
        if name not in named and not takes_any:
            found = nearest(name, named)
            fix = f"`{name}` is called `{found}`" if found else f"Remove `{name}`"
            fix = ELSEWHERE.get((call, name), fix)
            return f"got an unexpected keyword argument '{name}'. {fix}."
    positional = [p for p in parameters if p.kind in POSITIONAL]
    if len(args) > len(positional) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        count = "1 positional argument" if len(args) == 1 else f"{len(args)} positional arguments"
        return f"got {count}. {by_keyword(args[len(positional) :], named)}"
    twice = [p.name for p in positional[: len(args)] if p.name in kwargs]
    if twice:
        return f"got `{twice[0]}` by position and by keyword. Give it once."
    given = {p.name for p in positional[: len(args)]} | set(kwargs)
    missing = [p.name for p in parameters if is_required(p) and p.name not in given]
    if not missing:
        return ""
    fix = CHOICES.get(call.split(".")[-1], "") if missing == ["op"] else ""
    fix = fix or " and ".join(f"`{name}`" for name in missing)
    return f"got no {' and no '.join(f'`{name}`' for name in missing)}. Give {fix}."


def by_keyword(surplus: Sequence[Any], named: Mapping[str, inspect.Parameter]) -> str:
    """Return the advice for positional arguments that are too many."""
    keywords = [name for name, p in named.items() if p.kind is p.KEYWORD_ONLY]
    if len(surplus) > len(keywords):
        return f"Remove the last {'one' if len(surplus) == 1 else len(surplus)}."
    pairs = zip(keywords, surplus, strict=False)
    return f"Write {', '.join(f'{name}={format_value(value)}' for name, value in pairs)}."


def is_required(parameter: inspect.Parameter) -> bool:
    """Return whether a call must give the parameter."""
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
    """Return the signature as a message shows it: without annotations."""
    empty = inspect.Parameter.empty
    parameters = [p.replace(annotation=empty) for p in signature.parameters.values()]
    return str(inspect.Signature(parameters))


def without_self(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature of a method as its callers see it."""
    _, *parameters = signature.parameters.values()
    return signature.replace(parameters=parameters)


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
        f"float: expected a number; got a Node without a value (made at {site}): a step computes "
        "it. Return it from an @ngd.function, or make it an output of ngd.compile, and call that. "
        "In the graph, use ngd.ops on it."
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
    raise kind(
        f"{call}: expected arguments that fit {call}{format_signature(signature)}; got {given}: "
        f"{str(error).rstrip('.')}."
    ) from error


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


def name_signature(
    call: str, function: Callable[Given, Made], *, is_method: bool = False
) -> Callable[Given, Made]:
    """Wrap a public function, so that arguments that do not fit its signature are named."""

    @functools.wraps(function)
    def checked(*args: Given.args, **kwargs: Given.kwargs) -> Made:
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


def with_signature(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """Give a function the signature that users see: without `*surplus`, and with `op` required.

    The function itself reports a wrong call with `expect_op`: a wrapper would be one more frame
    between it and its caller (`SHORT_CALLS`).
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


def expect_op(call: str, function: Callable[..., Any], given: Sequence[Any], op: Any) -> None:
    """Raise a TypeError unless a collective got its operand by position and `op` by keyword."""
    expect_fit(call, inspect.signature(function), given, {} if op is REQUIRED else {"op": op})


SHORT_CALLS: Final = frozenset(
    {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier"}
)
"""Collectives on arrays that take a few microseconds, and find their caller one frame above."""


def name_calls(package: str, namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Wrap the public functions of a package in its namespace by `name_signature`.

    It wraps methods of the public classes too, except the constructors. It leaves `SHORT_CALLS`:
    with a frame between them and the caller, they would take a slower path.
    """
    for name in names:
        found = namespace.get(name)
        if not getattr(found, "__module__", "").startswith(f"{__package__.partition('.')[0]}."):
            continue
        if inspect.isfunction(found) and name not in SHORT_CALLS:
            checked = name_signature(f"{package}.{name}", found)
            checked.__module__ = namespace["__name__"]  # where pickles find it
            namespace[name] = checked
        elif inspect.isclass(found):
            for key, method in list(vars(found).items()):
                if inspect.isfunction(method) and not (key.startswith("_") or key in SHORT_CALLS):
                    setattr(found, key, name_signature(f"{name}.{key}", method, is_method=True))


def check_public_names(namespace: dict[str, Any]) -> None:
    """Make errors name the public calls of a package, and report unknown names of it.

    The package is a part of ngd, such as "ngd.nn", and its page is "api/nn". `__getattr__` is set
    in the namespace: if the module defined it, type checkers would accept any name.
    """
    module, known = namespace["__name__"], namespace["__all__"]
    package = module.removeprefix("ngd.")
    name_calls(package, namespace, known)
    namespace["__getattr__"] = attribute_errors(module, known, f"api/{package}")


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
