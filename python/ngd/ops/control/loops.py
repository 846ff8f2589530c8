# SPDX-License-Identifier: Apache-2.0
"""The op `scan`, a loop with carried values over the slices of tensors, and its gradient.

An iteration computes the body once. A carried value passes from one iteration to the next. A fixed
value is the same in all iterations. The carry history of a carried value is the stack of its values
at the start of each iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from ... import trees
from ..._util.callsite import at_site
from ...dtypes import Array, Type, align_up, float32, float64, is_float
from ...errors import DTypeError, ShapeError
from ...graph import notes
from ...graph.cost import Cost
from ...graph.graph import Body, Graph, bodies_of
from ...graph.node import Node, topological
from ...graph.precision_marks import keep_float32
from ...graph.registry import public, register
from ...graph.samples import Sample
from ...graph.traits import Kernel
from .._arithmetic import add
from .._creation import zeros
from .._operands import as_node
from .._reverse_mode import walk_back
from .._shape import reshape
from .._transcendental import tanh
from .bodies import (
    Control,
    Evaluate,
    add_to,
    body_input,
    close_over,
    expect_agreement,
    sample_of,
    sum_of,
    with_uniform_inputs,
)
from .body_analysis import (
    before_reshapes,
    factors_of,
    heavy_ends,
    inputs_with_adjoints,
    products_of,
    replace_nodes,
    worth_keeping,
)
from .tracing import loops, tracing

__all__ = ["scan"]


class Parts(NamedTuple):
    """The operands of a scan, or the inputs of its body, in three lists.

    `carries` are the carried values. `slices` are the tensors that are read slice by slice, or
    their slices. `fixed` are the values that all iterations read.
    """

    carries: Sequence[Any]
    slices: Sequence[Any]
    fixed: Sequence[Any]

    @classmethod
    def of(cls, operands: Sequence[Any], carries: int, slices: int) -> Parts:
        """Split operands or body inputs into carried values, slices and fixed values.

        `carries` and `slices` are the numbers of carried values and of slices.
        """
        both = carries + slices
        return cls(operands[:carries], operands[carries:both], operands[both:])


class Scan(Control):
    """A loop with carried values.

    Operands: the first carried values, the tensors that are read slice by slice, and the fixed
    values, which all iterations read. Results: the last carried values, the stacked results of all
    iterations, and the carry histories. A carry history is the stack of a carried value at the
    start of each iteration. Only the gradient reads it: the gradient computes each iteration again
    from it. The results of heavy ops, such as matmul, are not computed again. The scan stacks them
    for the gradient, as further results of the iterations (`worth_keeping`).
    """

    # Attributes of a node: body, carries and slices (their numbers), length, reverse.
    name = "scan"
    kernel = Kernel(control_flow="scan")

    def infer(
        self, *inputs: Type, body: Body, carries: int, slices: int, length: int, reverse: bool
    ) -> tuple[Type, ...]:
        inputs_by_role = Parts.of([node.type for node in body.graph.inputs], carries, slices)
        output_types = [node.type for node in body.graph.outputs]
        stacked = stack_types(inputs_by_role.slices, length)
        self.expect(inputs, [*inputs_by_role.carries, *stacked, *inputs_by_role.fixed])
        self.expect(output_types[:carries], inputs_by_role.carries)
        return (
            *output_types[:carries],
            *stack_types([*output_types[carries:], *inputs_by_role.carries], length),
        )

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return self.name, {k: int(v) for k, v in attrs.items() if not isinstance(v, Body)}

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """Return the numbers of operations and bytes of all iterations together."""
        body: Cost = attrs["bodies"][0]
        return body.times(attrs["length"])

    def first_shared_positions(self, node: Node) -> tuple[int, int]:
        first = node.attrs["carries"] + node.attrs["slices"]
        return first, first

    def scratch_bytes(self, **attrs: Any) -> int:
        """Return the total size in bytes of the buffers for the outputs of one iteration.

        Each carried value has two buffers. Each stacked result has one buffer, for a single slice.
        """
        sizes = [align_up(node.type.bytes) for node in attrs["body"].graph.outputs]
        return sum(sizes) + sum(sizes[: attrs["carries"]])

    def expect_agreement(self, node: Node) -> None:
        """Raise CompileError if ranks may run different collectives in the body.

        The predicate of a branch in the body may depend on carried values. So this method first
        finds the carried values that are equal on all ranks in every iteration. It starts with the
        values that are equal before the first iteration. It removes the values that the body may
        make different between ranks. It repeats this until none is removed, and checks the body.
        """
        (body,), n = bodies_of(node), node.attrs["carries"]
        equal = [x.uniform for x in node.inputs]
        while True:
            body = with_uniform_inputs(body, equal)
            still_equal = [a and x.uniform for a, x in zip(equal, body.outputs[:n], strict=False)]
            if still_equal == equal[:n]:
                return expect_agreement(body)
            equal[:n] = still_equal

    def run(
        self,
        evaluate: Evaluate,
        *inputs: Array,
        body: Body,
        carries: int,
        slices: int,
        length: int,
        reverse: bool,
    ) -> tuple[Array, ...]:
        parts = Parts.of(inputs, carries, slices)
        graph, carry = body.graph, list(parts.carries)
        stacked = [node.type for node in (*graph.outputs[carries:], *graph.outputs[:carries])]
        stacks = [np.empty(t.shape, t.dtype) for t in stack_types(stacked, length)]
        for iteration in reversed(range(length)) if reverse else range(length):
            slices_read = [np.asarray(x[iteration]) for x in parts.slices]
            outputs = evaluate(graph, [*carry, *slices_read, *parts.fixed])
            for stack, value in zip(stacks, [*outputs[carries:], *carry], strict=True):
                stack[iteration] = value
            carry = outputs[:carries]
        return (*carry, *stacks)

    def samples(self) -> Iterable[Sample]:
        for dtype in (float32, float64):
            for length, reverse in ((3, False), (3, True), (1, False), (0, False)):
                x, w = body_input(Type(dtype, (length, 2))), body_input(Type(dtype, (2,)))
                loop = ScanBuilder(length, reverse)
                carry, part = loop.carry(body_input(w.type)), loop.slice(x)
                loop.next_carries, loop.results = [tanh(carry + part) * w], [carry * part]
                yield sample_of(loop.build())

    def grad_of(self, node: Node, dy: Any, wanted: Sequence[bool]) -> Sequence[Node | None]:
        """Return the adjoints of the operands, which a loop in the other direction computes.

        That loop computes each iteration again from the carried values at its start, and from the
        stored results of heavy ops, such as matmul. The loop carries the adjoints of carried
        values, sums the adjoints of fixed values, and stacks the adjoints of slices. If the body
        uses a fixed matrix only in matrix products, the gradient of this matrix is one matrix
        product after the loop.
        """
        return ScanGradient(node, dy, wanted).operand_adjoints()


SCAN: Final[Scan] = register(Scan())


class ScanBuilder:
    """A scan that is being built, with the outputs of its body.

    `carries`, `slices` and `fixed` are lists of pairs (operand of the scan, body input for it).
    """

    def __init__(self, length: int, reverse: bool) -> None:
        self.length, self.reverse = length, reverse
        self.carries: list[tuple[Node, Node]] = []
        self.next_carries: list[Node] = []  # outputs of the body, in the order of carries
        self.slices: list[tuple[Node, Node]] = []
        self.fixed: list[tuple[Node, Node]] = []
        self.results: list[Node] = []

    @property
    def inputs(self) -> list[Node]:
        """The inputs of the body that change between iterations: carried values and slices."""
        return [p for _, p in (*self.carries, *self.slices)]

    def carry(self, initial: Node) -> Node:
        """Add a carried value with its first value, and return the new input of the body for it."""
        self.carries.append((initial, body_input(initial.type)))
        return self.carries[-1][1]

    def slice(self, tensor: Node) -> Node:
        """Add a tensor that is read slice by slice; return the body input for its slice."""
        self.slices.append((tensor, body_input(Type(tensor.dtype, tensor.shape[1:]))))
        return self.slices[-1][1]

    def build(self) -> Node:
        """Return the node of the scan.

        Slices and fixed values that the body does not read are left out. Nodes that it reads from
        outside become fixed values.
        """
        outputs = [*self.next_carries, *self.results]
        body_inputs = [p for _, p in (*self.carries, *self.slices, *self.fixed)]
        outputs += worth_keeping(outputs, body_inputs)
        read = set(topological(outputs))
        slices = [(x, p) for x, p in self.slices if p in read]
        fixed = [(x, p) for x, p in self.fixed if p in read]
        inputs = [p for _, p in (*self.carries, *slices, *fixed)]
        body_outputs, captured = close_over(outputs, inputs)
        pairs = [*self.carries, *slices, *fixed, *captured]
        attrs = {
            "body": Body(Graph(tuple(p for _, p in pairs), body_outputs)),
            "carries": len(self.carries),
            "slices": len(slices),
            "length": self.length,
            "reverse": self.reverse,
        }
        node = SCAN.node([x for x, _ in pairs], attrs)
        notes.take_over(node, topological(outputs))
        return node


class ScanGradient:
    """The gradient of a scan, a loop in the other direction: `self.loop`.

    The body of this loop first computes an iteration of the scan again, from the carried values at
    the start of the iteration. The results of heavy ops, such as matmul, are not computed again:
    the loop reads the results that the scan has stored. Then the body computes the adjoints of the
    iteration, and the loop carries the adjoints of the carried values.
    """

    def __init__(self, node: Node, adjoints: Sequence[Node | None], wanted: Sequence[bool]) -> None:
        body, attrs = node.attrs["body"].graph, node.attrs
        count = attrs["carries"]
        self.body_inputs = Parts.of(body.inputs, count, attrs["slices"])
        self.operands = Parts.of(node.inputs, count, attrs["slices"])
        self.active_inputs = inputs_with_adjoints(body, count, wanted)
        """The active inputs of the scan's body: the ones whose adjoints are computed.

        They are the keys of a dict that is used as an ordered set: its values are None.
        """
        self.loop = ScanBuilder(attrs["length"], not attrs["reverse"])
        self.carry_adjoints = self.carry(adjoints[:count])
        """For each carried value, its adjoint at the end of an iteration of the scan, or None.

        The gradient's loop carries this adjoint, so it is an input of the gradient's body. It is
        None if the carried value is not in `active_inputs`: its adjoint is not computed.
        """
        self.output_adjoints = self.read_output_adjoints(
            body.outputs, adjoints[count : len(body.outputs)]
        )
        """The adjoints of the outputs of the scan's body: a dict from output to adjoint.

        The adjoints are nodes of the gradient's body. An output without an adjoint is left out.
        """
        self.start_adjoints = [
            None if adjoint is None else self.loop.slice(adjoint)
            for adjoint in adjoints[len(body.outputs) :]
        ]
        """For each carried value, a slice of the adjoint of its carry history, or None.

        The carry history is the stack of the value at the start of each iteration. The slice is an
        input of the gradient's body. It is None if the loss does not depend on the history.
        """
        self.read_operands(node.results[len(node.results) - count :])
        self.stored = self.read_stored(body, node.results[count:])
        """The results of heavy ops, such as matmul, that the scan has stored for its gradient.

        The keys are outputs of the scan's body. The values are the inputs of the gradient's body
        that read the stored results.
        """

    def carry(self, adjoints: Sequence[Node | None]) -> list[Node | None]:
        """Let the gradient's loop carry the adjoints of the carried values of the scan.

        Return, for each carried value of the scan, the body input for its adjoint. Return None
        instead if the value is not in `active_inputs`: its adjoint is not computed. `adjoints` has,
        for each carried value, the adjoint of its value after the last iteration of the scan, or
        None. The loop starts with this adjoint, or with zeros for None.
        """
        return [
            self.loop.carry(zeros(value.shape, value.dtype) if adjoint is None else adjoint)
            if value in self.active_inputs
            else None
            for value, adjoint in zip(self.body_inputs.carries, adjoints, strict=True)
        ]

    def read_output_adjoints(
        self, outputs: Sequence[Node], adjoints: Sequence[Node | None]
    ) -> dict[Node, Node]:
        """Return the adjoints of the outputs of the scan's body: a dict from output to adjoint.

        The first outputs of the scan's body are the new carried values: `carry_adjoints` has their
        adjoints. The scan stacks the other outputs, and `adjoints` has the adjoints of the stacks.
        The adjoint of such an output is a slice of the adjoint of its stack. If a node occurs
        several times in `outputs`, its adjoints are added. An output without an adjoint is left
        out. All adjoints are nodes of the gradient's body.
        """
        slices = [None if adjoint is None else self.loop.slice(adjoint) for adjoint in adjoints]
        sums: dict[Node, Node] = {}
        for output, adjoint in zip(outputs, [*self.carry_adjoints, *slices], strict=True):
            if adjoint is not None and is_float(output.dtype):
                add_to(sums, output, adjoint)
        return sums

    def read_operands(self, histories: Sequence[Node]) -> None:
        """Let the gradient's body read all values that the scan's body reads.

        The gradient's body reads a carried value as a slice of its carry history, which is the
        stack of the value at the start of each iteration. Slices stay slices, and fixed values,
        which are the same in all iterations, stay fixed.
        """
        operands, inputs = self.operands, self.body_inputs
        self.loop.slices += zip(histories, inputs.carries, strict=True)
        self.loop.slices += zip(operands.slices, inputs.slices, strict=True)
        self.loop.fixed += zip(operands.fixed, inputs.fixed, strict=True)

    def read_stored(self, body: Graph, stacks: Sequence[Node]) -> dict[Node, Node]:
        """Return a dict from each stored result of a heavy op to the new input that reads it.

        A heavy op is an op such as matmul. The keys are outputs of the scan's body, the values are
        inputs of the gradient's body. `stacks` has the stacks of the results over all iterations.
        """
        ends = set(heavy_ends(body.outputs, body.inputs))
        stacked = body.outputs[len(self.body_inputs.carries) :]
        return {
            output: self.loop.slice(stack)
            for output, stack in zip(stacked, stacks, strict=False)
            if output in ends
        }

    def operand_adjoints(self) -> list[Node | None]:
        """Return the adjoint of each operand of the scan.

        It is None for an operand whose adjoint is not wanted or does not exist.
        """
        with tracing((*loops(), self.loop)):
            adjoints = walk_back(self.output_adjoints, self.active_inputs)
        self.set_next_carries(adjoints)
        products = {x: products_of(adjoints[x]) for x in self.body_inputs.fixed if x in adjoints}
        products = {x: terms for x, terms in products.items() if terms}
        summed = self.sum_in_loop(adjoints, products)
        per_slice = {x: adjoints[x] for x in self.body_inputs.slices if x in adjoints}
        factors = [
            before_reshapes(factor)
            for product in chain.from_iterable(products.values())
            for factor in factors_of(product)
        ]
        totals, stacks = self.run([*per_slice.values(), *factors])
        carried = [x for x in self.body_inputs.carries if x in self.active_inputs]
        by_input = dict(zip([*carried, *summed], totals, strict=True))
        by_input |= {x: stacks[adjoint] for x, adjoint in per_slice.items()}
        by_input |= {
            x: sum_of(x, [self.over_iterations(product, stacks) for product in terms])
            for x, terms in products.items()
        }
        return [by_input.get(x) for x in chain(*self.body_inputs)]

    def set_next_carries(self, adjoints: Mapping[Node, Node]) -> None:
        """Set the adjoints that the gradient's loop carries to its next iteration.

        An iteration of the scan receives the carried values that the preceding one returned. The
        gradient's loop runs in the other direction. Its body computes the adjoints of the received
        values, and its next iteration needs them as the adjoints of the returned values.
        """
        for value, after, start in zip(
            self.body_inputs.carries, self.carry_adjoints, self.start_adjoints, strict=True
        ):
            if after is not None:
                self.loop.next_carries.append(sum_of(value, [adjoints.get(value), start]))

    def sum_in_loop(
        self, adjoints: Mapping[Node, Node], products: Mapping[Node, Any]
    ) -> list[Node]:
        """Let the gradient's loop sum the adjoints of fixed values over all iterations.

        A fixed value is the same in all iterations. Return the fixed values whose adjoints the loop
        sums. The keys of `products` are left out: they are fixed values whose adjoint is a sum of
        matrix products, which `over_iterations` computes after the loop.
        """
        summed = [x for x in self.body_inputs.fixed if x in adjoints and x not in products]
        for value in summed:
            total = self.loop.carry(zeros(value.shape, value.dtype))
            self.loop.next_carries.append(add(total, adjoints[value]))
        return summed

    def run(self, values: Sequence[Node]) -> tuple[Sequence[Node], dict[Node, Node]]:
        """Build the loop. Return its last carried values, and the stack of each node in `values`.

        The body computes these nodes, and the loop stacks them. A node that is a slice of a tensor
        is not stacked again: its stack is the tensor.
        """
        stacks = {part: tensor for tensor, part in self.loop.slices}
        stacks |= {output: stacks[part] for output, part in self.stored.items()}
        stacked = list(dict.fromkeys(value for value in values if value not in stacks))
        self.loop.next_carries = replace_nodes(self.loop.next_carries, self.stored)
        self.loop.results = replace_nodes(stacked, self.stored)
        results = self.loop.build().results if self.loop.next_carries or stacked else ()
        count = len(self.loop.next_carries)
        return results[:count], stacks | dict(zip(stacked, results[count:], strict=False))

    def over_iterations(self, product: Node, stacks: Mapping[Node, Node]) -> Node:
        """Return the sum over all iterations of a matrix product AᵀB of the gradient's body.

        `stacks` has the stacks of A and of B over all n iterations. The stack of an [r, c] matrix
        is reshaped to [n * r, c]. The sum is one matrix product of the two reshaped stacks.
        """
        with at_site(product.site), keep_float32(product.keeps_float32):
            rows = [
                reshape(stacks[before_reshapes(x)], (self.loop.length * x.shape[0], x.shape[1]))
                for x in factors_of(product)
            ]
            return product.op.node(rows, product.attrs)


def stack_types(types: Sequence[Type], length: int) -> list[Type]:
    """Return, for each type, the type of a stack of `length` values of it."""
    return [Type(t.dtype, (length, *t.shape)) for t in types]


@public
def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:  # long because each argument is described
    """Run a function once per slice of some tensors, and carry values from one call to the next.

    The result is that of this loop, whose body is traced only once:

        carry = init
        for t in range(length):
            carry, ys[t] = body(carry, xs[t])

    A collective in the body runs in each iteration, or once if it depends neither on the carry nor
    on the slice.

    The gradient computes each iteration again from its carry. So the loop stores the carries of all
    iterations. It also stores the results of matrix products, convolutions and attention, which the
    gradient does not compute again. With `ngd.remat(body)` the loop stores only the carries.

    Parameters
    ----------
    body : callable
        It takes the carry and a slice, and returns the next carry and a result, or None as the
        result. It may read nodes and variables from outside. Random draws differ in each iteration,
        except if their seed or offset depends on the carry or the slice.
    init : node, array, or a structure of them
        The first carry. The body returns the same structure, dtypes and shapes.
    xs : node, array, or a structure of them, optional
        Iteration t reads slice t along axis 0. If it is None, the body gets None as its slice, and
        `length` is needed.
    length : int, optional
        The number of iterations, which may be 0. The default is the size of axis 0 of `xs`.
    reverse : bool, default False
        Run from the last slice to the first. The results keep the order of the slices.

    Returns
    -------
    tuple
        The last carry, and the results of all iterations, stacked along a new axis 0.

    Raises
    ------
    ShapeError, DTypeError
        The sizes of axis 0 of `xs` differ, or the body returns a carry of another type.
    CompileError
        The body contains a send or a receive.

    Examples
    --------
    ::

        >>> add = lambda total, x: (total + x, total)
        >>> ngd.function(lambda x: ops.scan(add, 0.0, x)[0])(np.array([1.0, 2.0, 3.0]))
        array(6.)
    """
    return _traced(body, init, xs, length, reverse)


def _traced(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    length: int | None,
    reverse: bool,
) -> tuple[Any, Any]:
    """Trace the body of a scan and build the loop. Return (last carry, stacked results).

    The stacked results are the results that the body returns in all iterations, or None.
    """
    if not callable(body):
        raise TypeError(
            f"scan: body: expected a function; got {body!r}. Give a function of a carry and a "
            "slice that returns (carry, result)."
        )
    initial, structure = trees.flatten(init)
    tensors, slice_structure = trees.flatten(xs) if xs is not None else ([], None)
    first_carries = [as_node(value, where="scan: init") for value in initial]
    sliced_tensors = [as_node(value, where="scan: xs") for value in tensors]
    loop = ScanBuilder(num_iterations(sliced_tensors, length), reverse)
    carry = structure.rebuild([loop.carry(node) for node in first_carries])
    slices = [loop.slice(node) for node in sliced_tensors]
    with tracing((*loops(), loop)):
        returned = body(carry, slice_structure.rebuild(slices) if slice_structure else None)
    carry, result = expect_pair(returned)
    loop.next_carries = next_carries(structure, first_carries, carry)
    leaves, made_structure = trees.flatten(result) if result is not None else ([], None)
    loop.results = [as_node(leaf, where="scan: the result of the body") for leaf in leaves]
    results = loop.build().results if loop.next_carries or loop.results else ()
    last, stacked = (
        results[: len(first_carries)],
        results[len(first_carries) : len(first_carries) + len(leaves)],
    )
    return structure.rebuild(last), made_structure.rebuild(stacked) if made_structure else None


def expect_pair(returned: Any) -> tuple[Any, Any]:
    """Return (next carry, result), as a scan's body returned it; TypeError if it is not a pair."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(
            f"scan: expected the body to return a pair; got {returned!r}. Return "
            "(carry, result), with None as the result of a loop that only carries."
        )
    return returned


def next_carries(structure: trees.Structure, current: Sequence[Node], carry: Any) -> list[Node]:
    """Return the leaves of the carry that the body returned, as nodes.

    `current` has the leaves of the first carry. Raise DTypeError or ShapeError if the types of a
    leaf and of the leaf of `current` at the same position differ.
    """
    leaves = structure.match(carry, "scan: the carry that the body returns")
    nodes = []
    for path, before, leaf in zip(structure.paths("carry"), current, leaves, strict=True):
        node = as_node(leaf, before, where=f"scan: {path}")
        if node.type != before.type:
            raise (DTypeError if node.dtype != before.dtype else ShapeError)(
                f"scan: expected the body to return {path} of the given type, {before.type}; "
                f"got {node.type} (made at {node.site}). Cast or reshape it."
            )
        nodes.append(node)
    return nodes


def num_iterations(tensors: Sequence[Node], length: int | None) -> int:
    """Return the number of iterations of a scan: `length`, or the number of slices of the tensors.

    Raise ShapeError if `length` and the numbers of slices differ, if both are missing, or if a
    tensor is a scalar, which has no slices.
    """
    extents = [node.shape[0] if node.shape else None for node in tensors]
    count = length if length is not None or not extents else extents[0]
    if count is None:
        actual = "a scalar" if extents else "neither"
        raise ShapeError(f"scan: expected a length, or xs with an axis to loop over; got {actual}")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ShapeError(f"scan: expected a length >= 0; got {count!r}")
    for node, extent in zip(tensors, extents, strict=True):
        if extent is None:
            raise ShapeError(
                f"scan: expected xs with an axis to loop over; got {node.type} (made at "
                f"{node.site}). Use the scalar in the body, or broadcast it."
            )
        if extent != count:
            raise ShapeError(
                f"scan: expected xs of {count} slices each; got {node.type} (made at "
                f"{node.site}). Slice xs, or change length."
            )
    return count
