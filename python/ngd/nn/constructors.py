# SPDX-License-Identifier: Apache-2.0
"""Errors of the constructors of modules, which name the class and its arguments."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any, Final

from .. import errors
from .._util.signature_errors import expect_fit, without_self

MOST_LETTERS: Final = 200
"""The number of characters after which the arguments in an error message are cut off."""


def naming_errors(init: Any) -> Any:
    """Return a constructor like `init`, whose errors name the class and the arguments.

    If a wrong argument makes the body of `init` raise an error that does not name the class, the
    new constructor raises a TypeError or ValueError that names the class and shows the arguments.
    """

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
            name = type(self).__name__
            expect_fit(f"nn.{name}", without_self(inspect.signature(init)), args, kwargs)
            if isinstance(error, errors.Error) or name in str(error):
                raise
            kind = ValueError if isinstance(error, (ValueError, ArithmeticError)) else TypeError
            arguments = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
            shown = ", ".join(arguments)[:MOST_LETTERS]
            words = re.sub(r"\b\w+\.__init__\(\)", f"nn.{name}", str(error))
            message = f"nn.{name}: expected other arguments: {words}; got nn.{name}({shown})."
            raise kind(message) from error

    return checked
