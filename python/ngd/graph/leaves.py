# SPDX-License-Identifier: Apache-2.0
"""The ops without operands: placeholders, constants and variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import DType, Type
from .node import Node, Op
from .registry import register
from .samples import Sample


class Leaf(Op):
    """A value that comes from outside the graph."""

    dtypes = ()
    public = False

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        """Return (), because a leaf has no inputs."""
        return ()

    def samples(self) -> Iterable[Sample]:
        """Return (), because tests of ops have no cases for a leaf, which computes nothing."""
        return ()


class Placeholder(Leaf):
    """An input of a step, whose value each call gives; attrs: name, uniform.

    `uniform` is True if the caller promised that all ranks pass equal values.
    """

    name = "placeholder"

    def is_uniform(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> bool:
        """Return True if the caller promised (`uniform=True`) that all ranks pass equal values."""
        return bool(attrs["uniform"])


class Constant(Leaf):
    """A value known when the graph is built; attrs: value (a read-only array), weak, local.

    A constant has `weak` only if it was made from a Python float: `weak` is this float. An op casts
    such a constant to the dtype of the op's other operand. `local` is True if the value may differ
    between ranks, such as the number of rows of a rank's shard. The comparison of the ranks' steps
    then ignores the value.
    """

    name = "constant"


class VariableLeaf(Leaf):
    """The value of a variable before the step; attrs: name. See ngd.variable."""

    name = "variable"


PLACEHOLDER: Final[Placeholder] = register(Placeholder())
CONSTANT: Final[Constant] = register(Constant())
VARIABLE: Final[VariableLeaf] = register(VariableLeaf())


def constant_node(value: Any, dtype: DType | None = None, *, weak: float | None = None) -> Node:
    """Return a constant that has the value of an array, converted to `dtype` if that is given.

    `weak` is the Python float that the constant was made from, or None. If it is not None, ops
    treat the constant as a Python number (ops/_operands.py).
    """
    array = np.array(value, dtype, order="C", copy=True)
    array.flags.writeable = False
    attrs = {"value": array} if weak is None else {"value": array, "weak": weak}
    return Node(CONSTANT, (), attrs, Type(array.dtype, array.shape))
