# SPDX-License-Identifier: Apache-2.0
"""Functions that are mapped over an axis of their arguments (ngd.vmap).

The function is traced once, on placeholders without the mapped axis. `ngd.ops.batching.rewrite`
then rewrites the traced graph: nodes that depend on mapped arguments get the mapped axis as axis 0.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from ..compiler.functions import Function, constant_of, signature_of
from ..compiler.trace_keys import is_array
from ..dtypes import Type
from ..errors import ShapeError
from ..graph.leaves import PLACEHOLDER
from ..graph.node import Node, newest
from ..graph.variable import Variable
from ..ops._operands import as_node
from ..ops._rearrangement import moveaxis
from ..ops.batching.rewrite import Batched, Batching
from ..trees import Structure, flatten, split
from .gradient import cached_transformation, step_of

Axes: TypeAlias = Any
"""The arguments in_axes and out_axes: an int, None, or a tree of ints and None."""


BY_POSITION: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def vmap(f: Callable[..., Any], in_axes: Axes = 0, out_axes: Axes = 0) -> Function:
    """Map a function over an axis of its arguments.

    Parameters
    ----------
    f : callable
        A function of nodes that returns nodes, in any structures (`ngd.trees`). It is called once,
        with nodes that lack the mapped axis.
    in_axes : int, None or tuple, default 0
        The axis of each argument to map over. An int is the axis of all arguments. A tuple has one
        entry per argument: an int, None, or a tree of these with the containers of the argument.
        An int or None in place of a container applies to all leaves in it. For example,
        {"x": 0, "y": None} fits the argument {"x": [a, b], "y": c}, and maps a and b over axis 0.
        None means that the argument is not mapped: `f` gets the whole argument for every index of
        the mapped axis. A negative axis counts from the end. Keyword-only arguments are always
        mapped over axis 0.
    out_axes : int, None or tree, default 0
        The position of the mapped axis in each array of the result. A tree has the containers of
        the result. An int or None in place of a container applies to all leaves in it. None means
        that an array is equal for all indices of the mapped axis, and gets no such axis.

    Returns
    -------
    Function
        A function of the arguments of `f` that returns its results with the mapped axis. While a
        graph is built, a call adds nodes. A call with arrays compiles a step and caches it, as
        `ngd.function` does.

    Raises
    ------
    ShapeError
        The mapped axes differ in size, an axis is out of range, or nothing is mapped.
    TypeError
        `in_axes` or `out_axes` do not fit the arguments or the result.
    CompileError
        An op of `f` has no batching rule. The message has the op's file and line.

    Notes
    -----
    An example is one index of the mapped axis. Python numbers, strings and other values that are
    not arrays are the same for all examples. So are the nodes and variables that `f` reads without
    taking them as arguments.

    A random draw whose seed is made in `f` gives different numbers to each example. If the seed is
    made outside of `f`, all examples get the same numbers. A collective of mapped values has no
    batching rule: use `ops.scan` instead. The scan runs `f` for one example after the other.

    Examples
    --------
    >>> distance = ngd.vmap(lambda x, y: ops.sum((x - y) ** 2), in_axes=(0, None))
    >>> distance(np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([0.0, 1.0]))
    array([0., 8.])
    """  # long because each argument is described
    if not callable(f):
        raise TypeError(f"vmap: expected a function; got {f!r}. Give a function of one example.")
    of_arguments = axes_tree("vmap: in_axes", in_axes)
    return vectorize(f, *of_arguments, *axes_tree("vmap: out_axes", out_axes))


def axes_tree(where: str, axes: Axes) -> tuple[tuple[int | None, ...], Structure]:
    """Return the leaves and the structure of in_axes or out_axes, a tree of ints and None.

    Raise TypeError if a leaf is neither.
    """
    leaves, structure = flatten(axes)
    for leaf, path in zip(leaves, structure.paths(), strict=True):
        is_axis = isinstance(leaf, (int, np.integer)) and not isinstance(leaf, bool)
        if leaf is not None and not is_axis:
            raise TypeError(f"{where}{path}: expected an int or None; got {leaf!r}")
    return tuple(None if leaf is None else int(leaf) for leaf in leaves), structure


@cached_transformation
def vectorize(
    f: Callable[..., Any],
    in_leaves: Sequence[int | None],
    in_structure: Structure,
    out_leaves: Sequence[int | None],
    out_structure: Structure,
) -> Function:
    """Return the function that maps `f` over axes of its arguments: the result of ngd.vmap.

    in_axes and out_axes are given as `axes_tree` returns them, as leaves and structure. These are
    hashable, so a later call with equal axes finds the function in the cache.
    """
    in_axes, out_axes = in_structure.rebuild(in_leaves), out_structure.rebuild(out_leaves)
    signature = signature_of(f)

    def python(*args: Any, **kwargs: Any) -> Any:
        return Vectorization(f, signature.bind(*args, **kwargs), in_axes).call(out_axes)

    functools.update_wrapper(python, f, ("__doc__",), ())
    python.__qualname__ = f"vmap({getattr(f, '__qualname__', repr(f))})"
    python.__signature__ = signature  # type: ignore[attr-defined]
    return step_of(f, python)


@dataclass(frozen=True)
class Argument:
    """A leaf of the arguments: its path, its value, and the axis to map over or None."""

    path: str
    value: Any
    axis: int | None

    @property
    def size(self) -> int:
        """The number of elements along the mapped axis of the value."""
        size: int = self.value.shape[self.axis]
        return size

    def __str__(self) -> str:
        return f"{self.size} along axis {self.axis} of {self.path} {self.value.type}"


class Vectorization:
    """One call of a mapped function: its arguments, their mapped axes, and the size of these axes.

    All mapped axes have the same size, the number of examples (one example per index).
    """

    def __init__(self, f: Callable[..., Any], bound: inspect.BoundArguments, in_axes: Axes) -> None:
        self.f, self.signature = f, bound.signature
        leaves, self.structure = flatten(dict(bound.arguments))
        paths = [
            path
            for name, value in bound.arguments.items()
            for path in flatten(value)[1].paths(name)
        ]
        self.arguments = [
            read_argument(path, leaf, axis)
            for path, leaf, axis in zip(paths, leaves, argument_axes(bound, in_axes), strict=True)
        ]
        self.size = common_size([x for x in self.arguments if x.axis is not None])

    def call(self, out_axes: Axes) -> Any:
        """Trace the function once, and return its results for all indices of the mapped axes.

        `out_axes` gives the position of the mapped axis in each result, as in ngd.vmap.
        """
        batching = Batching(self.size, newest())
        values = []
        for argument in self.arguments:
            value = argument.value
            if argument.axis is not None:
                mapped = moveaxis(value, argument.axis, 0)
                attrs = {"name": argument.path, "uniform": mapped.uniform}
                value = Node(PLACEHOLDER, (), attrs, Type(mapped.dtype, mapped.shape[1:]))
                batching.new[value] = Batched(mapped)
            values.append(value)
        bound = inspect.BoundArguments(self.signature, self.structure.rebuild(values))
        returned = self.f(*bound.args, **bound.kwargs)
        expect_no_updates(returned)
        leaves, structure = flatten(returned)
        results = [read_result(leaf) for leaf in leaves]
        outputs = iter(batching.rewrite([x for x in results if isinstance(x, Node)]))
        paths, axes = structure.paths("the result"), leaf_axes("vmap: out_axes", out_axes, returned)
        return structure.rebuild(
            put_axis(batching, next(outputs), axis, path) if isinstance(x, Node) else x
            for path, x, axis in zip(paths, results, axes, strict=True)
        )


def argument_axes(bound: inspect.BoundArguments, in_axes: Axes) -> list[int | None]:
    """Return the axis to map over, or None, for each leaf of the arguments."""
    where, (kind, entries) = "vmap: in_axes", split(in_axes)
    if kind not in (None, tuple, list):
        raise TypeError(
            f"{where}: expected an int, None, or a tuple with one entry per argument; got "
            f"{in_axes!r}. For one argument write in_axes=(tree,)."
        )
    arguments = list(each_argument(bound))
    needed = 1 + max((number for *_, number in arguments if number is not None), default=-1)
    if kind is not None and not needed <= len(entries) <= max(needed, most_positional(bound)):
        raise TypeError(
            f"{where}: expected one entry per argument, {needed}; got {in_axes!r}. Give an axis or "
            "None for each."
        )
    axes: list[int | None] = []
    for path, value, number in arguments:
        entry = 0 if number is None else in_axes if kind is None else entries[number]
        axes += leaf_axes(f"{where}: {path}", entry, value)
    return axes


def each_argument(bound: inspect.BoundArguments) -> Iterator[tuple[str, Any, int | None]]:
    """Yield (name for messages, value, position) for each argument of the mapped function.

    The position counts positional arguments from 0, and is None for a keyword-only argument and for
    **kwargs. Each value in *args is a separate argument, with a name such as "args[0]".
    """
    numbers = {name: number for number, name in enumerate(bound.signature.parameters)}
    for name, value in bound.arguments.items():
        kind, number = bound.signature.parameters[name].kind, numbers[name]
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((f"{name}[{i}]", part, number + i) for i, part in enumerate(value))
        else:
            yield name, value, number if kind in BY_POSITION else None


def most_positional(bound: inspect.BoundArguments) -> int:
    """Return the number of parameters of f that can take an argument by position."""
    return sum(p.kind in BY_POSITION for p in bound.signature.parameters.values())


def leaf_axes(where: str, axes: Axes, tree: Any) -> list[int | None]:
    """Return an axis or None for each leaf of a tree.

    `axes` is a tree with the structure of `tree` or of its outer levels. An entry of `axes` that
    takes the place of a whole subtree applies to all leaves of this subtree.
    """
    kind, entries = split(axes)
    if kind is None:
        return [axes] * flatten(tree)[1].count
    tree_kind, parts = split(tree)
    fits = tree_kind is kind or (tree_kind in (list, tuple) and kind in (list, tuple))
    if not fits or parts.keys() != entries.keys():
        raise TypeError(
            f"{where}: expected axes in the structure of {flatten(tree)[1]}; got {axes!r}. Give "
            "one axis for the whole argument, or this structure."
        )
    of_leaves = []
    for key, part in parts.items():
        of_leaves += leaf_axes(f"{where}[{key!r}]", entries[key], part)
    return of_leaves


def read_argument(path: str, leaf: Any, axis: int | None) -> Argument:
    """Make an Argument from a leaf of the arguments; an array becomes a node.

    A negative axis becomes the same axis counted from the start, such as 1 for -1 of a matrix. A
    leaf that is not an array gets the axis None.
    """
    is_number = isinstance(leaf, Node) and leaf.op is PLACEHOLDER and leaf.attrs.get("weak")
    if is_number or not (isinstance(leaf, Node) or is_array(leaf)):
        return Argument(path, leaf, None)
    node = constant_of(leaf, "vmap") if not isinstance(leaf, Node) else leaf
    if axis is None:
        return Argument(path, node, None)
    if not -node.ndim <= axis < node.ndim:
        raise ShapeError(
            f"vmap: in_axes: expected an axis of {path} {node.type}; got {axis}. Give None for an "
            "argument that all examples share."
        )
    return Argument(path, node, axis % node.ndim)


def common_size(arguments: Sequence[Argument]) -> int:
    """Return the size of all mapped axes; ShapeError if sizes differ or no axis is mapped."""
    if not arguments:
        raise ShapeError(
            "vmap: expected an array to map over; got none. Give in_axes an axis of an array."
        )
    first = arguments[0]
    for other in arguments:
        if other.size != first.size:
            raise ShapeError(
                f"vmap: expected mapped axes of one size; got {first}, and {other}. Give None in "
                "in_axes for an argument that all examples share."
            )
    return first.size


def expect_no_updates(tree: Any) -> None:
    """Raise TypeError if a mapped function returned updates: a dict with variables as keys."""
    _, parts = split(tree)
    if any(isinstance(key, Variable) for key in parts):
        raise TypeError(
            "vmap: expected a function that returns arrays; got next values of variables, which "
            "would differ between examples. Return the values, and update the variables outside."
        )
    for part in parts.values():
        expect_no_updates(part)


def read_result(leaf: Any) -> Any:
    """Return an array or a number in the result as a node, and any other leaf unchanged."""
    if isinstance(leaf, (bool, int, float)) or is_array(leaf):
        return as_node(leaf, where="vmap: the result")
    return leaf


def put_axis(batching: Batching, result: Batched, axis: int | None, path: str) -> Node:
    """Move the mapped axis of a result from axis 0 to `axis`, given by out_axes.

    If `axis` is None, return the result unchanged. In this case, raise a ShapeError if the result
    depends on mapped arguments.
    """
    if axis is None:
        if result.is_mapped:
            raise ShapeError(
                f"vmap: out_axes: expected an axis for {path}, which depends on mapped arguments; "
                "got None. Reduce the mapped axis after the call, for example by ops.mean."
            )
        return result.node
    batched = batching.with_batch_axis(result)
    if not -batched.ndim <= axis < batched.ndim:
        raise ShapeError(
            f"vmap: out_axes: expected an axis in [{-batched.ndim}, {batched.ndim}) for {path}; "
            f"got {axis}"
        )
    return moveaxis(batched, 0, axis)


__all__ = ["vmap"]
