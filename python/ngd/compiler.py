# SPDX-License-Identifier: Apache-2.0
"""Compilation: a graph becomes something that can be called."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from . import _core, arguments, config, distributed, passes, reference
from .collectives import Group, compare_ranks
from .dtype import SHORT_NAMES, has_mask
from .errors import CompileError, ShapeError
from .ir import PLACEHOLDER, Array, Graph, Node, Type
from .local import BoundToProcess
from .ops.collective import WORLD, Collective, Ranks, expect_member
from .passes.collectives import check_root, in_order
from .passes.plan_memory import Plan
from .sites import call_site
from .variable import Variable

WORLD.join = distributed.init


class Executable(Protocol):
    """A compiled step: call it with arrays by position."""

    graph: Graph
    """The graph as it was given."""

    def __call__(
        self, *arrays: Any, out: Sequence[Array] | None = None, **named: Any
    ) -> list[Array]:
        """Run once, on arrays by position or by the placeholders' names; see ngd.compile."""
        ...

    def memory(self) -> dict[str, int]:
        """Bytes: what is planned, and what it would be without sharing."""
        ...

    def compare_ranks(self) -> str:
        """Compare the collectives that the ranks will call; every rank calls this.

        Returns
        -------
        str
            For each group that the step talks in: that all agree, or the first difference, with
            both call sites; and whether what they compute differs, which it may by right. The same
            on all ranks of a group.
        """
        ...


class CpuStorage:
    """A variable's value in the CPU device's memory."""

    def __init__(self, variable: Variable, initial: Array) -> None:
        self.type, self.cell = variable.type, variable.cell
        self.buffer = _core.Buffer(self.type.bytes)
        self.write(initial)

    def read(self) -> Array:
        """A copy of the value, where the variable may be read now."""
        value: Array = np.empty(self.type.shape, self.type.dtype)
        self.buffer.read(value, self.cell)
        return value

    def write(self, value: Array) -> None:
        """Replace the value."""
        self.buffer.write(value)


class HostStorage:
    """A variable's value as a NumPy array, which never changes: the INTERPRETER's."""

    def __init__(self, variable: Variable, initial: Array) -> None:
        self.cell = variable.cell
        self.write(initial)

    def read(self) -> Array:
        """A copy of the value, where the variable may be read now."""
        self.cell.check_readable()
        return self.value.copy()

    def write(self, value: Array) -> None:
        """Replace the value."""
        self.value = value.copy()


class CpuTarget:
    """What the passes may ask of the CPU device and the group."""

    def __init__(self, group: Group) -> None:
        self.rank, self.size = group.rank, group.size
        self.verdicts: dict[Any, passes.Verdict] = {}

    def query(
        self, op: str, inputs: Sequence[Type], outputs: Sequence[Type], attrs: Mapping[str, Any]
    ) -> passes.Verdict:
        """Ask the kernel table, once a question."""
        key = (op, *inputs, None, *outputs, *[(k, type(v), v) for k, v in attrs.items()])
        verdict = self.verdicts.get(key)
        if verdict is None:
            name, reasons, _, in_place = _core.query_kernel(
                op, [spec(t) for t in inputs], [spec(t) for t in outputs], native_attrs(attrs)
            )
            verdict = passes.Verdict(name is not None, name or reasons, frozenset(in_place))
            self.verdicts[key] = verdict
        return verdict

    def first_fit(self, lives: list[tuple[int, int, int]]) -> list[int]:
        """Place blocks in an arena: one walk in C++."""
        return _core.first_fit(lives)


NAMES: Final = {dtype: dtype.name for dtype in SHORT_NAMES}


def spec(type: Type) -> tuple[str, tuple[int, ...]]:
    """A type as the compiled part takes it."""
    return NAMES[type.dtype], type.shape


def native_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as the compiled part takes them: dtypes by name, None left out."""
    return {
        key: value.name if isinstance(value, np.dtype) else value
        for key, value in attrs.items()
        if value is not None
    }


class _Base(BoundToProcess):
    """What all executables share: the signature and its checks."""

    instead = "copy its nodes and variables, and compile those"
    device: str
    ordering: Ordering

    def __init__(self, graph: Graph, group: Group) -> None:
        self.graph, self.group = graph, group
        self.input_types = [n.type for n in graph.inputs]
        self.output_types = [n.type for n in graph.outputs]
        self.variables = [v for v in graph.variables if isinstance(v, Variable)]
        self.written = [v for v, _ in graph.updates if isinstance(v, Variable)]
        written = {v.id for v in self.written}
        self.hold = _core.Hold(
            [v.cell for v in self.variables if v.id not in written],
            [v.cell for v in self.written],
            self.device,
        )

    def prepare(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> list[Array]:
        """The arguments as contiguous arrays of exactly the inputs' types."""
        if named or len(arrays) != len(self.input_types):
            arrays = arguments.in_order(self.graph.inputs, arrays, named)
        return [
            a
            if type(a) is np.ndarray
            and a.dtype == t.dtype
            and a.shape == t.shape
            and a.flags.c_contiguous
            else self.convert(i, a)
            for i, (a, t) in enumerate(zip(arrays, self.input_types, strict=True))
        ]

    def convert(self, number: int, value: Any) -> Array:
        """One argument made to fit."""
        where = f"Executable: input {number} ({self.graph.inputs[number].attrs['name']!r})"
        return arguments.convert(value, self.input_types[number], where)

    def results(self, out: Sequence[Array] | None, inputs: list[Array]) -> list[Array]:
        """Fresh arrays for the outputs, or the caller's, checked: they overlap nothing."""
        if out is None:
            return [np.empty(t.shape, t.dtype) for t in self.output_types]
        if len(out) != len(self.output_types):
            raise TypeError(
                f"Executable: expected {len(self.output_types)} arrays in out; got {len(out)}"
            )
        for i, (array, wanted) in enumerate(zip(out, self.output_types, strict=True)):
            good = (
                isinstance(array, np.ndarray)
                and not has_mask(array)
                and array.dtype == wanted.dtype
                and array.shape == wanted.shape
                and array.flags.c_contiguous
                and array.flags.writeable
            )
            if not good:
                raise ShapeError(
                    f"Executable: out[{i}]: expected a contiguous, writable array {wanted}"
                )
            others = (*inputs, *out[:i])
            if any(np.may_share_memory(array, other) for other in others):
                raise ValueError(f"Executable: out[{i}] overlaps an input or another output")
        return list(out)

    def memory(self) -> dict[str, int]:
        """Bytes of the variables; a device with a planner adds its arenas."""
        return {"variables": sum(v.type.bytes for v in self.variables)}

    def compare_ranks(self) -> str:
        """See Executable."""
        site = call_site()
        answers = [
            compare_ranks(group, text, computation, site)
            for group, (text, _, computation) in zip(
                opened(self.ordering.groups), self.ordering.sequences(), strict=True
            )
        ]
        return "\n".join(answers)


class CpuExecutable(_Base):
    """A step on the CPU device: one call into C++, without the GIL."""

    device = "CPU"

    def __init__(self, graph: Graph, group: Group) -> None:
        super().__init__(graph, group)
        self.plan = passes.run(graph, CpuTarget(group))
        builder, self.ordering = emit(self.plan, graph, group)
        buffers = []
        for variable in self.variables:
            storage = variable.storage(self.device, CpuStorage)
            assert isinstance(storage, CpuStorage)
            buffers.append(storage.buffer)
        self.program = str(builder)
        communicators = [g.communicator for g in opened(self.ordering.groups)]
        self.native = _core.Executable(builder, communicators, buffers)

    def __call__(
        self, *arrays: Any, out: Sequence[Array] | None = None, **named: Any
    ) -> list[Array]:
        """Run once."""
        inputs = self.prepare(arrays, named)
        outputs = self.results(out, inputs)
        self.hold.run(self.native, inputs, outputs)
        return outputs

    def memory(self) -> dict[str, int]:
        """Bytes: variables; the arenas private and shared; unshared, what they would be apart."""
        return super().memory() | {
            "private": self.plan.private_bytes,
            "shared": self.plan.shared_bytes,
            "unshared": self.plan.unshared_bytes,
        }

    def __str__(self) -> str:
        return self.program


class Ordering:
    """The groups that a step talks in, and what each is told of the sequence of its collectives.

    Number 0 is the executable's own group, the others are counted in the order of their first
    collective. What goes between two ranks is part of no sequence. With the sequence each is told
    which step it is and what that computes: others may call the same collectives.
    """

    def __init__(self, group: Ranks, graph: Graph) -> None:
        self.graph, self.site = graph, call_site()
        self.groups: list[Ranks] = [group]
        self.lines: list[list[tuple[str, str]]] = [[]]

    def number(self, group: Ranks | None) -> int:
        """The number of a group; None is the executable's."""
        if group is None:
            return 0
        if group not in self.groups:
            self.groups.append(group)
            self.lines.append([])
        return self.groups.index(group)

    def add(self, kind: str, attrs: Mapping[str, Any], type: Type, number: int, site: str) -> None:
        """Note one more collective of a group."""
        if kind not in ("send", "recv"):
            self.lines[number].append((collective_line(kind, attrs, type), site))

    def sequences(self) -> list[tuple[str, int, int]]:
        """Of each group the text, its hash, and the number of what the step computes."""
        computes = passes.computation(self.graph) if any(self.lines) else 0
        which = f"\n\n{described(self.graph)}, compiled at {self.site}"
        digests = map(digest, self.lines)
        return [(text + which, hash, computes) if hash else ("", 0, 0) for text, hash in digests]


def collective_line(kind: str, attrs: Mapping[str, Any], type: Type) -> str:
    """One collective as messages between ranks show and compare it: what is equal on all ranks."""
    local = {"algorithm", "receive_counts", "counts" if "receive_counts" in attrs else "algorithm"}
    shown = "".join(f" {k}={v}" for k, v in sorted(attrs.items()) if k not in local)
    return f"{kind}{shown} {SHORT_NAMES[type.dtype] if 'counts' in attrs else type}"


def described(graph: Graph) -> str:
    """A step in a few words: what it returns and updates."""
    outputs = [f"{n.op.name} {n.type}" for n in graph.outputs]
    updates = [str(v.attrs["name"]) for v, _ in graph.updates]
    parts = [("outputs", outputs), ("updates", updates)]
    few = (f"{name} {', '.join(v[:3])}{', ...' if len(v) > 3 else ''}" for name, v in parts if v)
    return f"the step with {' and '.join(few) or 'no output'}"


def digest(sequence: list[tuple[str, str]]) -> tuple[str, int]:
    """The text of a sequence with its call sites, and the hash of it without them; 0 = nothing."""
    text = "\n".join(f"{what} at {site}" for what, site in sequence)
    hashed = hashlib.sha256("\n".join(what for what, _ in sequence).encode()).digest()
    return text, (int.from_bytes(hashed[:8], "little") or 1) if sequence else 0


def opened(groups: Sequence[Ranks]) -> list[Group]:
    """The groups of a step that is to run: real ones that were not shut down."""
    for group in groups:
        if not isinstance(group, Group):
            raise TypeError(f"compile: expected groups made by ngd; got {group!r}")
        group.check_open()
    return [g for g in groups if isinstance(g, Group)]


class Conversation:
    """A step's collectives on arrays: the INTERPRETER's."""

    def __init__(self, graph: Graph, group: Group) -> None:
        self.rank, self.size = group.rank, group.size
        self.ordering = Ordering(group, graph)
        self.nodes = in_order(graph)
        for node in self.nodes:
            ranks = node.attrs.get("group")
            check_root(node, ranks or group)
            if (ranks or group).size > 1:
                attrs, number = submission(node), self.ordering.number(ranks)
                self.ordering.add(kind_of(node), attrs, node.type, number, node.site)
        self.groups = opened(self.ordering.groups)
        self.identities = [
            _core.Sequence(*sequence, of.communicator) if sequence[1] else None
            for sequence, of in zip(self.ordering.sequences(), self.groups, strict=True)
        ]

    def start(self, node: Node, operand: Array) -> Callable[[], Array]:
        """Start one; what is returned waits for its result."""
        number = self.ordering.number(node.attrs.get("group"))
        group, kind, attrs = self.groups[number], kind_of(node), submission(node)
        result: Array = np.zeros(node.shape, node.dtype)
        group.check_open()
        pending = _core.Pending.one(
            group.communicator,
            kind,
            attrs.pop("reduce_op", "none"),
            operand,
            result,
            attrs.pop("count", operand.size),
            attrs.pop("root", 0),
            site=node.site,
            sequence=None if kind in ("send", "recv") else self.identities[number],
            **attrs,
        )
        _core.start([pending])

        def finish() -> Array:
            pending.finish(group.timeout)
            return result

        return finish

    def under_way(self) -> _core.UnderWay:
        """A context for a run of the step: an exception in it closes the groups it talks in."""
        groups = self.groups if self.nodes else []
        return _core.UnderWay([g.communicator for g in groups], [g.abort for g in groups], True)


def kind_of(node: Node) -> str:
    """What the communicator calls a collective."""
    assert isinstance(node.op, Collective)
    return node.op.kind


def submission(node: Node) -> dict[str, Any]:
    """What the communicator is told of a collective beside its operand."""
    assert isinstance(node.op, Collective)
    return node.op.submission(node.inputs[0].type, **node.attrs)


class InterpreterExecutable(_Base):
    """A step by the ops' NumPy references."""

    device = "INTERPRETER"

    def __init__(self, graph: Graph, group: Group) -> None:
        super().__init__(graph, group)
        graph.verify()
        self.ranks = Conversation(graph, group)
        self.ordering = self.ranks.ordering
        self.variables_touched = False
        self.storages: dict[Variable, HostStorage] = {}
        for variable in self.variables:
            storage = variable.storage(self.device, HostStorage)
            assert isinstance(storage, HostStorage)
            self.storages[variable] = storage

    def __call__(
        self, *arrays: Any, out: Sequence[Array] | None = None, **named: Any
    ) -> list[Array]:
        """Run once."""
        inputs = self.prepare(arrays, named)
        outputs = self.results(out, inputs)
        self.variables_touched = False
        self.hold.run(self, inputs, outputs)
        return outputs

    def run(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Run once, while the variables are held."""
        values: dict[Node, Array] = {v: s.value for v, s in self.storages.items()}
        with self.ranks.under_way():
            results, updates = reference.evaluate(self.graph, inputs, values, self.ranks)
            for destination, result in zip(outputs, results, strict=True):
                destination[...] = result
            self.variables_touched = bool(updates)
            for variable, value in zip(self.written, updates, strict=True):
                self.storages[variable].write(value)

    def __str__(self) -> str:
        return str(self.graph)


class NullExecutable(_Base):
    """A step that was compiled for the CPU's kernels and cannot be called: the compiler alone."""

    device = "NULL"

    def __init__(self, graph: Graph, group: Group) -> None:
        super().__init__(graph, group)
        self.plan = passes.run(graph, CpuTarget(group))
        builder, self.ordering = emit(self.plan, graph, group)
        self.program = str(builder)

    def __call__(
        self, *arrays: Any, out: Sequence[Array] | None = None, **named: Any
    ) -> list[Array]:
        """Refuse."""
        raise CompileError("Executable: the NULL device compiles only; use CPU or INTERPRETER")

    def __str__(self) -> str:
        return self.program


DEVICES: Final[dict[str, type[CpuExecutable | InterpreterExecutable | NullExecutable]]] = {
    "CPU": CpuExecutable,
    "INTERPRETER": InterpreterExecutable,
    "NULL": NullExecutable,
}


def emit(plan: Plan, graph: Graph, group: Ranks) -> tuple[_core.ProgramBuilder, Ordering]:
    """Write a plan down as a Program; the groups that it talks in by their numbers."""
    builder = _core.ProgramBuilder()
    builder.set_sizes(len(graph.inputs), len(graph.outputs), len(plan.variables))
    builder.set_arenas(plan.private_bytes, plan.shared_bytes)
    for constant in plan.constants:
        builder.add_constant(constant.tobytes())
    numbers: dict[Any, int] = {}
    ordering = Ordering(group, graph)

    def value(typed: tuple[Type, Any]) -> int:
        type_, storage = typed
        key = (type_, storage.address)
        if key not in numbers:
            numbers[key] = builder.add_value(*spec(type_), *storage.address)
        return numbers[key]

    for step in plan.steps:
        ranks = ordering.number(step.group)
        if step.action == "start":
            ordering.add(step.op, step.attrs, step.outputs[0][0], ranks, step.site)
        builder.add_instruction(
            step.action,
            step.op,
            [value(i) for i in step.inputs],
            [value(o) for o in step.outputs],
            native_attrs(step.attrs),
            step.start,
            ranks,
            step.site,
        )
    for text, hash, computation in ordering.sequences():
        builder.add_group(text, hash, computation)
    return builder, ordering


_cache: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()


def compile(
    inputs: Sequence[Node],
    outputs: Sequence[Node],
    updates: Mapping[Variable, Node] | None = None,
    *,
    device: str | None = None,
    group: Group | None = None,
) -> Executable:
    """Compile a step.

    Parameters
    ----------
    inputs
        Placeholders, in the order in which the step is called with arrays; by name is well too.
    outputs
        Nodes whose values a call returns, as a list of fresh arrays (or in `out=`).
    updates
        Variable -> the node of its next value. All reads of a step see the values before it.
    device
        "CPU" (C++ kernels), "INTERPRETER" (NumPy references) or "NULL" (compiles only); by default
        NGD_DEVICE, or CPU.
    group
        The ranks that the collectives without a group of their own run over; by default the world,
        which a graph with a collective initializes.

    Returns
    -------
    Executable
        Shapes are static: compile again for other ones. The same nodes, device and group give the
        same executable as long as it is alive.

    Raises
    ------
    CompileError
        The graph needs a placeholder that is not among the inputs, names two variables alike, or
        holds an op that the device cannot compute; the message has the node's file and line.
    """
    name = config.device(device, "compile")
    for argument, given in (("inputs", inputs), ("outputs", outputs)):
        if isinstance(given, (Node, str)) or not isinstance(given, Sequence):
            raise TypeError(f"compile: {argument}: expected a list of nodes; got {given!r}")
    if isinstance(group, Group):
        expect_member("compile", group)
    graph = Graph(tuple(inputs), tuple(outputs), sorted_updates(updates or {}))
    check_signature(graph)
    if group is None:
        needs = any(n.op.collective or n.op.name == "is_rank" for n in graph.nodes)
        group = distributed.init() if needs else distributed.alone()
    key = (signature(graph), name, group)
    executable = _cache.get(key)
    if executable is None:
        executable = _cache[key] = DEVICES[name](graph, group)
    return executable


def sorted_updates(updates: Mapping[Variable, Node]) -> tuple[tuple[Node, Node], ...]:
    """By name, so that the graph's order does not depend on the dictionary's."""
    if not isinstance(updates, Mapping):
        raise TypeError(f"compile: updates: expected {{variable: node}}; got {updates!r}")
    for variable, value in updates.items():
        if not isinstance(variable, Variable) or not isinstance(value, Node):
            raise TypeError(
                f"compile: updates: expected {{variable: node}}; got {variable!r}: {value!r}"
            )
    return tuple(sorted(updates.items(), key=lambda item: item[0].name))


def signature(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Which nodes a graph is made of, as a key: nodes themselves compare as values."""
    pairs = [node for pair in graph.updates for node in pair]
    return tuple(tuple(n.id for n in nodes) for nodes in (graph.inputs, graph.outputs, pairs))


def check_signature(graph: Graph) -> None:
    """Inputs must be placeholders and outputs nodes."""
    for node in graph.inputs:
        if not isinstance(node, Node) or node.op is not PLACEHOLDER:
            raise TypeError(f"compile: inputs: expected placeholders; got {node!r}")
    for node in graph.outputs:
        if not isinstance(node, Node):
            raise TypeError(f"compile: outputs: expected nodes; got {node!r}")
