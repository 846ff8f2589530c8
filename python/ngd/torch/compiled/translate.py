# SPDX-License-Identifier: Apache-2.0
"""Translate an exported graph of aten ops into ngd nodes, one rule per op.

If all arguments of an op are constants, PyTorch computes the op during the translation. For
example, attention masks and relative positions become constants. The shape and dtype of each node
are compared with those that torch.export recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import fx
from torch.fx.node import map_aggregate

from ..._util.callsite import Owner, at_site, owner
from ...errors import CompileError, Error
from ...graph.node import Node
from .refusals import UntranslatableError
from .rules import Call, Draws, Rule, UnsupportedOpError, rule_of
from .rules.registry import as_numpy_dtype

ADVICE: Final = (
    'Replace the op by others, or use the backend "ngd" of torch.distributed, which runs any model.'
)
IGNORED: Final = frozenset({"device", "layout", "pin_memory", "memory_format"})
"""The names of arguments of aten ops that do not change the values of the result. For example,
"memory_format" sets its layout in memory. The translation leaves these arguments out."""


def translate(
    where: str, module: fx.GraphModule, values: Mapping[str, Any], draws: Draws
) -> list[Any]:
    """Translate an exported graph and return its outputs.

    Parameters
    ----------
    where : str
        The public call that error messages begin with, such as "ngd.torch.compile_step".
    module : GraphModule
        The graph, without in-place ops (`ExportedProgram.run_decompositions`).
    values : mapping
        The value of each input by the name of its node: an ngd node, or a constant tensor.
    draws : Draws
        The source of seeds for the random ops of the program.

    Returns
    -------
    list
        One ngd node per output, or a constant tensor if the output is constant.

    Raises
    ------
    CompileError
        An op has no translation rule. The message names the op, and the line and module of the
        model.
    """
    known: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            known[node] = values[node.name]
        elif node.op == "get_attr":
            known[node] = _attribute(module, node.target)
        elif node.op == "output":
            return list(_known(node.args[0], known))
        else:
            known[node] = _translated(where, node, known, draws)
    raise AssertionError("an exported graph has an output")


def _attribute(module: Any, path: str) -> Any:
    """Return the attribute of a module at a dotted path, such as "layer.weight"."""
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _known(arguments: Any, known: Mapping[fx.Node, Any]) -> Any:
    """Return the arguments of a call with each node of the exported graph replaced by its value.

    `known` has the values: ngd nodes, constant tensors, or tuples for ops with several outputs.
    """
    return map_aggregate(arguments, lambda each: known[each] if isinstance(each, fx.Node) else each)


def _translated(where: str, node: fx.Node, known: Mapping[fx.Node, Any], draws: Draws) -> Any:
    """Return the value of one node of an exported graph.

    The value is an ngd node, a constant, or a tuple for an op with several outputs. `known` has the
    values of the earlier nodes.
    """
    args, kwargs = _known(node.args, known), _known(node.kwargs, known)
    rule = rule_of(node.target)
    if not (rule and rule.is_random) and not _contains_node((args, kwargs)):
        with torch.no_grad():
            return node.target(*args, **kwargs)
    with _named(where, node):
        if rule is None:
            raise UnsupportedOpError(f"{node.target}, which has no rule")
        value = _apply(rule, Call(node, draws), args, kwargs)
        _expect_type(node, value)
        return value


def _contains_node(arguments: Any) -> bool:
    """Return True if one of the nested arguments is a node of ngd."""
    found = []
    map_aggregate(arguments, lambda each: found.append(isinstance(each, Node)))
    return any(found)


def _apply(rule: Rule, call: Call, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Call a rule without the IGNORED keyword arguments. Errors name the user's source line."""
    options = {name: value for name, value in kwargs.items() if name not in IGNORED}
    with at_site(site_of(call.fx_node)):
        return rule.function(call, *args, **options)


@contextmanager
def _named(where: str, node: fx.Node) -> Iterator[None]:
    """Return a context manager that raises a CompileError if the translation of an op fails.

    The message names the op `node.target`, the user's line and the module.
    """
    try:
        yield
    except UnsupportedOpError as error:
        raise UntranslatableError.of(
            where,
            "a model of ops that ngd can translate",
            f"{error} (called at {site_of(node)})",
            ADVICE,
        ) from None
    except (Error, TypeError, ValueError, IndexError) as error:
        raise CompileError(
            f"{where}: expected arguments of {node.target} that ngd can translate; got "
            f"{error} (called at {site_of(node)}). Please report this."
        ) from error


def _expect_type(node: fx.Node, value: Any) -> None:
    """Raise if an output has another shape or dtype than torch.export has recorded.

    If an op has several outputs, each output that the graph reads has its own node and is checked.
    An output that the graph does not read is not checked. This matters for LSTM layers: PyTorch 2.9
    records a wrong shape for their last states.
    """
    expected = node.meta.get("val")
    if not isinstance(value, Node) or not isinstance(expected, torch.Tensor):
        return
    shape, dtype = tuple(int(n) for n in expected.shape), as_numpy_dtype(expected.dtype)
    if value.shape != shape or value.dtype != dtype:
        raise UnsupportedOpError(f"a result {value.type} where PyTorch has {dtype}{list(shape)}")


FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def site_of(node: fx.Node) -> str:
    """Return the user's line that called an op, and the path of the innermost module that ran it.

    An example is "train.py:12 in encoder.layers.0".
    """
    frames = FRAME.findall(node.meta.get("stack_trace") or "")
    known = [(file, line) for file, line in frames if not file.startswith("<eval_with_key>")]
    own = [(file, line) for file, line in known if owner(file) is Owner.USER] or known
    site = ":".join(own[-1]) if own else "an unknown line"
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = modules[-1][0] if modules else ""
    return f"{site} in {path}" if path else site
