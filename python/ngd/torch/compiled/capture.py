# SPDX-License-Identifier: Apache-2.0
"""Capture a PyTorch model and its loss as a graph of aten ops, by torch.export."""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import fx, nn
from torch.export import ExportedProgram, default_decompositions, export
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from ...errors import CompileError, Error
from .functionalize import make_functional
from .hidden_writes import expect_no_hidden_writes
from .refusals import changed_state, expect_no_hooks, python_state, refuse_state, watched
from .rules import RULES


class Input(NamedTuple):
    """An input of a captured graph.

    Attributes
    ----------
    name : str
        The name of its node.
    kind : str
        "parameter", "buffer", "constant" or "argument".
    target : str or None
        The path of a parameter or a buffer in the model.
    value : Any
        The tensor of a constant, the example of an argument, or None for the other kinds.
    """

    name: str
    kind: str
    target: str | None
    value: Any


class Capture(NamedTuple):
    """A model and its loss as one graph without in-place ops.

    Attributes
    ----------
    module : GraphModule
        The graph.
    inputs : list of Input
        Its inputs in order.
    mutated : list of str
        The paths of the buffers to which the forward pass writes. The first outputs of the graph
        are their new contents.
    results : TreeSpec
        The structure of the other outputs.
    """

    module: fx.GraphModule
    inputs: list[Input]
    mutated: list[str]
    results: pytree.TreeSpec


class _Step(nn.Module):
    """A module for torch.export whose forward pass calls `function(model, arguments)`.

    Its arguments are a flat list of values, in place of the nested structure of the user's batch.
    """

    def __init__(self, model: nn.Module, function: Callable[..., tuple[Any, ...]]) -> None:
        super().__init__()
        self.model = model
        self.function = function

    def forward(self, *leaves: Any) -> tuple[Any, ...]:
        """Return the results of the function as a flat tuple, without the user's structure."""
        return self.function(self.model, leaves)


def capture(
    where: str, model: nn.Module, function: Callable[..., Any], args: tuple[Any, ...]
) -> Capture:
    """Capture `function(model, *args)` for the shapes and dtypes of the arguments.

    Parameters
    ----------
    where : str
        The public call that error messages begin with: ngd.torch.compile_step.
    model : Module
        The model, in the mode (training or evaluation) that is captured.
    function : callable
        A function of the model and the arguments that returns tensors in any structure.
    args : tuple
        Example arguments: tensors in any structure.

    Returns
    -------
    Capture
        The graph. Python values in `args` are constants of the graph.

    Raises
    ------
    CompileError
        Code of the model defines gradients that the graph does not have.
    """
    leaves, structure = pytree.tree_flatten(args)
    results: list[pytree.TreeSpec] = []
    changed: Changes = {}  # not in the module: the export would restore it

    def flat(model: nn.Module, leaves: tuple[Any, ...]) -> tuple[Any, ...]:
        before = python_state(model)
        results_tree = function(model, *pytree.tree_unflatten(list(leaves), structure))
        for path, name in changed_state(before, model):
            changed[path, name] = getattr(model.get_submodule(path), name)
        parts, structure_of_results = pytree.tree_flatten(results_tree)
        results.append(structure_of_results)
        return tuple(parts)

    expect_no_hooks(where, model)
    program = _export(where, _Step(model, flat), tuple(leaves), changed)
    signature = program.graph_signature
    mutated = [
        _path(spec.target)
        for spec in signature.output_specs
        if spec.kind is OutputKind.BUFFER_MUTATION
    ]
    return Capture(program.graph_module, _inputs(program), mutated, results[-1])


class GraphCapture(NamedTuple):
    """A graph of Dynamo that was exported to aten ops without in-place ops.

    Attributes
    ----------
    module : GraphModule
        The graph.
    inputs : list of Input
        Its inputs in order: arguments and constants.
    mutated : list of int
        The numbers of the arguments that the graph of Dynamo writes to. The first outputs of this
        graph are their contents after the writes.
    """

    module: fx.GraphModule
    inputs: list[Input]
    mutated: list[int]


class _Interpreter(fx.Interpreter):
    """An interpreter of a graph of Dynamo that uses `torch.autocast` for its autocast regions.

    In the graph, such a region is a pair of calls of private functions of PyTorch.
    """

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of the graph.

        In the graph, an autocast region is a pair of calls of PyTorch's private functions
        `_enter_autocast` and `_exit_autocast`. Instead, enter and exit `torch.autocast`.
        """
        if target is torch.amp.autocast_mode._enter_autocast:
            region = torch.autocast(*args)
            region.__enter__()
            return region
        if target is torch.amp.autocast_mode._exit_autocast:
            return args[0].__exit__(None, None, None)
        return super().call_function(target, args, kwargs)


class _Interpreted(nn.Module):
    """A graph of Dynamo as a module for torch.export.

    The exported ops keep the source lines of the model that called them, for error messages.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return the outputs of the graph."""
        with fx.traceback.preserve_node_meta():
            return _Interpreter(self.graph).run(*tensors)


def capture_graph(
    where: str, graph: fx.GraphModule, examples: Sequence[torch.Tensor]
) -> GraphCapture:
    """Capture a graph of Dynamo, whose inputs and outputs are tensors, for fixed shapes.

    Parameters
    ----------
    where : str
        The public call that error messages begin with: torch.compile(backend="ngd").
    graph : GraphModule
        The graph.
    examples : sequence of Tensor
        Tensors with the shapes, strides and dtypes of the inputs. Their values are not read.

    Returns
    -------
    GraphCapture
        The graph.
    """
    program = _export(where, _Interpreted(graph), tuple(examples))
    inputs = _inputs(program)
    arguments = [each.name for each in inputs if each.kind == "argument"]
    mutated = [
        arguments.index(str(spec.target))
        for spec in program.graph_signature.output_specs
        if spec.kind is OutputKind.USER_INPUT_MUTATION
    ]
    return GraphCapture(program.graph_module, inputs, mutated)


Changes = dict[tuple[str, str], Any]
"""The values that a forward pass has assigned to Python attributes of the model's modules, by (path
of the module, name of the attribute)."""


OWN_ASSIGNMENT: Final = r"The tensor attributes? (self\.\S*_flat_weights\[\d+\](, )?)+ w"
"""The pattern of a warning of torch.export that is ignored. The warning lists tensor attributes
that were assigned during the export. The pattern matches if these are only elements of the list
`_flat_weights`, in which PyTorch's own nn.RNN, nn.GRU and nn.LSTM keep their parameters."""


def _export(
    where: str, module: nn.Module, examples: tuple[Any, ...], changed: Changes | None = None
) -> ExportedProgram:
    """Export a module, and replace ops that write in place or have no translation rule.

    `changed` is an empty dict to which `module` adds, during the export, the new values of the
    Python attributes that the forward pass changes (see `capture`). None means that `module` does
    not report such changes.
    """
    with watched(where), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch warns about its own modules
        warnings.filterwarnings("ignore", OWN_ASSIGNMENT, UserWarning)
        try:
            program = export(module, examples, strict=False)
        except Exception as error:  # the classes vary, and most of them are private
            raise _as_compile_error(where, error) from error
        if changed:
            _expect_same_graph(where, module, examples, program, dict(changed))
        parameters = program.graph_signature.inputs_to_parameters
        expect_no_hidden_writes(where, program.graph_module, parameters)
        if make_functional(program):
            return program
        _keep_regions_without_gradient(program.graph_module)
        try:
            return program.run_decompositions(_decompositions())
        except Exception as error:
            raise _as_compile_error(where, error) from error


TORCH: Final = str(Path(torch.__file__).parent)
NGD: Final = str(Path(__file__).parents[2])


def _as_compile_error(where: str, error: Exception) -> Exception:
    """Return a CompileError for an error of torch.export, with the source line of the user's code.

    An error of ngd is returned unchanged.
    """
    if isinstance(error, Error):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((TORCH, NGD, "<"))]
    site = f" (at {own[-1].filename}:{own[-1].lineno})" if own else ""
    text = str(error).strip().partition("\n")[0]
    return CompileError(
        f"{where}: expected a model that torch.export can capture, without branches on values of "
        f"tensors; got {type(error).__name__}: {text}{site}. Change the model or its settings, or "
        'use torch.compile(model, backend="ngd").'
    )


def _expect_same_graph(
    where: str,
    step: Any,
    leaves: tuple[Any, ...],
    program: ExportedProgram,
    changed: Changes,
) -> None:
    """Raise if the graph depends on Python attributes that the forward pass changes.

    `changed` has the values of these attributes after the forward pass of the first export. The
    export has restored the old values. Export again with the changed values, as in a second step.
    The second graph must have the same code as the first graph.
    """
    modules = {key: step.model.get_submodule(key[0]) for key in changed}
    before = {key: getattr(modules[key], key[1], None) for key in changed}
    for key, value in changed.items():
        setattr(modules[key], key[1], value)
    try:
        second = export(step, leaves, strict=False)
    finally:
        for key, value in before.items():
            setattr(modules[key], key[1], value)
    if second.graph_module.code != program.graph_module.code:
        refuse_state(where, *next(iter(changed)))


def _path(target: str | None) -> str:
    """Return the path in the user's model, "fc.weight" for "model.fc.weight" in an export."""
    return str(target).removeprefix("model.")


KINDS: Mapping[InputKind, str] = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
    InputKind.USER_INPUT: "argument",
}


def _inputs(program: ExportedProgram) -> list[Input]:
    """Return the descriptions of a program's inputs, in their order."""
    placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    inputs = []
    for spec in program.graph_signature.input_specs:
        kind, name, value = KINDS[spec.kind], spec.arg.name, None
        if kind == "constant":
            value = program.constants[str(spec.target)]
        elif kind == "argument":
            value = placeholders[name].meta.get("val")
        target = _path(spec.target) if kind in ("parameter", "buffer") else None
        inputs.append(Input(name, kind, target, value))
    return inputs


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's decompositions of the ops for which ngd has no translation rule."""
    table = default_decompositions()
    return {op: table[op] for op in list(table) if op not in RULES}


def _keep_regions_without_gradient(module: fx.GraphModule) -> None:
    """Detach the results of `torch.no_grad()` regions.

    PyTorch's decomposition of the graph removes the regions. If their results were not detached,
    ngd would compute gradients through them.
    """
    for node in list(module.graph.nodes):
        if node.target is not torch.ops.higher_order.wrap_with_set_grad_enabled:
            continue
        is_enabled, *_ = node.args
        if is_enabled:
            continue
        for user in list(node.users):  # each user is a `getitem` of one result
            with module.graph.inserting_after(user):
                detached = module.graph.call_function(torch.ops.aten.detach.default, (user,))
            detached.meta.update(user.meta)
            user.replace_all_uses_with(detached, lambda n, own=detached: n is not own)
    module.recompile()
