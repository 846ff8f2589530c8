# SPDX-License-Identifier: Apache-2.0
"""The errors that are ngd's own, one class a kind; TypeError and ValueError are Python's.

docs/errors.md explains each class; docs/failure-model.md lists each fault and its tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

LAYER: Final[ContextVar[str]] = ContextVar("layer", default="")
"""The layer whose graph is being built; call sites name it."""


class Error(Exception):
    """The base of all of ngd's errors.

    Attributes
    ----------
    ranks
        The ranks of the world that the error speaks of, in rising order: who is lost, who did not
        come, who has failed, the two that disagree. Of GroupClosedError they are those of the
        failure that closed the group. Empty where an error speaks of no rank.
    layer
        The innermost layer (`in_layer`) that was being built when the error was raised, as in
        "enc.2: Linear(17, 8, bias=True)". The message ends with it. Empty outside of layers.
    """

    ranks: tuple[int, ...] = ()
    layer: str = ""

    @property
    def rank(self) -> int | None:
        """The one that the error speaks of; None where that is no rank, or several."""
        return self.ranks[0] if len(self.ranks) == 1 else None


class ShapeError(Error, ValueError):
    """Shapes that do not fit one another, or not the op."""


class DTypeError(Error, TypeError):
    """A dtype that an op does not take."""


class GradientError(Error, ValueError):
    """A gradient that does not exist: the message names the op or the variable."""


class CompileError(Error, ValueError):
    """A graph that cannot be compiled: the message names the node and its file and line."""


class PoisonedVariableError(Error, RuntimeError):
    """A variable whose update failed half-way; assign to it before it is read again."""


class VariableMismatchError(Error, ValueError):
    """Ranks, `ranks`, hold other values of a variable than the other ranks after a first step."""


class BusyError(Error, RuntimeError):
    """A second call of an executable while one runs in another thread."""


class NotFiniteError(Error, FloatingPointError):
    """A NaN, or an infinity, where there should be none; the message says where it began."""


class OutOfRangeError(Error, IndexError, ValueError):
    """An index that a step computes, or is given, is outside its axis.

    The message names the public call, the index and its position in the array of indices.
    """


class NotMemberError(Error, ValueError):
    """A collective on a group that this rank is no member of; nothing has happened."""


class InitError(Error, RuntimeError):
    """A group of ranks cannot be made; the message says what was seen and what would help."""


class CollectiveError(Error, RuntimeError):
    """The base of what goes wrong between ranks. The group is closed afterwards."""


class CollectiveMismatchError(CollectiveError):
    """Two ranks, `ranks`, disagree about a collective; the message shows both and their lines."""


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """Some ranks, `ranks`, did not come in NGD_TIMEOUT seconds; with the op and its line."""


class RankLostError(CollectiveError):
    """A rank, `rank`, died or left while others waited for it."""


class RemoteRankError(CollectiveError):
    """A rank, `rank`, raised; the message holds its traceback."""


class GroupClosedError(CollectiveError):
    """A collective on a group that an earlier failure, or ngd.shutdown(), has closed."""


class WorkerError(Error, RuntimeError):
    """Processes that load data, or workers, died or did not answer; the message names them."""


class VaryingVariableWarning(UserWarning):
    """A next value of a variable is not proved equal on all ranks; the message names it."""


class UpdatesWarning(UserWarning):
    """A step draws random numbers or has statistics whose updates it was not given."""


class PromotionWarning(UserWarning):
    """A step computes in float64 because an operand of another dtype met float32."""


class RetraceWarning(UserWarning):
    """A function of ngd.function is traced again and again; the message says what changes."""


@contextmanager
def in_layer(name: str) -> Iterator[None]:
    """Name a layer in the call sites and errors of the nodes that are built in this block.

    Calls of nn modules are such blocks: their names are the path and the class, as in
    "enc.2: Linear(17, 8, bias=True)". Blocks may be nested; the innermost is named.
    """
    token = LAYER.set(name)
    try:
        yield
    except Error as error:
        if not error.layer:
            error.layer = name
            if error.args and isinstance(error.args[0], str):
                error.args = (f"{error.args[0]} (in {name})", *error.args[1:])
        raise
    finally:
        LAYER.reset(token)
