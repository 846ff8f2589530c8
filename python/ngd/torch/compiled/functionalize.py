# SPDX-License-Identifier: Apache-2.0
"""Make exported graphs functional without PyTorch's decompositions, if that is simple.

`run_decompositions` traces a graph again, which takes as long as the export. Most models do not
need it, because ngd can translate each of their ops by a rule. Their in-place ops write only to
buffers or to results of other ops, and no op makes a view of these tensors. In such a graph, this
module replaces the in-place ops by functional ones. Other graphs are decomposed by PyTorch.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from itertools import chain
from typing import Any, Final

import torch
from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument

from .rules import rule_of

aten: Final = torch.ops.aten

RUNNING_STATISTICS: Final = slice(3, 5)
"""The positions of the running mean and variance in the arguments of batch_norm. It writes to them
in training, although its schema lists them as read-only."""
IS_TRAINING, MOMENTUM = 5, 6
"""The positions of the arguments `training` and `momentum` of batch_norm."""
BATCH_NORM: Final = aten._native_batch_norm_legit_functional.default
NEXT_STATISTICS: Final = (3, 4)
"""The positions of the new running mean and variance in the results of BATCH_NORM. This op of batch
normalization returns the new statistics, and does not write to its arguments."""
IN_PLACE: Final = frozenset(
    {"add_", "sub_", "mul_", "div_", "neg_", "clamp_", "clamp_min_", "clamp_max_", "masked_fill_"}
    | {"relu_", "leaky_relu_", "elu_", "silu_", "hardswish_", "hardsigmoid_", "hardtanh_"}
    | {"sigmoid_", "tanh_", "exp_", "sqrt_"}
)
"""The names of in-place ops that a functional op can replace. The functional op has the same name
without the final "_". An in-place op keeps the dtype of its first argument, but a functional op may
return a wider dtype. So a call is replaced only if its functional op would keep the dtype, too
(`keeps_type`)."""
MAKE_NEW: Final = frozenset(
    {"linear", "matmul", "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention"}
    | {"batch_norm", "layer_norm", "group_norm", "rms_norm", "softmax", "log_softmax"}
    | {"max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d"}
    | {"adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"}
    | {"cross_entropy_loss", "nll_loss", "nll_loss_nd", "l1_loss", "kl_div"}
    | {"square", "multiply", "true_divide", "clip", "relu6", "selu", "log_sigmoid"}
)
"""The composite ops whose results are never views. The schema of a composite op does not state
which results are views, so these ops are listed here."""


def make_functional(program: ExportedProgram) -> bool:
    """Make a graph functional and return True, or return False and leave the graph unchanged.

    A functional graph has no in-place op, and a rule translates each op. Ops of constants need no
    rule, because PyTorch computes them during the translation.
    """
    if torch.is_autocast_enabled("cpu"):  # only decompositions insert its casts
        return False
    plan = Plan(program)
    if not plan.is_possible():
        return False
    plan.carry_out()
    return True


class Plan:
    """A plan to make a graph functional: to replace its in-place ops by functional ops.

    `is_possible` finds the values that the in-place ops write to. `carry_out` replaces the ops.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.program, self.graph = program, program.graph
        kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        constants = {n for n in inputs if kinds[n.name].kind is InputKind.CONSTANT_TENSOR}
        self.buffers = {
            node: str(kinds[node.name].target)
            for node in inputs
            if kinds[node.name].kind is InputKind.BUFFER
        }
        self.variables = set(inputs) - constants
        self.written: dict[fx.Node, fx.Node] = {}
        """For each in-place op (the key), the node whose memory the op writes to (the value). That
        node is not an in-place op itself."""
        self.statistics: dict[fx.Node, tuple[fx.Node, ...]] = {}
        """The buffers that each batch normalization writes to, by the node of the op."""

    def is_possible(self) -> bool:
        """Find the values that ops write to; return True if the graph can become functional."""
        for node in self.graph.nodes:
            if node.op == "call_function":
                rule = rule_of(node.target)
                is_random = rule is not None and rule.is_random
                if is_random or not self.variables.isdisjoint(node.all_input_nodes):
                    self.variables.add(node)
                    if not self._fits_variables(node):
                        return False
                elif not fits_constants(node):
                    return False
            elif node.op not in ("placeholder", "output"):
                return False
        values = {*self.written.values(), *chain.from_iterable(self.statistics.values())}
        aliases = [node for node in self.graph.nodes if self._origin(node) in values]
        return all(self._is_read_only(user) for node in aliases for user in node.users)

    def carry_out(self) -> None:
        """Replace the in-place ops, and add the new contents of buffers to the graph's outputs.

        The Python code of the module is not generated again from the changed graph, which would
        take time. ngd reads only the graph.
        """
        current: dict[fx.Node, fx.Node] = {}
        for node in list(self.graph.nodes):
            node.args = fx.map_arg(node.args, lambda n: current.get(self._origin(n), n))
            node.kwargs = fx.map_arg(node.kwargs, lambda n: current.get(self._origin(n), n))
            if node in self.written:
                current[self.written[node]] = self._after(node, functional(node.target), node.args)
            elif node in self.statistics:
                batch_norm = self._after(node, BATCH_NORM, node.args[:8])
                del batch_norm.meta["val"]  # it describes one result, and BATCH_NORM has several
                current[node] = self._part(batch_norm, 0, node)
                for buffer, number in zip(self.statistics[node], NEXT_STATISTICS, strict=True):
                    current[buffer] = self._part(batch_norm, number, buffer)
        self._return_buffers(
            {buffer: current[buffer] for buffer in self.buffers if buffer in current}
        )
        for node in reversed(list(self.graph.nodes)):
            if node.op == "call_function" and not node.users:
                self.graph.erase_node(node)

    def _origin(self, node: fx.Node) -> fx.Node:
        """Return the node that owns the memory of a node's result.

        An in-place op returns the memory of its first argument. If `node` is an in-place op that
        the plan replaces, return the node whose memory it writes to. Otherwise return `node`.
        """
        while node in self.written:
            node = self.written[node]
        return node

    def _fits_variables(self, node: fx.Node) -> bool:
        """Return True if ngd can run the op of a node, or a functional op instead.

        The op reads variables or draws random numbers. If it is an in-place op, store it in
        `written`. If it is a batch normalization in training, store it in `statistics`.
        """
        if node.target is operator.getitem:
            return True
        target: Any = node.target
        if not isinstance(target, OpOverload):
            return False
        if target is aten.batch_norm.default and writes_statistics(node):
            self.statistics[node] = node.args[RUNNING_STATISTICS]
            are_known = all(buffer in self.buffers for buffer in self.statistics[node])
            return are_known and isinstance(node.args[MOMENTUM], float)
        if target in (aten.instance_norm.default, aten.cudnn_batch_norm.default):
            return False  # these may also write running statistics
        if not target._schema.is_mutable:
            return rule_of(target) is not None
        counterpart = functional(target)
        if counterpart is None or rule_of(counterpart) is None or not keeps_type(node):
            return False
        origin = self._origin(node.args[0])
        self.written[node] = origin
        return origin in self.buffers or makes_new(origin)

    def _is_read_only(self, user: fx.Node) -> bool:
        """Return True if node `user` creates no view of the tensors that are its arguments.

        The output node of the graph, and an in-place op that the plan replaces, create no view.
        """
        return user.op == "output" or user in self.written or makes_new(user)

    def _after(self, node: fx.Node, target: Any, args: Iterable[Any]) -> fx.Node:
        """Insert a call of `target` after `node`, with the `kwargs` and the `meta` of `node`."""
        with self.graph.inserting_after(node):
            new_node = self.graph.call_function(target, tuple(args), dict(node.kwargs))
        new_node.meta = dict(node.meta)
        return new_node

    def _part(self, made: fx.Node, number: int, like: fx.Node) -> fx.Node:
        """Insert a node that selects result number `number` of node `made`.

        The new node gets the shape and dtype of node `like`.
        """
        with self.graph.inserting_after(made):
            part = self.graph.call_function(operator.getitem, (made, number))
        part.meta = {**made.meta, "val": like.meta["val"]}
        return part

    def _return_buffers(self, nexts: dict[fx.Node, fx.Node]) -> None:
        """Insert the new contents of buffers before the other outputs of the graph.

        `nexts` maps the node of each changed buffer to the node that computes its new contents.
        """
        output = self.graph.output_node()
        output.args = ((*nexts.values(), *output.args[0]),)
        self.program.graph_signature.output_specs[:0] = [
            OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(value.name), self.buffers[buffer])
            for buffer, value in nexts.items()
        ]


def fits_constants(node: fx.Node) -> bool:
    """Return True if PyTorch can compute an op of constants once, during the translation.

    The caller has checked that all operands are constants. Return False if the op writes to them or
    draws random numbers.
    """
    target: Any = node.target
    if target is operator.getitem or target is aten.detach_.default:
        return True
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return False
    return torch.Tag.nondeterministic_seeded not in target.tags


def writes_statistics(node: fx.Node) -> bool:
    """Return True for a batch normalization that updates its running statistics."""
    return (
        node.target is aten.batch_norm.default
        and bool(node.args[IS_TRAINING])
        and node.args[RUNNING_STATISTICS] != (None, None)
    )


def functional(target: OpOverload) -> OpOverload | None:
    """Return the functional op that replaces an in-place op; None if IN_PLACE does not list it."""
    name = name_of(target)
    if name not in IN_PLACE:
        return None
    packet = getattr(aten, name.removesuffix("_"), None)
    counterpart = getattr(packet, target._overloadname, None)
    return counterpart if isinstance(counterpart, OpOverload) else None


def name_of(target: OpOverload) -> str:
    """Return the name of an op without its namespace and overload."""
    return str(target._schema.name).rpartition("::")[2]


def keeps_type(node: fx.Node) -> bool:
    """Return True if type promotion gives the result the dtype of the first operand.

    An in-place op always keeps that dtype. A functional op may return another one, if another
    operand has a wider dtype.
    """
    dtype = dtype_of(node.args[0])
    others: list[Any] = [*node.args[1:], *node.kwargs.values()]
    allowed = (int, bool) if not dtype.is_floating_point else (int, bool, float)
    return all(
        dtype_of(other) in (dtype, torch.bool)
        if isinstance(other, fx.Node)
        else isinstance(other, allowed)
        for other in others
    )


def dtype_of(node: Any) -> torch.dtype:
    """Return the dtype of a node's tensor."""
    return node.meta["val"].dtype


def makes_new(node: fx.Node) -> bool:
    """Return True if the results of an op have new memory and are never views."""
    target: Any = node.target
    if not isinstance(target, OpOverload):
        return False
    has_views = any(result.alias_info for result in target._schema.returns)
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    )
    return not has_views and (not composite or name_of(target) in MAKE_NEW)
