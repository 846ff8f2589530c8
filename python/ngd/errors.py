# SPDX-License-Identifier: Apache-2.0
"""The errors that are ngd's own, one class a kind; TypeError and ValueError are Python's.

docs/errors.md says what state each leaves.
"""

from __future__ import annotations


class Error(Exception):
    """The base of all of ngd's errors."""


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


class BusyError(Error, RuntimeError):
    """A second call of an executable while one runs in another thread."""


class NotFiniteError(Error, FloatingPointError):
    """A NaN, or an infinity, where there should be none; the message says where it began."""


class NotMemberError(Error, ValueError):
    """A collective on a group that this rank is no member of; nothing has happened."""


class InitError(Error, RuntimeError):
    """A group of ranks cannot be made; the message says what was seen and what would help."""


class CollectiveError(Error, RuntimeError):
    """The base of what goes wrong between ranks. The group is closed afterwards."""


class CollectiveMismatchError(CollectiveError):
    """Two ranks disagree about a collective; the message shows both sides and both call sites."""


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """A rank did not come in NGD_TIMEOUT seconds; the message names it, the op and the line."""


class RankLostError(CollectiveError):
    """A rank died or left while others waited for it; the message names it."""


class RemoteRankError(CollectiveError):
    """A rank raised; the message holds its number and its traceback."""


class GroupClosedError(CollectiveError):
    """A collective on a group that an earlier failure, or ngd.shutdown(), has closed."""


class WorkerError(Error, RuntimeError):
    """A process that loads data died, or did not answer; the message names it."""


class RetraceWarning(UserWarning):
    """A function of ngd.function is traced again and again; the message says what changes."""
