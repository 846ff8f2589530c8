# SPDX-License-Identifier: Apache-2.0
"""Loading a state dict: the checks of its keys and shapes, and the assignment of its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import errors
from ..graph.variable import variable
from .parameter import Parameter


class Keys(NamedTuple):
    """The keys that a state dict and a model did not share.

    Attributes
    ----------
    missing : list of str
        Keys of the model that the state dict does not have.
    unexpected : list of str
        Keys of the state dict that the model does not have.

    Examples
    --------
    >>> model.load_state_dict(model.state_dict())
    Keys(missing=[], unexpected=[])
    """

    missing: list[str]
    unexpected: list[str]


def detached(value: Any) -> Any:
    """Return a value of a state dict; a tensor of PyTorch that requires a gradient is detached."""
    return value.detach() if hasattr(value, "detach") else value


def shape_of(value: Any, where: str) -> Any:
    """Return the shape of a value that a variable can have; TypeError for others."""
    try:
        return variable(where, detached(value)).shape
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{where}: expected an array of numbers; got {error}. Convert it by np.asarray."
        ) from None


def load(
    declared: Mapping[str, Parameter], state: Mapping[str, Any], strict: bool, where: str
) -> Keys:
    """Assign the values of a state dict to the declarations, all or none of them.

    Errors begin with `where`, the call.
    """
    keys = compare_keys(declared, state)
    present = {key: p for key, p in declared.items() if key in state}
    shapes = different_shapes(present, state, where)
    if strict:
        expect_same(keys, where)
    if shapes:
        raise errors.ShapeError(f"{where}: {'; '.join(shapes)}")
    for parameter in present.values():
        if parameter.made:
            parameter.variable.cell.expect_nobody()
    for key, parameter in present.items():
        parameter.assign(detached(state[key]))
    return keys


def compare_keys(declared: Mapping[str, Parameter], state: Mapping[str, Any]) -> Keys:
    """Return the keys of one side only. A shared variable needs one of its keys."""
    given = {id(p) for key, p in declared.items() if key in state}
    missing = [key for key, p in declared.items() if id(p) not in given]
    return Keys(missing, [key for key in state if key not in declared])


def different_shapes(
    present: Mapping[str, Parameter], state: Mapping[str, Any], where: str
) -> list[str]:
    """Return a text for each value whose shape is not that of its declaration."""
    given = {key: shape_of(state[key], f"{where}: {key}") for key in present}
    return [
        f"{key}: expected shape {p.shape}; got {given[key]}"
        for key, p in present.items()
        if given[key] != p.shape
    ]


def expect_same(keys: Keys, where: str) -> None:
    """Raise ValueError if keys are missing or unexpected."""
    if keys.missing or keys.unexpected:
        parts = keys._asdict()
        faults = [f"{len(k)} {what}: {', '.join(k)}" for what, k in parts.items() if k]
        raise ValueError(
            f"{where}: keys: expected those of the module; got {'; '.join(faults)}. Pass "
            "strict=False to load the keys that exist."
        )
