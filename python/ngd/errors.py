# SPDX-License-Identifier: Apache-2.0
"""The exception and warning classes of ngd; TypeError and ValueError are Python's.

docs/errors.md explains each class. docs/failure-model.md lists each fault and its tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

LAYER: Final[ContextVar[str]] = ContextVar("layer", default="")
"""The layer whose graph is being built, for call sites."""


class Error(Exception):
    """The base of all errors of ngd.

    Attributes
    ----------
    ranks : tuple of ints
        The ranks of the world that caused the error, in ascending order. They are lost, late or
        failed, or they are the two that disagree. For GroupClosedError they are those of the
        failure that closed the group. Empty for other errors.
    layer : str
        The innermost layer (`in_layer`) that was being built, such as "enc.2: Linear(17, 8,
        bias=True)". The message ends with it. Empty outside of layers.
    """

    ranks: tuple[int, ...] = ()
    layer: str = ""

    @property
    def rank(self) -> int | None:
        """The rank that caused the error, or None for no rank or several."""
        return self.ranks[0] if len(self.ranks) == 1 else None


class ShapeError(Error, ValueError):
    """Shapes that do not fit each other, or that the op does not accept."""


class DTypeError(Error, TypeError):
    """A dtype that an op does not accept."""


class GradientError(Error, ValueError):
    """A gradient that does not exist. The message names the op or the variable."""


class CompileError(Error, ValueError):
    """A graph that cannot be compiled. The message names the node and its file and line."""


class PoisonedVariableError(Error, RuntimeError):
    """A variable whose update failed half-way. Assign to it before the next read."""


class VariableMismatchError(Error, ValueError):
    """Ranks, `ranks`, have other values of a variable than the other ranks after a first step."""


class BusyError(Error, RuntimeError):
    """A use of a step, a variable or a group while another thread uses it."""


class NotFiniteError(Error, FloatingPointError):
    """A NaN or an infinity that should not occur. The message names the op that made it."""


class OutOfRangeError(Error, IndexError, ValueError):
    """An index outside of its axis, given to a step or computed by it.

    The message names the public call, the index and its position in the array of indices.
    """


class NotMemberError(Error, ValueError):
    """A collective on a group without this rank. Nothing was sent."""


class InitError(Error, RuntimeError):
    """A group of ranks that cannot be made. The message has the facts and the fix."""


class CollectiveError(Error, RuntimeError):
    """The base of failures between ranks. The group is closed afterwards."""


class CollectiveMismatchError(CollectiveError):
    """Two ranks, `ranks`, that call different collectives. The message has both calls."""


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """Ranks, `ranks`, that did not arrive within NGD_TIMEOUT seconds."""


class RankLostError(CollectiveError):
    """A rank, `rank`, that died or left while other ranks waited for it."""


class RemoteRankError(CollectiveError):
    """A rank, `rank`, that raised an exception. The message has its traceback."""


class GroupClosedError(CollectiveError):
    """A collective on a group that an earlier failure, or ngd.shutdown(), has closed."""


class WorkerError(Error, RuntimeError):
    """Data-loading workers that died or did not answer. The message names them."""


class VaryingVariableWarning(UserWarning):
    """A variable whose next value may differ between ranks. The message names it."""


class UpdatesWarning(UserWarning):
    """A step without the updates of its random numbers or running statistics."""


class EqualModelsWarning(UserWarning):
    """Two models of a training step that begin with the same random values."""


class PrecisionWarning(UserWarning):
    """A step with a 16-bit precision that the CPU has no kernels for. It stays float32."""


class PromotionWarning(UserWarning):
    """A step that computes in float64 because another operand met float32."""


class FallbackWarning(UserWarning):
    """A PyTorch model, or a graph of it, that runs in eager PyTorch. The message says why."""


class RetraceWarning(UserWarning):
    """A function that is traced again and again. The message names the argument that changes."""


class EnvironmentVariableWarning(UserWarning):
    """An NGD_ variable that ngd does not have. The message gives the similar one that it has."""


class UnevenBatchWarning(UserWarning):
    """The ranks or batches of a data.Loader have different sizes, and the weight was not read."""


@contextmanager
def in_layer(name: str) -> Iterator[None]:
    """Name a layer in the call sites and errors of the nodes that are built in this block.

    Each call of an nn module is such a block, named by path and class. Of nested blocks, the
    innermost is named.

    Parameters
    ----------
    name : str
        The name, such as "enc.2: Linear(17, 8, bias=True)".

    Examples
    --------
    >>> with ngd.errors.in_layer("head"):
    ...     logits = model(x)
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
