# SPDX-License-Identifier: Apache-2.0
"""The body of a fused kernel: its statements, and the values that are stored or reduced.

A *statement* applies an elementwise operation to inputs of the kernel, to values of earlier
statements, or to literals. The *body* is data: passes change it by its methods. Its text, which the
C++ kernel parses (src/cpp/kernels/fused), is written when the instruction is lowered. The form of
the text is `op:dtype operand operand;...`, where iN is input N, tN the value of statement N, and #x
a literal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple

from ...dtypes import SHORT_NAMES, DType, Shape, Type, float32
from ...graph.node import Node, Op
from ...ops._casting import cast


class Operand:
    """A value that a statement reads. Two operands with equal classes and numbers are equal."""

    __slots__ = ("number", "text")
    prefix: ClassVar[str]
    number: float
    text: str
    """The operand as it is written in the text of the kernel, such as "i0" or "t3"."""

    def __init__(self, number: float) -> None:
        self.number = number
        self.text = f"{self.prefix}{number!r}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operand) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.number!r})"


class Input(Operand):
    """An input of the kernel, by its number."""

    __slots__ = ()
    prefix = "i"
    number: int


class Value(Operand):
    """The value of an earlier statement, by its number."""

    __slots__ = ()
    prefix = "t"
    number: int


class Literal(Operand):
    """A constant number, written in the text of the kernel. It is the same for all elements."""

    __slots__ = ()
    prefix = "#"


input_at = cache(Input)
"""Return the `Input` with a given number. All calls with one number return the same object, because
passes make very many calls."""
value_at = cache(Value)
"""Return the `Value` with a given number. All calls with one number return the same object."""


class Statement(NamedTuple):
    """One elementwise operation."""

    opcode: str
    domain: str
    """The dtype of the operands, such as "f32". If the result of the statement has another dtype,
    both dtypes: "f32>bf16" has float32 operands and a bfloat16 result."""
    operands: tuple[Operand, ...]

    def __str__(self) -> str:
        return text_of((self,))

    def with_operands(self, operands: Iterable[Operand]) -> Statement:
        """Return the statement with other operands."""
        return Statement(self.opcode, self.domain, tuple(operands))


def text_of(statements: Iterable[Statement]) -> str:
    """Return the statements as the text that the C++ kernel parses."""
    lines = [
        f"{opcode}:{domain} {' '.join([x.text for x in operands])}"
        for opcode, domain, operands in statements
    ]
    return ";".join(lines)


def cast_statement(operand: Operand, source: DType, result: DType) -> Statement:
    """Return a statement that converts an operand."""
    return Statement(cast.name, f"{SHORT_NAMES[source]}>{SHORT_NAMES[result]}", (operand,))


class Reductions(NamedTuple):
    """The reductions of a kernel, all over the same axes of its shape."""

    shape: Shape
    axes: tuple[int, ...]
    statements: tuple[int, ...]
    """For each reduction: the index in `KernelBody.statements` of the value that it reduces."""
    kinds: tuple[str, ...]
    """The operation of each reduction: "sum", "max", ..."""


class Products(NamedTuple):
    """The matmuls that a kernel computes block by block, so their results are not in memory."""

    numbers: tuple[int, ...]
    """The numbers of the inputs that are results of matmuls. In the statements, input 2 is `i2`."""
    shape: Shape
    attrs: tuple[tuple[str, Any], ...]
    """The attributes of the C++ matmul kernel, which are equal for all matmuls in `numbers`."""


@dataclass(frozen=True)
class KernelBody:
    """The computation of a kernel: statements, stored results, reductions, and matmuls.

    The body also has the strides of the inputs. `reductions` and `products` (the matmuls) are None
    if the kernel has none.
    """

    statements: tuple[Statement, ...]
    stored: tuple[int, ...]
    """The indices in `statements` of the values that the kernel writes to memory."""
    input_strides: tuple[int, ...]
    """The strides of each input in elements, one input after the other."""
    reductions: Reductions | None = None
    products: Products | None = None

    @property
    def reduced(self) -> tuple[int, ...]:
        """For each reduction: the index in `statements` of the value that it reduces."""
        return () if self.reductions is None else self.reductions.statements

    def cast_inputs(self, numbers: Sequence[int], dtype: DType) -> KernelBody:
        """Return a body that first casts some inputs from `dtype` to float32.

        `numbers` has the numbers of these inputs.
        """
        inputs = [input_at(number) for number in numbers]
        casts = [cast_statement(each, dtype, float32) for each in inputs]
        return self.prepend(casts, {each: value_at(k) for k, each in enumerate(inputs)})

    def prepend(
        self, statements: Sequence[Statement], replacements: Mapping[Input, Value] | None = None
    ) -> KernelBody:
        """Return the body with other statements before its own.

        `replacements` maps inputs to values of the added statements. The body's own statements
        read these values instead of the inputs.
        """
        if not statements:
            return self
        shift, inputs = len(statements), replacements or {}

        def renumber(operand: Operand) -> Operand:
            if isinstance(operand, Value):
                return value_at(operand.number + shift)
            return inputs.get(operand, operand) if isinstance(operand, Input) else operand

        own = [s.with_operands(map(renumber, s.operands)) for s in self.statements]
        return self.with_statements((*statements, *own), range(shift, shift + len(own)))

    def cast_result(self, number: int, dtype: DType, *, keeps_wide: bool) -> KernelBody:
        """Return a body that casts a float32 result to `dtype`, and stores the cast result.

        `number` is the index of the float32 result in `stored`. If `keeps_wide` is True, this
        result is still stored, and the cast result is appended as the last result. If False, the
        cast result replaces the float32 result.
        """
        cast = cast_statement(value_at(self.stored[number]), float32, dtype)
        narrow, stored = len(self.statements), [*self.stored]
        if keeps_wide:
            stored.append(narrow)
        else:
            stored[number] = narrow
        return replace(self, statements=(*self.statements, cast), stored=tuple(stored))

    def keep_results(self, numbers: Sequence[int]) -> KernelBody:
        """Return a body that stores only the results with these numbers.

        Statements that neither these results nor the reductions need are removed.
        """
        stored = tuple(self.stored[number] for number in numbers)
        used = {*stored, *self.reduced}
        for number in range(len(self.statements) - 1, -1, -1):
            if number in used:
                operands = self.statements[number].operands
                used.update(x.number for x in operands if isinstance(x, Value))
        new = {old: number for number, old in enumerate(sorted(used))}

        def renumber(operand: Operand) -> Operand:
            return value_at(new[operand.number]) if isinstance(operand, Value) else operand

        remaining = [self.statements[old] for old in new]
        statements = tuple([s.with_operands(map(renumber, s.operands)) for s in remaining])
        return replace(self, stored=stored).with_statements(statements, new)

    def with_statements(
        self, statements: tuple[Statement, ...], numbers: Mapping[int, int] | Sequence[int]
    ) -> KernelBody:
        """Return the body with `statements` instead of its own.

        `numbers` maps old numbers of statements to new numbers. It has at least the statements
        whose values are stored or reduced.
        """
        reductions = self.reductions
        if reductions is not None:
            new_numbers = tuple(numbers[number] for number in reductions.statements)
            reductions = reductions._replace(statements=new_numbers)
        stored = tuple([numbers[number] for number in self.stored])
        return KernelBody(statements, stored, self.input_strides, reductions, self.products)

    @property
    def text(self) -> str:
        """The statements as the text that the C++ kernel parses."""
        return text_of(self.statements)

    @property
    def lowered(self) -> dict[str, Any]:
        """The attributes of the C++ kernel (`kernel_attrs`), computed once and kept."""
        # Not functools.cached_property, which takes a lock in Python 3.11.
        made: dict[str, Any] | None = self.__dict__.get("lowered_attrs")
        if made is None:
            made = self.__dict__["lowered_attrs"] = self.kernel_attrs()
        return made

    def kernel_attrs(self) -> dict[str, Any]:
        """Return the attributes of the C++ kernel as a dict from names to values."""
        attrs: dict[str, Any] = {} if self.products is None else dict(self.products.attrs)
        attrs["program"], attrs["results"] = self.text, self.stored
        attrs["input_strides"] = self.input_strides
        if (reductions := self.reductions) is not None:
            attrs["shape"], attrs["axes"] = reductions.shape, reductions.axes
            attrs["reduced"], attrs["reductions"] = reductions.statements, reductions.kinds
        if self.products is not None:
            attrs["products"] = self.products.numbers
            attrs["product_shape"] = self.products.shape
        return attrs


class FusedKernel(Op):
    """A kernel of elementwise ops, which may also compute reductions and matmuls.

    The elementwise ops read the results of the matmuls. The reductions reduce results or operands
    of the elementwise ops.

    A node of this op has one attribute: `body`, its `KernelBody`.

    `keeps_float32` is a property of the op. It has True for each stored result that mixed precision
    must not store as a 16-bit float (ngd.full_precision), and False for each other stored result.
    An empty tuple means False for all results.
    """

    def __init__(
        self,
        body: KernelBody,
        types: tuple[Type, ...],
        members: tuple[tuple[str, str], ...],
        keeps_float32: tuple[bool, ...] = (),
        products: tuple[Node, ...] = (),
    ) -> None:
        self.name = kernel_name(body)  # type: ignore[misc]
        self.types, self.members, self.keeps_float32, self.products = (
            types,
            members,
            keeps_float32,
            products,
        )
        self.is_elementwise = body.reductions is None and body.products is None

    def infer(self, *inputs: Type, **attrs: Any) -> Type | tuple[Type, ...]:
        """Return the types of the stored results, then those of the reductions."""
        return self.types if len(self.types) > 1 else self.types[0]

    def lower(self, **attrs: Any) -> tuple[str, dict[str, Any]]:
        """Return the name and the attributes of the C++ kernel."""
        return self.name, attrs["body"].lowered

    def printed_attrs(self, attrs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the attributes that a printed graph shows: the attributes of the C++ kernel."""
        lowered: Mapping[str, Any] = attrs["body"].lowered
        return lowered

    def fused_ops(self, node: Node) -> tuple[tuple[str, str], ...]:
        """Return the names of the ops that the kernel computes, each with its call site."""
        return self.members


def kernel_name(body: KernelBody) -> str:
    """Return the name of the C++ kernel that computes a body."""
    if body.products is not None:
        return "elementwise_product"
    return "elementwise" if body.reductions is None else "elementwise_reduce"


def fused_node(
    inputs: Sequence[Node],
    body: KernelBody,
    types: Sequence[Type],
    members: tuple[tuple[str, str], ...],
    keeps_float32: tuple[bool, ...] = (),
    products: tuple[Node, ...] = (),
) -> Node:
    """Make a fused kernel that computes `body`, and return the node of its first result.

    `types` has the types of the results. `members` has the name and call site of each op that the
    kernel computes, and `products` has the matmuls among these ops.
    """
    op = FusedKernel(body, tuple(types), members, keeps_float32, products)
    return op.node(inputs, {"body": body})


def body_of(node: Node) -> KernelBody:
    """Return the body of a node whose op is a FusedKernel."""
    body: KernelBody = node.attrs["body"]
    return body


def is_elementwise_kernel(node: Node) -> bool:
    """Return whether a node is a fused kernel that computes neither reductions nor matmuls."""
    return isinstance(node.op, FusedKernel) and node.op.is_elementwise


def shape_of(node: Node) -> Shape:
    """Return the shape over which a kernel computes: that of the values that it reduces.

    For a kernel without reductions, this is the shape of the node.
    """
    if isinstance(node.op, FusedKernel) and (reductions := body_of(node).reductions) is not None:
        return reductions.shape
    return node.shape
