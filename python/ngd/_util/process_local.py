# SPDX-License-Identifier: Apache-2.0
"""The base class of objects that work only in this process."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, SupportsIndex


class BoundToProcess:
    """An object that is bound to this process. Copying or pickling it raises TypeError."""

    instead: ClassVar[str]
    """The advice at the end of the TypeError that copying or pickling raises."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        self._refuse()

    def __copy__(self) -> NoReturn:
        self._refuse()

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}: it cannot be copied or pickled, since it is bound to this "
            f"process; {self.instead}"
        )
