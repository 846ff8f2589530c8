# SPDX-License-Identifier: Apache-2.0
"""Control flow: a loop with carried values, and a choice between two branches.

Their bodies are graphs inside the graph (`Body` in ngd/graph). A body is traced once, so the size
of a program does not depend on the number of iterations. Nodes that a body reads from outside
become operands. A node that depends on no carried value and on no slice is computed once, outside
the loop.

A body may contain collectives. Then a loop must have the same number of iterations on all ranks,
and a predicate must be known to be equal on all ranks (`expect_agreement`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from ... import trees
from ..._util.callsite import at_site
from ...dtypes import Array, Type, aligned, bool_, float32, float64, is_float
from ...errors import CompileError, DTypeError, ShapeError
from ...graph import notes
from ...graph.cost import Cost
from ...graph.graph import Body, Graph, bodies_of, communicates
from ...graph.leaves import CONSTANT, PLACEHOLDER, Leaf
from ...graph.node import Node, Op, newest, topological
from ...graph.precision_marks import wide
from ...graph.registry import public, register
from ...graph.samples import Operand, Sample
from .._adjoints import walk_back
from .._arithmetic import add
from .._compare import expect_choice
from .._creation import zeros
from .._custom import WithGradient
from .._operands import as_node
from .._shape import reshape
from .._transcendental import tanh
from ..collectives.reductions import Collective
from .tracing import loops, tracing

SMALL: Final = 64
"""Constants of so many elements go into the bodies that read them."""


Evaluate: TypeAlias = Callable[[Graph, Sequence[Array]], list[Array]]
"""The outputs of a graph without variables."""


class Control(Op):
    """An op that runs graphs; of several results, and of any dtypes."""

    public = False
    dtypes = ()

    def uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        """Where the operands are, and what the bodies make of such."""
        bodies = (value.graph for value in attrs.values() if isinstance(value, Body))
        made = chain.from_iterable(graph.outputs for graph in bodies)
        return all(node.uniform for node in chain(inputs, made))

    def numbered(self, order: int) -> Control:
        """The op where it is known which one of those that talk to other ranks it is."""
        op = type(self)()
        op.order = order
        return op

    def shared_from(self, node: Node) -> tuple[int, int]:
        """From which operand on, and from which input of a body on, one is the other."""
        raise NotImplementedError(self.name)

    def simplify(self, node: Node) -> Node | None:
        """Take small constants into the bodies, for their kernels to know them.

        Until then they are operands: somebody may want their gradient.
        """
        outside, inside = self.shared_from(node)
        constants = {
            inside + i: operand
            for i, operand in enumerate(node.inputs[outside:])
            if operand.op is CONSTANT and operand.type.count <= SMALL
        }
        if not constants:
            return None
        bodies = {
            key: with_constants(value.graph, constants)
            for key, value in node.attrs.items()
            if isinstance(value, Body)
        }
        left = [x for i, x in enumerate(node.inputs) if i - outside + inside not in constants]
        return self.node(left, {**node.attrs, **bodies})

    def expect_agreement(self, node: Node) -> None:
        """Raise CompileError where the ranks may not say the same inside; see the function."""
        for body in bodies_of(node):
            expect_agreement(body)

    def grad(self, node: Node, dy: Any) -> Sequence[Node | None]:
        return self.grad_of(node, dy, [True for _ in node.inputs])

    def run(self, evaluate: Evaluate, *inputs: Any, **attrs: Any) -> tuple[Array, ...]:
        """Return the results in NumPy; `evaluate` computes the bodies."""
        raise NotImplementedError(self.name)

    def expect(self, operands: Sequence[Type], wanted: Sequence[Type]) -> None:
        """Raise ShapeError where operands are not what the bodies were traced for."""
        if list(operands) != list(wanted):
            made, got = (", ".join(map(str, types)) for types in (wanted, operands))
            raise ShapeError(
                f"{self.name}: expected {made}, for which the body was traced; got {got}"
            )


class Parts(NamedTuple):
    """What belongs to a scan's carried values, to its slices, and to what all rounds read."""

    carries: Sequence[Any]
    slices: Sequence[Any]
    fixed: Sequence[Any]

    @classmethod
    def of(cls, operands: Sequence[Any], carries: int, slices: int) -> Parts:
        """Take operands apart, or a body's inputs."""
        both = carries + slices
        return cls(operands[:carries], operands[carries:both], operands[both:])


class Scan(Control):
    """A loop; attrs: body, carries and slices (how many there are), length, reverse.

    Operands: the carried values, the tensors that are read slice by slice, and what all rounds
    read. Results: the carried values after the last round, what the rounds make, stacked, and the
    carried values as each round found them, stacked: the gradient computes each round again from
    these, and otherwise nobody reads them. It does not compute again what heavy ops make: that is
    among what the rounds make (`worth_keeping`), and read by the gradient alone.
    """

    name = "scan"
    nested = "scan"

    def infer(
        self, *inputs: Type, body: Body, carries: int, slices: int, length: int, reverse: bool
    ) -> tuple[Type, ...]:
        given = Parts.of([node.type for node in body.graph.inputs], carries, slices)
        made = [node.type for node in body.graph.outputs]
        stacked = stack_types(given.slices, length)
        self.expect(inputs, [*given.carries, *stacked, *given.fixed])
        self.expect(made[:carries], given.carries)
        return (*made[:carries], *stack_types([*made[carries:], *given.carries], length))

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return self.name, {k: int(v) for k, v in attrs.items() if not isinstance(v, Body)}

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """That of all rounds."""
        body: Cost = attrs["bodies"][0]
        return body.times(attrs["length"])

    def shared_from(self, node: Node) -> tuple[int, int]:
        first = node.attrs["carries"] + node.attrs["slices"]
        return first, first

    def spare_bytes(self, **attrs: Any) -> int:
        """Two turns of each carried value, and a slice of each result."""
        sizes = [aligned(node.type.bytes) for node in attrs["body"].graph.outputs]
        return sum(sizes) + sum(sizes[: attrs["carries"]])

    def expect_agreement(self, node: Node) -> None:
        """See the base. A carried value is equal on all ranks where each round makes it so."""
        (body,), n = bodies_of(node), node.attrs["carries"]
        equal = [x.uniform for x in node.inputs]
        while True:
            body = told(body, equal)
            made = [a and x.uniform for a, x in zip(equal, body.outputs[:n], strict=False)]
            if made == equal[:n]:
                return expect_agreement(body)
            equal[:n] = made

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
        for now in reversed(range(length)) if reverse else range(length):
            read = [np.asarray(x[now]) for x in parts.slices]
            made = evaluate(graph, [*carry, *read, *parts.fixed])
            for stack, value in zip(stacks, [*made[carries:], *carry], strict=True):
                stack[now] = value
            carry = made[:carries]
        return (*carry, *stacks)

    def samples(self) -> Iterable[Sample]:
        for dtype in (float32, float64):
            for length, reverse in ((3, False), (3, True), (1, False), (0, False)):
                x, w = inside(Type(dtype, (length, 2))), inside(Type(dtype, (2,)))
                loop = Loop(length, reverse)
                carry, part = loop.carry(inside(w.type)), loop.slice(x)
                loop.next, loop.made = [tanh(carry + part) * w], [carry * part]
                yield sample_of(loop.node())

    def grad_of(self, node: Node, dy: Any, wanted: Sequence[bool]) -> Sequence[Node | None]:
        """A loop the other way; each round is computed again from the carried values it found.

        What its heavy ops have made it reads. The adjoints of the carried values are carried, and
        so are the sums of the adjoints of values that all rounds read. Those of slices are stacked.
        The gradient of a matrix that the rounds only multiply is one product after the loop.
        """
        return Backward(node, dy, wanted).adjoints()


SCAN: Final[Scan] = register(Scan())


class Loop:
    """A scan in the making: pairs of an operand and the body's input for it, and the outputs."""

    def __init__(self, length: int, reverse: bool) -> None:
        self.length, self.reverse = length, reverse
        self.carries: list[tuple[Node, Node]] = []
        self.next: list[Node] = []  # of each
        self.slices: list[tuple[Node, Node]] = []
        self.fixed: list[tuple[Node, Node]] = []
        self.made: list[Node] = []

    @property
    def inputs(self) -> list[Node]:
        """The inputs of the body that change from iteration to iteration."""
        return [p for _, p in (*self.carries, *self.slices)]

    def carry(self, initial: Node) -> Node:
        """Add a carried value; returns the body's input."""
        self.carries.append((initial, inside(initial.type)))
        return self.carries[-1][1]

    def slice(self, tensor: Node) -> Node:
        """Add a tensor that is read slice by slice; returns the body's input."""
        self.slices.append((tensor, inside(Type(tensor.dtype, tensor.shape[1:]))))
        return self.slices[-1][1]

    def node(self) -> Node:
        """Make the scan; what its body does not read is left out."""
        outputs = [*self.next, *self.made]
        places = [p for _, p in (*self.carries, *self.slices, *self.fixed)]
        outputs += worth_keeping(outputs, places)
        read = set(topological(outputs))
        slices = [(x, p) for x, p in self.slices if p in read]
        fixed = [(x, p) for x, p in self.fixed if p in read]
        inputs = [p for _, p in (*self.carries, *slices, *fixed)]
        made, captured = closed(outputs, inputs)
        pairs = [*self.carries, *slices, *fixed, *captured]
        attrs = {
            "body": Body(Graph(tuple(p for _, p in pairs), made)),
            "carries": len(self.carries),
            "slices": len(slices),
            "length": self.length,
            "reverse": self.reverse,
        }
        node = SCAN.node([x for x, _ in pairs], attrs)
        notes.take_over(node, topological(outputs))
        return node


class Backward:
    """The gradient of a scan: what its loop carries, reads and makes."""

    def __init__(self, node: Node, dy: Sequence[Node | None], wanted: Sequence[bool]) -> None:
        body, n, m = node.attrs["body"].graph, node.attrs["carries"], node.attrs["slices"]
        self.wanted = reached(body, n, wanted)
        self.loop = Loop(node.attrs["length"], not node.attrs["reverse"])
        self.places = Parts.of(body.inputs, n, m)
        self.given = Parts.of(node.inputs, n, m)
        self.seeds: dict[Node, Node] = {}
        last, made, found = dy[:n], dy[n : len(body.outputs)], dy[len(body.outputs) :]
        self.carried = [
            self.loop.carry(zeros(x.shape, x.dtype) if d is None else d)
            if x in self.wanted
            else None
            for x, d in zip(self.places.carries, last, strict=True)
        ]
        seeds = [*self.carried, *(None if d is None else self.loop.slice(d) for d in made)]
        for output, seed in zip(body.outputs, seeds, strict=True):
            if seed is not None and is_float(output.dtype):
                add_to(self.seeds, output, seed)
        self.found = [None if d is None else self.loop.slice(d) for d in found]
        histories = node.results[len(node.results) - n :]
        self.loop.slices += zip(histories, self.places.carries, strict=True)
        self.loop.slices += zip(self.given.slices, self.places.slices, strict=True)
        self.loop.fixed += zip(self.given.fixed, self.places.fixed, strict=True)
        ends = set(heavy_ends(body.outputs, body.inputs))
        self.kept = {
            output: self.loop.slice(stack)
            for output, stack in zip(body.outputs[n:], node.results[n:], strict=False)
            if output in ends
        }

    def adjoints(self) -> list[Node | None]:
        """Of each operand of the scan."""
        with tracing((*loops(), self.loop)):
            inner = walk_back(self.seeds, self.wanted)
        for place, carried, found in zip(
            self.places.carries, self.carried, self.found, strict=True
        ):
            if carried is not None:
                self.loop.next.append(sum_of(place, [inner.get(place), found]))
        products = {p: products_of(inner[p]) for p in self.places.fixed if p in inner}
        summed = [p for p in products if not products[p]]
        for place in summed:
            total = self.loop.carry(zeros(place.shape, place.dtype))
            self.loop.next.append(add(total, inner[place]))
        asked = [p for p in self.places.carries if p in self.wanted]
        slices = {p: inner[p] for p in self.places.slices if p in inner}
        all_products = chain.from_iterable(products.values())
        factors = [before_reshapes(x) for product in all_products for x in factors_of(product)]
        totals, stacks = self.run([*slices.values(), *factors])
        of = dict(zip([*asked, *summed], totals, strict=True))
        of |= {p: stacks[value] for p, value in slices.items()}
        of |= {
            p: sum_of(p, [self.over_iterations(product, stacks) for product in found])
            for p, found in products.items()
            if found
        }
        return [of.get(place) for place in chain(*self.places)]

    def run(self, values: Sequence[Node]) -> tuple[Sequence[Node], dict[Node, Node]]:
        """Make the loop; return its carried values, and the stacks of values of its body.

        A value that is a slice of a tensor is not stacked again.
        """
        stacks = {place: tensor for tensor, place in self.loop.slices}
        stacks |= {output: stacks[place] for output, place in self.kept.items()}
        made = list(dict.fromkeys(value for value in values if value not in stacks))
        self.loop.next = replaced(self.loop.next, self.kept)
        self.loop.made = replaced(made, self.kept)
        results = self.loop.node().results if self.loop.next or made else ()
        count = len(self.loop.next)
        return results[:count], stacks | dict(zip(made, results[count:], strict=False))

    def over_iterations(self, product: Node, stacks: Mapping[Node, Node]) -> Node:
        """Return the sum of a product over all iterations: one product of the rows of all."""
        with at_site(product.site), wide(product.wide):
            rows = [
                reshape(stacks[before_reshapes(x)], (self.loop.length * x.shape[0], x.shape[1]))
                for x in factors_of(product)
            ]
            return product.op.node(rows, product.attrs)


# The gradient of a weight that all iterations read is a sum over the iterations. If the body only
# multiplies by the weight, each term is a product AᵀB of the rows of one iteration. The loop then
# stacks these rows, unless a stack of them exists, and one product follows the loop. The decision
# does not depend on extents, which may differ between ranks.


def products_of(adjoint: Node) -> list[Node]:
    """Return the products AᵀB of which an adjoint is the sum; none if other terms are in it.

    A factor that an inner loop stacked is refused: the user nests loops to keep less than all
    iterations of both, and the product has many rows already.
    """
    if adjoint.op is add:
        parts = [products_of(x) if x.type == adjoint.type else [] for x in adjoint.inputs]
        return list(chain.from_iterable(parts)) if all(parts) else []
    if adjoint.op.factors(adjoint) is None:
        return []
    is_nested = any(before_reshapes(x).op.nested for x in factors_of(adjoint))
    return [] if is_nested else [adjoint]


def factors_of(product: Node) -> tuple[Node, Node]:
    """Return A and B of a product AᵀB."""
    found = product.op.factors(product)
    assert found is not None
    return found


def before_reshapes(node: Node) -> Node:
    """Return the node that a chain of reshapes begins with."""
    while node.op is reshape:
        node = node.inputs[0]
    return node


def worth_keeping(outputs: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
    """What heavy ops of a body make and a gradient may read, that is not among the outputs."""
    made = set(outputs)
    return [node for node in heavy_ends(outputs, inputs) if node not in made]


def heavy_ends(outputs: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
    """What the heavy ops of a body make of its inputs, behind the sums that their kernels take.

    A bias and a residual sum join the kernel of a heavy op only where nobody else reads what they
    are added to. So the sum is the end, where it is the only reader. Shapes are not asked: they may
    differ between ranks, and what is not kept is computed again, its collectives too.

    A body with a gradient of the user's keeps nothing: that rule holds nodes of the body, and a
    second gradient asks for what they are made of.
    """
    order = topological(outputs)
    if has_rule(order):
        return []
    own = set(inputs)
    readers: dict[Node, list[Node]] = {output: [output] for output in outputs}
    for node in order:
        for operand in node.inputs:
            readers.setdefault(operand, []).append(node)
        if any(operand in own for operand in node.inputs):
            own.update(node.results)
    ends: dict[Node, None] = {}
    for node in order:
        if node not in own or not node.op.heavy or node.op.nested:
            continue
        for end in node.results:
            while len(reading := readers.get(end, [])) == 1:
                if reading[0] is end or not reading[0].op.adds:
                    break
                end = reading[0]
            if is_float(end.dtype):
                ends[end] = None
    return list(ends)


def has_rule(nodes: Iterable[Node]) -> bool:
    """Whether a gradient of the user's stands among nodes, or in the bodies that they run."""
    return any(
        isinstance(node.op, WithGradient) or any(has_rule(body.nodes) for body in bodies_of(node))
        for node in nodes
    )


def replaced(outputs: Sequence[Node], places: Mapping[Node, Node]) -> list[Node]:
    """What outputs are where some nodes that they are made of are known."""

    def change(node: Node, operands: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        made = node.with_inputs(operands)
        results = zip(node.results, made.results, strict=True)
        known = tuple(places.get(before, after) for before, after in results)
        return known if node.several else known[0]

    return list(Graph((), tuple(outputs)).rewrite(change).outputs)


def reached(body: Graph, carries: int, wanted: Sequence[bool]) -> dict[Node, None]:
    """The inputs of a loop's body whose adjoints those of the wanted ones are made of, and these.

    The adjoint of a carried value is handed from round to round where the next value depends on
    what is wanted.
    """
    given = body.inputs
    found: dict[Node, None] = {
        p: None for p, want in zip(given, wanted, strict=True) if want and is_float(p.dtype)
    }
    while True:
        active = set(found)
        for node in body.nodes:
            if any(i in active for i in node.inputs):
                active.update(r for r in node.results if is_float(r.dtype))
        pairs = zip(given[:carries], body.outputs, strict=False)
        more = [p for p, made in pairs if made in active and p not in found]
        if not more:
            return found
        found.update(dict.fromkeys(more))


class Cond(Control):
    """A choice; attrs: on_true and on_false, of the same inputs and types of results.

    Operands: a bool scalar, then what either branch reads.
    """

    name = "cond"
    nested = "cond"

    def infer(self, *inputs: Type, on_false: Body, on_true: Body) -> tuple[Type, ...]:
        if inputs[0] != Type(bool_, ()):
            raise DTypeError(
                f"cond: expected a bool scalar to choose by; got {inputs[0]}. Reduce it by "
                "ops.all or ops.any."
            )
        self.expect(inputs[1:], [node.type for node in on_true.graph.inputs])
        return tuple(node.type for node in on_true.graph.outputs)

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        return self.name, {}

    def cost(self, operands: Sequence[Type], results: Sequence[Type], **attrs: Any) -> Cost:
        """That of the branch with more operations, whichever is taken."""
        branches: Sequence[Cost] = attrs["bodies"]
        return max(branches, key=lambda cost: (cost.flops, cost.bytes))

    def shared_from(self, node: Node) -> tuple[int, int]:
        return 1, 0

    def spare_bytes(self, **attrs: Any) -> int:
        """One of each result, for those that nobody reads."""
        return sum(aligned(node.type.bytes) for node in attrs["on_true"].graph.outputs)

    def expect_agreement(self, node: Node) -> None:
        """See the base."""
        predicate, equal = node.inputs[0], [x.uniform for x in node.inputs[1:]]
        bodies = [told(body, equal) for body in bodies_of(node)]
        for inner in chain.from_iterable(body.nodes for body in bodies):
            if communicates(inner) and not predicate.uniform:
                raise CompileError(
                    f"cond (made at {node.site}): expected branches without collectives, because "
                    f"ranks may take different ones; got {inner.op.name} (made at {inner.site}). "
                    "Choose by a value that is equal on all ranks, such as "
                    'all_reduce(predicate, op="max").'
                )
        for body in bodies:
            expect_agreement(body)

    def run(
        self, evaluate: Evaluate, *inputs: Array, on_false: Body, on_true: Body
    ) -> tuple[Array, ...]:
        chosen = on_true if inputs[0] else on_false
        return tuple(evaluate(chosen.graph, inputs[1:]))

    def samples(self) -> Iterable[Sample]:
        for dtype in (float32, float64):
            x, w = (inside(Type(dtype, (3, 2))) for _ in range(2))
            place = inside(x.type)
            branches = [[tanh(place) * w, w], [place, place + w]]
            yield sample_of(choose(inside(Type(bool_, ())), [(x, place)], branches)[0])

    def grad_of(
        self, node: Node, dy: Sequence[Node | None], wanted: Sequence[bool]
    ) -> Sequence[Node | None]:
        """The same choice, between the branches' gradients."""
        places = node.attrs["on_true"].graph.inputs
        asked = [i for i, place in enumerate(places) if wanted[i + 1] and is_float(place.dtype)]
        known = [(i, d, inside(d.type)) for i, d in enumerate(dy) if d is not None]
        pairs = list(zip(node.inputs[1:], places, strict=True)) + [(d, p) for _, d, p in known]
        branches = []
        for name in ("on_true", "on_false"):
            outputs, seeds = node.attrs[name].graph.outputs, dict[Node, Node]()
            for i, _, seed in known:
                add_to(seeds, outputs[i], seed)
            inner = walk_back(seeds, [places[i] for i in asked])
            branches.append([sum_of(places[i], [inner.get(places[i])]) for i in asked])
        made = choose(node.inputs[0], pairs, branches)
        adjoints = dict(zip(asked, made, strict=True))
        return [None, *(adjoints.get(i) for i in range(len(places)))]


COND: Final[Cond] = register(Cond())


def choose(
    predicate: Node,
    pairs: Sequence[tuple[Node, Node]],
    branches: Sequence[Sequence[Node]],
    since: int | None = None,
) -> tuple[Node, ...]:
    """Make a cond of what two branches make; see `closed` for `since`."""
    both, captured = closed([*branches[0], *branches[1]], [p for _, p in pairs], since)
    pairs = [*pairs, *captured]
    inputs, half = tuple(p for _, p in pairs), len(branches[0])
    attrs = {
        "on_false": Body(Graph(inputs, both[half:])),
        "on_true": Body(Graph(inputs, both[:half])),
    }
    node = COND.node([predicate, *(x for x, _ in pairs)], attrs)
    notes.take_over(node, topological([*branches[0], *branches[1]]))
    return node.results


def inside(type: Type, uniform: bool = True) -> Node:
    """An input of a body; `uniform` is what is supposed of it (see Control.uniform)."""
    return Node(PLACEHOLDER, (), {"name": "inside", "uniform": uniform}, type)


def with_constants(body: Graph, constants: Mapping[int, Node]) -> Body:
    """A body in which some inputs, by their numbers, are constants.

    Each place gets a node of its own: two constants may be equal on one rank alone, and what is
    made of them, a collective for instance, must not become one there.
    """
    known = {
        body.inputs[i]: Node(CONSTANT, (), constant.attrs, constant.type)
        for i, constant in constants.items()
    }
    left = tuple(p for p in body.inputs if p not in known)
    changed = body.rewrite(lambda node, operands: known.get(node, node).with_inputs(operands))
    return Body(Graph(left, changed.outputs))


def told(body: Graph, uniform: Sequence[bool]) -> Graph:
    """A body that knows which of its inputs are equal on all ranks."""
    inputs = {p: inside(p.type, equal) for p, equal in zip(body.inputs, uniform, strict=True)}
    return body.rewrite(lambda node, operands: inputs.get(node, node).with_inputs(operands))


def expect_agreement(graph: Graph) -> None:
    """Refuse a collective in a branch that not all ranks are proved to take.

    Some would wait for the others, which are elsewhere. Raises CompileError.
    """
    for node in graph.nodes:
        if isinstance(node.op, Control) and communicates(node):
            node.op.expect_agreement(node)


def sample_of(node: Node) -> Sample:
    """The sample of an op as it is applied here."""
    operands = (Operand(x.shape, dtype=x.dtype) for x in node.inputs)
    return Sample(tuple(operands), node.attrs)


def closed(
    outputs: Sequence[Node], inputs: Sequence[Node], since: int | None = None
) -> tuple[tuple[Node, ...], list[tuple[Node, Node]]]:
    """Make a body of what leads to some outputs.

    To the body belongs what the inputs lead to; with `since`, the number of a node, also all that
    was made after that, but what comes from outside the graph or is known from the group. The rest
    is read from outside: returns the outputs, made of inputs alone, and pairs of a node outside and
    the input for it.
    """
    order = topological(outputs)
    own = {id(p) for p in inputs}
    for node in order:
        later = since is not None and node.id > since
        leaf = isinstance(node.op, Leaf) and node.op is not CONSTANT
        outside = leaf or node.op.settled_by != ""
        if (later and not outside) or any(id(i) in own for i in node.inputs):
            own.update(id(result) for result in node.results)
    places: dict[Node, Node] = {}
    for node in chain(chain.from_iterable(n.inputs for n in order if id(n) in own), outputs):
        if id(node) not in own and node not in places:
            places[node] = inside(node.type)
    for node in order:
        if isinstance(node.op, Collective) and node.op.kind.between_two and id(node) in own:
            raise CompileError(
                f"{node.op.name} (made at {node.site}): expected no messages between two ranks in "
                "a "
                "loop or a branch; got one. Take it out."
            )
    first = list(dict.fromkeys(node.results[0] for node in places))

    def change(node: Node, operands: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        if id(node) in own:
            return node.with_inputs(operands)
        replaced = tuple(places.get(result, result) for result in node.results)
        return replaced if node.several else replaced[0]

    rest = [node for node in order if id(node) in own]
    graph = Graph((), tuple(outputs)).rewrite(change, [*first, *rest])
    return graph.outputs, list(places.items())


def sum_of(like: Node, parts: Sequence[Node | None]) -> Node:
    """The sum of those that are there; zeros of that type where none is."""
    there = [part for part in parts if part is not None]
    total = there[0] if there else zeros(like.shape, like.dtype)
    for part in there[1:]:
        total = add(total, part)
    return total


def add_to(sums: dict[Node, Node], key: Node, part: Node) -> None:
    """Add one more part to the sum that belongs to a node."""
    sums[key] = add(sums[key], part) if key in sums else part


def stack_types(types: Sequence[Type], length: int) -> list[Type]:
    """Of so many values of each."""
    return [Type(t.dtype, (length, *t.shape)) for t in types]


@public
def cond(
    predicate: Any, on_true: Callable[..., Any], on_false: Callable[..., Any], *operands: Any
) -> Any:
    """Compute one of two functions, depending on a bool scalar.

    A function may contain collectives if the predicate is known to be equal on all ranks. Results
    of collectives such as all_reduce are, and variables, constants, placeholders with
    `uniform=True`, and nodes that depend only on these. If a variable differs between
    ranks nevertheless, the collectives raise CollectiveMismatchError.

    Parameters
    ----------
    predicate : node or array
        A bool scalar.
    on_true, on_false : callable
        Each is traced once, with the operands. Both return the same structure of nodes with the
        same dtypes and shapes. They may read nodes and variables from outside.
    operands : node, array, or a structure of them
        The arguments of both functions.

    Returns
    -------
    Any
        The result of the chosen function. A step computes only this function, and only its
        gradient.

    Raises
    ------
    ShapeError, DTypeError
        The two functions return different types, or the predicate is not a bool scalar.
    CompileError
        A function contains a send or a receive. ngd.compile raises it for a collective, if the
        predicate is not known to be equal on all ranks.

    Examples
    --------
    ::

        >>> def clipped(x):
        ...     return ops.cond(ops.max(x) > 1, lambda: x / ops.max(x), lambda: x)
        >>> ngd.function(clipped)(np.array([1.0, 2.0]))
        array([0.5, 1. ])
    """
    expect_choice("cond", predicate)
    leaves, structure = trees.flatten(list(operands))
    given = [as_node(leaf, where="cond: operands") for leaf in leaves]
    since = newest()
    pairs = [(node, inside(node.type)) for node in given]
    made, structures = [], []
    for function in (on_true, on_false):
        found, nesting = trees.flatten(function(*structure.rebuild([p for _, p in pairs])))
        structures.append(nesting)
        made.append([as_node(leaf, where="cond: what a function returns") for leaf in found])
    expect_equal_types(structures, made)
    chosen = choose(as_node(predicate, where="cond: predicate"), pairs, made, since)
    return structures[0].rebuild(chosen)


def expect_equal_types(structures: Sequence[trees.Structure], made: Sequence[list[Node]]) -> None:
    """Raise unless both functions of a choice returned the same structure of the same types."""
    if structures[0] != structures[1]:
        structures[0].match(structures[1].rebuild(made[1]), "cond: what on_false returns")
    for path, one, other in zip(structures[0].paths("result"), *made, strict=True):
        if one.type != other.type:
            raise (DTypeError if one.dtype != other.dtype else ShapeError)(
                f"cond: expected both functions to return {path} of one type; got {one.type} "
                f"(made at {one.site}) and {other.type} (made at {other.site}). Cast or "
                "reshape one."
            )


__all__ = ["COND", "SCAN", "Control", "cond", "expect_agreement"]
