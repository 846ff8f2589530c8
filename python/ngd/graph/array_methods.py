# SPDX-License-Identifier: Apache-2.0
"""The operators and methods of NumPy arrays that nodes have. Each of them applies an op."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from .._util.signature_errors import not_a_number
from ..dtypes import SHORT_NAMES, Type
from .numpy_calls import call_function, call_ufunc

Axis: TypeAlias = int | Sequence[int] | None
N_co = TypeVar("N_co", covariant=True)
"""A type variable for the type of nodes that the methods return: the class Node of node.py.

Node inherits from ArrayMethods, so this module cannot import it."""


class IndexedPart(Protocol[N_co]):
    """A part of a node x, written as x.at[index].

    `get` returns the part. The other methods return a new node, which has the values of x outside
    of the part and new values in the part. The node x itself never changes.
    """

    def set(self, values: Any) -> N_co:
        """Return a copy of node x with x[index] replaced by `values`."""
        ...

    def add(self, values: Any) -> N_co:
        """Return a copy of node x with `values` added to x[index]."""
        ...

    def multiply(self, values: Any) -> N_co:
        """Return a copy of node x with x[index] multiplied by `values`."""
        ...

    def min(self, values: Any) -> N_co:
        """Return a copy of node x with x[index] replaced by minimum(x[index], values)."""
        ...

    def max(self, values: Any) -> N_co:
        """Return a copy of node x with x[index] replaced by maximum(x[index], values)."""
        ...

    def get(self) -> N_co:
        """Return the elements x[index] of node x."""
        ...


class Indexer(Protocol[N_co]):
    """The type of x.at for a node x. x.at[index] is an IndexedPart, with methods such as `set`."""

    def __getitem__(self, index: Any) -> IndexedPart[N_co]: ...


class ArrayMethods(Generic[N_co]):
    """The operators and methods of Node that NumPy's arrays have.

    They call the method `_apply(name, *args)` of the class Node, which calls the function of
    ngd.ops that has this name.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        site: str
        type: Type
        attrs: dict[str, Any]

        def _apply(self, op: str, *args: Any, **kwargs: Any) -> N_co: ...

    def _compare(self, op: str, other: Any) -> Any:
        """Apply a comparison op; return NotImplemented if `other` is None, a string or the like."""
        # None and strings are not arrays. For NotImplemented, Python compares the two objects by
        # identity.
        if not isinstance(other, ArrayMethods) and np.asarray(other).dtype not in SHORT_NAMES:
            return NotImplemented
        return self._apply(op, self, other)

    def __add__(self, other: Any) -> N_co:
        return self._apply("add", self, other)

    def __radd__(self, other: Any) -> N_co:
        return self._apply("add", other, self)

    def __sub__(self, other: Any) -> N_co:
        return self._apply("subtract", self, other)

    def __rsub__(self, other: Any) -> N_co:
        return self._apply("subtract", other, self)

    def __mul__(self, other: Any) -> N_co:
        return self._apply("multiply", self, other)

    def __rmul__(self, other: Any) -> N_co:
        return self._apply("multiply", other, self)

    def __truediv__(self, other: Any) -> N_co:
        return self._apply("divide", self, other)

    def __rtruediv__(self, other: Any) -> N_co:
        return self._apply("divide", other, self)

    def __floordiv__(self, other: Any) -> N_co:
        return self._apply("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> N_co:
        return self._apply("floor_divide", other, self)

    def __mod__(self, other: Any) -> N_co:
        return self._apply("remainder", self, other)

    def __rmod__(self, other: Any) -> N_co:
        return self._apply("remainder", other, self)

    def __pow__(self, other: Any) -> N_co:
        return self._apply("power", self, other)

    def __rpow__(self, other: Any) -> N_co:
        return self._apply("power", other, self)

    def __matmul__(self, other: Any) -> N_co:
        return self._apply("matmul", self, other)

    def __rmatmul__(self, other: Any) -> N_co:
        return self._apply("matmul", other, self)

    def __and__(self, other: Any) -> N_co:
        return self._apply("bitwise_and", self, other)

    def __rand__(self, other: Any) -> N_co:
        return self._apply("bitwise_and", other, self)

    def __or__(self, other: Any) -> N_co:
        return self._apply("bitwise_or", self, other)

    def __ror__(self, other: Any) -> N_co:
        return self._apply("bitwise_or", other, self)

    def __xor__(self, other: Any) -> N_co:
        return self._apply("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> N_co:
        return self._apply("bitwise_xor", other, self)

    def __neg__(self) -> N_co:
        return self._apply("negative", self)

    def __pos__(self) -> N_co:
        return self._apply("as_node", self)

    def __abs__(self) -> N_co:
        return self._apply("abs", self)

    def __invert__(self) -> N_co:
        return self._apply("bitwise_not", self)

    def __divmod__(self, other: Any) -> tuple[N_co, N_co]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[N_co, N_co]:
        return other // self, other % self

    def __eq__(self, other: Any) -> N_co:  # type: ignore[override]
        node: N_co = self._compare("equal", other)
        return node

    def __ne__(self, other: Any) -> N_co:  # type: ignore[override]
        node: N_co = self._compare("not_equal", other)
        return node

    def __lt__(self, other: Any) -> N_co:
        return self._apply("less", self, other)

    def __le__(self, other: Any) -> N_co:
        return self._apply("less_equal", self, other)

    def __gt__(self, other: Any) -> N_co:
        return self._apply("greater", self, other)

    def __ge__(self, other: Any) -> N_co:
        return self._apply("greater_equal", self, other)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Apply the op that corresponds to a universal function of NumPy, such as np.add."""
        return call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Apply the op for a NumPy function, or raise a TypeError if ngd has no such op."""
        return call_function(function, args, kwargs)

    def __getitem__(self, index: Any) -> N_co:
        return self._apply("getitem", self, index)

    def __bool__(self) -> bool:
        raise TypeError(
            f"bool: expected a value that Python knows; got a Node (made at {self.site}), which a "
            "step computes later: a Node has no truth value. Use ngd.ops.where to choose in the "
            "graph, ngd.ops.logical_and, logical_or and logical_not for conditions, and `is` to "
            "ask whether two nodes are one (`==` and `in` compare values)."
        )

    def __float__(self) -> float:
        raise not_a_number(self.attrs, self.site)

    def __int__(self) -> int:
        return int(float(self))

    __index__ = __int__

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            f"iter: expected a sequence; got {self!r} (made at {self.site}), which "
            "cannot be iterated over. Take its parts by x[i], ops.split or ops.scan."
        )

    def __setitem__(self, index: Any, values: Any) -> None:
        raise TypeError(
            "setitem: expected an array that changes; got a Node, which does not. Write "
            "x = x.at[index].set(values)."
        )

    @property
    def at(self) -> Indexer[N_co]:
        """The indexer of node x: x.at[index].set(v) returns a changed copy of x; see ngd.ops.at."""
        indexer: Any = self._apply("at", self)
        return indexer  # type: ignore[no-any-return]

    @property
    def T(self) -> N_co:
        """The node with its axes in reverse order."""
        return self._apply("transpose", self)

    @property
    def mT(self) -> N_co:
        """The node with its last two axes exchanged."""
        return self.swapaxes(-1, -2)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.type.count

    @property
    def nbytes(self) -> int:
        """The number of bytes of the elements."""
        return self.type.bytes

    @property
    def itemsize(self) -> int:
        """The number of bytes of one element."""
        return self.type.dtype.itemsize

    def astype(self, dtype: Any) -> N_co:
        """Return the values in another dtype; see ngd.ops.cast."""
        return self._apply("cast", self, dtype)

    def reshape(self, *shape: Any) -> N_co:
        """Return the same elements in another shape, given as one tuple or as several ints."""
        return self._apply("reshape", self, shape[0] if len(shape) == 1 else shape)

    def flatten(self) -> N_co:
        """Return all elements, reshaped to one axis."""
        return self.reshape(-1)

    ravel = flatten

    def transpose(self, *axes: Any) -> N_co:
        """Return the axes in another order, given as a tuple or as ints; by default reversed."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        return self._apply("transpose", self, order)

    def swapaxes(self, axis1: int, axis2: int) -> N_co:
        """Return the node with two axes exchanged."""
        return self._apply("swapaxes", self, axis1, axis2)

    def squeeze(self, axis: Axis = None) -> N_co:
        """Return the node without some axes of extent 1, or by default without all of them."""
        return self._apply("squeeze", self, axis)

    def take(self, indices: Any, axis: int | None = None) -> N_co:
        """Return the elements at indices along an axis, or by default of the flattened node."""
        source = self.flatten() if axis is None else self
        return self._apply("take", source, indices, axis or 0)

    def sum(self, axis: Axis = None, keepdims: bool = False) -> N_co:
        """Return the sum along axes; see ngd.ops.sum."""
        return self._apply("sum", self, axis, keepdims)

    def prod(self, axis: Axis = None, keepdims: bool = False) -> N_co:
        """Return the product along axes; see ngd.ops.prod."""
        return self._apply("prod", self, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> N_co:
        """Return the mean along axes; see ngd.ops.mean."""
        return self._apply("mean", self, axis, keepdims)

    def var(self, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> N_co:
        """Return the variance along axes; see ngd.ops.var."""
        return self._apply("var", self, axis, keepdims, ddof)

    def std(self, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> N_co:
        """Return the standard deviation along axes; see ngd.ops.std."""
        return self._apply("std", self, axis, keepdims, ddof)

    def max(self, axis: Axis = None, keepdims: bool = False) -> N_co:
        """Return the largest element along axes; see ngd.ops.max."""
        return self._apply("max", self, axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> N_co:
        """Return the smallest element along axes; see ngd.ops.min."""
        return self._apply("min", self, axis, keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> N_co:
        """Return whether any element is not 0; see ngd.ops.any."""
        return self._apply("any", self, axis, keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> N_co:
        """Return whether all elements are not 0; see ngd.ops.all."""
        return self._apply("all", self, axis, keepdims)

    def cumsum(self, axis: int | None = None) -> N_co:
        """Return the sum of each element and all before it; see ngd.ops.cumsum."""
        return self._apply("cumsum", self, axis)

    def cumprod(self, axis: int | None = None) -> N_co:
        """Return the product of each element and all before it; see ngd.ops.cumprod."""
        return self._apply("cumprod", self, axis)

    def repeat(self, repeats: Any, axis: int | None = None) -> N_co:
        """Return each element several times; see ngd.ops.repeat."""
        return self._apply("repeat", self, repeats, axis)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> N_co:
        """Return a diagonal of two axes; see ngd.ops.diagonal."""
        return self._apply("diagonal", self, offset, axis1, axis2)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> N_co:
        """Return the sum of a diagonal; see ngd.ops.trace."""
        return self._apply("trace", self, offset, axis1, axis2)

    def dot(self, other: Any) -> N_co:
        """Return the product of vectors or matrices, as numpy.dot."""
        product: N_co = call_function(np.dot, (self, other), {})
        return product

    def searchsorted(self, values: Any, side: str = "left") -> N_co:
        """Return the indices at which values would be inserted; see ngd.ops.searchsorted."""
        return self._apply("searchsorted", self, values, side)

    def argsort(self, axis: int = -1) -> N_co:
        """Return the indices that sort the elements; see ngd.ops.argsort."""
        return self._apply("argsort", self, axis)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> N_co:
        """Return the index of the largest element; see ngd.ops.argmax."""
        return self._apply("argmax", self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> N_co:
        """Return the index of the smallest element; see ngd.ops.argmin."""
        return self._apply("argmin", self, axis, keepdims)

    def round(self) -> N_co:
        """Return the nearest integers. Halves are rounded to the even one."""
        return self._apply("round", self)

    def clip(self, min: Any = None, max: Any = None) -> N_co:
        """Return the values limited to bounds; see ngd.ops.clip."""
        return self._apply("clip", self, min, max)


for _method in vars(ArrayMethods).values():
    if hasattr(_method, "__qualname__"):  # shown in errors about arguments
        _method.__qualname__ = f"Node.{_method.__name__}"
