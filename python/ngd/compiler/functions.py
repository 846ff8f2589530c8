# SPDX-License-Identifier: Apache-2.0
"""Python functions as compiled steps: traced once for each kind of arguments, then called.

The first call of an `ngd.function` with arguments of some structure, shapes and dtypes runs the
Python function on placeholders. The graph of its result is compiled to a step, which the function
keeps. A later call with arguments of the same kind only looks up this step and runs it.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import Context
from dataclasses import dataclass
from types import CodeType, MethodType
from typing import Any, Final, overload

import numpy as np

from .._util.blocks import open_blocks
from .._util.caller_arrays import view
from .._util.callsite import call_site
from .._util.signature_errors import expect_fit
from ..comm import Group
from ..comm.world import init, open_world
from ..devices.arguments import is_python
from ..devices.executable import Executable
from ..dtypes import Type, as_dtype, float32, float64
from ..errors import CompileError, Error, RetraceWarning
from ..graph.graph import Graph, missing_inputs
from ..graph.leaves import PLACEHOLDER
from ..graph.node import Node
from ..graph.variable import TRACING, Variable, placeholder
from ..ops._operands import as_node
from ..passes.fingerprint import Family, compiling
from ..trees import LEAF, Structure, flatten, leaves_of, split
from .driver import as_precision, as_shard, compile, needs_group, sorted_updates
from .trace_keys import (
    DEFAULT,
    FLOAT,
    Form,
    HasNodes,
    Key,
    LeafSpec,
    is_array,
    is_array_spec,
    reason,
    without_extents,
)

MANY_TRACES: Final = 8
"""The number of traces at which a function issues a RetraceWarning. Four traces are normal:
training and evaluation each need one for full batches and one for the shorter last batch."""
MANY_FUNCTIONS: Final = 100
"""A RetraceWarning is issued when this many `Function` objects of one Python function have been
traced. A loop probably makes one per iteration. Tests with many cases may make fewer than this."""


class Tracing(threading.local):
    """A stack per thread: the option `group` of each function that the thread is tracing now."""

    def __init__(self) -> None:
        self.groups: list[Group | None] = []


_tracing: Final = Tracing()

_traced: Final[Counter[CodeType]] = Counter()
"""The number of `Function` objects that were traced, per code object of a Python function."""


@dataclass(frozen=True)
class Trace:
    """A function compiled for one `Key`: nesting, dtypes, shapes and constants of the arguments."""

    step: Executable
    world: Group | None
    """The world for which the step was compiled. None if the step does not depend on other ranks,
    or if the function has a group of its own."""
    leaf_indices: list[int] | None
    """The indices of the step's inputs in the flat list of arguments; None: all are inputs."""
    structure: Structure
    """The structure of the result of the function."""
    fixed: dict[int, Any]
    """The values in the flattened result that are not nodes, by index. Calls return them as is."""
    is_one_array: bool
    """True if the function returned one node."""

    def results(self, values: Sequence[Any]) -> Any:
        """Build the function's result from `values` (the step's arrays) and `fixed` (constants)."""
        if self.fixed:
            made = iter(values)
            count = len(values) + len(self.fixed)
            values = [self.fixed[i] if i in self.fixed else next(made) for i in range(count)]
        return values[0] if self.structure is LEAF else self.structure.rebuild(values)


class Function:
    """A compiled Python function, which ngd.function makes.

    Notes
    -----
    Arguments are treated as follows.

    - NumPy arrays, DLPack tensors and buffers are placeholders. A new dtype or shape causes a new
      trace.
    - Python floats are placeholders too. They are float64 scalars that take the dtype of the other
      operand, as Python numbers do. A new value does not cause a new trace.
    - Everything else is fixed in the trace: ints, bools, strings, None, variables, modules. It must
      be hashable, and a new value causes a new trace. If an int changes in each call, give it as an
      array, np.int64(n).
    - A parameter that the call does not give has its default value, which is not a placeholder
      even if it is a float or an array.

    Nodes and arrays in the result of the Python function are returned as new arrays. Everything
    else is returned unchanged.

    A call inside another ngd.function, or with a node (not a variable) among its arguments, only
    calls the Python function. Its nodes are added to the graph that is being built. With `updates`,
    such a call returns the pair (result, updates). The variables change only if the outer function
    returns these updates, too.

    Collectives run as in any step. All ranks call the function in the same order; each rank traces
    and caches on its own. After `ngd.shutdown()` and `ngd.init()` the function is compiled for the
    new world.

    Examples
    --------
    >>> double = ngd.function(lambda a: 2 * a)
    >>> double(np.array([1.0, 2.0]))
    array([2., 4.])
    >>> double.num_traces
    1
    """

    __wrapped__: Callable[..., Any]

    def __init__(
        self,
        python: Callable[..., Any],
        updates: bool = False,
        device: str | None = None,
        group: Group | None = None,
        precision: Any = float32,
        shard: str = "none",
        *,
        of: Callable[..., Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, python, updated=())
        self._code = getattr(inspect.unwrap(of or python), "__code__", None)
        self.updates, self.device, self.group = updates, device, group
        self.precision = as_precision("function", precision)
        self.shard = as_shard("function", shard)
        self.name = getattr(python, "__qualname__", repr(python))
        self._signature = signature_of(python)
        parameters = self._signature.parameters.values()
        is_positional = all(
            p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters
        )
        self._arity = len(parameters) if is_positional else -1
        self._forms: list[Form] = []
        self._traces: dict[Key, Trace] = {}
        self._families: dict[Hashable, Family] = {}
        self._lock = threading.RLock()
        self._warned = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled step. The first call with new shapes or dtypes compiles it.

        Parameters
        ----------
        *args, **kwargs
            The arguments of the Python function. The class documents which of them are constants.

        Returns
        -------
        structure of numpy.ndarray
            The result of the Python function, with a new array for each node and each array. With
            `updates`, the Python function returns a pair (result, updates), and this is `result`.
        """
        if _tracing.groups:
            return self._inline(args, kwargs)
        try:
            key, leaves = self._key_of(args, kwargs)
        except HasNodes:
            return self._inline(args, kwargs)
        if blocks := open_blocks():
            self._refuse_block(blocks[0])
        trace = self._traces.get(key)
        if trace is None or (trace.world is not None and trace.world.closed):
            trace = self._trace_for(key, leaves)
        if trace.leaf_indices is not None:
            leaves = [leaves[i] for i in trace.leaf_indices]
        results = trace.step(*leaves)
        return results[0] if trace.is_one_array else trace.results(results)

    def trace(self, *args: Any, **kwargs: Any) -> Executable:
        """Return the compiled step for the given arguments, without running it.

        The `graph` of the step is the traced graph, and str() of the step is its program.

        Parameters
        ----------
        *args, **kwargs
            Arguments as for a call. Only the shapes and dtypes of arrays are used.

        Returns
        -------
        Executable
            The step. A later call with arguments of this kind runs it.

        Examples
        --------
        >>> double = ngd.function(lambda a: 2 * a)
        >>> step = double.trace(np.zeros(3))
        >>> [node.type.short for node in step.graph.outputs]
        ['f64[3]']
        """
        try:
            key, leaves = self._key_of(args, kwargs)
        except HasNodes:
            raise TypeError(
                f"{self.name}: trace: expected arrays; got nodes. Pass arrays of the shapes to "
                "trace for."
            ) from None
        return self._trace_for(key, leaves).step

    @property
    def num_traces(self) -> int:
        """The number of traces, the compiled steps that the function keeps."""
        return len(self._traces)

    def clear(self) -> None:
        """Remove all compiled steps of the function, and free their memory."""
        with self._lock:
            self._traces.clear()
            self._families.clear()
            self._forms.clear()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind the function to an instance, which becomes its first argument."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<ngd.function {self.name}, {self.num_traces} traces>"

    def __reduce__(self) -> str:
        """Return the qualified name, which pickle stores and looks up in the function's module."""
        return self.name

    def _inline(self, args: Any, kwargs: Any) -> Any:
        """Call the Python function, which adds its nodes to the graph that is being built."""
        outer = _tracing.groups[-1] if _tracing.groups else None
        if self.group is not None and self.group is not outer:
            raise TypeError(
                f"{self.name}: expected a function without a group of its own in another graph; "
                "got "
                "one with a group. Give the group to its collectives."
            )
        return self.__wrapped__(*args, **kwargs)

    def _refuse_block(self, name: str) -> None:
        raise TypeError(
            f"{self.name}: expected a call outside of blocks of {name}; got one inside, which a "
            "traced "
            "function does not see. Begin the block in the function."
        )

    def _key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Key, list[Any]]:
        """Return (key, leaves): the `Key` of the compiled step, and the flat list of arguments."""
        if kwargs or len(args) != self._arity:
            try:
                bound = self._signature.bind(*args, **kwargs)
            except TypeError:
                expect_fit(self.name, self._signature, args, kwargs)
                raise
            args = self._in_order(bound)
        for form in self._forms:
            found = form.key(args, self.name)
            if found is not None:
                return found
        form = Form([flatten(value)[1] for value in args], list(self._signature.parameters))
        self._forms.append(form)
        found = form.key(args, self.name)
        assert found is not None
        return found

    def _in_order(self, bound: inspect.BoundArguments) -> tuple[Any, ...]:
        """Return a value for each parameter, `DEFAULT` for those that the call does not give."""
        return tuple(bound.arguments.get(name, DEFAULT) for name in self._signature.parameters)

    def _trace_for(self, key: Key, leaves: Sequence[Any]) -> Trace:
        """Return the `Trace` (compiled step) of a `Key`; make it if missing or of an old world."""
        trace = self._traces.get(key)
        if trace is not None and not is_replaced(trace.world):
            return trace
        with self._lock:
            trace = self._traces.get(key)
            if trace is None:
                trace = self._make(key, leaves)
                self._traces[key] = trace
                self._report_retraces(key)
            elif is_replaced(trace.world):
                trace = self._traces[key] = self._make(key, leaves)
            return trace

    def _make(self, key: Key, leaves: Sequence[Any]) -> Trace:
        """Trace the function, and compile its graph."""
        inputs, returned, updates = self._run(key, leaves)
        graph = self._graph(inputs, returned, updates)
        options: dict[str, Any] = {"device": self.device, "group": self.group}
        options |= {"precision": self.precision, "shard": self.shard}
        with compiling(self._families.setdefault(without_extents(key), Family())):
            step = compile([*graph.inputs], [*graph.outputs], updates, **options)
        made, structure = flatten(returned)
        leaf_indices = [i for i, node in enumerate(inputs) if node is not None]
        return Trace(
            step,
            init() if self.group is None and needs_group(graph, self.shard) else None,
            None if len(leaf_indices) == len(inputs) else leaf_indices,
            structure,
            {i: leaf for i, leaf in enumerate(made) if not isinstance(leaf, Node)},
            isinstance(returned, Node),
        )

    def _run(self, key: Key, leaves: Sequence[Any]) -> tuple[list[Node | None], Any, Any]:
        """Run the Python function on placeholders; return (placeholders, result, updates).

        `placeholders` has an entry per value in the arguments, None for a constant. `updates` has
        the new values of variables, or is None without the option `updates`.
        """
        inputs = [
            self._placeholder(spec, path, leaf)
            for spec, path, leaf in zip(key.specs, key.form.paths, leaves, strict=True)
        ]
        given = (x if x is not None else leaf for x, leaf in zip(inputs, leaves, strict=True))
        try:
            returned = self._call_python(key.form.rebuild(given))
        except (AttributeError, TypeError) as error:
            self._name_lists(key, leaves, error)
            raise
        if not self.updates:
            return inputs, as_result(self.name, returned), None
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(
                f"{self.name}: expected a function with updates=True to return (result, updates); "
                f"got {returned!r}. Return a pair."
            )
        return inputs, as_result(self.name, returned[0]), returned[1]

    def _placeholder(self, spec: LeafSpec, path: str, leaf: Any) -> Node | None:
        """Return a placeholder for an array or a float in the arguments; None for a constant."""
        if spec is FLOAT:
            attrs = {"name": path, "uniform": False, "weak": True}
            return Node(PLACEHOLDER, (), attrs, Type(float64, ()))
        if is_array_spec(spec):
            dtype = as_dtype(spec[0].newbyteorder("="), f"{self.name}: {path}")
            return placeholder(path, leaf.shape, dtype)
        return None

    def _call_python(self, values: Sequence[Any]) -> Any:
        """Call the Python function with one value per parameter, while `TRACING` is True."""
        bound = inspect.BoundArguments(self._signature, {})
        arguments = zip(self._signature.parameters, values, strict=True)
        bound.arguments.update((name, value) for name, value in arguments if value is not DEFAULT)
        outer = len(_tracing.groups)
        try:
            _tracing.groups.append(self.group)
            # Later calls use this trace, too. A fresh context keeps the `with` blocks around the
            # present call from changing it.
            context = Context()
            context.run(TRACING.set, True)
            return context.run(self.__wrapped__, *bound.args, **bound.kwargs)
        finally:
            del _tracing.groups[outer:]

    def _name_lists(self, key: Key, leaves: Sequence[Any], error: Exception) -> None:
        """If a list of numbers in the call can explain `error`, raise a TypeError naming it."""
        if isinstance(error, Error) or not is_about_list(error):
            return
        pairs = zip(leaves, key.specs, strict=True)
        given = key.form.rebuild(float(x) if spec is FLOAT else x for x, spec in pairs)
        for name, value in zip(self._signature.parameters, given, strict=True):
            for path, numbers in lists_of_numbers(name, value):
                raise TypeError(
                    f"{self.name}: {path}: expected an array; got a {type(numbers).__name__} of "
                    "numbers, which is a structure of separate arguments. Give "
                    f"np.array({path})."
                ) from error

    def _graph(self, inputs: Sequence[Node | None], returned: Any, updates: Any) -> Graph:
        """Return the graph to compile. Raise CompileError if a placeholder is not in `inputs`."""
        given = tuple(x for x in inputs if x is not None)
        outputs = tuple(leaf for leaf in flatten(returned)[0] if isinstance(leaf, Node))
        graph = Graph(given, outputs, sorted_updates(updates))
        for node in missing_inputs(graph):
            raise CompileError(
                f"{self.name}: expected arguments of its own; got {node.attrs['name']!r} (made "
                f"at {node.site}), an argument of another function or step, which has no value "
                "here. Make it an argument."
            )
        return graph

    def _report_retraces(self, key: Key) -> None:
        """Warn once if a function is traced again and again; the message names what changed."""
        what = ""
        code, self._code = self._code, None  # counted once
        if code is not None:
            _traced[code] += 1
            if _traced[code] == MANY_FUNCTIONS:
                what = (
                    f"{self.name} was made again, traced and compiled {MANY_FUNCTIONS} times "
                    f"(called at {call_site()}). Make it once, outside of the loop, and pass "
                    "values that change as arguments: then its trace is kept"
                )
        elif len(self._traces) == MANY_TRACES and not self._warned:
            self._warned = True
            what = (
                f"{self.name} was traced and compiled {MANY_TRACES} times, the last time because "
                f"{reason(key, [*self._traces][:-1])} (called at {call_site()}). Each trace is "
                "kept. Give arrays of equal shapes, padded where they differ, and numbers that "
                "change as floats or as arrays: np.int64(n)"
            )
        if what:
            warnings.warn(what, RetraceWarning, stacklevel=4)


def signature_of(python: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function.

    NumPy's ufuncs and some functions in C have no signature. For these functions, the returned
    signature accepts any positional arguments.
    """
    try:
        if not isinstance(python, np.ufunc):
            return inspect.signature(python)
    except ValueError:
        pass
    return inspect.signature(lambda *args: None)


def building(tree: Any) -> bool:
    """Return True if ngd.vjp or ngd.jvp of `tree` returns nodes, and False if it returns arrays."""
    nodes = (leaf for leaf in leaves_of(tree) if isinstance(leaf, Node))
    return bool(_tracing.groups) or not all(isinstance(node, Variable) for node in nodes)


def is_about_list(error: Exception) -> bool:
    """Return whether an error reports a list, a tuple or a sequence that was not accepted."""
    if isinstance(error, AttributeError):
        return isinstance(error.obj, (list, tuple))
    return re.search(r"\b(list|tuple|sequence)\b", str(error)) is not None


def lists_of_numbers(path: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the outermost lists and tuples of Python numbers in a structure, with their paths."""
    if isinstance(tree, (list, tuple)) and is_python(tree):
        yield path, tree
        return
    structure = flatten(tree)[1]
    for key, part in split(tree)[1].items():
        yield from lists_of_numbers(path + structure.step(key), part)


def is_replaced(world: Group | None) -> bool:
    """Return True if `world` was shut down and another world is open now; otherwise False."""
    return world is not None and world.closed and open_world() is not None


def as_result(where: str, returned: Any) -> Any:
    """Return the result of a traced function, with each array replaced by a constant node.

    Raise a TypeError for a result that contains a dict with variables as keys.
    """
    expect_no_updates(where, returned)
    leaves, structure = flatten(returned)
    return structure.rebuild(
        [
            leaf if isinstance(leaf, Node) or not is_array(leaf) else constant_of(leaf, where)
            for leaf in leaves
        ]
    )


def constant_of(leaf: Any, where: str) -> Node:
    """Return a constant node for `leaf`, an array in the result of a traced function."""
    return as_node(view(leaf, where), where=where)


def expect_no_updates(where: str, tree: Any) -> None:
    """Raise a TypeError if a result contains a dict with variables as keys.

    Such a dict was probably meant as updates, but a result does not change variables.
    """
    _, found = split(tree)
    if any(isinstance(key, Variable) for key in found):
        raise TypeError(
            f"{where}: expected a result without variables as keys; got a dict by variables. For "
            "next "
            "values write @ngd.function(updates=True), and return (result, updates)."
        )
    for part in found.values():
        expect_no_updates(where, part)


@overload
def function(
    python: Callable[..., Any],
    *,
    updates: bool = False,
    device: str | None = None,
    group: Group | None = None,
    precision: Any = float32,
    shard: str = "none",
) -> Function: ...
@overload
def function(
    *,
    updates: bool = False,
    device: str | None = None,
    group: Group | None = None,
    precision: Any = float32,
    shard: str = "none",
) -> Callable[[Callable[..., Any]], Function]: ...
def function(
    python: Callable[..., Any] | None = None,
    *,
    updates: bool = False,
    device: str | None = None,
    group: Group | None = None,
    precision: Any = float32,
    shard: str = "none",
) -> Function | Callable[[Callable[..., Any]], Function]:  # long because of its docstring
    """Compile a Python function to a step. Use it as a decorator, with or without arguments.

    The function is called with nodes, once per combination of structure, shapes, dtypes and
    constants of its arguments. `num_traces` counts the traces kept. The function must be pure.
    It prints only in such a call, and a step does not see later changes of Python values that it
    reads, except of variables. A block such as `nn.training` belongs inside the function.

    Parameters
    ----------
    python : function
        A function of arrays, which may be nested, for example in dicts (ngd.trees). The class
        Function documents which arguments are constants.
    updates : bool, default False
        If True, the function returns a pair (result, updates), and a call returns the result.
        `updates` assigns new values to variables, such as {w: w - g}; see ngd.compile.
    device, group, precision, shard
        As for ngd.compile.

    Returns
    -------
    Function
        Runs the step. `trace(*args)` returns the compiled step for some arguments.

    Raises
    ------
    TypeError
        An argument is neither an array nor hashable, or the result does not fit `updates`.
    CompileError
        The function uses another function's placeholder. All errors of ngd.compile occur too.
    BusyError
        Another thread is in a call of the same trace.

    Warns
    -----
    RetraceWarning
        The function was traced for the eighth time, or is made and traced again and again.
    UpdatesWarning, EqualModelsWarning, PrecisionWarning, PromotionWarning
        As from ngd.compile.

    Examples
    --------
    >>> @ngd.function(updates=True)
    ... def train_step(images, labels):
    ...     loss = ops.mean(ops.softmax_cross_entropy(model(images), labels))
    ...     return loss, optimizer.minimize(loss, model.parameters())
    >>> loss = train_step(images, labels)
    >>> loss.shape
    ()
    """
    options: Any = {"device": device, "group": group, "precision": precision, "shard": shard}
    if python is None:
        as_precision("function", precision), as_shard("function", shard)
        return functools.partial(Function, updates=updates, **options)
    if not callable(python):
        raise TypeError(
            f"function: expected a Python function; got {python!r}. Write @ngd.function above a "
            "def."
        )
    return Function(python, updates, **options)


__all__ = ["Function", "function"]
