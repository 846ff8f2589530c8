# SPDX-License-Identifier: Apache-2.0
"""The exception and warning classes of ngd.

For wrong arguments, ngd also raises Python's TypeError and ValueError. docs/errors.md explains each
class. docs/failure-model.md lists each fault and its tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

LAYER: Final[ContextVar[str]] = ContextVar("layer", default="")
"""The name of the innermost layer that is being called; empty outside of layers.

A layer is mostly an nn module. Its name is added to the call site of each node that it builds:
the file and line of the user's code.
"""


class Error(Exception):
    """The base class of all errors of ngd.

    Attributes
    ----------
    ranks : tuple of ints
        The ranks of the world that caused the error, in ascending order: lost, late or failed
        ranks, or the two ranks that disagree. For GroupClosedError, they are the ranks of the
        failure that closed the group. Empty for other errors.
    layer : str
        The innermost layer (`in_layer`) that was being called, such as "enc.2: Linear(17, 8,
        bias=True)". The message ends with it. Empty outside of layers.
    """

    ranks: tuple[int, ...] = ()
    layer: str = ""

    @property
    def rank(self) -> int | None:
        """The rank that caused the error, or None if no rank or several ranks caused it."""
        return self.ranks[0] if len(self.ranks) == 1 else None


class ShapeError(Error, ValueError):
    """The error for shapes that do not fit each other, or that an op does not accept."""


class DTypeError(Error, TypeError):
    """The error for a dtype that an op does not accept."""


class GradientError(Error, ValueError):
    """The error for a gradient that does not exist. The message names the op or the variable."""


class CompileError(Error, ValueError):
    """The error for a graph that cannot be compiled. The message has the node's file and line."""


class PoisonedVariableError(Error, RuntimeError):
    """The error for a read of a variable whose update failed half-way. Assign a value first."""


class VariableMismatchError(Error, ValueError):
    """The error for a variable whose values differ between ranks after the first step.

    `ranks` are the ranks whose value differs from that of the other ranks.
    """


class BusyError(Error, RuntimeError):
    """The error for a use of a step, a variable or a group while another thread uses it."""


class NotFiniteError(Error, FloatingPointError):
    """The error for a NaN or an infinity that should not occur. The message names the op."""


class OutOfRangeError(Error, IndexError, ValueError):
    """The error for an index that is outside of the axis that it selects from.

    The index is a constant, an argument of a compiled step, or computed in the step. The message
    names the public function, the index and its position in the array of indices.
    """


class NotMemberError(Error, ValueError):
    """The error for a collective on a group without this rank. Nothing was sent."""


class InitError(Error, RuntimeError):
    """The error for a group that cannot be created.

    The message has the expected state, the state that was found, and a fix.
    """


class CollectiveError(Error, RuntimeError):
    """The base class of failures between ranks. The group is closed afterwards."""


class CollectiveMismatchError(CollectiveError):
    """The error for ranks that call different collectives. The message has the two calls.

    `ranks` are the two ranks.
    """


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """The error for late ranks: a rank has waited for them longer than the timeout.

    The rank waited in a collective or in ngd.init(), or for a value of the kvstore. `ranks` are the
    late ranks. The timeout of most calls is NGD_TIMEOUT seconds.
    """


class RankLostError(CollectiveError):
    """The error for a rank, `rank`, whose process ended while other ranks waited for it."""


class RemoteRankError(CollectiveError):
    """The error for an exception on another rank, `rank`. The message has its traceback."""


class GroupClosedError(CollectiveError):
    """The error for a collective on a group that a failure or ngd.shutdown() has closed."""


class WorkerError(Error, RuntimeError):
    """The error for data-loading workers that ended or did not answer. The message names them."""


class VaryingVariableWarning(UserWarning):
    """The warning for a variable that a compiled step may update differently on each rank.

    The new value depends on data of one rank, without a collective in between, so the compiler
    cannot prove that it is equal on all ranks. The message names the variable.
    """


class UpdatesWarning(UserWarning):
    """The warning for a training step that was compiled without `state.updates` of nn.training.

    Each call of such a step draws the same dropout masks, and running statistics do not change.
    """


class EqualModelsWarning(UserWarning):
    """The warning for two models of a training step that start with the same random values."""


class PrecisionWarning(UserWarning):
    """The warning for a 16-bit precision that this CPU has no kernels for.

    The compiled step uses float32 instead.
    """


class PromotionWarning(UserWarning):
    """The warning for a compiled step that computes in float64.

    The reason is an op that combines float32 with another dtype.
    """


class FallbackWarning(UserWarning):
    """The warning for a PyTorch model or graph that runs in eager PyTorch, with the reason."""


class RetraceWarning(UserWarning):
    """The warning for a function that is traced many times.

    The message names the argument that changes between calls.
    """


class EnvironmentVariableWarning(UserWarning):
    """The warning for an unknown NGD_ variable. The message gives the similar known one."""


class UnevenBatchWarning(UserWarning):
    """The warning for a data.Loader with uneven batches whose `batch.weight` was not read.

    Batches are uneven if the ranks get different numbers of samples, or if the batches differ in
    size.
    """


@contextmanager
def in_layer(name: str) -> Iterator[None]:
    """Add the name of a layer to the call sites and errors of nodes that are built in this block.

    Each call of an nn module is such a block. Its name is the path and the class of the module. In
    nested blocks, the name of the innermost block is used.

    Parameters
    ----------
    name : str
        The name of the layer, such as "enc.2: Linear(17, 8, bias=True)".

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
