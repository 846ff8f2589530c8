# SPDX-License-Identifier: Apache-2.0
"""Load a state dict: check its keys and shapes, and assign its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import errors
from ..graph.variable import variable
from .parameter import Parameter


class Keys(NamedTuple):
    """The keys in which a state dict and a model differ.

    Attributes
    ----------
    missing : list of str
        The keys of the model that the state dict does not have.
    unexpected : list of str
        The keys of the state dict that the model does not have.

    Examples
    --------
    >>> model.load_state_dict(model.state_dict())
    Keys(missing=[], unexpected=[])
    """

    missing: list[str]
    unexpected: list[str]


def detached(value: Any) -> Any:
    """Return `value`, detached from its autograd graph if it is a tensor of PyTorch."""
    return value.detach() if hasattr(value, "detach") else value


def shape_of(value: Any, where: str) -> Any:
    """Return the shape of a value; raise TypeError if a variable cannot store such a value."""
    try:
        return variable(where, detached(value)).shape
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{where}: expected an array of numbers; got {error}. Convert it by np.asarray."
        ) from None


def load(
    declared: Mapping[str, Parameter], state: Mapping[str, Any], strict: bool, where: str
) -> Keys:
    """Assign the values of a state dict to variables; return the missing and unexpected keys.

    `declared` is a dict from each key of the module, such as "weight", to its Parameter or Buffer.
    If `strict` is True, missing or unexpected keys raise an error. All checks come first: if one
    raises an error, no variable has changed. `where` is the name of the public method, such as
    "Linear.load_state_dict", for error messages.
    """
    keys = compare_keys(declared, state)
    present = {key: p for key, p in declared.items() if key in state}
    shapes = different_shapes(present, state, where)
    if strict:
        expect_same(keys, where)
    if shapes:
        raise errors.ShapeError(f"{where}: {'; '.join(shapes)}")
    for parameter in present.values():
        if parameter.has_variable:
            parameter.variable.cell.expect_nobody()
    for key, parameter in present.items():
        parameter.assign(detached(state[key]))
    return keys


def compare_keys(declared: Mapping[str, Parameter], state: Mapping[str, Any]) -> Keys:
    """Return the keys that only the module has (missing) or only `state` has (unexpected).

    A variable that several names share is missing only if `state` has none of these names.
    """
    present_ids = {id(p) for key, p in declared.items() if key in state}
    missing = [key for key, p in declared.items() if id(p) not in present_ids]
    return Keys(missing, [key for key in state if key not in declared])


def different_shapes(
    present: Mapping[str, Parameter], state: Mapping[str, Any], where: str
) -> list[str]:
    """Return an error text for each value of `state` with another shape than its declaration.

    `present` has the declarations (Parameter, Buffer) of the keys that occur in `state`. A text is,
    for example, "weight: expected shape (2, 3); got (3, 2)".
    """
    shapes = {key: shape_of(state[key], f"{where}: {key}") for key in present}
    return [
        f"{key}: expected shape {p.shape}; got {shapes[key]}"
        for key, p in present.items()
        if shapes[key] != p.shape
    ]


def expect_same(keys: Keys, where: str) -> None:
    """Raise ValueError if keys are missing or unexpected."""
    if keys.missing or keys.unexpected:
        keys_by_fault = keys._asdict()
        faults = [f"{len(k)} {what}: {', '.join(k)}" for what, k in keys_by_fault.items() if k]
        raise ValueError(
            f"{where}: keys: expected those of the module; got {'; '.join(faults)}. Pass "
            "strict=False to load the keys that exist."
        )
