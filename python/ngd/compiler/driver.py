# SPDX-License-Identifier: Apache-2.0
"""The compilation of a graph to a step: `ngd.compile`.

`compile` checks its arguments. It returns a step from the cache if the same nodes were compiled
with the same options. Otherwise `build` makes the step in three stages:

1. The ranks agree which variables they share (`Device.agree`).
2. `lower` runs the passes and writes the program.
3. The device loads the program (`Device.load`): it allocates memory and constructs the kernels.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from .. import _core, passes
from .._util import config
from ..comm import Group
from ..comm.world import alone, init
from ..devices import DEVICES
from ..devices.collective_sequence import CollectiveSequence
from ..devices.device import Lowered
from ..devices.executable import Executable, StepGraph
from ..devices.native import native_attrs, spec
from ..devices.statement_ops import StatementOps
from ..devices.structured import StructuredStep, is_flat
from ..dtypes import DType, Type, as_dtype, as_int, float32
from ..errors import DTypeError
from ..graph import notes
from ..graph.graph import Graph
from ..graph.leaves import PLACEHOLDER
from ..graph.node import Node
from ..graph.variable import Variable
from ..graph.variable_names import sort_key
from ..ops._host import call_host
from ..ops._operands import FLOATS_16_BIT
from ..ops.collectives.groups import expect_member, settle_world
from ..ops.control.bodies import expect_agreement
from ..passes import CompileOptions, Plan, Target
from ..passes.collective_order import depends_on_group
from ..profiling.recording import register_step
from ..trees import LEAF, Structure, flatten
from .warnings import warn_of_graph

SHARDS: Final = ("none", "host", "world")
"""The legal values of the argument `shard` of ngd.compile: modes of the sharded weight update."""


def lower(source: StepGraph, target: Target, arena: _core.Arena | None) -> Lowered:
    """Run the passes and write the program.

    This neither communicates nor allocates the memory of the step.
    """
    plan = passes.run(source.graph, target, source.options)
    program, sequence = emit(plan, source)
    program.use_arena(arena)
    return Lowered(plan, program, sequence)


def emit(plan: Plan, source: StepGraph) -> tuple[_core.ProgramBuilder, CollectiveSequence]:
    """Return a builder of the C++ program of a step, and a `CollectiveSequence`.

    `write` adds the instructions and values of `plan` to the builder, and this function adds the
    groups of ranks. The `CollectiveSequence` has these groups and the collectives of the step. The
    program refers to a group by its index; index 0 is the group of the step.
    """
    sequence = CollectiveSequence(source.group, source.graph, source.options.precision)
    builder = write(plan, sequence)
    for text, hash, computation in sequence.sequences():
        builder.add_group(text, hash, computation)
    return builder, sequence


def write(plan: Plan, sequence: CollectiveSequence) -> _core.ProgramBuilder:
    """Return a builder of a C++ program with the instructions and the values of a memory plan.

    The builder does not have the groups of ranks yet; `emit` adds them. The body of a loop or
    branch is a separate program. The instruction that runs the loop or branch refers
    to this program.
    """
    builder = _core.ProgramBuilder()
    builder.set_sizes(plan.inputs, plan.outputs, len(plan.variables))
    builder.set_arenas(plan.private_bytes, plan.shared_bytes)
    for constant in plan.constants:
        builder.add_constant(constant.tobytes())
    numbers: dict[Any, int] = {}
    members = StatementOps() if config.check_finite() else None

    def value(typed_storage: tuple[Type, Any]) -> int:
        type_, storage = typed_storage
        key = (type_, storage.address)
        if key not in numbers:
            numbers[key] = builder.add_value(*spec(type_), *storage.address)
        return numbers[key]

    for step in plan.steps:
        ranks, attrs = sequence.number(step.group), native_attrs(step.attrs)
        if step.action == "start":
            branch = sequence.add(step.op, step.attrs, step.outputs[0][0], ranks, step.site)
            if branch:
                attrs["branch"] = branch
        number = builder.add_instruction(
            step.action,
            step.op,
            [value(i) for i in step.inputs],
            [value(o) for o in step.outputs],
            attrs,
            step.start,
            ranks,
            str(step.site),
            [
                write(body, sequence)
                for body in sequence.inside(step.op, step.attrs, step.site, step.bodies)
            ],
        )
        if members is not None:
            builder.set_members(number, members.of_step(step))
    return builder


_cache: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()


def compile(
    inputs: Any,
    outputs: Any,
    updates: Any = None,
    *,
    device: str | None = None,
    group: Group | None = None,
    precision: Any = float32,
    memory_limit: int | None = None,
    shard: str = "none",
) -> Executable:  # long because each argument is described
    """Compile a graph to a step, which is called with arrays.

    `ngd.function` compiles a Python function and needs no placeholders. Use `compile` where you
    build the graph yourself.

    Parameters
    ----------
    inputs : Node, or list, tuple or dict of structures of Node
        The placeholders. One node is one argument. A list or tuple holds the arguments in their
        order. A dict names the arguments. Each argument may be a structure (ngd.trees), for example
        `[{"image": x, "label": y}, rate]`; a call gives an array for each placeholder.
    outputs : structure of Node
        The nodes whose values are returned. The values have the structure of `outputs`: one node
        gives one array, `[y]` gives a list of one array.
    updates : dict of Variable to Node, or a list of such dicts, optional
        A node for the new value of each variable, such as `{w: w - 0.1 * gradient}`. An element of
        a list may also be a pair (variables, nodes): two structures with the same nesting. All
        reads in a step see the values before the step.
    device : str, optional
        The name of a device, in capitals. docs/environment.md lists them at NGD_DEVICE. The default
        is the value of this variable, or "CPU", which runs C++ kernels.
    group : Group, optional
        The ranks of collectives that have no group of their own. The default is the world,
        which this process joins (as by ngd.init) if the graph has such a collective.
    precision : dtype, default float32
        "bfloat16" or "float16": the dtype in which float32 matrices are multiplied and activations
        are stored. Variables, outputs and collectives stay float32. See docs/mixed_precision.md.
    memory_limit : int, optional
        The largest number of bytes for the values of a call, without variables, arguments and
        results: `memory()["private"] + memory()["shared"]`. The step computes cheap values twice
        to keep the limit. `memory()["recomputed"]` is the number of bytes that the second
        computations read and write. Only for the devices "CPU" and "NULL" ("NULL" only
        compiles).
    shard : {"none", "host", "world"}, default "none"
        Sharded weight update. "host": the ranks of a host keep one copy of each variable that the
        step updates, and each rank updates its shard. "world": as "host", and each host keeps only
        its part of the optimizer state. All ranks must compile the step. A variable that is small,
        or whose new value is not proved equal on all ranks, is not sharded. A variable that the
        step only reads has one copy per host, too, if it is equal on all ranks. See
        docs/sharding.md.

    Returns
    -------
    Executable
        The step. Its shapes are static: compile again for other shapes. The same nodes and
        arguments give the same executable as long as it is alive.

    Raises
    ------
    CompileError
        The graph needs a placeholder that is not among the inputs, has two variables of one name,
        has an op that the device cannot compute, or has a collective in a branch of `ops.cond` that
        is not proved to be taken by all ranks. The message has the node's file and line. Or
        `memory_limit` cannot be kept; the message has the smallest limit that can.

    Warns
    -----
    UpdatesWarning
        The graph was built in nn.training, but the step does not update the variables that hold the
        states of random numbers (dropout) or the running statistics (batch norm).
    EqualModelsWarning
        The step trains two models of one structure and name that begin with the same values.
    PrecisionWarning
        The CPU has no kernels for matmuls in `precision`, so they stay float32.
    PromotionWarning
        A float32 operand became float64 by promotion. The message has the line of the first one.

    Examples
    --------
    >>> x = ngd.placeholder("x", (2, 3), "float32")
    >>> step = ngd.compile(x, ops.sum(x * x, axis=1))
    >>> step(np.ones((2, 3), np.float32))
    array([3., 3.], dtype=float32)
    """
    options = {"device": device, "group": group, "precision": precision, "shard": shard}
    return compile_in(None, inputs, outputs, updates, memory_limit=memory_limit, **options)


def compile_in(
    arena: _core.Arena | None,
    inputs: Any,
    outputs: Any,
    updates: Any = None,
    *,
    device: str | None = None,
    group: Group | None = None,
    precision: Any = float32,
    memory_limit: int | None = None,
    shard: str = "none",
) -> Executable:
    """Compile a graph to a step whose values are in an arena.

    `compile` documents the parameters that are not listed here.

    Parameters
    ----------
    arena : Arena or None
        The memory of the values. Other steps may use it, too, and only one of these steps runs at a
        time. If it is None, the step has memory of its own.
    """
    name = config.device(device, "compile")
    placeholders, arguments = nodes_in("inputs", as_arguments(inputs))
    nodes, results = nodes_in("outputs", outputs)
    if isinstance(group, Group):
        expect_member("compile", group)
    graph = Graph(tuple(placeholders), tuple(nodes), sorted_updates(updates))
    dtype, shard = as_precision("compile", precision), as_shard("compile", shard)
    check_signature(graph, arguments, results)
    graph, num_prints = with_prints(graph)
    settle_world(graph)
    group = group_of(graph, group, shard)
    limit = None if memory_limit is None else as_int(memory_limit, "compile", "memory_limit", 64)
    options = CompileOptions(dtype, shard, limit)
    key = (signature(graph), name, group, options, arena)
    executable: Executable | None = _cache.get(key)
    if executable is None:
        warn_of_graph(graph)
        executable = _cache[key] = build(name, graph, group, options, arena)
    if is_flat(arguments) and is_flat(results) and not num_prints:
        return executable
    return StructuredStep(executable, arguments, results, num_prints)


NODES: Final = "Make nodes by ngd.placeholder, ngd.constant and the functions of ngd.ops."
"""The text at the end of each error message about a value that is not a node. It lists the calls
that make nodes."""


def with_prints(graph: Graph) -> tuple[Graph, int]:
    """Return a graph with prints as additional outputs, and the number of these outputs.

    A print is a node that calls a Python function with the value of another node. A print that is
    already among the nodes of the graph is not added.
    """
    print_notes = [pair for pair in notes.find(graph.nodes) if isinstance(pair[1], notes.Print)]
    if not print_notes:
        return graph, 0
    nodes = {node.id: node for node in graph.nodes}
    present = {node.attrs.get("function") for node in graph.nodes if node.op is call_host}
    prints = tuple(
        call_host([nodes[id]], note.function)
        for id, note in print_notes
        if note.function not in present
    )
    outputs = (*graph.outputs, *prints)
    return Graph(graph.inputs, outputs, graph.updates), len(prints)


def as_precision(where: str, precision: Any) -> DType:
    """Return the argument `precision` of a public call as a dtype, or raise a DTypeError."""
    try:
        dtype = as_dtype(precision, where)
    except DTypeError:
        got, fix = repr(precision), 'Write a full name: "bfloat16".'
    else:
        if dtype in (float32, *FLOATS_16_BIT):
            return dtype
        got, fix = dtype.name, "For float64, cast the inputs and variables."
    raise DTypeError(f"{where}: precision: expected float32, bfloat16 or float16; got {got}. {fix}")


def as_shard(where: str, shard: str) -> str:
    """Return the argument `shard` of a public call; raise ValueError if it is not in SHARDS."""
    if shard not in SHARDS:
        raise ValueError(f"{where}: shard: expected 'none', 'host' or 'world'; got {shard!r}")
    return shard


def group_of(graph: Graph, group: Group | None, shard: str) -> Group:
    """Return the group of a step; raise CompileError if ranks may run different collectives.

    If `group` is None, a step that depends on other ranks gets the world, which this function
    joins. A step that does not depend on them gets a group of this rank only.
    """
    expect_agreement(graph)
    if group is None:
        all_ranks = needs_group(graph, shard)
        group = init() if all_ranks else alone()
    return group


def needs_group(graph: Graph, shard: str) -> bool:
    """Return whether a step depends on the ranks of its group, or shares variables with them."""
    return depends_on_group(graph) or shard != "none"


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable the garbage collector while a step is compiled.

    Most objects of a compilation live until its end, and the collector would walk them again and
    again. In a compilation of 2,000 layers, these walks take a tenth of the time.
    """
    enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if enabled:
            gc.enable()


@without_collector()
def build(
    device: str, graph: Graph, group: Group, options: CompileOptions, arena: _core.Arena | None
) -> Executable:
    """Compile a graph for a device.

    The ranks agree which variables they share, `lower` writes the program, and the device loads it.
    """
    kind, source = DEVICES[device], StepGraph(graph, group, options)
    with kind.compiling(group):
        agreement = kind.agree(source)
        target = agreement.target
        lowered = None if target is None else lower(source, target, arena)

        def plan_again() -> Plan:
            return lower(source, target, arena).plan

        step = kind.load(source, agreement, lowered, plan_again)
    register_step(step)
    return step


def as_arguments(inputs: Any) -> Any:
    """Return the structure `inputs` of `compile`: [node] for one node, and a list for a tuple.

    Another structure, such as a dict or a dataclass, is returned unchanged.
    """
    if isinstance(inputs, Node):
        return [inputs]
    return list(inputs) if type(inputs) is tuple else inputs


def nodes_in(argument: str, tree: Any) -> tuple[list[Any], Structure]:
    """Return a flat list of the nodes in nested containers, and a `Structure` of the nesting."""
    leaves, structure = flatten(tree)
    if structure is LEAF and isinstance(tree, Sequence) and not isinstance(tree, (str, bytes)):
        leaves, structure = flatten(list(tree))
    if structure is LEAF and not isinstance(tree, Node):
        raise TypeError(
            f"compile: {argument}: expected a node, or a list, tuple or dict of nodes; got "
            f"{tree!r}. {NODES}"
        )
    return leaves, structure


def sorted_updates(updates: Any) -> tuple[tuple[Node, Node], ...]:
    """Return a pair (variable, node of its new value) per update, sorted by the variables' names.

    So the order of the graph's updates does not depend on the order of the keys in `updates`.
    """
    pairs: dict[Variable, Node] = {}
    parts = updates if isinstance(updates, list) else [updates or {}]
    for variable, value in (pair for part in parts for pair in pairs_of(part)):
        if not isinstance(variable, Variable) or not isinstance(value, Node):
            raise TypeError(
                f"compile: updates: expected {{variable: node}}; got {variable!r}: {value!r}"
            )
        if pairs.setdefault(variable, value) is not value:
            raise ValueError(
                f"compile: updates: expected one next value of variable {variable.name!r}; got "
                "two, "
                f"made at {pairs[variable].site} and at {value.site}. Remove one."
            )
    return tuple(sorted(pairs.items(), key=lambda item: sort_key(item[0])))


def pairs_of(part: Any) -> Iterable[tuple[Any, Any]]:
    """Return the pairs (variable, node of its new value) of one element of the list of updates.

    The element is a dict {variable: node}, or a tuple (variables, nodes) of two structures that
    are nested in the same way.
    """
    if isinstance(part, Mapping):
        return part.items()
    if not isinstance(part, tuple) or len(part) != 2:
        raise TypeError(
            "compile: updates: expected {variable: node}, or a list of such dicts and of pairs "
            f"(variables, nodes); got {part!r}. Write {{variable: next_value}}."
        )
    variables, structure = flatten(part[0])
    return zip(variables, structure.match(part[1], "compile: updates"), strict=True)


def signature(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Return the ids of a graph's inputs, outputs and updates, as a key of the cache.

    The nodes themselves cannot be in a key, because `==` of two nodes makes a new node.
    """
    pairs = [node for pair in graph.updates for node in pair]
    return tuple(tuple(n.id for n in nodes) for nodes in (graph.inputs, graph.outputs, pairs))


def check_signature(graph: Graph, arguments: Structure, results: Structure) -> None:
    """Raise a TypeError if an input is not a placeholder or an output is not a node."""
    for number, node in enumerate(graph.inputs):
        if not isinstance(node, Node) or node.op is not PLACEHOLDER:
            at = arguments.paths("inputs")[number]
            raise TypeError(
                f"compile: inputs: expected placeholders; got {node!r} at {at}. Make them by "
                "ngd.placeholder."
            )
    for number, node in enumerate(graph.outputs):
        if not isinstance(node, Node):
            at = results.paths("outputs")[number]
            raise TypeError(f"compile: outputs: expected nodes; got {node!r} at {at}. {NODES}")
