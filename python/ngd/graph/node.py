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
from .precision_marks import KEEPS_FLOAT32, keep_float32
from .registry import OPS, op_named, public_function
from .samples import Sample
from .traits import Comm, Fusion, Kernel, Layout, Numerics


class Op:
    """The definition of an op. A subclass has one instance, which `register` returns.

    The instance is the public function: `__call__` normalizes the arguments of the caller and
    returns `self.node(inputs, attrs)`. Attributes are hashable. An op is computed by a kernel of
    the same name in C++, by an opcode of the elementwise kernel, or by the ops of `expand`.
    An op with a kernel may also have `expand`; tests then compare the two.

    Every op has `infer`, `reference`, `samples`, and `grad` or `expand`. All other methods are
    optional. An op that is composed of other ops has `expand`, and sets no record. A record is a
    class attribute with properties of the op (traits.py). This list has each record, the code that
    reads it, and the optional methods that the same code calls:

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
    """The record that passes read to fuse the op, to plan its memory and to choose its kernel."""
    fusion: ClassVar[Fusion] = Fusion()
    """The record that passes read to fuse the op with others, such as a bias with a matmul."""
    numerics: ClassVar[Numerics] = Numerics()
    """The record of the dtypes in which mixed precision computes the op and its gradient."""
    layout: ClassVar[Layout] = Layout()
    """The record of the memory layout (the order of axes) of the op's operands and results."""
    comm: ClassVar[Comm] = Comm()
    """The record of an op that communicates, or whose value the group of ranks determines."""
    order: Order | None = None
    """The sort key by which all ranks start their collectives in one order. The compiler
    gives a key to each collective, and to each loop or branch that contains one: it replaces the
    node by one with a new op object, which has the key. All other ops have None."""
    smooth: ClassVar[bool] = True
    """True if tests check the second derivatives of the op by finite differences.

    False, for example, for rounding and comparisons.
    """
    batching: ClassVar[Literal["", "leading", "axis", "axes"]] = ""
    """The rule by which ngd.vmap applies the op to operands with a batch axis as first axis.

    "leading": apply the op with the same attributes, because it computes each index of the batch
    axis independently. "axis" or "axes": add 1 to each axis in the attribute `axis` or `axes`, and
    apply the op. "", the default: ops/batching has a rule for the class of the op, or ngd.vmap
    replaces the op by the ops of `expand`.
    """
    is_heavy: ClassVar[bool] = False
    """True if the class has `cost`. Such ops, for example matmuls, take most of a step's time.

    All ranks start their collectives in the order of depth. The depth of a node is the number of
    heavy ops and collectives on the longest path to it. The costs of the ops do not affect this
    order, because sizes, and so costs, may differ between ranks.
    """
    has_expansion: ClassVar[bool] = False
    """True if the class has `expand`."""
    public: ClassVar[bool] = True
    """True if ngd.ops has the op."""
    dtypes: ClassVar[tuple[DType, ...]] = NUMBERS
    """The dtypes with which tests check the op: its operands get each of them in turn. In a test
    case of `samples`, an operand with an explicit dtype always has that dtype."""

    def __init_subclass__(cls) -> None:
        """Set `is_heavy` and `has_expansion`, and wrap `__call__`.

        The wrapper makes errors for wrong arguments name the op, such as ops.matmul.
        """
        if "__call__" in vars(cls):
            cls.__call__ = name_method_errors(cls.__call__)  # type: ignore[method-assign]
        cls.is_heavy = cls.cost is not Op.cost
        cls.has_expansion = cls.expand is not Op.expand

    def infer(self, *inputs: Any, **attrs: Any) -> Type | tuple[Type, ...]:
        """Return the type of the result; for several results, a tuple of their types.

        Raises a ShapeError or DTypeError whose message begins with the name of the op.
        """
        raise NotImplementedError(self.name)

    def grad(self, node: Node, dy: Any) -> Sequence[Node | None]:
        """Return the adjoint of each input, given the adjoint of the result.

        The adjoint of an input is None if the input has no gradient. If the op has several results,
        `node` is the first one and `dy` is a tuple of adjoints. An adjoint in `dy` is None, which
        stands for zeros, if the loss does not depend on that result.
        """
        raise GradientError(
            f"{self.name}: expected an op with a gradient; got {self.name} (used at {node.site}), "
            "which has "
            "no gradient. Use ops.stop_gradient on its operand."
        )

    def grad_of(self, node: Node, dy: Any, wanted: Sequence[bool]) -> Sequence[Node | None]:
        """Return adjoints like `grad`.

        `wanted` has True for each operand whose adjoint the caller uses. The caller ignores the
        adjoints of the other operands, which may be None.
        """
        return self.grad(node, dy)

    def expand(self, *inputs: Any, **attrs: Any) -> Node | tuple[Node, ...]:
        """Return the op's result, computed by other ops; a tuple if there are several results."""
        raise NotImplementedError(self.name)

    def reference(self, *inputs: Any, **attrs: Any) -> Array | tuple[Array, ...]:
        """Return the op's result, computed by NumPy, with the shapes and dtypes of `infer`."""
        raise NotImplementedError(self.name)

    def offset(self, *inputs: Any, **attrs: Any) -> int | None:
        """Return the byte offset of a view in its operand; None if the op computes its result."""
        return 0

    def samples(self) -> Iterable[Sample]:
        """Return the cases that tests run, each with operands and attributes."""
        raise NotImplementedError(self.name)

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        """Return the name of the native kernel, and its attributes."""
        return self.name, attrs

    def printed_attrs(self, attrs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the attributes that the printed text of a graph shows; by default all of them."""
        return attrs

    def simplify(self, node: Node) -> Node | None:
        """Return a simpler node with a bitwise equal value, or None.

        For example, a cast to the dtype of its operand is replaced by the operand.
        """
        return None

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """Return the cost of one run. Only ops that take much time, such as matmuls, define this.

        For a loop or branch, `attrs` also has `bodies`: the cost of each graph that it runs.
        """
        raise NotImplementedError(self.name)

    def scratch_bytes(self, **attrs: Any) -> int:
        """Return the size in bytes of the buffers for the outputs of a loop's or branch's graphs.

        Other values in these graphs are not counted. An op that runs no graphs returns 0.
        """
        return 0

    def group_value(self, ranks: Any, **attrs: Any) -> Array:
        """Return the value of the op in the group `ranks`, such as this rank's number in it.

        The compiler replaces the op by this value. Only ops with `Comm.has_group_value` define this
        method.
        """
        raise NotImplementedError(self.name)

    def with_bias(self, node: Node, bias: Node) -> Node | None:
        """Return a node whose kernel computes `node` + `bias`; None if it cannot add the bias.

        `node` is a node of this op, such as a matmul or a convolution.
        """
        return None

    def gradient_factors(self, node: Node) -> tuple[Node, Node] | None:
        """Return (A, B) if the node computes only the matmul A^T B of 2-d arrays; otherwise None.

        The gradient of a weight matrix is such a matmul. With a fused bias, the result is None.
        """
        return None

    def replace_row_major(self, node: Node) -> Node | None:
        """Return a node that has the value of `node` but applies this op; None if impossible.

        This op is a variant of the standard op `layout.row_major_op`, such as a convolution. It
        computes the same with another order of axes in memory, such as channels last. `node`
        applies the standard op. The method transposes the operands of `node` for this op, and
        applies this op to them. If the axes of the result are in another order than those of
        `node`, it transposes the result.
        """
        return None

    def move_transpose(self, node: Node, axes: Shape) -> Node | tuple[Node, ...] | None:
        """Return a replacement of `node` that transposes the result instead of the operands.

        Every operand of `node` is the transposition of some node x, with the order of axes `axes`.
        The replacement applies the op to these nodes x, and then transposes the result. Return a
        tuple if the op has several results, and None if there is no such replacement. See
        passes/layouts.py.
        """
        return None

    def is_uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        """Return False if the results may differ between ranks; by default, if an input may."""
        return all(map(operator.attrgetter("uniform"), inputs))

    def fused_ops(self, node: Node) -> tuple[tuple[str, str], ...]:
        """Return the ops that the kernel of a node computes, each with its call site."""
        return ((self.name, node.site),)

    def node(self, inputs: Sequence[Node], attrs: Mapping[str, Any] | None = None) -> Node:
        """Apply the op to nodes, and return its result, or the first of several results."""
        attrs = attrs or {}
        types = self.infer(*[n.type for n in inputs], **attrs)
        if isinstance(types, Type):
            return Node(self, tuple(inputs), attrs, types)
        return Result.all_of(self, tuple(inputs), attrs, types)[0]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Check and normalize the caller's arguments, and apply the op to them.

        Return the node of the result, or a tuple of nodes if the op has several results.
        """
        raise NotImplementedError(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the op by its name, because a process has only one instance of it."""
        if OPS.get(self.name) is not self:
            raise TypeError(f"{self!r} belongs to a pass, and cannot be copied or pickled")
        return op_named, (self.name,)

    def __repr__(self) -> str:
        return f"<ngd op {self.name}>"


_next_id = itertools.count()


def newest() -> int:
    """Return a number above the ids of all existing nodes and below those of later nodes.

    A caller compares it with `node.id` to find the nodes that a function has made.
    """
    return next(_next_id)


class Node(ArrayMethods["Node"]):
    """A value that a step will compute: the result of an op.

    Ops, operators and NumPy's functions take and return nodes, which have no value before a step.

    Examples
    --------
    >>> ngd.placeholder("inputs", (2, 3)).shape
    (2, 3)
    """

    __slots__ = (
        "__weakref__",
        "attrs",
        "id",
        "inputs",
        "keeps_float32",
        "op",
        "site",
        "type",
        "uniform",
    )

    has_several_results: ClassVar[bool] = False
    """True if the op has several results. The node is then a Result."""
    number = 0
    """The index of the node among the results of its op."""

    def __init__(
        self, op: Op, inputs: tuple[Node, ...], attrs: Mapping[str, Any], type: Type
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.attrs = dict(attrs)
        self.type = type
        self.site = call_site()
        self.keeps_float32 = KEEPS_FLOAT32.get()
        self.uniform = op.is_uniform(inputs, attrs)
        self.id = next(_next_id)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the function and the arguments from which copy and pickle make the node.

        The first argument is an `Ancestors` list: the nodes from which this node is computed. It is
        None if this node itself is in an `Ancestors` list that is being copied now.
        """
        ancestors = None if self.id in _copied.ids else Ancestors(self)
        made = (
            self.op,
            self.inputs,
            self.attrs,
            self.type,
            self.site,
            self.uniform,
            self.keeps_float32,
        )
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
        """Return a node of the same op on other inputs, or this node if all inputs are unchanged.

        An input is unchanged if it is the same object.
        """
        pairs = changed_inputs(inputs, self.inputs)
        if not pairs:
            return self
        for new, old in pairs:
            if new.type is not old.type and new.type != old.type:
                return self.op.node(inputs, self.attrs)
        return Node(self.op, inputs, self.attrs, self.type)  # equal input types: no inference

    __hash__ = object.__hash__

    def _apply(self, op: str, *args: Any, **kwargs: Any) -> Node:
        """Call the function of ngd.ops with the name `op`, and return its node."""
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

    has_several_results = True
    number: int
    results: tuple[Node, ...]

    @classmethod
    def all_of(
        cls, op: Op, inputs: tuple[Node, ...], attrs: Mapping[str, Any], types: tuple[Type, ...]
    ) -> tuple[Result, ...]:
        """Apply an op, and return the nodes of all its results."""
        results = tuple([cls(op, inputs, attrs, type) for type in types])
        for number, result in enumerate(results):
            result.number, result.results = number, results
            result.attrs = results[0].attrs
        return results

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle a result of an op that has several.

        The first result is copied with its op and inputs. Any other result is copied as a reference
        to the first one, with the number of the result.
        """
        if self.number:
            return result_of, (self.results[0], self.number)
        make_copy, (ancestors, op, inputs, attrs, _, *rest) = super().__reduce__()
        return make_copy, (ancestors, op, inputs, attrs, types_of(self), *rest)

    def __repr__(self) -> str:
        return f"<ngd.Node {self.op.name}, result {self.number}: {self.type}>"

    def with_inputs(self, inputs: tuple[Node, ...]) -> Node:
        """Return the same result of the op on other inputs; this node if no input has changed."""
        if not changed_inputs(inputs, self.inputs):
            return self
        return self.op.node(inputs, self.attrs).results[self.number]


def types_of(node: Node) -> Type | tuple[Type, ...]:
    """Return the type of a node; if its op has several results, the types of all of them."""
    return (
        tuple([result.type for result in node.results]) if node.has_several_results else node.type
    )


def offset_of(node: Node) -> int | None:
    """Return the offset in bytes of a view in its input; None if the node is not a view."""
    return node.op.offset(node.inputs[0].type, **node.attrs) if node.op.kernel.is_view else None


def result_of(node: Node, number: int) -> Node:
    """Return the result with the index `number` of an op; `node` is its first result."""
    return node.results[number]


def changed_inputs(new: Sequence[Node], old: Sequence[Node]) -> list[tuple[Node, Node]]:
    """Return a pair (new node, old node) for each position at which two lists differ.

    Nodes are compared by identity, because `!=` of two nodes makes a node that compares values.
    """
    return [] if new is old else [(a, b) for a, b in zip(new, old, strict=True) if a is not b]


def remade_node(
    ancestors: Any,
    op: Op,
    inputs: tuple[Node, ...],
    attrs: dict[str, Any],
    types: Type | tuple[Type, ...],
    site: str,
    uniform: bool,
    is_wide: bool,
) -> Node:
    """Make a copied or unpickled node from the arguments that Node.__reduce__ returned."""
    for value in attrs.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    made: tuple[Node, ...]
    with at_site(site), keep_float32(is_wide):
        if isinstance(types, Type):
            made = (Node(op, inputs, attrs, types),)
        else:
            made = Result.all_of(op, inputs, attrs, types)
    for node in made:
        node.uniform = uniform
    return made[0]


class Copied(threading.local):
    """The ids of all nodes in the `Ancestors` lists that this thread is copying now.

    An `Ancestors` list has all nodes from which some node is computed, inputs first. A node in such
    a list gets no list of its own, because its inputs precede it in this list.
    """

    def __init__(self) -> None:
        self.ids: set[int] = set()


_copied: Final = Copied()


class Ancestors:
    """A list of all nodes from which a node is computed. They are copied before the node.

    The copy of a node needs the copies of its inputs, and so on. A recursion over them would exceed
    Python's stack in a deep graph. In the list, each node comes after its inputs. When a node is
    copied, its inputs are copied already. So one loop copies the whole graph.
    """

    def __init__(self, node: Node) -> None:
        self.nodes = topological(node.inputs)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (), None, self.in_turn()

    def in_turn(self) -> Iterator[Any]:
        """Yield the nodes of the list, each after its inputs, then an end marker."""
        ids = {node.id for node in self.nodes} - _copied.ids
        _copied.ids |= ids
        yield from self.nodes
        yield EndOfAncestors(ids)


class EndOfAncestors:
    """The end marker of an `Ancestors` list, which has the nodes from which a node is computed.

    The marker is copied or pickled after all nodes of the list. `_copied.ids` has the ids of the
    nodes in all lists that are being copied. When pickle reaches the marker, it calls `__reduce__`,
    which removes the ids of this list. The iterator `Ancestors.in_turn` would remove them too
    early, because pickle reads several nodes from the iterator before it pickles the first of them.
    """

    def __init__(self, ids: set[int]) -> None:
        self.ids = ids

    def __reduce__(self) -> tuple[Any, ...]:
        _copied.ids -= self.ids
        return bool, ()


def topological(roots: Iterable[Node], stop: Iterable[Node] = ()) -> list[Node]:
    """Return every node that the roots need, each after its inputs.

    The walk is depth first, with inputs from left to right. So the order depends only on the
    structure of the graph, not on the order in which the nodes were made. The first result of an op
    represents all of its results, whichever are needed. The walk stops at the nodes of `stop`,
    which are left out.
    """
    order: list[Node] = []
    seen: set[Node] = {node.results[0] if node.number else node for node in stop}
    stack: list[Node | None] = [*roots]
    stack.reverse()
    while stack:
        node = stack.pop()
        if node is None:  # all inputs of the next node are in `order`
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
