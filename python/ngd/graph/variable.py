# SPDX-License-Identifier: Apache-2.0
"""Variables: named values that persist between steps.

Each device that uses a variable has its own copy of the value. `assign` replaces the value on all
devices. A step replaces it on the device of the step only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from typing import Any, Final, Protocol

import numpy as np

from .. import _core
from .._util import config
from .._util.caller_arrays import view
from .._util.callsite import at_site, call_site
from ..comm import Group
from ..comm.world import group_or_world
from ..dtypes import Array, DType, Shape, Type, as_dtype, parse_shape
from ..errors import ShapeError
from . import notes
from .leaves import PLACEHOLDER, VARIABLE, constant_node
from .node import Node
from .variable_names import Scope

TRACING: Final[ContextVar[bool]] = ContextVar("tracing", default=False)
"""True while the Python function of an ngd.function is traced."""


class Storage(Protocol):
    """The value of a variable on one device."""

    @property
    def kept_by(self) -> Any:
        """The group whose ranks each have a shard of the value; None if this rank has all of it."""
        ...

    def read(self) -> Array:
        """Return a copy of the value, or raise an error if the variable cannot be read now."""
        ...

    def view(self) -> Array:
        """Return the memory of the value as an array."""
        ...

    def assigning(self) -> AbstractContextManager[Any]:
        """Return the context in which the caller assigns a value.

        If ranks share the variable, the assignment runs collectives. An exception in the context
        then closes the group of these ranks.
        """
        ...

    def refusal(self, value: Array) -> str | None:
        """Return the reason why `value` cannot be assigned; None if it can be assigned.

        The only reason is that ranks which must have equal values assign different ones. On the CPU
        device, these ranks call this together and compare their values.
        """
        ...

    def write(self, value: Array) -> None:
        """Replace the value by a contiguous array of the variable's type."""
        ...


class Variable(Node):
    """A value that a compiled step may read and replace. ngd.variable makes one.

    All executables of a device that use the variable share one value. The name is the variable's
    key in a checkpoint and is unique in a graph.

    Attributes
    ----------
    name : str
        The name.
    shape : tuple of ints
        The static shape.
    dtype : dtype
        The element type.
    per_rank : bool
        True if each rank has a value of its own by design. The ranks then do not compare values.
    owner : LiveState or None
        The state to which the variable belongs, such as `optimizer.state`, or None.

    Raises
    ------
    BusyError
        A running step writes the variable, or it reads the variable and this call would write it.
        The step runs in another thread, or the signal handler that makes this call has interrupted
        the step.

    Examples
    --------
    >>> counter = ngd.variable("counter", np.zeros(2, np.float32))
    >>> counter.assign([1.0, 2.0])
    >>> counter.numpy()
    array([1., 2.], dtype=float32)
    """

    __slots__ = ("_initial", "_storages", "cell", "owner", "per_rank", "scope")

    def __init__(self, name: str, initial: Array, per_rank: bool = False) -> None:
        super().__init__(VARIABLE, (), {"name": name}, Type(initial.dtype, initial.shape))
        self.uniform = not per_rank
        self.per_rank = per_rank
        """True if each rank has a value of its own by design. The ranks do not compare values."""
        self._initial: Array | None = initial
        self._storages: dict[str, Storage] = {}
        self.cell = _core.Cell(name)
        self.owner: Any = None
        """The LiveState to which this variable belongs, such as `optimizer.state`, or None."""
        self.scope: Scope | None = None
        """The namespace of the model that the variable belongs to; None if it has no model."""

    @property
    def name(self) -> str:
        """The variable's name."""
        return str(self.attrs["name"])

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the function and the arguments from which copy and pickle make a new variable.

        The new variable has the same name and the current value.
        """
        return remade_variable, (self.name, self.numpy(), self.site, self.per_rank)

    @property
    def version(self) -> int:
        """The number of times that `assign` or a step on any device has replaced the value."""
        return self.cell.version

    @property
    def kept_by(self) -> Any:
        """The group whose ranks each have a shard of the value (`shard="world"`), or None.

        None means that this process has the whole value. Otherwise numpy() exchanges the shards, so
        all ranks of the group call it together.
        """
        storage = self._storages.get(self.cell.latest or "")
        return None if storage is None else storage.kept_by

    def numpy(self, device: str | None = None) -> Array:
        """Return a copy of the value.

        Parameters
        ----------
        device : str, optional
            The device whose value to read. The default is the device that wrote last.

        Returns
        -------
        numpy.ndarray
            The whole value. If each rank has only a shard of it (`shard="world"` of ngd.compile),
            the ranks exchange the shards: all of them call numpy() together.

        Raises
        ------
        BusyError
            A step that runs now writes the variable.
        """
        if device is not None:
            config.device(device, f"variable {self.name!r}")
        self.cell.check_readable()
        storage, initial = self._storages.get(device or self.cell.latest or ""), self._initial
        if storage is None and initial is not None:
            return initial.copy()
        if storage is None:  # a device without a storage starts from the newest value
            storage = self._storages[self.cell.latest or ""]
        return storage.read()

    def view(self) -> Array:
        """Return the memory of the value on the CPU device as an array, without a copy.

        Each step that replaces the value changes the array. Writing to the array changes the
        variable: do this between steps only. The ranks of a host may share one copy of the value
        (`shard` of ngd.compile). If steps update this copy (`shard="host"`), the array is the copy
        itself, and a write changes the value on all these ranks. If steps only read it, `view`
        first moves the value to memory of this process, so that a write changes only this rank.

        Returns
        -------
        numpy.ndarray
            An array with the shape and dtype of the variable. A step that is compiled later may
            move the value to memory that ranks share. The array then shows the old memory: call
            view() again.

        Raises
        ------
        ValueError
            No step that uses the variable was compiled for the CPU device yet.
        BusyError
            A step that runs now writes the variable.
        """
        return self.storage_in_memory().view()

    def storage_in_memory(self) -> Storage:
        """Return the storage on the CPU device, or raise the same errors as `view`."""
        self.cell.check_readable()
        storage = self._storages.get("CPU")
        if storage is None:
            raise ValueError(
                f"Variable.view: {self.name!r}: expected a variable of a step on the CPU device; "
                "got one that no step uses. Compile the step first."
            )
        return storage

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        self._expect_no_trace("np.asarray")
        value = self.numpy()
        return value if dtype is None else value.astype(dtype)

    def __float__(self) -> float:
        self._expect_no_trace("float")
        return float(self.numpy())

    def __int__(self) -> int:
        self._expect_no_trace("int")
        return int(self.numpy())

    def __index__(self) -> int:
        if self.dtype.kind not in "iub":
            raise TypeError(
                f"int: expected an integer; got {self.type} of the variable {self.name!r} (made at "
                f"{self.site}). Use float(), or cast it."
            )
        return int(self)

    def item(self) -> Any:
        """Return the value of a variable of one element as a Python number."""
        self._expect_no_trace("item")
        return self.numpy().item()

    def _expect_no_trace(self, call: str) -> None:
        """Raise a TypeError if a function is being traced; `call` names the caller in the message.

        Without the error, all calls of the traced step would use the present value as a constant.
        """
        if TRACING.get():
            raise TypeError(
                f"{call}: expected a variable outside of a traced function; got "
                f"{self.name!r} (made at {self.site}) inside. Use the variable itself: the step "
                "reads its value in each call."
            )

    def assign(self, value: Any) -> None:
        """Replace the value on every device.

        Parameters
        ----------
        value : array_like
            A value of the variable's shape, which is cast to its dtype. If a step shares the
            variable (`shard` of ngd.compile), all ranks of the step assign the same value together.

        Raises
        ------
        ShapeError
            The shape is not that of the variable.
        ValueError
            Ranks that share the variable assign different values.
        BusyError
            A step that runs now reads or writes the variable.
        """
        where = f"variable {self.name!r}: assign"
        array = view(value, where)
        as_dtype(array.dtype, where)
        if array.shape != self.shape:
            raise ShapeError(
                f"{where}: expected shape {self.shape}; got {array.shape}. Reshape the value."
            )
        array = np.ascontiguousarray(array.astype(self.dtype)).reshape(self.shape)
        storages = list(self._storages.values())
        with ExitStack() as stack:
            for storage in storages:
                stack.enter_context(storage.assigning())
            refusal = self.cell.replace(storages, array)
        if refusal is not None:
            raise ValueError(f"{where}: {refusal}")
        self._initial = None if self._storages else array.copy()

    def expect_update(self, node: Node, layer: str) -> None:
        """Make ngd.compile warn about a step that computes `node` but does not update the variable.

        Parameters
        ----------
        node : Node
            A value that belongs to a training step, such as the result of a normalization.
        layer : str
            The layer that the warning names.
        """
        notes.add(node, notes.ExpectedUpdate(self, layer))

    def storage(self, device: str, make: Callable[[Variable, Array], Storage]) -> Storage:
        """Return the variable's storage on `device`.

        The first use makes it from the value of the device that wrote last, or else from the
        initial value.
        """
        if device not in self._storages:
            self.cell.check_readable()
            initial = self._initial  # the device copies it
            made = make(self, self.numpy() if initial is None else initial)
            self._storages.setdefault(device, made)  # unless another thread has made it
            self.cell.latest = self.cell.latest or device
            self._initial = None
        return self._storages[device]


def remade_variable(name: str, value: Array, site: str, per_rank: bool = False) -> Variable:
    """Make the copy of a variable from the result of Variable.__reduce__."""
    with at_site(site):
        return Variable(name, value, per_rank)


def variable(name: str, initial: Any, *, per_rank: bool = False) -> Variable:
    """Make a variable from an initial value, which is copied.

    Parameters
    ----------
    name : str
        The key of the variable in a checkpoint, unique in a graph.
    initial : array_like
        The first value, which sets shape and dtype. Python floats make float32; arrays keep their
        dtype.
    per_rank : bool, default False
        True if each rank has a value of its own by design, such as statistics of its own batches.
        If False, all ranks have equal values. If a step has collectives and updates the variable,
        its first call compares the values: different ones raise VariableMismatchError.

    Returns
    -------
    Variable
        The variable. If all ranks pass the same `initial`, they begin with equal variables.

    Raises
    ------
    TypeError
        The name is not a non-empty string.

    See Also
    --------
    ngd.broadcast_variables : assigns the values of one rank on all ranks.

    Examples
    --------
    >>> weight = ngd.variable("weight", np.zeros((3, 2), np.float32))
    >>> weight.shape
    (3, 2)
    """
    where = f"variable {name!r}"
    if not isinstance(name, str) or not name:
        raise TypeError(
            f'variable: expected a non-empty name; got {name!r}. Write ngd.variable("name", value).'
        )
    array = view(initial, where)
    has_dtype = hasattr(initial, "dtype")
    if not has_dtype and array.dtype == np.float64:
        array = array.astype(np.float32)
    as_dtype(array.dtype, where)
    if is_one_number(array):  # the zeros of an optimizer take no memory until a device has them
        array_copy = np.broadcast_to(array.flat[0], array.shape)
    else:
        array_copy = np.array(array, order="C", copy=True)
    return Variable(name, array_copy, bool(per_rank))


def is_one_number(array: Array) -> bool:
    """Return whether all elements share one number in memory, as in np.broadcast_to(1.0, (2,))."""
    return array.size > 1 and not any(array.strides)


def placeholder(name: str, shape: Shape, dtype: Any = np.float32, *, uniform: bool = False) -> Node:
    """Make an input of a compiled step. Each call of the step passes a value for it.

    Parameters
    ----------
    name : str
        The name for messages and keyword arguments.
    shape : tuple of ints
        The static shape.
    dtype : dtype, default float32
        The element type.
    uniform : bool, default False
        True promises that all ranks pass the same value, such as a learning rate or a step number.

    Returns
    -------
    Node
        A node of that shape and dtype.

    Raises
    ------
    ShapeError
        The shape is not a sequence of integers >= 0.

    Examples
    --------
    >>> inputs = ngd.placeholder("inputs", (2, 3))
    >>> step = ngd.compile([inputs], [inputs + 1.0])
    >>> step(np.zeros((2, 3), np.float32))
    [array([[1., 1., 1.],
           [1., 1., 1.]], dtype=float32)]
    """
    where = f"placeholder {name!r}"
    element_type = as_dtype(dtype, where)
    try:
        sizes = parse_shape(shape, where, element_type.itemsize)
    except (TypeError, ValueError):
        raise ShapeError(
            f"{where}: expected a shape of integers >= 0 and of fewer than 2**63 bytes; got "
            f"{shape!r}. Shapes are static: make one step per shape, or use @ngd.function, which "
            "compiles one per shape."
        ) from None
    attrs = {"name": str(name), "uniform": bool(uniform)}
    return Node(PLACEHOLDER, (), attrs, Type(element_type, sizes))


def constant(value: Any, dtype: Any = None) -> Node:
    """Make a constant from a value, which is copied.

    Parameters
    ----------
    value : array_like
        The value, of any shape.
    dtype : dtype, optional
        The element type. By default Python floats make float32, Python integers make int64, and
        arrays keep their dtype. If `value` is a single Python float, an op that reads the constant
        converts this float to the dtype of the op's other operand, without rounding to float32
        first.

    Returns
    -------
    Node
        The constant.

    Examples
    --------
    >>> ngd.constant([1.0, 2.0]).shape
    (2,)
    """
    if dtype is None and isinstance(value, float) and not isinstance(value, np.generic):
        return constant_node(value, np.dtype(np.float32), weak=value)
    target: DType | None = None if dtype is None else as_dtype(dtype, "constant")
    array = view(value, "constant")
    if target is None and not hasattr(value, "dtype") and array.dtype == np.float64:
        target = np.dtype(np.float32)
    array = array.astype(target) if target is not None else array
    as_dtype(array.dtype, "constant")
    return constant_node(array)


__all__ = ["Storage", "Variable", "constant", "placeholder", "variable"]


def broadcast_variables(
    variables: Iterable[Variable] | Sequence[Variable], root: int = 0, *, group: Group | None = None
) -> None:
    """Assign the values of rank `root` to the variables of all ranks.

    Call it on all ranks before the first step if one rank loads weights or if values are random.
    The variables are sent in the order of their names.

    Parameters
    ----------
    variables : Variable or iterable of Variable
        The variables. All ranks pass variables with the same names.
    root : int, default 0
        The rank whose values are sent.
    group : Group, optional
        The ranks. The default is the world.

    Examples
    --------
    >>> ngd.broadcast_variables(model.variables().values())
    """
    site, ranks = call_site(), group_or_world(group)
    variable_list = list(variables) if isinstance(variables, Iterable) else [variables]
    if any(not isinstance(variable, Variable) for variable in variable_list):
        raise TypeError(
            f"broadcast_variables: expected variables; got {variables!r}. Pass model.variables()."
        )
    for variable in variable_list:
        variable.cell.check_readable()
    with ranks.collectives_scope():
        for variable in sorted(variable_list, key=lambda v: v.name):
            variable.assign(ranks.broadcast(variable.numpy(), root=root, site=site))
