# SPDX-License-Identifier: Apache-2.0
"""The table of rules: for an aten op, the function that builds its ngd nodes.

A rule declares samples, which are arguments of the op. The tests run each sample in eager PyTorch
and as an ngd program, and compare results and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import fx
from torch._ops import OpOverload

from .... import ops
from ....dtypes import ALL, DType, bfloat16
from ....graph.node import Node
from ....graph.variable import constant

NodeOrNodes = Any
"""The ngd nodes into which a rule translates an aten op: a node, or a tuple for an op with several
outputs. In a tuple, an output is None if the rule does not compute it, because no exported graph
reads it."""


class T(NamedTuple):
    """The description of a random tensor with which the tests call an op (see Sample).

    Attributes
    ----------
    shape : tuple of ints
        The shape.
    dtype : torch.dtype
        The dtype. Booleans are True with probability 1/2.
    low, high : float or None
        The range [low, high) of uniformly drawn numbers. Floats without a range are drawn from the
        standard normal distribution. Integers need `high`; their default for `low` is 0.
    has_grad : bool
        False if the op has no gradient with respect to this operand.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float64
    low: float | None = None
    high: float | None = None
    has_grad: bool = True


class Sample:
    """The arguments with which a test calls an op. A `T` among them stands for a random tensor."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        words = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        return ", ".join(words)


class Draws:
    """The seeds and the offset for the random ops of one program.

    A random op of ngd computes its numbers from a seed and an offset. The first op of the program
    has the seed 1, the next one the seed 2, and so on. All ops have the same offset.

    Parameters
    ----------
    offset : Node
        A node whose value differs between steps.
    seed : Node, optional
        A node that is added to each seed. By default nothing is added. Either `seed` or `offset`
        must differ between ranks.
    """

    def __init__(self, offset: Node, seed: Node | None = None) -> None:
        self._offset, self._seed = offset, seed
        self.count = 0
        """The number of calls of `next` so far."""

    def next(self) -> dict[str, Any]:
        """Return the keyword arguments `seed` and `offset` for one more random op of ngd."""
        self.count += 1
        seed = self.count if self._seed is None else self._seed + self.count
        return {"seed": seed, "offset": self._offset}


class Call:
    """One call of an aten op in an exported graph, for its rule.

    Attributes
    ----------
    fx_node : torch.fx.Node
        The call in the exported graph.
    name : str
        The name of the op's overload, such as "aten.add.Tensor".
    draws : Draws
        The source of seeds for the random ops of the program.
    """

    def __init__(self, node: fx.Node, draws: Draws) -> None:
        self.fx_node = node
        self.name = str(node.target)
        self.draws = draws

    @property
    def outputs(self) -> tuple[torch.Tensor, ...]:
        """The outputs of the op, as fake tensors."""
        value = self.fx_node.meta["val"]
        return tuple(value) if isinstance(value, (tuple, list)) else (value,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first output."""
        return tuple(int(length) for length in self.outputs[0].shape)

    @property
    def dtype(self) -> DType:
        """The dtype of the first output."""
        return as_numpy_dtype(self.outputs[0].dtype)

    @property
    def operand_dtype(self) -> DType:
        """The dtype to which PyTorch promotes the first two arguments.

        The op must have at least two arguments.
        """
        first, second = (
            arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in self.fx_node.args[:2]
        )
        return as_numpy_dtype(torch.result_type(first, second))

    def cast(self, value: Any, dtype: DType | None = None) -> Node:
        """Return an operand as a node of `dtype`, by default the dtype of the first output."""
        return as_node(value, self.dtype if dtype is None else dtype)


DTYPES: Final = {getattr(torch, dtype.name): dtype for dtype in ALL}


def as_numpy_dtype(dtype: torch.dtype) -> DType:
    """Return ngd's dtype for a dtype of PyTorch; raise UnsupportedOpError if ngd has none."""
    expect(dtype in DTYPES, f"tensors of {dtype}")
    return DTYPES[dtype]


def as_torch_dtype(dtype: DType) -> torch.dtype:
    """Return PyTorch's dtype for a dtype of ngd."""
    torch_dtype: torch.dtype = getattr(torch, dtype.name)
    return torch_dtype


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the values of a tensor as an array of the same dtype, including bfloat16."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype is torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(bfloat16)
    return tensor.numpy()


def as_node(value: Any, dtype: DType | None = None) -> Node:
    """Return an operand as a node, and cast it to a dtype if one is given."""
    if isinstance(value, torch.Tensor):
        value = as_array(value)
    if not isinstance(value, Node):
        return constant(np.asarray(value, dtype))
    return value if dtype is None or value.dtype == dtype else ops.cast(value, dtype)


def as_flags(x: Any) -> Node:
    """Return an operand as booleans: True where it is not 0."""
    node = as_node(x)
    return node if node.dtype == bool else ops.not_equal(node, np.zeros((), node.dtype))


def as_optional_node(value: Any) -> Node | None:
    """Return an operand as a node, or None if the operand is None."""
    return None if value is None else as_node(value)


def axes_of(dim: int | Sequence[int] | None, rank: int) -> tuple[int, ...] | None:
    """Return PyTorch's dimensions as a tuple of axes from 0 to rank - 1.

    Return None, which means all axes, if `dim` is None or an empty list.
    """
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return None
    dims = (dim,) if isinstance(dim, int) else dim
    return tuple(each % max(rank, 1) for each in dims)


class UnsupportedOpError(Exception):
    """An error: an op has no translation rule, or its rule cannot translate the arguments.

    The function `translate` raises an UntranslatableError in its place, whose message adds the
    user's source line that called the op.
    """


def expect(holds: bool, use: str) -> None:
    """Raise an UnsupportedOpError unless `holds` is True.

    `use` is the text of the error: the op and the arguments that the rule cannot translate.
    """
    if not holds:
        raise UnsupportedOpError(use)


RuleFunction = Callable[..., NodeOrNodes]


class Rule(NamedTuple):
    """The translation of an aten op into nodes."""

    function: RuleFunction
    samples: tuple[Sample, ...]
    is_random: bool


RULES: Final[dict[OpOverload | str, Rule]] = {}
"""The rules, which translate aten ops into ngd nodes. The key is the op, or the name of an op of
another library."""


def rule_of(target: Any) -> Rule | None:
    """Return the rule that translates the op `target` into ngd nodes, or None if it has no rule."""
    return RULES.get(target) or RULES.get(str(target))


def rule(
    *targets: OpOverload | str, samples: Iterable[Sample] = (), is_random: bool = False
) -> Callable[[RuleFunction], RuleFunction]:
    """Return a decorator that makes a function the rule of some aten ops.

    A rule translates a call of an op into ngd nodes. The decorator adds a Rule per op to RULES.

    Parameters
    ----------
    *targets : OpOverload or str
        The ops. An op of a library that may not be installed is given as text, by the name of its
        overload.
    samples : iterable of Sample
        Arguments that all of these ops take, for the tests.
    is_random : bool, default False
        The op draws random numbers, so a call with constant arguments is not computed in advance.
    """

    def register(function: RuleFunction) -> RuleFunction:
        for target in targets:
            assert target not in RULES, target
            RULES[target] = Rule(function, tuple(samples), is_random)
        return function

    return register
