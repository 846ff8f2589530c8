# SPDX-License-Identifier: Apache-2.0
"""Run a captured PyTorch model as an ngd program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import ngd
from ngd import ops
from ngd.torch.compiled.capture import capture
from ngd.torch.compiled.rules import Draws
from ngd.torch.compiled.rules.registry import as_array, as_node, as_numpy_dtype
from ngd.torch.compiled.translate import translate


def as_program(
    model: torch.nn.Module,
    tensors: Sequence[torch.Tensor],
    adjoints: Sequence[torch.Tensor | None],
) -> tuple[list[np.ndarray[Any, Any] | None], list[np.ndarray[Any, Any]]]:
    """Return the outputs of a model, and the gradients of those with an adjoint by the inputs.

    An output is None if its rule does not return it.
    """
    examples = tuple(tensor.detach() for tensor in tensors)
    captured = capture("test", model, lambda m, *args: m(*args), examples)
    values, inputs, arguments = {}, [], iter(tensors)
    for each in captured.inputs:
        if each.kind == "argument":
            like = next(arguments)
            node = ngd.placeholder(each.name, tuple(like.shape), as_numpy_dtype(like.dtype))
            inputs.append(node)
            values[each.name] = node
        else:
            values[each.name] = each.value
    outputs = translate("test", captured.module, values, Draws(as_node(np.int64(0))))
    nodes = [None if each is None else as_node(each) for each in outputs]
    trained = [x for x, t in zip(inputs, tensors, strict=True) if t.requires_grad]
    gradients = []
    if trained and any(dy is not None for dy in adjoints):
        parts = zip(nodes, adjoints, strict=True)
        loss = sum(ops.sum(node * as_array(dy)) for node, dy in parts if dy is not None)
        gradients = ngd.grad(loss, trained, unused="zero")
    step = ngd.compile(inputs, [*(node for node in nodes if node is not None), *gradients])
    results = iter(step(*(as_array(tensor) for tensor in tensors)))
    return [None if node is None else next(results) for node in nodes], list(results)
