# SPDX-License-Identifier: Apache-2.0
"""In-place writes that autograd does not see, in an exported graph before its decomposition.

PyTorch ignores such a write in the backward pass. ngd replaces in-place ops by functional ops, and
its backward pass would include the effect of the write. The gradient would differ from PyTorch's
without an error. So these writes are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload

from .refusals import refuse
from .translate import site_of

SET_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled


class Value(NamedTuple):
    """A record of a tensor of the graph: the owner of its memory, and if it is detached.

    Attributes
    ----------
    memory : Node
        The node that allocated the tensor's memory. For a view of a tensor, this is the node that
        made the tensor. For an input of the graph, it is the node of the input.
    is_detached : bool
        True if the tensor is the result of `detach`, or a view of such a result. Autograd sees no
        write to such a tensor. Autograd may see a write to the same memory through another tensor.
    """

    memory: fx.Node
    is_detached: bool


class _Walk:
    """A walk over the graph that raises for writes that autograd does not see.

    `trained` has the nodes that own the memory of tensors that require a gradient. At first these
    are the parameters. If autograd records an op that reads such a tensor, the walk adds two nodes:
    the owner of the memory that the op writes to, and the op itself if its result has new memory.
    """

    def __init__(self, where: str, trained: set[fx.Node]) -> None:
        self.where, self.trained = where, trained
        self.values: dict[fx.Node, Any] = {}

    def run(self, module: fx.GraphModule, has_grad: bool, operands: Iterable[Any] = ()) -> Any:
        """Visit the nodes in order, and return one `Value` per output.

        A Value states which node owns the memory of a tensor; None means unknown. `has_grad` is
        False if the graph is the body of a `torch.no_grad()` region, in which autograd records no
        writes. `operands` has the Values of the inputs of such a body. It is empty for the whole
        graph, in which each input has memory of its own.
        """
        values_of_inputs = iter(operands)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = next(values_of_inputs, Value(node, False))
            elif node.op == "output":
                return [self.values.get(each) for each in _nodes(node.args[0])]
            elif node.target is SET_GRAD:
                self.values[node] = self._region(module, node)
            elif node.op == "call_function":
                self.values[node] = self._call(node, has_grad)
        return []

    def _region(self, module: fx.GraphModule, node: fx.Node) -> Any:
        """Visit the body of a region of `torch.no_grad()` or `torch.enable_grad()`.

        Return one Value per output of the body.
        """
        is_enabled, body, *operands = node.args
        inner = module.get_submodule(str(body.target))
        assert isinstance(inner, fx.GraphModule)
        return self.run(inner, bool(is_enabled), [self.values.get(each) for each in operands])

    def _call(self, node: fx.Node, has_grad: bool) -> Any:
        """Return the Value of an op's result: the owner of its memory, and if it is detached.

        Raise for a write that autograd does not see. If the op makes or writes a tensor that
        then requires a gradient, add the node that owns the tensor's memory to `trained`.
        """
        operands = [self.values.get(each) for each in node.all_input_nodes]
        known = [each for each in operands if isinstance(each, Value)]
        is_trained = has_grad and any(
            each.memory in self.trained and not each.is_detached for each in known
        )
        if not isinstance(node.target, OpOverload):
            return self._item(node, operands)
        written, viewed = _aliases(node)
        for each in (self.values.get(argument) for argument in written):
            if isinstance(each, Value):
                self._expect_seen(node, each, has_grad)
                if is_trained:
                    self.trained.add(each.memory)
        source = self.values.get(viewed) if viewed is not None else None
        if isinstance(source, Value):
            is_detach = node.target is torch.ops.aten.detach.default
            return Value(source.memory, source.is_detached or is_detach)
        if is_trained:
            self.trained.add(node)
        return Value(node, False)

    def _item(self, node: fx.Node, operands: list[Any]) -> Any:
        """Return the Value of `node`: the owner of its memory, and if it is detached.

        `node` is a `getitem`. It selects one result of an op with several results, or of a
        `torch.no_grad()` or `torch.enable_grad()` region of the graph.
        """
        (source,) = operands[:1] or [None]
        number = node.args[1] if len(node.args) > 1 else 0
        if isinstance(source, list) and isinstance(number, int):
            return source[number]
        return source if isinstance(source, Value) else Value(node, False)

    def _expect_seen(self, node: fx.Node, written: Value, has_grad: bool) -> None:
        """Raise if autograd does not see a write to a tensor that requires a gradient."""
        is_hidden = written.is_detached or not has_grad
        if is_hidden and written.memory in self.trained:
            what = "a write without gradient to a tensor that requires one"
            refuse(self.where, f"{what} (called at {site_of(node)})")


def _nodes(tree: Any) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    fx.node.map_aggregate(tree, lambda each: nodes.append(each) if isinstance(each, fx.Node) else 0)
    return nodes


def _aliases(node: fx.Node) -> tuple[list[fx.Node], fx.Node | None]:
    """Return the arguments that an op writes to, and the argument whose memory its result has.

    The latter is None if the result has new memory. For an op with several results, the latter
    refers to the first result.
    """
    assert isinstance(node.target, OpOverload)
    written, viewed = [], None
    schema = node.target._schema
    result = schema.returns[0].alias_info if schema.returns else None
    names: Mapping[str, Any] = {
        argument.name: value for argument, value in zip(schema.arguments, node.args, strict=False)
    }
    for argument in schema.arguments:
        value = {**names, **node.kwargs}.get(argument.name)
        info = argument.alias_info
        if info is None or not isinstance(value, fx.Node):
            continue
        if info.is_write:
            written.append(value)
        if result is not None and info.before_set & result.before_set:
            viewed = value
    return written, viewed


def expect_no_hidden_writes(where: str, module: fx.GraphModule, parameters: Iterable[str]) -> None:
    """Raise a CompileError if autograd does not see a write to a tensor that requires a gradient.

    Parameters
    ----------
    where : str
        The public call that error messages begin with, such as "ngd.torch.compile_step".
    module : GraphModule
        An exported graph, with its in-place ops, and with `torch.no_grad()` regions as subgraphs.
    parameters : iterable of str
        The names of the inputs that require a gradient.
    """
    names = set(parameters)
    trained = {n for n in module.graph.nodes if n.op == "placeholder" and n.name in names}
    _Walk(where, trained).run(module, has_grad=True)
