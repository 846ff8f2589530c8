# SPDX-License-Identifier: Apache-2.0
"""Ops and nodes. An op defines a computation; a node is one result of an op applied to nodes.

A `Node` never changes. The class of an op (`ngd.ops`), a subclass of `Op`, defines its meaning.

An op has one result, or several. If it has several, `infer`, `expand` and `reference` return a
tuple instead of a single value. An application then makes one node per result; these nodes share
op, inputs, attributes and call site. Walks over a graph visit only the first of them.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import numpy as np

from .._util.callsite import at_site, call_site
from .._util.signature_errors import name_method_errors
from ..dtypes import NUMBERS, Array, DType, Shape, Type
from ..errors import GradientError
from .array_methods import ArrayMethods
from .cost import Cost
from .order import Order
from .precision_marks import WIDE, wide
from .registry import OPS, op_named, public_function
from .samples import Sample
from .traits import Comm, Fusion, Kernel, Layout, Numerics


class Op:
    """The definition of an op. A subclass has one instance, which `register` returns.

    The instance is the public function: `__call__` normalizes the arguments of the caller and
    returns `self.node(inputs, attrs)`. Attributes are hashable. An op needs exactly one of a native
    kernel of the same name, an opcode of the elementwise kernel, and `expand`. It may have both a
    kernel and `expand`, which tests then compare.

    Every op has `infer`, `reference`, `samples`, and `grad` or `expand`. All others are optional:
    records (traits.py) and methods for each reader. An op that is made of other ops has `expand`,
    and leaves all five records alone.

    - `kernel`, for fusion, the memory plan and devices. Methods: `expand`, `lower`, `offset`,
      `cost`, `scratch_bytes`, `printed_attrs`, `simplify`.
    - `fusion`, for the passes in passes/fusion. Methods: `with_bias`, `gradient_factors`,
      `fused_ops`.
    - `numerics`, for mixed precision and gradients. Methods: `grad_of`.
    - `layout`, for passes/layouts.py. Methods: `replace_row_major`, `move_transpose`.
    - `comm`, for collectives and sharding. Methods: `is_uniform`, `group_value`.
    """

    name: ClassVar[str]
    kernel: ClassVar[Kernel] = Kernel()
    """The computation of the op."""
    fusion: ClassVar[Fusion] = Fusion()
    """The part of the op in the fusion with other ops."""
    numerics: ClassVar[Numerics] = Numerics()
    """The use of 16-bit floats in the op and its gradient."""
    layout: ClassVar[Layout] = Layout()
    """The order of axes that the op computes in."""
    comm: ClassVar[Comm] = Comm()
    """The dependence of the op on other ranks."""
    order: Order | None = None
    """The position in the order of collectives, once the compiler has numbered them."""
    smooth: ClassVar[bool] = True
    """Whether second derivatives are checked against finite differences."""
    batching: ClassVar[Literal["", "leading", "axis", "axes"]] = ""
    """The computation of operands that all have one more axis in front, for ngd.vmap.

    "leading": with the same attributes, since it computes each part along the first axes by itself.
    "axis", "axes": with the attribute of this name moved by one. By default the op has a rule in
    ops/batching, or the ops of its expansion have.
    """
    is_heavy: ClassVar[bool] = False
    """True if the class has `cost`; heavy ops take most of the time of a step.

    Depth is counted in these, not in costs: sizes may differ between ranks, depths must not.
    """
    has_expansion: ClassVar[bool] = False
    """True if the class has `expand`."""
    public: ClassVar[bool] = True
    """Whether ngd.ops offers it."""
    dtypes: ClassVar[tuple[DType, ...]] = NUMBERS
    """What the op takes where a sample's operand fixes no dtype."""

    def __init_subclass__(cls) -> None:
        """Let the errors of the call's signature name the public op and not the class."""
        if "__call__" in vars(cls):
            cls.__call__ = name_method_errors(cls.__call__)  # type: ignore[method-assign]
        cls.is_heavy = cls.cost is not Op.cost
        cls.has_expansion = cls.expand is not Op.expand

    def infer(self, *inputs: Any, **attrs: Any) -> Type | tuple[Type, ...]:
        """The type of the result, or of each in a tuple.

        Raises ShapeError or DTypeError that begins with the name.
        """
        raise NotImplementedError(self.name)

    def grad(self, node: Node, dy: Any) -> Sequence[Node | None]:
        """The adjoint of each input, given that of the result; None where none can exist.

        Of several results `dy` is a tuple of adjoints, and `node` the first result. None stands for
        zeros: the loss does not depend on that result.
        """
        raise GradientError(
            f"{self.name}: expected an op with a gradient; got {self.name} (used at {node.site}), "
            "which has "
            "no gradient. Use ops.stop_gradient on its operand."
        )

    def grad_of(self, node: Node, dy: Any, wanted: Sequence[bool]) -> Sequence[Node | None]:
        """As `grad`, where the adjoints of some operands alone are wanted."""
        return self.grad(node, dy)

    def expand(self, *inputs: Any, **attrs: Any) -> Node | tuple[Node, ...]:
        """The same in terms of other ops."""
        raise NotImplementedError(self.name)

    def reference(self, *inputs: Any, **attrs: Any) -> Array | tuple[Array, ...]:
        """The same in NumPy: the slow, sure one. Its dtypes are those of `infer`."""
        raise NotImplementedError(self.name)

    def offset(self, *inputs: Any, **attrs: Any) -> int | None:
        """Return the offset of a view in the bytes of its operand; None if it is computed."""
        return 0

    def samples(self) -> Iterable[Sample]:
        """The cases that tests run."""
        raise NotImplementedError(self.name)

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        """The name of the native kernel and its attributes."""
        return self.name, attrs

    def printed_attrs(self, attrs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the attributes that the text of a graph shows."""
        return attrs

    def simplify(self, node: Node) -> Node | None:
        """A simpler node of the same bits; None: this one is as simple as its inputs allow."""
        return None

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """Return the cost of a heavy op; `bodies` has those of its graphs (see op_costs.py)."""
        raise NotImplementedError(self.name)

    def scratch_bytes(self, **attrs: Any) -> int:
        """Return the bytes that a control flow op needs beside its graphs while it runs."""
        return 0

    def group_value(self, ranks: Any, **attrs: Any) -> Array:
        """Return the value in a group, for an op with `Comm.has_group_value`."""
        raise NotImplementedError(self.name)

    def with_bias(self, node: Node, bias: Node) -> Node | None:
        """Return a node of a heavy op whose kernel adds a bias; None if it cannot."""
        return None

    def gradient_factors(self, node: Node) -> tuple[Node, Node] | None:
        """Return A and B if the node is the matrix product A^T B and nothing more, else None."""
        return None

    def replace_row_major(self, node: Node) -> Node | None:
        """Return the value of a node of `Layout.row_major_op`, computed by this op; or None.

        This op reads transposed operands. The value is its result, or a transposition of it.
        """
        return None

    def move_transpose(self, node: Node, axes: Shape) -> Node | tuple[Node, ...] | None:
        """Return the value of a node, computed from its operands before their transposition.

        `axes` is the transposition of every operand. An op with several results returns a tuple.
        None means that it cannot be computed so. See passes/layouts.py.
        """
        return None

    def is_uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        """Return whether the results are proved equal on all ranks."""
        return all(map(operator.attrgetter("uniform"), inputs))

    def fused_ops(self, node: Node) -> tuple[tuple[str, str], ...]:
        """Return the ops that the kernel of a node computes, each with its call site."""
        return ((self.name, node.site),)

    def node(self, inputs: Sequence[Node], attrs: Mapping[str, Any] | None = None) -> Node:
        """Apply the op: infer the type and make the node, the first of several (`results`)."""
        attrs = attrs or {}
        types = self.infer(*[n.type for n in inputs], **attrs)
        if isinstance(types, Type):
            return Node(self, tuple(inputs), attrs, types)
        return Result.all_of(self, tuple(inputs), attrs, types)[0]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Check and normalize what the user gave; return the node, or a tuple of several."""
        raise NotImplementedError(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        """There is one of each: its copy, here or in another process, is itself."""
        if OPS.get(self.name) is not self:
            raise TypeError(f"{self!r} is a pass's own, and cannot be copied or pickled")
        return op_named, (self.name,)

    def __repr__(self) -> str:
        return f"<ngd op {self.name}>"


_next_id = itertools.count()


def newest() -> int:
    """A number: the ids of all nodes made so far are smaller, those of later ones greater."""
    return next(_next_id)


class Node(ArrayMethods["Node"]):
    """A value that a step will compute: the result of an op.

    Ops, operators and NumPy's functions take and return nodes, which have no value before a step.

    Examples
    --------
    >>> ngd.placeholder("inputs", (2, 3)).shape
    (2, 3)
    """

    __slots__ = ("__weakref__", "attrs", "id", "inputs", "op", "site", "type", "uniform", "wide")

    several: ClassVar[bool] = False
    """Whether the op gives several results, of which this is one: a Result."""
    number = 0
    """Which of the results this is."""

    def __init__(
        self, op: Op, inputs: tuple[Node, ...], attrs: Mapping[str, Any], type: Type
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.attrs = dict(attrs)
        self.type = type
        self.site = call_site()
        self.wide = WIDE.get()
        self.uniform = op.is_uniform(inputs, attrs)
        self.id = next(_next_id)

    def __reduce__(self) -> tuple[Any, ...]:
        """For copies and pickles, which keep what is shared; all that it is made of goes first."""
        ancestors = None if self.id in _copied.ids else Ancestors(self)
        made = (self.op, self.inputs, self.attrs, self.type, self.site, self.uniform, self.wide)
        return remade_node, (ancestors, *made)

    @property
    def results(self) -> tuple[Node, ...]:
        """All results of the op that made this node."""
        return (self,)

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """The static shape."""
        return self.type.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.type.shape)

    def __repr__(self) -> str:
        name = self.attrs.get("name")
        return f"<ngd.Node {self.op.name}{f' {name!r}' if name else ''} {self.type}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(
                f"len: expected a Node of at least one axis; got the scalar {self.type} (made at "
                f"{self.site}). Add an axis by ops.expand_dims(x, 0)."
            )
        return self.shape[0]

    def with_inputs(self, inputs: tuple[Node, ...]) -> Node:
        """The same op on these inputs: this very node where they are its own."""
        pairs = replaced(inputs, self.inputs)
        if not pairs:
            return self
        for new, old in pairs:
            if new.type is not old.type and new.type != old.type:
                return self.op.node(inputs, self.attrs)
        return Node(self.op, inputs, self.attrs, self.type)  # equal types make an equal type

    __hash__ = object.__hash__

    def _apply(self, op: str, *args: Any, **kwargs: Any) -> Node:
        node: Node = public_function(op)(*args, **kwargs)
        return node

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        raise TypeError(
            f"numpy.asarray: expected an array; got a Node without a value (made at {self.site}): "
            "a step computes it. Return it from an @ngd.function, or make it an output of "
            "ngd.compile, and call that."
        )


class Result(Node):
    """One of the results of an op that has several."""

    __slots__ = ("number", "results")

    several = True
    number: int
    results: tuple[Node, ...]

    @classmethod
    def all_of(
        cls, op: Op, inputs: tuple[Node, ...], attrs: Mapping[str, Any], types: tuple[Type, ...]
    ) -> tuple[Result, ...]:
        """Apply an op."""
        results = tuple([cls(op, inputs, attrs, type) for type in types])
        for number, result in enumerate(results):
            result.number, result.results = number, results
            result.attrs = results[0].attrs
        return results

    def __reduce__(self) -> tuple[Any, ...]:
        """The first one is copied as the application, the others as its results."""
        if self.number:
            return result_of, (self.results[0], self.number)
        remade, (ancestors, op, inputs, attrs, _, *rest) = super().__reduce__()
        return remade, (ancestors, op, inputs, attrs, types_of(self), *rest)

    def __repr__(self) -> str:
        return f"<ngd.Node {self.op.name}, result {self.number}: {self.type}>"

    def with_inputs(self, inputs: tuple[Node, ...]) -> Node:
        """The same result of the same op on these inputs."""
        if not replaced(inputs, self.inputs):
            return self
        return self.op.node(inputs, self.attrs).results[self.number]


def types_of(node: Node) -> Type | tuple[Type, ...]:
    """What the op applied here infers."""
    return tuple([result.type for result in node.results]) if node.several else node.type


def offset_of(node: Node) -> int | None:
    """Where a node's value begins in the bytes of its input's; None for what is computed."""
    return node.op.offset(node.inputs[0].type, **node.attrs) if node.op.kernel.is_view else None


def result_of(node: Node, number: int) -> Node:
    """One of the results that this is the first of."""
    return node.results[number]


def replaced(new: Sequence[Node], old: Sequence[Node]) -> list[tuple[Node, Node]]:
    """What replaces which node where two lists differ; `!=` of nodes would compare values."""
    return [] if new is old else [(a, b) for a, b in zip(new, old, strict=True) if a is not b]


def remade_node(
    ancestors: Any,
    op: Op,
    inputs: tuple[Node, ...],
    attrs: dict[str, Any],
    types: Type | tuple[Type, ...],
    site: str,
    uniform: bool,
    stays: bool,
) -> Node:
    """Make the copy of a node, of what Node.__reduce__ gives."""
    for value in attrs.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    made: tuple[Node, ...]
    with at_site(site), wide(stays):
        if isinstance(types, Type):
            made = (Node(op, inputs, attrs, types),)
        else:
            made = Result.all_of(op, inputs, attrs, types)
    for node in made:
        node.uniform = uniform
    return made[0]


class Copied(threading.local):
    """The nodes that are copied one after the other now: none of them brings its own inputs."""

    def __init__(self) -> None:
        self.ids: set[int] = set()


_copied: Final = Copied()


class Ancestors:
    """All that a node is made of, in order: copied first, so that copying does not recurse.

    A copy of a node needs those of its inputs, and so on, and a graph may be deeper than Python's
    stack. As a list, each of whose nodes finds its inputs copied, it is copied in one loop.
    """

    def __init__(self, node: Node) -> None:
        self.nodes = topological(node.inputs)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (), None, self.in_turn()

    def in_turn(self) -> Iterator[Any]:
        """Each node, then the mark of the end."""
        ids = {node.id for node in self.nodes} - _copied.ids
        _copied.ids |= ids
        yield from self.nodes
        yield EndOfAncestors(ids)


class EndOfAncestors:
    """Copied when all ancestors are; a list may be read ahead."""

    def __init__(self, ids: set[int]) -> None:
        self.ids = ids

    def __reduce__(self) -> tuple[Any, ...]:
        _copied.ids -= self.ids
        return bool, ()


def topological(roots: Iterable[Node], stop: Iterable[Node] = ()) -> list[Node]:
    """Every node that the roots need, each after its inputs: depth first, inputs left to right.

    Of several results of an op the first one stands for all, whichever are needed. The order
    depends on the structure alone, not on the order in which nodes were made. The walk goes no
    further than the nodes of `stop`, which are left out.
    """
    order: list[Node] = []
    seen: set[Node] = {node.results[0] if node.number else node for node in stop}
    stack: list[Node | None] = [*roots]
    stack.reverse()
    while stack:
        node = stack.pop()
        if node is None:  # the inputs of the next one are listed
            order.append(stack.pop())  # type: ignore[arg-type]
            continue
        if node.number:
            node = node.results[0]
        if node not in seen:
            seen.add(node)
            if node.inputs:
                stack += (node, None)
                stack += node.inputs[::-1]
            else:
                order.append(node)
    return order
