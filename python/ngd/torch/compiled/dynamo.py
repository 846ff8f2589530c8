# SPDX-License-Identifier: Apache-2.0
"""Make a graph of Dynamo static: fixed sizes, and results in separate memory.

The graph is run once on fake tensors, which have shapes and strides but no values. The run shows
which outputs are views of inputs or of other outputs, and which inputs the graph writes to. It also
finds code whose gradient would be lost: a torch.autograd.Function, a hook on a tensor, or an
in-place write that autograd does not record.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from .refusals import refuse
from .translate import site_of


class Value(NamedTuple):
    """The description of a tensor that a program computes.

    Attributes
    ----------
    has_gradient : bool
        True if the tensor requires a gradient.
    order : tuple of int
        The dimensions of the tensor in memory order, from the largest stride to the smallest. It is
        0, 1, 2, ... for a contiguous tensor, and for one whose elements do not fill a block of
        memory.
    """

    has_gradient: bool
    order: tuple[int, ...]


class View(NamedTuple):
    """An output that shares the memory of an input, or of a value (a computed tensor).

    Attributes
    ----------
    is_of_input : bool
        True for a view of an input.
    number : int
        The index of the input in the list of inputs, or of the value in the list of values.
    size, stride : tuple of int
        The shape and the strides.
    offset : int
        The number of elements between the first element of the input or value and that of the view.
    is_detached : bool
        True if no gradient flows through the view.
    """

    is_of_input: bool
    number: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    is_detached: bool

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Make the view from `tensor`, the input or computed tensor with the index `number`."""
        if self.is_detached:
            tensor = tensor.detach()
        if tensor.shape == self.size and tensor.stride() == self.stride and not self.offset:
            return tensor
        return tensor.as_strided(self.size, self.stride, tensor.storage_offset() + self.offset)


class Fixed(NamedTuple):
    """An output of a graph that is not a tensor. Each call returns the same object, `value`."""

    value: Any


Output: TypeAlias = int | View | Fixed
"""An output of a graph.

An int is the number of a value, which the program computes. A View shares the memory of an input or
of a value. A Fixed is an object that is not a tensor."""


class StaticGraph(NamedTuple):
    """A graph of Dynamo for fixed sizes.

    Attributes
    ----------
    module : GraphModule
        The graph. Its inputs are tensors. Its outputs are the tensors that `values` describes.
    text : str
        A text that lists the ops of the graph. Graphs with the same text compute the same, so they
        can share a program.
    attributes : list of Tensor
        The tensors that are attributes of the graph of Dynamo. In `module` they are inputs, after
        the tensors that are arguments of the call.
    values : list of Value
        Descriptions of the tensors that the graph computes. Views of inputs or of other values are
        left out.
    outputs : list of Output
        The outputs of the graph of Dynamo: values, views, and objects that are not tensors.
    tracked : frozenset of int
        The indices of the inputs that the graph changes by a write that autograd records.
    """

    module: fx.GraphModule
    text: str
    attributes: list[torch.Tensor]
    values: list[Value]
    outputs: list[Output]
    tracked: frozenset[int]


def make_static(where: str, module: fx.GraphModule, arguments: Sequence[Any]) -> StaticGraph:
    """Return the static form of a graph of Dynamo, for the sizes of its arguments.

    Parameters
    ----------
    where : str
        The public call that error messages begin with: torch.compile(backend="ngd").
    module : GraphModule
        The graph.
    arguments : sequence
        The arguments: tensors and numbers.

    Returns
    -------
    StaticGraph
        The graph.

    Raises
    ------
    UntranslatableError
        The graph has code whose gradient ngd cannot derive.
    """
    _expect_plain_tensors(where, arguments)
    module = _without_checkpoints(module)
    with FakeTensorMode(allow_non_fake_inputs=True):
        attributes = _attributes(module)
        fakes = [fake_like(each) for each in (*arguments, *attributes.values())]
        run = _FakeRun(where, module, dict(zip(attributes, fakes[len(arguments) :], strict=True)))
        with torch.set_grad_enabled(torch.is_grad_enabled()):  # the graph may change it
            results = run.run(*fakes[: len(arguments)])
        tensors = [each for each in fakes if isinstance(each, torch.Tensor)]
        sorted_outputs = _Outputs(where, tensors, results)
    graph, text = _StaticCopy(module, run.env, list(attributes)).copied(sorted_outputs.numbers)
    return StaticGraph(
        fx.GraphModule(module, graph),
        text,
        list(attributes.values()),
        sorted_outputs.values,
        sorted_outputs.outputs,
        frozenset(i for i, each in enumerate(tensors) if run.is_tracked(each)),
    )


PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


def _expect_plain_tensors(where: str, arguments: Sequence[Any]) -> None:
    """Raise unless all tensors are strided CPU tensors of the class Tensor or Parameter."""
    for each in _tensors(arguments):
        if each.device.type != "cpu":
            refuse(where, f"a tensor on the device {each.device}")
        if type(each) not in PLAIN or each.layout is not torch.strided:
            refuse(where, f"a {type(each).__qualname__} of the layout {each.layout}")


def _without_checkpoints(module: fx.GraphModule) -> fx.GraphModule:
    """Return a graph in which the bodies of `torch.utils.checkpoint.checkpoint` are inlined."""
    checkpoint = torch.ops.higher_order.tag_activation_checkpoint
    if not any(node.target is checkpoint for node in module.graph.nodes):
        return module
    module = fx.GraphModule(module, module.graph.__deepcopy__({}))
    for node in [n for n in module.graph.nodes if n.target is checkpoint]:
        body, *operands = node.args
        inner = _without_checkpoints(getattr(module, body.target)).graph
        inputs = [n for n in inner.nodes if n.op == "placeholder"]
        known = dict(zip(inputs, operands, strict=True))
        with module.graph.inserting_before(node):
            results = module.graph.graph_copy(inner, known)
        for user in list(node.users):  # each user is a `getitem` of one result
            user.replace_all_uses_with(results[user.args[1]])
            module.graph.erase_node(user)
        module.graph.erase_node(node)
        if not body.users:
            module.graph.erase_node(body)
    module.recompile()
    return module


def _attributes(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """Return the tensors that a graph holds, by path."""
    paths = (str(node.target) for node in module.graph.nodes if node.op == "get_attr")
    values = {path: functools.reduce(getattr, path.split("."), module) for path in paths}
    return {path: each for path, each in values.items() if isinstance(each, torch.Tensor)}


def fake_like(argument: Any) -> Any:
    """Return a tensor like the argument, without its values; return other arguments unchanged."""
    if not isinstance(argument, torch.Tensor):
        return argument
    fake = torch.empty_strided(argument.shape, argument.stride(), dtype=argument.dtype)
    if not argument.requires_grad:
        return fake
    if argument.is_leaf or 0 in argument.stride():
        return fake.requires_grad_()
    with torch.enable_grad():
        return fake.copy_(torch.empty_like(fake).requires_grad_())


class _FakeRun(fx.Interpreter):
    """A run of a graph on fake tensors that keeps the results of all nodes."""

    def __init__(
        self, where: str, module: fx.GraphModule, attributes: dict[str, torch.Tensor]
    ) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.where = where
        self.attributes = attributes
        self._history: dict[torch.Tensor, Any] = {}
        self._trained: set[int] = set()
        """The numbers of the memory (`memory_of`) of the tensors that require a gradient."""

    def run_node(self, node: fx.Node) -> Any:
        """Compute a node on fake tensors; raise UntranslatableError if its gradient would be lost.

        Raise for every higher-order op, because Dynamo represents a torch.autograd.Function or a
        tensor hook by such an op. Raise also for a write to a tensor that requires a gradient, if
        autograd does not record the write.
        """
        if isinstance(node.target, HigherOrderOperator):
            refuse(self.where, f"{_described(node.target)} (called at {site_of(node)})")
        if node.op == "get_attr" and node.target in self.attributes:
            result = self.attributes[node.target]
        else:
            operands = _tensors(self.fetch_args_kwargs_from_env(node))
            versions = [each._version for each in operands]
            result = super().run_node(node)
            for each, version in zip(operands, versions, strict=True):
                if each._version != version:
                    self._expect_seen_by_autograd(node, each)
        for each in _tensors(result):
            if node.op in ("placeholder", "get_attr"):
                self._history.setdefault(each, (each.requires_grad, each.grad_fn))
            if each.requires_grad:
                self._trained.add(memory_of(each))
        return result

    def _expect_seen_by_autograd(self, node: fx.Node, written: torch.Tensor) -> None:
        """Raise if autograd does not record a node's write to a tensor that requires a gradient.

        Also raise if `written` requires no gradient, but shares memory with a tensor that does.
        """
        is_hidden = (
            not torch.is_grad_enabled()
            if written.requires_grad
            else memory_of(written) in self._trained
        )
        if is_hidden:
            what = "a write without gradient to a tensor that requires one"
            refuse(self.where, f"{what} (called at {site_of(node)})")

    def is_tracked(self, tensor: torch.Tensor) -> bool:
        """Return True if autograd has recorded a write to `tensor`, an input, during this run."""
        before = self._history.get(tensor, (tensor.requires_grad, tensor.grad_fn))
        return bool(before != (tensor.requires_grad, tensor.grad_fn))


DESCRIPTIONS: Final = {
    "autograd_function_apply": "a torch.autograd.Function",
    "register_hook": "Tensor.register_hook",
}


def _described(target: HigherOrderOperator) -> str:
    """Return the name of a higher-order op for an error message."""
    name = target.name()
    return DESCRIPTIONS.get(name, f"torch.ops.higher_order.{name}")


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(tree) if isinstance(each, torch.Tensor)]


def memory_of(tensor: torch.Tensor) -> int:
    """Return a number that identifies the memory of a tensor."""
    return int(tensor.untyped_storage()._cdata)


class _Outputs:
    """The outputs of a graph. Some of them are values: tensors with memory of their own.

    Attributes
    ----------
    numbers : list of int
        The indices, in the list of all outputs, of the outputs that are values.
    values : list of Value
        The descriptions of the values.
    outputs : list of Output
        All outputs: the index of a value in `values`, a view of a value or of an input, or an
        object that is not a tensor.
    """

    def __init__(self, where: str, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        self.numbers: list[int] = []
        self.values: list[Value] = []
        self.outputs: list[Output] = []
        self._where = where
        self._results = results
        self._inputs = {memory_of(each): i for i, each in reversed(list(enumerate(inputs)))}
        self._tensors = inputs
        bases = self._bases()
        for number, result in enumerate(results):
            self.outputs.append(self._output(number, result, bases))

    def _output(self, number: int, result: Any, bases: dict[int, int]) -> Output:
        """Return the description of output `number`.

        A tensor outside the memory of inputs is a value (a tensor with memory of its own), or a
        view of a value. `bases` maps a storage to the index of the output that is its value.
        Append the description of a new value to `values`.
        """
        if not isinstance(result, torch.Tensor):
            return Fixed(result)
        memory = memory_of(result)
        if memory in self._inputs:
            input_number = self._inputs[memory]
            return self._view(result, True, input_number, self._tensors[input_number])
        base = bases.get(memory, number)
        if base not in self.numbers:
            self.numbers.append(base)
            self.values.append(_value_of(self._results[base]))
        value_number = self.numbers.index(base)
        if base == number:
            return value_number
        return self._view(result, False, value_number, self._results[base])

    def _view(
        self, result: torch.Tensor, is_of_input: bool, number: int, base: torch.Tensor
    ) -> View:
        """Return the description of `result` as a view of `base`.

        `base` is input `number` if `is_of_input` is True, otherwise value `number`.
        """
        if result.dtype != base.dtype or result.is_conj() or result.is_neg():
            refuse(self._where, f"an output of {result.dtype} that is a view of {base.dtype}")
        return View(
            is_of_input,
            number,
            tuple(result.shape),
            result.stride(),
            int(result.storage_offset() - base.storage_offset()),
            base.requires_grad and not result.requires_grad,
        )

    def _bases(self) -> dict[int, int]:
        """Select one output per storage as its base; other outputs become views of the base.

        The result maps the number of a storage (`memory_of`) to the index of its base. A base fills
        the whole storage. The storage of an input has no base. If no output fills a storage, it has
        no base either, and each output in it becomes a tensor with memory of its own. Raise if two
        such outputs have an element in common.
        """
        groups: dict[int, list[int]] = {}
        for number, result in enumerate(self._results):
            if isinstance(result, torch.Tensor) and memory_of(result) not in self._inputs:
                groups.setdefault(memory_of(result), []).append(number)
        bases = {}
        for memory, members in groups.items():
            whole = [n for n in members if _is_whole(self._results[n])]
            whole.sort(key=lambda n: not self._results[n].requires_grad)
            if whole:
                bases[memory] = whole[0]
            elif _overlap([self._results[n] for n in members]):
                refuse(self._where, "outputs that are overlapping views of a tensor")
        return bases


def _value_of(tensor: torch.Tensor) -> Value:
    """Return the description of a tensor: if it requires a gradient, and its memory order."""
    dimensions = range(tensor.ndim)
    order = tuple(dimensions)
    if _is_dense(tensor) and not tensor.is_contiguous():
        order = tuple(sorted(dimensions, key=lambda d: (-tensor.stride(d), -tensor.shape[d])))
    return Value(tensor.requires_grad, order)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return True if the elements of a tensor fill a block of memory, in any order."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    size = 1
    for stride, length in sorted(pair for pair in pairs if pair[1] != 1):
        if stride != size:
            return False
        size *= length
    return True


def _is_whole(tensor: torch.Tensor) -> bool:
    """Return True if the elements of a tensor fill its whole storage, without gaps."""
    size = tensor.untyped_storage().nbytes()
    return _is_dense(tensor) and tensor.numel() * tensor.element_size() == size


def _overlap(tensors: Sequence[torch.Tensor]) -> bool:
    """Return True if two of `tensors`, which all share one storage, have a common element."""
    offsets = []
    for each in tensors:
        size = each.untyped_storage().nbytes() // each.element_size()
        flat = np.arange(size)[each.storage_offset() :]
        strides = [stride * flat.itemsize for stride in each.stride()]
        view = np.lib.stride_tricks.as_strided(flat, tuple(each.shape), strides)
        offsets.append(np.unique(view))
    return len(np.unique(np.concatenate(offsets))) < sum(map(len, offsets))


NUMBERS: Final = (bool, int, float, torch.dtype, torch.device)


def _is_fixed(value: Any) -> bool:
    """Return True for a number, a dtype or a device, and for a tuple or list of them."""
    if isinstance(value, (tuple, list)):
        return all(isinstance(each, NUMBERS) for each in value) and len(value) > 0
    return isinstance(value, NUMBERS)


class _StaticCopy:
    """A copy of a graph of Dynamo for fixed sizes, and a text that describes the copy.

    In the copy, a result that is a number, a dtype or a device, such as a size, is a constant.
    """

    def __init__(
        self, module: fx.GraphModule, known: dict[fx.Node, Any], attributes: Sequence[str]
    ) -> None:
        self.nodes = list(module.graph.nodes)
        self.known = known
        self.graph = fx.Graph()
        self.lines: list[str] = []
        self._new: dict[fx.Node, Any] = {}
        self._words: dict[fx.Node, str] = {}
        self._attributes = attributes
        self._inputs: dict[str, fx.Node] = {}

    def copied(self, values: Sequence[int]) -> tuple[fx.Graph, str]:
        """Return the copy of the graph, and the text that describes its ops.

        `values` has the indices of the outputs that the copy computes. The other outputs are left
        out, because they are views or are not tensors.
        """
        for node in self.nodes:
            if node.op == "placeholder":
                is_tensor = isinstance(self.known[node], torch.Tensor)
                self._new[node] = self._input(node.name, node) if is_tensor else self.known[node]
        for number, path in enumerate(self._attributes):
            self._inputs[path] = self._input(f"attribute_{number}", None)
        for node in self.nodes:
            if node.op == "get_attr":
                self._new[node] = self._inputs.get(str(node.target))
            elif node.op == "output":
                results = tuple(self._new[node.args[0][number]] for number in values)
                self.graph.output(results)
                self.lines.append(self._text(results))
            elif node.op != "placeholder":
                self._copy(node)
        return self.graph, "\n".join(self.lines)

    def _input(self, name: str, node: fx.Node | None) -> fx.Node:
        """Add a placeholder with the metadata of `node` to the copy of the graph.

        In the text of `copied`, which describes the copy, the placeholders are called "%input0",
        "%input1" and so on.
        """
        placeholder_ = self.graph.placeholder(name)
        if node is not None:
            placeholder_.meta = dict(node.meta)
        self._words[placeholder_] = f"%input{len(self._words)}"
        return placeholder_

    def _copy(self, node: fx.Node) -> None:
        """Add `node` to the copy of the graph, and its description to the text of the graph.

        If the node's result is a constant, store only the result.
        """
        # A node without users is kept for its side effect.
        if node.users and _is_fixed(self.known[node]):
            value = self.known[node]
            self._new[node] = tuple(value) if isinstance(value, (tuple, list)) else value
            return
        copied_node = self.graph.node_copy(node, lambda each: self._new[each])
        self._new[node] = copied_node
        self._words[copied_node] = f"%{len(self._words)}"
        target = _name_of(node.target)
        arguments = self._text((copied_node.args, copied_node.kwargs))
        self.lines.append(f"{self._words[copied_node]} = {node.op} {target} {arguments}")

    def _text(self, arguments: Any) -> str:
        """Return the part of `StaticGraph.text` that describes the arguments of a node.

        `StaticGraph.text` identifies the graph. Equal numbers, strings or dtypes have equal
        descriptions. Nodes of two graphs have equal descriptions if they have the same position in
        their graphs. The description of any other object contains a new number in each call, so
        that no other graph gets the same text.
        """
        leaves, structure = pytree.tree_flatten(arguments)
        words = [self._words[each] if isinstance(each, fx.Node) else _word(each) for each in leaves]
        return f"{words} {structure}"


_own_words: Final = itertools.count()

WORDS: Final = (type(None), str, complex, *NUMBERS, torch.layout, torch.memory_format)


def _word(value: Any) -> str:
    """Return the part of `StaticGraph.text` that describes an argument that is not a node.

    `StaticGraph.text` identifies the graph. The description of a number, a string or a dtype, for
    example, is its `repr`. Most other objects get a new description in each call, such as
    "Generator 7", so no other graph has the same text.
    """
    if isinstance(value, WORDS):
        return repr(value)
    if isinstance(value, slice):
        return f"slice({_word(value.start)}, {_word(value.stop)}, {_word(value.step)})"
    return f"{type(value).__name__} {next(_own_words)}"


def _name_of(target: Callable[..., Any] | OpOverload | str) -> str:
    """Return a text that identifies the target of a call."""
    if isinstance(target, (str, OpOverload)):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', '')} {id(target)}"
