# SPDX-License-Identifier: Apache-2.0
"""The backend "ngd" of torch.compile.

Dynamo, the front end of torch.compile, captures graphs. The backend compiles each of them to a
forward program and a backward program.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
import torch.distributed as dist
from torch import fx

from ... import ops
from ..._util.callsite import warn
from ...compiler.driver import compile, without_collector
from ...dtypes import Array
from ...errors import FallbackWarning
from ...graph.node import Node, topological
from ...graph.variable import placeholder
from ...passes.residuals import choose_residuals, read_residuals
from ...transforms.gradient import pull_back
from .capture import GraphCapture, capture_graph
from .dynamo import Fixed, Output, StaticGraph, View, make_static, memory_of
from .memory import as_tensor
from .refusals import UntranslatableError
from .rules import Draws
from .rules.registry import as_array, as_node, as_numpy_dtype
from .translate import translate

WHERE: Final = 'torch.compile(backend="ngd")'

MAX_PROGRAMS: Final = 64
"""The largest number of programs per graph. A program is compiled for one combination of the shapes
and numbers in the arguments. When the limit is reached, PyTorch runs each call with a combination
that has no program."""


def compile_graph(module: fx.GraphModule, examples: Sequence[Any]) -> CompiledGraph:
    """Compile a graph of Dynamo. `torch.compile(backend="ngd")` calls this function.

    Parameters
    ----------
    module : GraphModule
        The graph.
    examples : sequence
        Example arguments. They are ignored: each program is compiled for the shapes of a call.

    Returns
    -------
    CompiledGraph
        A function of the graph's arguments.
    """
    return CompiledGraph(module)


class Specialized(NamedTuple):
    """A graph of Dynamo, compiled for fixed shapes.

    Attributes
    ----------
    program : GraphProgram
        The compiled forward and backward programs.
    attributes : list of Tensor
        The tensors that the graph of Dynamo holds. The program takes them after the arguments.
    outputs : list of Output
        The outputs of the graph of Dynamo: for each, a value that the program computes, a view of a
        value or of an input, or an object that is not a tensor.
    """

    program: GraphProgram
    attributes: list[torch.Tensor]
    outputs: list[Output]


class CompiledGraph:
    """A graph of Dynamo, compiled once for each combination of shapes.

    Parameters
    ----------
    module : GraphModule
        The graph.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self._programs: dict[Any, Specialized] = {}
        self._is_translatable = True
        self._has_warned = False
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph and return its outputs, computed by ngd or, if ngd cannot, by PyTorch."""
        specialized = self._specialized(arguments)
        if specialized is None:
            return self.module(*arguments)
        tensors = [*_tensors_of(arguments), *specialized.attributes]
        if specialized.program.written and _share_memory(tensors):
            return self.module(*arguments)
        values = specialized.program(tensors)
        return tuple(_output(each, tensors, values) for each in specialized.outputs)

    def _specialized(self, arguments: tuple[Any, ...]) -> Specialized | None:
        """Return the program for these arguments, or None if PyTorch must run the graph.

        PyTorch must run the graph if ngd cannot compile the graph, or if these arguments need a new
        program and the graph already has MAX_PROGRAMS programs.
        """
        if not self._is_translatable:
            return None
        key = (torch.is_grad_enabled(), *(_signature(each) for each in arguments))
        program = self._programs.get(key)
        if program is None:
            with self._lock:
                program = self._programs.get(key) or self._compiled(arguments)
                if program is not None:
                    self._programs[key] = program
        return program

    def _compiled(self, arguments: tuple[Any, ...]) -> Specialized | None:
        """Return a new program for these arguments. If ngd cannot make it, warn and return None."""
        if len(self._programs) == MAX_PROGRAMS:
            expected = f"at most {MAX_PROGRAMS} combinations of shapes and numbers per graph"
            self._warn(f"expected {expected}; got one more. Pad the inputs to few lengths")
            return None
        try:
            return specialize(self.module, arguments)
        except UntranslatableError as error:
            expected, got = error.expected, error.got
        except Exception as error:
            expected = "a graph that torch.export can capture and ngd can compile"
            got = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        self._is_translatable = False
        self._warn(f"expected {expected}; got {got}")
        return None

    def _warn(self, reason: str) -> None:
        """Warn that PyTorch runs the graph. Only the first warning per graph is shown."""
        if not self._has_warned:
            self._has_warned = True
            warn(f"{WHERE}: {reason}. PyTorch runs this graph without ngd.", FallbackWarning)


def _signature(argument: Any) -> Any:
    """Return the properties of an argument that a program depends on.

    For a Parameter, return only `requires_grad`. For any other tensor, return shape, strides,
    dtype, `requires_grad` and `is_leaf`. For any other argument, return the argument itself.
    """
    if type(argument) is torch.nn.Parameter:  # Dynamo compiles again if another property changes
        return argument.requires_grad
    if isinstance(argument, torch.Tensor):
        is_leaf = argument.is_leaf or not argument.requires_grad
        kind = argument.dtype, argument.requires_grad, is_leaf
        return argument.shape, argument.stride(), *kind
    return argument


_programs: Final[WeakValueDictionary[Any, GraphProgram]] = WeakValueDictionary()
"""All programs of all compiled graphs. A program is removed when no compiled graph refers to it any
more. A key has the text that describes the graph's ops, the types of its tensors, and PyTorch's
settings: gradients, autocast and default dtype. Graphs with equal keys share one program."""


@without_collector()
def specialize(module: fx.GraphModule, arguments: tuple[Any, ...]) -> Specialized:
    """Compile a graph for the shapes of its arguments, and return the program."""
    has_gradients = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(has_gradients), _nothing_saved():
        static = make_static(WHERE, module, arguments)
        tensors = [*_tensors_of(arguments), *static.attributes]
        autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        types = tuple(
            (tuple(t.shape), t.stride(), t.dtype, t.requires_grad, t.is_leaf) for t in tensors
        )
        key = (static.text, types, has_gradients, autocast, torch.get_default_dtype())
        program = _programs.get(key)
        if program is None:
            program = _programs[key] = GraphProgram(static, tensors)
        return Specialized(program, static.attributes, static.outputs)


def _nothing_saved() -> AbstractContextManager[None]:
    """Return a context in which the caller's saved-tensor hooks are not called.

    A compilation runs the graph on fake tensors, which have no values. The caller's hooks expect
    tensors with values.
    """
    hooks: AbstractContextManager[None] = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor, lambda tensor: tensor
    )
    return hooks


def _share_memory(tensors: Sequence[torch.Tensor]) -> bool:
    """Return True if two tensors share memory."""
    return len({memory_of(each) for each in tensors}) < len(tensors)


def _tensors_of(arguments: Iterable[Any]) -> list[torch.Tensor]:
    return [each for each in arguments if isinstance(each, torch.Tensor)]


class LockedStep:
    """A compiled step that only one thread at a time can run.

    Parameters
    ----------
    inputs : sequence of Node
        Placeholders. The step reads only those that the outputs depend on.
    outputs : sequence of Node
        The outputs.
    """

    def __init__(self, inputs: Sequence[Node], outputs: Sequence[Node]) -> None:
        needed = set(topological(outputs))
        self.read = [number for number, node in enumerate(inputs) if node in needed]
        """The numbers of the inputs that the step reads, because an output depends on them."""
        self._step = compile([inputs[number] for number in self.read], list(outputs))
        self._lock = threading.Lock()

    def __call__(self, inputs: Sequence[Any]) -> list[Array]:
        """Run the step and return its outputs.

        `inputs` has one tensor or array per placeholder, including those that the step does not
        read. Values that the step does not read are ignored.
        """
        chosen = [inputs[number] for number in self.read]
        arrays = [as_array(x) if isinstance(x, torch.Tensor) else x for x in chosen]
        with self._lock:
            return [np.asarray(each) for each in self._step(*arrays)]


class GraphProgram:
    """The forward program and the backward program of a graph with fixed shapes.

    Parameters
    ----------
    static : StaticGraph
        The graph.
    tensors : sequence of Tensor
        Tensors with the shapes, strides and dtypes of the graph's inputs.
    """

    def __init__(self, static: StaticGraph, tensors: Sequence[torch.Tensor]) -> None:
        self.values, self.tracked = static.values, static.tracked
        self._module = static.module  # keeps functions alive: their ids are in static.text
        captured = capture_graph(WHERE, static.module, _examples(static, tensors))
        self.written = captured.mutated
        """The indices, in the list of inputs, of the inputs that the graph writes to."""
        self.inputs = [
            placeholder(f"input_{number}", tuple(each.shape), as_numpy_dtype(each.dtype))
            for number, each in enumerate(tensors)
        ]
        self.draws = placeholder("draws", (2,), np.int64)
        draws = Draws(offset=self.draws[1], seed=self.draws[0])
        results = self._translated(captured, draws)
        self.has_draws = draws.count > 0
        self.results = [*results[len(self.written) :], *results[: len(self.written)]]
        """The nodes of the values that the program returns, followed by the new contents of the
        inputs that the graph writes to."""
        self.trained = [number for number, each in enumerate(tensors) if each.requires_grad]
        tracked = [number in self.tracked for number in self.written]
        flags = [value.has_gradient for value in static.values] + tracked
        self.differentiable = [number for number, flag in enumerate(flags) if flag]
        self.adjoints = {
            number: placeholder(f"adjoint_{number}", node.shape, node.dtype)
            for number, node in enumerate(self.results)
            if number in self.differentiable
        }
        self.residuals: list[Node] = []
        self._saved: list[int] = []
        if self.differentiable:
            gradients = [g for g in self._gradients(self.adjoints) if g is not None]
            overwritten = [self.inputs[number] for number in self.written]
            self.residuals = choose_residuals(self.results, gradients, overwritten)
            self._saved = self._read_by(gradients)
        self._stored = {
            node: placeholder(f"residual_{number}", node.shape, node.dtype)
            for number, node in enumerate(self.residuals)
        }
        self._forward = LockedStep([*self.inputs, self.draws], [*self.results, *self.residuals])
        self._backward: dict[tuple[int, ...], tuple[LockedStep, list[bool]]] = {}
        self._lock = threading.Lock()

    def _translated(self, captured: GraphCapture, draws: Draws) -> list[Node]:
        """Return the results of the captured graph as nodes.

        ngd computes contiguous arrays. PyTorch's tensor may have its dimensions in another order in
        memory (`Value.order`), such as (0, 2, 3, 1) for channels-last images. Then return a node
        with the dimensions in that order. `forward` gives the array the shape of PyTorch's tensor.
        """
        inputs = iter(self.inputs)
        values = {
            each.name: next(inputs) if each.kind == "argument" else each.value
            for each in captured.inputs
        }
        results = [as_node(each) for each in translate(WHERE, captured.module, values, draws)]
        for number, value in enumerate(self.values, len(self.written)):
            if value.order != tuple(range(len(value.order))):
                results[number] = ops.transpose(results[number], value.order)
        return results

    def _gradients(self, adjoints: dict[int, Node]) -> list[Node | None]:
        """Return the gradient of each input that requires a gradient, or None.

        `adjoints` has the gradient of the loss with respect to each result, by the number of the
        result. The gradient of an input is None if none of these results depends on the input.
        """
        numbers = list(adjoints)
        targets = [self.inputs[number] for number in self.trained]
        return pull_back(
            [self.results[n] for n in numbers], [adjoints[n] for n in numbers], targets
        )

    def _read_by(self, gradients: Sequence[Node]) -> list[int]:
        """Return the numbers of the inputs that the backward program needs to compute `gradients`.

        The backward program also gets the residuals: values that the forward program stores for it.
        An input that is needed only to compute residuals is left out.
        """
        needed = set(topological(gradients, self.residuals))
        return [number for number, node in enumerate(self.inputs) if node in needed]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Run the graph, and return the tensors that `StaticGraph.values` describes.

        If the graph writes to inputs, copy their new contents to the input tensors.
        """
        draws = next_draws() if self.has_draws else None
        if self.differentiable:
            results = _Differentiable.apply(self, draws, *tensors)
        else:
            results, _ = self.forward(tensors, draws)
        values: Sequence[torch.Tensor] = results[: len(self.values)]
        for number, new in zip(self.written, results[len(values) :], strict=True):
            is_tracked = number in self.tracked
            (tensors[number] if is_tracked else tensors[number].detach()).copy_(new)
        return values

    def forward(
        self, tensors: Sequence[torch.Tensor], draws: Array | None
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Run the forward program. Return its results and residuals (values for `backward`)."""
        arrays = self._forward([*tensors, draws])
        for number, value in enumerate(self.values):
            arrays[number] = arrays[number].transpose(np.argsort(value.order))
        tensors_ = [as_tensor(each) for each in arrays]
        return tensors_[: len(self.results)], tensors_[len(self.results) :]

    def saved(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the inputs that the backward pass reads."""
        return [tensors[number] for number in self._saved]

    def backward(
        self,
        saved: Sequence[torch.Tensor],
        draws: Array | None,
        adjoints: Sequence[torch.Tensor | None],
    ) -> list[torch.Tensor | None]:
        """Run the backward program.

        Parameters
        ----------
        saved : sequence of Tensor
            The inputs that the backward pass reads, then the residuals: intermediate values that
            the forward program has returned.
        draws : array or None
            The seed and the offset of the random numbers that the forward pass has drawn; None if
            it has drawn none.
        adjoints : sequence of Tensor or None
            The gradient of the loss with respect to each result; None if the loss does not depend
            on the result.

        Returns
        -------
        list of Tensor or None
            The gradient of the loss with respect to each input; None if the input requires no
            gradient, or if the loss does not depend on it.
        """
        given = {n: adjoints[n] for n in self.differentiable if adjoints[n] is not None}
        with self._lock:
            if tuple(given) not in self._backward:
                self._backward[tuple(given)] = self._compiled_backward(tuple(given))
            step, reached = self._backward[tuple(given)]
        arrays = iter(step([*saved, draws, *(self._in_order(n, dy) for n, dy in given.items())]))
        gradients: list[torch.Tensor | None] = [None] * len(self.inputs)
        for number, is_reached in zip(self.trained, reached, strict=True):
            if is_reached:
                gradients[number] = as_tensor(next(arrays))
        return gradients

    def _compiled_backward(self, given: tuple[int, ...]) -> tuple[LockedStep, list[bool]]:
        """Compile and return the backward program of a loss that depends only on some results.

        `given` has the numbers of these results. Also return one boolean per input that requires a
        gradient. It is True if one of these results depends on the input. Then the program returns
        the gradient of the input.
        """
        gradients = self._gradients({number: self.adjoints[number] for number in given})
        outputs = read_residuals([g for g in gradients if g is not None], self._stored)
        saved = [self.inputs[number] for number in self._saved]
        adjoints = [self.adjoints[number] for number in given]
        step = LockedStep([*saved, *self._stored.values(), self.draws, *adjoints], outputs)
        return step, [gradient is not None for gradient in gradients]

    def _in_order(self, number: int, adjoint: Any) -> torch.Tensor:
        """Permute the gradient of a result to the dimension order of the node of this result.

        `adjoint` is PyTorch's gradient, with the dimensions in the order of the tensor's shape.
        If result `number` is a tensor that the program returns, the dimensions of its node are in
        memory order (`Value.order`, see `_translated`). If the result is the new contents of an
        input, both orders are equal, and the gradient is returned unchanged.
        """
        values = self.values
        return adjoint.permute(values[number].order) if number < len(values) else adjoint


def _examples(static: StaticGraph, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return example inputs for torch.export, without values.

    An example requires a gradient if the tensor does, because PyTorch may run other ops for such
    tensors. An input in `static.tracked` is an exception: the graph writes to it, and autograd
    records the write. Its example never requires a gradient, because an example is a leaf, and
    PyTorch refuses a recorded write to a leaf that requires a gradient.
    """
    examples = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in tensors]
    for number, (example, tensor) in enumerate(zip(examples, tensors, strict=True)):
        if tensor.requires_grad and number not in static.tracked:
            example.requires_grad_()
    return examples


def _output(output: Output, inputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> Any:
    """Return one output of a graph of Dynamo, from the inputs of a call and the computed values.

    `output` is an object that is not a tensor (Fixed), a view of an input or value (View), or the
    index of a value.
    """
    if isinstance(output, Fixed):
        return output.value
    if isinstance(output, View):
        return output.of((inputs if output.is_of_input else values)[output.number])
    return values[output]


def next_draws() -> Array:
    """Return the seed and the offset of the random numbers in one call of a program.

    The offset comes from PyTorch's generator. So `torch.manual_seed`, or loading a saved state of
    the generator, makes the numbers reproducible. The seed contains the rank, so that ranks draw
    different numbers even if their generators are equal.
    """
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    return np.array([rank << 32, torch.randint(2**62, ()).item()], np.int64)


class _Differentiable(torch.autograd.Function):
    """The autograd function that runs the forward and the backward program of a graph."""

    @staticmethod
    def forward(
        context: Any, program: GraphProgram, draws: Array | None, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Run the forward program and return its results. Store the tensors for `backward`."""
        results, residuals = program.forward(tensors, draws)
        context.program, context.draws = program, draws
        context.save_for_backward(*program.saved(tensors), *residuals)
        context.set_materialize_grads(False)
        constant = set(range(len(results))).difference(program.differentiable)
        context.mark_non_differentiable(*(results[number] for number in constant))
        return tuple(results)

    @staticmethod
    def backward(context: Any, *adjoints: torch.Tensor | None) -> tuple[Any, ...]:
        """Run the backward program and return a gradient, or None, for each argument of forward."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"{WHERE}: expected a backward pass without create_graph=True; got one with it. "
                "ngd does not differentiate the backward pass. Leave this part of the model out by "
                "torch.compiler.disable."
            )
        gradients = context.program.backward(context.saved_tensors, context.draws, adjoints)
        return None, None, *gradients
