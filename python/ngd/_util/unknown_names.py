# SPDX-License-Identifier: Apache-2.0
"""The error for a name that a module of ngd does not have, with the name to use instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .links import page_url


def attribute_errors(
    module: str, known: Iterable[str], page: str, other_names: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module, which raises an error for an unknown name.

    Parameters
    ----------
    module : str
        The name of the module, such as "ngd.nn".
    known : iterable of str
        Its public names.
    page : str
        The page of the documentation that lists them.
    other_names : mapping, optional
        The public name that corresponds to each name of another library.
    """

    def raise_error(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise AttributeError(
            f"{module}: expected a public name of {module}; got {name!r}, which it does not have. "
            f"{advice(module, name, known, page, other_names or {})}"
        )

    return raise_error


def advice(
    module: str, name: str, known: Iterable[str], page: str, other_names: Mapping[str, str]
) -> str:
    """Return a sentence with the name to use, or with the page that lists all names.

    Upper and lower case are not distinguished.
    """
    prefix = module.removeprefix("ngd.")
    if name in other_names:
        return f"Use {prefix}.{other_names[name]}."
    by_small_letters = {each.lower(): each for each in known}
    close = similar_name(name.lower(), by_small_letters)
    if close is not None:
        return f"Did you mean {prefix}.{by_small_letters[close]}?"
    return f"See the list at {page_url(page)}"


def similar_name(name: str, known: Iterable[str], similarity: float = 0.6) -> str | None:
    """Return the most similar known name, or None.

    `similarity` is the least ratio of difflib; 1.0 means equal names.
    """
    from difflib import get_close_matches  # here, because it is slow to import

    return next(iter(get_close_matches(name, known, 1, similarity)), None)
