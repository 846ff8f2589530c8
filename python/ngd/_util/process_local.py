# SPDX-License-Identifier: Apache-2.0
"""What is bound to this process."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, SupportsIndex


class BoundToProcess:
    """A copy or a pickle of it would be bound to nothing: both are refused."""

    instead: ClassVar[str]
    """What to do, for the message."""

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
