# SPDX-License-Identifier: Apache-2.0
"""Graphs: inputs, outputs and updates of variables. Passes rewrite a graph to a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from .._util.callsite import REWRITES, at_site
from ..dtypes import SHORT_NAMES, DType, float32
from ..errors import CompileError
from .leaves import PLACEHOLDER, VARIABLE
from .node import Node, topological, types_of
from .precision_marks import KEEPS_FLOAT32, keep_float32
from .text import print_attrs, print_types
from .variable_names import sort_key, unique_names

Change: TypeAlias = Callable[[Node, tuple[Node, ...]], Node | tuple[Node, ...]]
"""A function for `Graph.rewrite`. It takes a node and its new inputs, and returns the node's
replacement; for an op with several results, a tuple of the replacements of all results."""


@dataclass(frozen=True, eq=False)
class Graph:
    """The input of the compiler: inputs in their order, outputs, and updates of variables.

    `updates` has pairs of a variable and its next value: the node whose value the variable gets at
    the end of a run. The pairs are sorted by the names of the variables, which are equal on all
    ranks. So all ranks visit the nodes in the same order, even if their scripts made the nodes in
    different orders.
    """

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    updates: tuple[tuple[Node, Node], ...] = ()

    @property
    def roots(self) -> tuple[Node, ...]:
        """The outputs, then the nodes whose values the variables get at the end of a run."""
        return (*self.outputs, *(value for _, value in self.updates))

    @cached_property
    def nodes(self) -> list[Node]:
        """All nodes, each after its inputs. Of the results of one op, only the first is listed."""
        return topological(self.roots)

    @cached_property
    def variables(self) -> list[Node]:
        """The variables that are read or written, sorted by name."""
        written = topological(v for v, _ in self.updates)  # `v` may be a view of a part
        variable_nodes = {n for n in (*self.nodes, *written) if n.op is VARIABLE}
        return sorted(variable_nodes, key=sort_key)

    @cached_property
    def names(self) -> dict[Node, str]:
        """A dict from each variable of the graph to its unique name.

        If variables of two models have the same name, the names of one model get a new prefix.
        Raises a CompileError if two variables of the same model have the same name, or if two
        variables without a model have the same name.
        """
        return unique_names(self.variables)

    def rewrite(self, change: Change, order: Iterable[Node] | None = None) -> Graph:
        """Return the graph with every node replaced by the result of change(node, inputs).

        `inputs` are the replacements of the node's inputs. The walk visits each node after its
        inputs. `order` has the nodes in the order of the walk; if it is None, this is the order of
        `nodes`.

        If an op has several results, `change` is called only with the first one. It returns a tuple
        with the replacement of each result. It may also return a single node, the first result of
        another op: then the results of that op, in order, are the replacements.
        """
        new: dict[Node, Node] = {}  # the changed nodes only
        with at_site("") as move_to, keep_float32(False):
            for node in self.nodes if order is None else order:
                move_to(node.site)
                KEEPS_FLOAT32.set(node.keeps_float32)
                inputs = node.inputs
                if not new.keys().isdisjoint(inputs):
                    inputs = tuple([new.get(i, i) for i in inputs])
                replacement = change(node, inputs)
                if replacement is node:
                    continue
                if node.has_several_results:
                    new.update(zip(node.results, results_of(replacement), strict=True))
                else:
                    new[node] = replacement  # type: ignore[assignment]
        if not new:
            return self
        if (record := REWRITES.get()) is not None:
            record.append(new)
        inputs, outputs = (tuple(new.get(n, n) for n in o) for o in (self.inputs, self.outputs))
        updates = tuple((v, new.get(value, value)) for v, value in self.updates)
        return Graph(inputs, outputs, updates)

    def verify(self) -> None:
        """Raise a CompileError for invalid leaves, or a node whose type is not what its op infers.

        `verify_leaves` checks the leaves: inputs, variables and updates.
        """
        self.verify_leaves()
        for node in self.nodes:
            if node.inputs:
                inferred = node.op.infer(*[n.type for n in node.inputs], **node.attrs)
                if inferred != types_of(node):
                    raise CompileError(
                        f"{node.op.name} at {node.site} has type {print_types(types_of(node))}, "
                        f"but infer returns {print_types(inferred)}"
                    )

    def verify_leaves(self) -> None:
        """Raise a CompileError if the inputs, variables or updates of the caller are invalid.

        The four errors are: an input is given twice, two variables have the same name, a
        placeholder that the graph reads is not an input, or an update gives a variable a value of
        another dtype or shape.
        """
        if len(set(self.inputs)) != len(self.inputs):
            labels = [str(node.attrs["name"]) for node in self.inputs]
            raise CompileError(
                f"compile: inputs: expected each placeholder once; got one twice among {labels}. "
                "Remove it."
            )
        _ = self.names  # raises if two variables have the same name
        for node in missing_inputs(self):
            raise CompileError(
                f"compile: inputs: expected placeholder {node.attrs['name']!r} (made at "
                f"{node.site}), which the outputs or updates need; got inputs without it. Add "
                "it to the inputs."
            )
        for variable, value in self.updates:
            if variable.type != value.type:
                raise CompileError(
                    f"compile: updates: expected {variable.type} as the next value of variable "
                    f"{variable.attrs.get('name')!r}; got {value.type} (made at {value.site}). "
                    "Reshape or cast it, for example by value.astype(variable.dtype)."
                )

    def __str__(self) -> str:
        return self.text()

    def text(self, precision: DType = float32) -> str:
        """Return the printed graph. Its first line names the precision if it is not float32."""
        values = [result for node in self.nodes for result in node.results]
        numbers = {value: f"%{i}" for i, value in enumerate(values)}
        given = ", ".join(f'"{n.attrs["name"]}": {n.type.short}' for n in self.inputs)
        width = "" if precision == float32 else f" in {SHORT_NAMES[precision]}"
        lines = [f"graph({given}){width}"]
        for node in self.nodes:
            made = ", ".join(numbers[r] for r in node.results)
            operands = ", ".join(numbers[i] for i in node.inputs)
            mark = "=" if node.uniform else "~"
            attrs = print_attrs(node.op.printed_attrs(node.attrs))
            applied = f"{node.op.name}({operands}){attrs}"
            types = ", ".join(result.type.short for result in node.results)
            lines.append(f"  {made} {mark} {applied} : {types}")
            for body in bodies_of(node):
                lines += [f"    {line}" for line in str(body).splitlines()]
        lines.append(f"  return {', '.join(numbers[n] for n in self.outputs)}")
        for variable, value in self.updates:
            (leaf,) = (n for n in topological((variable,)) if n.op is VARIABLE)
            lines.append(f'  update "{leaf.attrs["name"]}" <- {numbers[value]}')
        return "\n".join(lines)


def missing_inputs(graph: Graph) -> list[Node]:
    """Return the placeholders that a graph reads and that are not among its inputs."""
    given = set(graph.inputs)
    return [node for node in graph.nodes if node.op is PLACEHOLDER and node not in given]


@dataclass(frozen=True, eq=False)
class Body:
    """The graph of a loop body or of a branch, as an attribute of an op.

    The graph is closed: its nodes read no variable and no node from outside. Values from outside
    are inputs of the graph; constants may be part of it.
    """

    graph: Graph

    def __repr__(self) -> str:
        return f"<a body of {len(self.graph.nodes)} nodes>"


def bodies_of(node: Node) -> list[Graph]:
    """Return the graphs that the op of a node runs, in the order of their attributes' names."""
    attributes = sorted(node.attrs.items()) if node.op.kernel.control_flow else []
    return [value.graph for _, value in attributes if isinstance(value, Body)]


def communicates(node: Node) -> bool:
    """Return whether the op of this node is a collective, or a graph that it runs contains one."""
    if node.op.comm.is_collective:
        return True
    return any(communicates(n) for g in bodies_of(node) for n in g.nodes)


def results_of(made: Node | tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the replacements of one node as a tuple, one for each result of its op.

    `made` is the result of the function `change` of `Graph.rewrite`. If it is a single node,
    the replacements are the results of that node's op.
    """
    return made if isinstance(made, tuple) else made.results
