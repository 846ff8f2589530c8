# SPDX-License-Identifier: Apache-2.0
"""The op by which a compiled step calls a Python function, for ngd.call_host and ngd.print."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from .._util.callsite import call_site
from ..dtypes import ALL, Array, Type, float32, is_float
from ..errors import GradientError
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ._creation import zeros

_numbers: Final = count(1)
FUNCTIONS: Final[WeakValueDictionary[int, HostFunction]] = WeakValueDictionary()
"""A dict from a number to a host function. A compiled program refers to the function by number.

The dict has weak references: it drops a host function that nothing else references.
"""


class HostFunction:
    """A Python function on NumPy arrays, with the types of its arguments and results.

    Parameters
    ----------
    function : callable
        Takes one array per input, and returns one array per result, in a tuple if there are
        several.
    inputs, results : tuple of Type
        The types of the arrays.
    gradient : callable, optional
        Takes the inputs, then the adjoints of the results. Returns the adjoints of the floating
        inputs: one array, or a tuple of arrays for several floating inputs.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: tuple[Type, ...],
        results: tuple[Type, ...],
        gradient: Callable[..., Any] | None = None,
    ) -> None:
        self.function, self.inputs, self.results = function, inputs, results
        self.gradient = gradient
        self.name = getattr(function, "__qualname__", repr(type(function).__name__))
        self.site = call_site()
        self.number = next(_numbers)
        FUNCTIONS[self.number] = self

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """Call the function with read-only views of arrays, and return a tuple of its results.

        Each result must have its declared shape. It is cast to its declared dtype if
        numpy.can_cast allows this with "same_kind", else a TypeError is raised.
        """
        views = [array.view() for array in arrays]
        for view in views:
            view.flags.writeable = False
        returned = self.function(*views)
        values = (returned,) if len(self.results) == 1 else returned
        if not isinstance(values, (tuple, list)) or len(values) != len(self.results):
            raise TypeError(
                f"call_host: expected {self.name} to return {len(self.results)} arrays; got "
                f"{returned!r} (made at {self.site}). Return a tuple with one array per type."
            )
        return tuple(
            self._as_declared(number, value, wanted)
            for number, (value, wanted) in enumerate(zip(values, self.results, strict=True))
        )

    def _as_declared(self, number: int, value: Any, wanted: Type) -> Array:
        """Return a result cast to the declared dtype `wanted.dtype`.

        Raise a TypeError if its shape is not `wanted.shape`, or if numpy.can_cast does not allow
        the cast with "same_kind". `number` is the index of the result, for the error message.
        """
        array = np.asarray(value)
        if array.shape != wanted.shape or not np.can_cast(array.dtype, wanted.dtype, "same_kind"):
            got = f"{array.dtype}{list(array.shape)}"
            raise TypeError(
                f"call_host: expected {self.name} to return {wanted}; got {got} as result "
                f"{number} (made at {self.site}). Convert it, or declare its type."
            )
        return array.astype(wanted.dtype, copy=False)

    def fill(self, inputs: Sequence[memoryview], outputs: Sequence[memoryview | None]) -> None:
        """Call the function on memory of a compiled step, and write its results to this memory.

        `inputs` has one view of memory per argument, and `outputs` one per result. A view in
        `outputs` is None if the compiled step does not use the result, which is then discarded.
        """
        arrays = [array_of(each, view) for each, view in zip(self.inputs, inputs, strict=True)]
        for wanted, view, value in zip(self.results, outputs, self(*arrays), strict=True):
            if view is not None:
                array_of(wanted, view)[...] = value


def array_of(wanted: Type, memory: memoryview) -> Array:
    """Return a view of a buffer as an array of the type `wanted`, without a copy."""
    return np.frombuffer(memory, np.uint8).view(wanted.dtype).reshape(wanted.shape)


def invoke(number: int, inputs: list[memoryview], outputs: list[memoryview | None]) -> None:
    """Call the host function FUNCTIONS[number] on buffers of a compiled program.

    A host function is a Python function in a graph, see `HostFunction`.
    """
    FUNCTIONS[number].fill(inputs, outputs)


class CallHost(Op):
    """The results of a Python function.

    The attribute `function` of a node is a HostFunction: the Python function, and the types of its
    arguments and results.
    """

    name = "call_host"
    public = False
    dtypes = ALL
    smooth = False

    def __call__(self, nodes: Sequence[Node], function: HostFunction) -> Node:
        return self.node(tuple(nodes), {"function": function})

    def infer(self, *inputs: Type, function: HostFunction) -> Type | tuple[Type, ...]:
        return function.results[0] if len(function.results) == 1 else function.results

    def is_uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        return False

    def grad(self, node: Node, dy: Any) -> Sequence[Node | None]:
        function: HostFunction = node.attrs["function"]
        if function.gradient is None:
            raise GradientError(
                f"call_host: expected a gradient of {function.name}; got none (used at "
                f"{node.site}). Give call_host(..., gradient=), or end the path by "
                "ops.stop_gradient."
            )
        parts = dy if isinstance(dy, tuple) else (dy,)
        result_adjoints = [
            zeros(wanted.shape, wanted.dtype) if part is None else part
            for part, wanted in zip(parts, function.results, strict=True)
        ]
        wanted = tuple(n.type for n in node.inputs if is_float(n.dtype))
        if not wanted:
            return [None for _ in node.inputs]
        operands = (*node.inputs, *result_adjoints)
        backward = HostFunction(function.gradient, tuple(n.type for n in operands), wanted)
        adjoints = iter(self(operands, backward).results)
        return [next(adjoints) if is_float(n.dtype) else None for n in node.inputs]

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return self.name, {"function": attrs["function"].number}

    def reference(self, *inputs: Array, function: HostFunction) -> Array | tuple[Array, ...]:
        values = function(*inputs)
        return values[0] if len(values) == 1 else values

    def samples(self) -> Iterable[Sample]:
        for function, operands in SAMPLES:
            yield Sample(operands, {"function": function})
        for dtype in ALL:
            types = (Type(dtype, (3,)),)
            function = HostFunction(np.flip, types, types, lambda x, dy: np.flip(dy))
            yield Sample((Operand((3,), dtype=dtype),), {"function": function})


def _two_results(x: Array, y: Array) -> tuple[Array, Array]:
    """Return x and y concatenated, and the sum of x.

    The test cases in SAMPLES call this function, because it has two results.
    """
    return np.concatenate([x, y]), np.asarray(x.sum(), np.float32)


def _types(*shapes: tuple[int, ...]) -> tuple[Type, ...]:
    """Return one float32 type per shape."""
    return tuple(Type(float32, shape) for shape in shapes)


SAMPLES: Final = (
    (
        HostFunction(np.negative, _types((2, 3)), _types((2, 3)), lambda x, dy: -dy),
        (Operand((2, 3), dtype=float32),),
    ),
    (
        HostFunction(
            _two_results,
            _types((2,), (3,)),
            _types((5,), ()),
            lambda x, y, dy, dz: (dy[:2] + dz, dy[2:]),
        ),
        (Operand((2,), dtype=float32), Operand((3,), dtype=float32)),
    ),
    (
        HostFunction(np.copy, _types((0,)), _types((0,)), lambda x, dy: dy),
        (Operand((0,), dtype=float32),),
    ),
)

call_host: Final[CallHost] = register(CallHost())
