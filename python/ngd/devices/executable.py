# SPDX-License-Identifier: Apache-2.0
"""The interface of compiled steps, and the base class that checks their arguments and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, ClassVar, Protocol

import numpy as np

from .. import _core, metrics
from .._util.callsite import call_site
from .._util.process_local import BoundToProcess
from ..comm import Group, compare_ranks
from ..comm.checks import check_out
from ..dtypes import Array, DType
from ..errors import CompileError
from ..graph.cost import Cost
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.variable import Variable
from ..passes import CompileOptions, Plan, cost_of_graph
from ..passes.sharding.uniform import next_values
from ..profiling import Report
from . import arguments
from .collective_sequence import CollectiveSequence, open_groups
from .first_call import FirstCall, warn_of_varying


class Executable(Protocol):
    """A compiled step, which ngd.compile returns. Call it with arrays by position or by name.

    Examples
    --------
    >>> inputs = ngd.placeholder("inputs", (2, 3))
    >>> step = ngd.compile(inputs, ops.sum(inputs))
    >>> float(step(np.ones((2, 3), np.float32)))
    6.0
    """

    graph: Graph
    """The graph that was compiled, as it was before the passes."""

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Run the step once on arrays by position or by name.

        Parameters
        ----------
        *arrays : array_like
            The arguments, in the order of the inputs: NumPy arrays, DLPack tensors, buffers, or
            Python numbers and lists of them. An argument has the shape of its input, and is
            converted to the dtype of its input if that loses no value.
        out : structure of numpy.ndarray, optional
            Arrays to write the results to, in the structure of the outputs. They have the shapes
            and dtypes of the outputs, and overlap neither an argument nor one another. By default
            the step makes new arrays.
        **named : array_like
            Arguments by the names of their placeholders.

        Returns
        -------
        numpy.ndarray or structure of numpy.ndarray
            The results in the structure of the outputs; the arrays of `out` if it is given.

        Raises
        ------
        TypeError
            An argument is missing, or has a dtype that could lose values.
        ShapeError
            An argument has another shape than its input.
        BusyError
            Another thread runs this step, or a step that uses the same variables and updates some.

        Examples
        --------
        >>> x = ngd.placeholder("x", (2,), "float32")
        >>> step = ngd.compile(x, x * 2.0)
        >>> step([1.0, 2.0])
        array([2., 4.], dtype=float32)
        >>> step(x=np.zeros(2, np.float32))
        array([0., 0.], dtype=float32)
        """
        ...

    def memory(self) -> dict[str, int]:
        """Return the bytes of the step's memory.

        Returns
        -------
        dict from str to int
            "variables" is the full size of all variables of the step. "private" and "shared" count
            the memory of intermediate values: an arena of this rank, and one that the ranks of a
            host share. "unshared" is the size that both arenas would have if intermediate values
            reused no bytes. "recomputed" counts the bytes that kernels read and write because
            values are recomputed to stay below `memory_limit`. "sharded" is the full size of the
            variables of which each host keeps one copy. "apart" is the full size of the variables
            of which all hosts together keep one copy, so that each rank has only a part.
            "variables" includes "sharded" and "apart". Entries other than "variables" exist only on
            the CPU device.
        """
        ...

    def report(self) -> Report:
        """Return time, FLOP, bytes, layout and ops of each instruction.

        The times are those of the last block of ngd.profile() or ngd.timeline() with a run of the
        step. Outside of such a block nothing is measured. The first report with times in a process
        measures the machine's speed, which takes about a second. `print(report)` shows a table.
        `report.to_json()` and `report.to_html()` return all data of the report.

        Raises
        ------
        BusyError
            The step runs now, in another thread, and is timed.
        CompileError
            The device has no instructions: INTERPRETER.
        """
        ...

    def cost(self) -> Cost:
        """Return the FLOP of one run and the bytes that it reads and writes, after op fusion.

        A FLOP is one operation on one element, such as a multiplication, an addition, a comparison
        or an exponential. All iterations of a loop are counted. For `ops.cond`, only the branch
        with the most FLOP is counted.
        """
        ...

    def explain(self, node: Node) -> str:
        """Show how a node is computed: the instructions, their kernels and the fused ops.

        The call compiles the step once more, to follow the node through the compiler.

        Parameters
        ----------
        node : Node
            A node of the graph of the step.

        Returns
        -------
        str
            The type of the node and the line and layer that made it. Then, for each instruction
            that computes the node, its number in `report().rows`, the op, the kernel, the types of
            its operands and results, and the ops that it computes together.

        Raises
        ------
        ValueError
            The step does not compute the node.

        Examples
        --------
        >>> x = ngd.placeholder("x", (2, 3))
        >>> scaled = x * 2.0
        >>> step = ngd.compile(x, ops.exp(scaled))
        >>> print(step.explain(scaled).splitlines()[1])
        instruction 0: elementwise (kernel fused), f32[2,3] -> f32[2,3]
        """
        ...

    def compare_ranks(self) -> str:
        """Compare the collectives that the ranks will call. Every rank calls this.

        Returns
        -------
        str
            For each group of the step: that all ranks call the same collectives, or the first
            difference between two ranks, with the call site on each of them. If the collectives
            agree but the ranks compile different computations, which is allowed, the text names
            the first rank that differs from rank 0.
            All ranks of a group get the same text.
        """
        ...


class CountedHold(_core.Hold):
    """An object that holds (locks) a step's variables during a run, and counts the runs.

    The metrics (NGD_METRICS) report the number of successful runs and their time.
    """

    def __init__(
        self, read: list[_core.Cell], written: list[_core.Cell], device: str, tally: metrics.Tally
    ) -> None:
        super().__init__(read, written, device)
        self.tally = tally

    def run(self, step: Any, inputs: list[Array], outputs: list[Array]) -> None:
        """Run step.run(inputs, outputs), and count the run if it succeeds."""
        begin = perf_counter()
        super().run(step, inputs, outputs)
        self.tally.add(perf_counter() - begin)


def hold_of(read: list[_core.Cell], written: list[_core.Cell], device: str) -> _core.Hold:
    """Return the object that holds (locks) the variables of a step during each run of the step.

    During a run, a conflicting use of these variables in another thread raises a BusyError.
    """
    if not metrics.is_enabled():
        return _core.Hold(read, written, device)
    metrics.begin()
    return CountedHold(read, written, device, metrics.tally(call_site()))


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 input" or "3 inputs"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_bytes(count: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


class StepGraph:
    """A graph to compile, with its group, its options and the new values of its variables.

    The constructor warns of new values that may differ between ranks. Python's option `-W error`
    turns the warning into an exception. This is safe even if only one rank raises it: the ranks
    have not begun to communicate, so no other rank waits for this one.
    """

    def __init__(self, graph: Graph, group: Group, options: CompileOptions) -> None:
        self.graph, self.group, self.options = graph, group, options
        self.next_values = next_values(graph, group)
        """The variable updates whose results the ranks compare after the step's first run."""
        if self.next_values:
            warn_of_varying(self.next_values, group, call_site())

    def printed_graph(self) -> Graph:
        """Return the graph for `Executable.graph`.

        If the step computes in a 16-bit precision, the text of the graph names this precision.
        """
        if not self.options.has_low_precision:
            return self.graph
        return PrintedGraph(self.graph, self.options.precision)


class PrintedGraph(Graph):
    """The graph of a step with 16-bit precision. When printed, the graph names this precision."""

    def __init__(self, graph: Graph, precision: DType) -> None:
        super().__init__(graph.inputs, graph.outputs, graph.updates)
        self.precision = precision

    def __str__(self) -> str:
        return self.text(self.precision)


class CompiledStep(BoundToProcess):
    """The base class of compiled steps; see Executable."""

    instead = "copy its nodes and variables, and compile those"
    device: ClassVar[str]
    sequence: CollectiveSequence

    def __init__(self, source: StepGraph) -> None:
        graph = source.graph
        self.graph, self.group = source.printed_graph(), source.group
        self.input_types = [n.type for n in graph.inputs]
        self.output_types = [n.type for n in graph.outputs]
        self.variables = [v for v in graph.variables if isinstance(v, Variable)]
        self.written = [v for v, _ in graph.updates if isinstance(v, Variable)]
        written = {v.id for v in self.written}
        self.hold = hold_of(
            [v.cell for v in self.variables if v.id not in written],
            [v.cell for v in self.written],
            self.device,
        )
        self.next_values = source.next_values
        states = {id(v.owner): v.owner for v in self.written if v.owner is not None}
        if self.next_values or states:
            self.hold = FirstCall(self, self.hold, [*states.values()])

    def __repr__(self) -> str:
        memory, variables = self.memory(), len(self.variables)
        sizes = [
            *(plural(len(self.input_types), "input"), plural(len(self.output_types), "output")),
            f"{plural(variables, 'variable')} of {format_bytes(memory['variables'])}",
            *([plural(self.num_instructions, "instruction")] if self.num_instructions else []),
            f"{format_bytes(memory.get('private', 0) + memory.get('shared', 0))} for values",
        ]
        return f"<ngd step compiled at {self.sequence.site}: {', '.join(sizes)}; {self.device}>"

    @property
    def title(self) -> str:
        """The text that identifies the step in messages: "step compiled at FILE:LINE"."""
        return f"step compiled at {self.sequence.site}"

    @property
    def num_instructions(self) -> int:
        """The number of instructions of a run; 0 on a device without instructions."""
        plan: Plan | None = getattr(self, "plan", None)
        return 0 if plan is None else len(plan.steps)

    def checksum(self, variable: Node) -> tuple[int, int] | None:
        """Return a checksum of a variable that the step holds (locks); None if ranks share it."""
        raise NotImplementedError(self.device)

    def prepare(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> list[Array]:
        """Return the arguments as contiguous arrays with the dtypes and shapes of the inputs.

        `arrays` has the arguments by position. `named` has arguments by the names of the inputs.
        """
        if named or len(arrays) != len(self.input_types):
            names = [str(n.attrs["name"]) for n in self.graph.inputs]
            arrays = arguments.order_arguments(self.title, names, arrays, named)
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
        """Return an argument as an array of the type of its input."""
        where = f"{self.title}: input {number} ({self.graph.inputs[number].attrs['name']!r})"
        return arguments.convert(value, self.input_types[number], where)

    def results(self, out: Sequence[Any] | None, inputs: list[Array]) -> list[Array]:
        """Return new arrays for the outputs, or the arrays of `out` if it is given.

        Raise a ValueError if an array of `out` overlaps an argument or another array of `out`.
        """
        if out is None:
            return [np.empty(t.shape, t.dtype) for t in self.output_types]
        if len(out) != len(self.output_types):
            raise TypeError(
                f"{self.title}: expected {len(self.output_types)} arrays in out; got {len(out)}. "
                "Give one per output."
            )
        results: list[Array] = []
        for i, (array, wanted) in enumerate(zip(out, self.output_types, strict=True)):
            name = f"out[{i}]"
            if array is None:
                raise TypeError(f"{self.title}: {name}: expected an array {wanted}; got None")
            result = check_out(array, wanted.dtype, wanted.shape, self.title, name)
            if any(np.may_share_memory(result, other) for other in (*inputs, *results)):
                raise ValueError(
                    f"{self.title}: {name}: expected memory of its own; got an array that overlaps "
                    "an input or another output. Pass a copy."
                )
            results.append(result)
        return results

    def memory(self) -> dict[str, int]:
        """Return {"variables": the bytes of all variables}; the CPU device adds more entries."""
        return {"variables": sum(v.type.bytes for v in self.variables)}

    def report(self) -> Report:
        """Raise a CompileError, because this device has no instructions."""
        raise CompileError(
            f"Executable.report: expected a step of the device CPU, which runs instructions; got "
            f"one of {self.device}. Compile it with device='CPU'."
        )

    def cost(self) -> Cost:
        """Return the FLOP of one run and the bytes that it reads and writes, without fusion."""
        return cost_of_graph(self.graph)

    def explain(self, node: Node) -> str:
        """Return a text that shows how a node is computed; see Executable.explain."""
        raise NotImplementedError(self.device)

    def compare_ranks(self) -> str:
        """Return a comparison of the ranks' collectives; see Executable.compare_ranks."""
        site = call_site()
        answers = [
            compare_ranks(group, text, computation, site)
            for group, (text, _, computation) in zip(
                open_groups(self.sequence.groups), self.sequence.sequences(), strict=True
            )
        ]
        return "\n".join(answers)
