# SPDX-License-Identifier: Apache-2.0
"""The INTERPRETER device: ops computed in NumPy by `Op.reference`, variables as NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from ... import _core
from ...comm import Group
from ...dtypes import Array, DType
from ...graph.graph import Graph, bodies_of
from ...graph.node import Node
from ...graph.variable import Variable
from ...ops.collectives.reductions import Collective
from ...passes import Plan, lower_precision
from ...passes.collective_order import check_root, collectives_in_order, is_message
from ..collective_sequence import CollectiveSequence, open_groups
from ..device import Lowered
from ..executable import CompiledStep, StepGraph
from ..explanation import explain_reference
from . import evaluate as reference


class HostStorage:
    """The value of a variable as a NumPy array, which is never changed in place."""

    kept_by = None

    def __init__(self, variable: Variable, initial: Array) -> None:
        self.cell = variable.cell
        self.write(initial)

    def read(self) -> Array:
        """Return a copy of the value, or raise an error if the variable cannot be read now."""
        self.cell.check_readable()
        return self.value.copy()

    def view(self) -> Array:
        """Raise a TypeError: no array can show the value, because each update makes a new array."""
        raise TypeError("Variable.view: expected a variable of the CPU device; got INTERPRETER")

    def assigning(self) -> AbstractContextManager[Any]:
        """Return a context that does nothing."""
        return nullcontext()

    def refusal(self, value: Array) -> str | None:
        """Return None, because this device accepts every value."""
        return None

    def write(self, value: Array) -> None:
        """Replace the value."""
        self.value = value.copy()


class StepCollectives:
    """The collectives of a step, which run on NumPy arrays."""

    def __init__(self, graph: Graph, group: Group, precision: DType) -> None:
        self.rank, self.size = group.rank, group.size
        self.sequence = CollectiveSequence(group, graph, precision)
        self.communicates = bool(collectives_in_order(graph))
        self.branches: dict[Node, int] = {}
        """For each collective, the number of the branch of `ops.cond` that contains it.

        The branches that contain collectives of one group of ranks are numbered from 1. A
        collective outside of branches has 0."""
        self.note(graph, group)
        self.groups = open_groups(self.sequence.groups)
        self.identities = {
            (number, branch): _core.Sequence(text, hash, computes, branch, of.communicator)
            for number, ((text, hash, computes), of) in enumerate(
                zip(self.sequence.sequences(), self.groups, strict=True)
            )
            for branch in {0, *self.branches.values()}
            if hash
        }

    def note(self, graph: Graph, group: Group) -> None:
        """Add the collectives of a graph and of its loops and branches to the step's sequence."""
        for node in collectives_in_order(graph):
            name, attrs = node.op.lower(**node.attrs)
            for body in self.sequence.inside(name, attrs, node.site, bodies_of(node)):
                self.note(body, group)
            ranks = node.attrs.get("group")
            check_root(node, (ranks or group).rank, (ranks or group).size)
            if node.op.comm.is_collective and (ranks or group).size > 1:
                attrs, number = submission(node), self.sequence.number(ranks)
                kind = kind_of(node)
                self.branches[node] = self.sequence.add(kind, attrs, node.type, number, node.site)

    def start(self, node: Node, operand: Array) -> Callable[[], Array]:
        """Start a collective. Return a function that waits for its result and returns it."""
        number = self.sequence.number(node.attrs.get("group"))
        group, kind, attrs = self.groups[number], kind_of(node), submission(node)
        result: Array = np.zeros(node.shape, node.dtype)
        group.check_open(kind)
        call = _core.Call.on_array(
            group.communicator,
            kind,
            attrs.pop("reduce_op", "none"),
            operand,
            result,
            attrs.pop("count", operand.size),
            attrs.pop("root", 0),
            site=node.site,
            sequence=None if is_message(node) else self.identities[number, self.branches[node]],
            **attrs,
        )
        call.start()

        def finish() -> Array:
            call.finish(group.timeout)
            return result

        return finish

    def collectives_scope(self) -> _core.AbortOnError:
        """Return a context for a run. An exception in it closes the groups of the step."""
        groups = self.groups if self.communicates else []
        return _core.AbortOnError([g.communicator for g in groups], [g.abort for g in groups], True)


def kind_of(node: Node) -> str:
    """Return the name that the C++ communicator uses for the collective of a node."""
    assert isinstance(node.op, Collective)
    return node.op.kind.wire


def submission(node: Node) -> dict[str, Any]:
    """Return keyword arguments for the C++ communicator, which runs the collective of a node.

    They are computed from the attributes of the node. An example is `root`, the rank that sends in
    a broadcast.
    """
    assert isinstance(node.op, Collective)
    return node.op.submission(node.inputs[0].type, **node.attrs)


class InterpreterAgreement(NamedTuple):
    """The result of InterpreterDevice.agree. `target` is None, because no program is compiled.

    On other devices, the target is the object that gives passes the kernels of the device.
    """

    target: None = None


class InterpreterDevice:
    """The device that computes each op in NumPy. Each rank has its own copy of each variable."""

    name = "INTERPRETER"

    def compiling(self, group: Group) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def agree(self, source: StepGraph) -> InterpreterAgreement:
        """Return an empty agreement. No variable is shared, so the ranks do not communicate."""
        return InterpreterAgreement()

    def load(
        self,
        source: StepGraph,
        agreement: InterpreterAgreement,
        lowered: Lowered | None,
        plan_again: Callable[[], Plan],
    ) -> InterpreterExecutable:
        """Return a step that evaluates the graph."""
        return InterpreterExecutable(source)


class InterpreterExecutable(CompiledStep):
    """A step that computes each op in NumPy, by `Op.reference`."""

    device = "INTERPRETER"

    def __init__(self, source: StepGraph) -> None:
        super().__init__(source)
        graph, options = source.graph, source.options
        graph.verify()
        if options.has_low_precision:
            graph = lower_precision(graph, None, options)
        self.evaluated = graph
        """The graph that is evaluated. For a 16-bit precision, casts have been added to it."""
        self.precision = options.precision
        self.ranks = StepCollectives(graph, source.group, self.precision)
        self.sequence = self.ranks.sequence
        self.variables_touched = False
        self.storages: dict[Variable, HostStorage] = {}
        for variable in self.variables:
            storage = variable.storage(self.device, HostStorage)
            assert isinstance(storage, HostStorage)
            self.storages[variable] = storage

    def __call__(self, *arrays: Any, out: Sequence[Any] | None = None, **named: Any) -> list[Any]:
        """Run the step once."""
        inputs = self.prepare(arrays, named)
        outputs = self.results(out, inputs)
        self.variables_touched = False
        self.hold.run(self, inputs, outputs)
        return outputs if out is None else list(out)

    def run(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Run the step once. The caller, `hold.run`, holds (locks) the step's variables."""
        values: dict[Node, Array] = {v: s.value for v, s in self.storages.items()}
        with self.ranks.collectives_scope():
            results, updates = reference.evaluate(self.evaluated, inputs, values, self.ranks)
            for destination, result in zip(outputs, results, strict=True):
                destination[...] = result
            self.variables_touched = bool(updates)
            for variable, value in zip(self.written, updates, strict=True):
                self.storages[variable].write(value)

    def checksum(self, variable: Node) -> tuple[int, int] | None:
        """Return a checksum of a variable that the step holds (locks)."""
        assert isinstance(variable, Variable)
        return _core.checksum(self.storages[variable].value)

    def __str__(self) -> str:
        return self.evaluated.text(self.precision)

    def explain(self, node: Node) -> str:
        """Return a text that shows how a node is computed."""
        return explain_reference(self, node)
