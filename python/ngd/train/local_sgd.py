# SPDX-License-Identifier: Apache-2.0
"""Local SGD and DiLoCo: ranks make many steps on their own, and then one step together.

    inner = optim.AdamW(4e-4)
    gradients = ngd.grad(loss, parameters)
    step = ngd.compile([x], [loss], inner.apply(dict(zip(parameters, gradients))))
    diloco = train.DiLoCo(parameters, every=100, carried=inner.state)
    while diloco.round < rounds:
        step(next(batches))
        diloco.step()

Under `ngd run --min-ranks` ranks may leave and join at an outer step.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import Any, Final

import numpy as np

from .. import ops, optim, trees
from .._util.signature_errors import check_constructor
from ..comm import Group
from ..comm.calls import all_gather, all_reduce, broadcast
from ..comm.membership import newcomers
from ..comm.world import init, shutdown
from ..compiler.driver import compile
from ..dtypes import bfloat16, float16, float32, float64, int8
from ..errors import CollectiveError, CollectiveMismatchError
from ..graph.live_state import LiveState
from ..graph.node import Node
from ..graph.variable import Variable, placeholder
from ..graph.variable_names import UniqueNames
from ..optim.options import add_names

logger = logging.getLogger("ngd")

FLOATS: Final = (float64, float32, float16, bfloat16)
WIRES: Final = tuple(np.dtype(each) for each in (float32, bfloat16, int8))
"""What outer gradients may travel as."""
LEAST: Final = 1e-30
"""Rows of int8 whose largest magnitude is below count as zeros."""
MOST_WORLDS: Final = 16
"""For one outer step: where one after the other fails, it is not for the loss of a member."""
NOT_BEGUN: Final = -1
"""The round of who has not met the others."""


class DiLoCo:
    """DiLoCo: many inner steps on each rank, then one outer step on all ranks together.

    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models"
    (arXiv:2311.08105), Algorithm 1. The outer gradient of a rank is its weights after the last
    outer step minus its weights now. The outer optimizer takes the mean of all outer gradients and
    updates the weights of the last outer step. All ranks continue with the result. The inner
    optimizer is the caller's, and its state stays on each rank.

    All ranks make the same number of inner steps and call `step` after each. The constructor is
    collective too: all ranks start with the weights of rank 0.

    Parameters
    ----------
    parameters : structure of variables or arrays
        The weights, in any nested structure of ngd.trees: floating variables, or writable floating
        NumPy arrays, which are changed in place. For PyTorch tensors on the CPU give
        `p.detach().numpy()`.
    every : int
        H, the number of inner steps per outer step, at least 1.
    outer : Optimizer, optional
        The outer optimizer. The default is SGD(0.7, momentum=0.9, nesterov=True), as in the paper.
        A second DiLoCo needs one with another name.
    wire : dtype, default float32
        The dtype in which outer gradients are sent: float32, bfloat16 or int8. See Notes.
    carried : structure, optional
        Variables or arrays that a new rank of an elastic job gets with the weights, for example the
        state of the inner optimizer. The other ranks keep theirs.
    group : Group, optional
        The ranks. The default is the world.

    Attributes
    ----------
    state : LiveState
        The outer weights, the state of the outer optimizer and the round, for checkpoints. It is
        equal on all ranks. Call `restart` after ngd.checkpoint.load.

    Raises
    ------
    TypeError
        A parameter is not a floating variable or a writable floating array.
    ValueError
        `every` is below 1, or the wire dtype is unknown.
    CollectiveError
        See `step`.

    Notes
    -----
    Elastic jobs. Under `ngd run --min-ranks` this class joins the world itself, unless `group` is
    given. A lost rank is missing from the next outer step, whose mean is that of the remaining
    ranks. A new rank first gets the weights, the outer optimizer's state, the round and `carried`
    from a rank that has them. It takes part in the next outer step with weight 0. So does a rank
    that was disconnected while the other ranks finished a round.

    Wire. float32 sends float64 parameters as float64. bfloat16 rounds each outer gradient, sums in
    float32 and rounds the sum. For a mean M of the values x of n ranks, the error is at most
    2**-8 * (sum|x| / n + |M|) * (1 + 2**-8). int8 divides each row by its largest magnitude / 127
    and rounds it to integers. A row is one index of the first axis, or the whole of an array with
    fewer than two axes. The mean is computed in float32. The error of an element is at most the
    mean over ranks of its row's largest magnitude, divided by 254, plus the rounding of float32.

    Examples
    --------
    >>> import numpy as np
    >>> from ngd import train
    >>> weights = np.ones(3, np.float32)
    >>> diloco = train.DiLoCo([weights], every=2)
    >>> for _ in range(4):
    ...     weights -= 0.1  # an inner step
    ...     is_outer = diloco.step()
    >>> diloco.round, is_outer
    (2, True)
    """

    @check_constructor("train.DiLoCo")
    def __init__(
        self,
        parameters: Any,
        *,
        every: int,
        outer: optim.Optimizer | None = None,
        wire: Any = float32,
        carried: Any = (),
        group: Group | None = None,
    ) -> None:
        self.where = f"train.{type(self).__name__}"
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"{self.where}: expected every to be a whole number >= 1; got {every}")
        self.every, self.wire = every, np.dtype(wire)
        if self.wire not in WIRES:
            known = ", ".join(each.name for each in WIRES)
            raise ValueError(f"{self.where}: wire: expected one of {known}; got {self.wire.name}")
        self.outer = outer or optim.SGD(0.7, momentum=0.9, nesterov=True, name="outer")
        self._leaves, names = self._checked("parameters", parameters)
        self._on_graph = isinstance(self._leaves[0], Variable)
        self._checked("carried", carried)
        self._carried = carried
        self.state = LiveState(f"{self.outer.name}.diloco", self.outer.state)
        self._start = [
            self.state.variable(f"{self.outer.name}.{name}.start", partial(wide_value, leaf))
            for name, leaf in zip(names, self._leaves, strict=True)
        ]
        name = f"{self.outer.name}.round"
        self._round = self.state.variable(name, lambda: np.int64(NOT_BEGUN))
        self._group = group
        self._world: Group | None = None
        self._executable: Any = None
        self._inner = 0
        self.outer.apply({v: v for v in self._start})  # makes its state
        self._meet(weight=0.0)

    @property
    def round(self) -> int:
        """The number of outer steps that the ranks have made together."""
        return int(self._round.numpy())

    def restart(self) -> None:
        """Set the parameters to the outer weights, those of the last outer step.

        Call it after ngd.checkpoint.load of `state`.

        Examples
        --------
        >>> import numpy as np
        >>> from ngd import train
        >>> weights = np.ones(2, np.float32)
        >>> diloco = train.DiLoCo([weights], every=10)
        >>> weights += 5
        >>> diloco.restart()
        >>> weights.tolist()
        [1.0, 1.0]
        """
        for leaf, start in zip(self._leaves, self._start, strict=True):
            give(leaf, start.numpy())
        self._inner = 0

    def step(self) -> bool:
        """Count an inner step, and make the outer step if it is due.

        Returns
        -------
        bool
            Whether the outer step was made.

        Raises
        ------
        CollectiveError
            A rank is lost, late or disagrees, and the job is not elastic. An elastic job logs the
            failure, and the remaining ranks make the step.

        Examples
        --------
        >>> import numpy as np
        >>> from ngd import train
        >>> diloco = train.DiLoCo([np.zeros(2, np.float32)], every=3)
        >>> [diloco.step() for _ in range(4)]
        [False, False, True, False]
        """
        self._inner += 1
        if self._inner < self.every:
            return False
        self._meet(weight=1.0)
        self._inner = 0
        return True

    def _checked(self, argument: str, tree: Any) -> tuple[list[Any], list[str]]:
        """The leaves of a structure, and their names."""
        parameters = argument == "parameters"
        leaves, structure = trees.flatten(tree, None if parameters else is_state)
        for leaf, path in zip(leaves, structure.paths(argument), strict=True):
            good = isinstance(leaf, Variable | LiveState) or (
                isinstance(leaf, np.ndarray) and leaf.flags.writeable
            )
            if not good or (parameters and leaf.dtype not in FLOATS):
                raise TypeError(
                    f"{self.where}: {path}: expected a variable or a writable NumPy array"
                    f"{' of floats' if parameters else ''}; got {leaf!r}"
                )
        if parameters and len({isinstance(leaf, Variable) for leaf in leaves}) != 1:
            raise TypeError(
                f"{self.where}: parameters: expected only variables, or only arrays; got both"
            )
        if parameters and isinstance(leaves[0], Variable):
            unique = UniqueNames()
            add_names(self.where, leaves, unique)
            return leaves, [unique.names[v] for v in leaves]
        return leaves, structure.paths()

    def _meet(self, weight: float) -> None:
        """Make an outer step with all who are there then.

        The weight is 1 for who has made the round's inner steps. A world that has just been made
        first brings those who are behind to where the others are.
        """
        for left in reversed(range(MOST_WORLDS)):
            try:
                ranks = self._ranks()
                if ranks is not self._world:
                    begun, behind = self._heal(ranks)
                    weight = 0.0 if behind else weight
                    if not begun:
                        return
                self._run(weight)
                return
            except CollectiveError as error:
                fixed = self._group is not None or newcomers() is None
                if fixed or left == 0 or isinstance(error, CollectiveMismatchError):
                    raise
                logger.warning("%s: outer step %d: %s", self.where, self.round + 1, error)
                self._leave()

    def _ranks(self) -> Group:
        """The ranks of the next outer step: where new members wait, a new world."""
        if self._group is not None:
            return self._group
        world = init()
        wanted = newcomers()
        if wanted is not None and world is self._world:
            agreed = int(all_reduce(np.int64(wanted), op="max"))
            if agreed:
                logger.info("%s: %d new members come in", self.where, agreed)
                self._leave()
                world = init()
        return world

    def _leave(self) -> None:
        self._world = self._executable = None
        shutdown()

    def _heal(self, ranks: Group) -> tuple[bool, bool]:
        """Give all who are behind what one has who is not; whether there was any, and who I am."""
        mine = self.round
        rounds = all_gather(np.array([mine]), group=ranks)
        newest, root = int(rounds.max()), int(rounds.argmax())
        begun = newest != NOT_BEGUN
        leaves, _ = self._checked("carried", self._carried if begun else ())
        states = [leaf for leaf in leaves if isinstance(leaf, LiveState)]
        kept = [*self.state.values(), *(v for v in leaves if not isinstance(v, LiveState))]
        values = broadcast([value_of(each) for each in kept], root, group=ranks)
        of_states = [broadcast_state(state, root, ranks) for state in states]
        executable = self._compile(ranks)
        behind = mine < newest
        if behind or not begun:
            for each, value in zip(kept, values, strict=True):
                give(each, value)
            for state, (arrays, is_complete) in zip(states, of_states, strict=True):
                state.load(arrays, source=f"rank {root}", is_complete=is_complete)
            self.restart()
        if behind:
            logger.info("%s: healed by rank %d, at round %d", self.where, root, newest)
        if not begun:
            self._round.assign(0)
        self._world, self._executable = ranks, executable
        return begun, behind

    def _compile(self, ranks: Group) -> Any:
        """The outer step over some ranks: takes my weight, and the arrays; gives the new ones."""
        mine = placeholder("weight", ())
        now = self._leaves
        if not self._on_graph:
            pairs = zip(self._start, now, strict=True)
            now = [placeholder(start.name, leaf.shape, leaf.dtype) for start, leaf in pairs]
        total = ops.all_reduce(mine, op="sum", group=ranks)
        share = ops.where(total > 0, mine / total, 0.0)
        gradients = {}
        for start, leaf in zip(self._start, now, strict=True):
            moved = start - ops.cast(leaf, start.dtype)
            part = ops.where(mine > 0, moved * ops.cast(share, start.dtype), 0.0)
            gradients[start] = summed(part, self.wire, ranks)
        updates = self.outer.apply(gradients)
        updates[self._round] = self._round + 1
        results = [ops.cast(updates[s], v.dtype) for s, v in zip(self._start, now, strict=True)]
        if not self._on_graph:
            return compile([mine, *now], results, updates, group=ranks)
        updates |= dict(zip(now, results, strict=True))
        return compile([mine], [], updates, group=ranks)

    def _run(self, weight: float) -> None:
        given = (
            []
            if self._on_graph
            else [np.ascontiguousarray(leaf).reshape(leaf.shape) for leaf in self._leaves]
        )
        results = self._executable(np.float32(weight), *given)
        if not self._on_graph:
            for leaf, result in zip(self._leaves, results, strict=True):
                leaf[...] = result
        assert self._world is not None
        logger.info("%s: outer step %d, %d ranks", self.where, self.round, self._world.size)


class LocalSGD(DiLoCo):
    """Local SGD: the weights of all ranks are averaged every H steps.

    It is DiLoCo with the outer optimizer SGD(1.0). With H = 1 and plain SGD as the inner optimizer
    it is data-parallel SGD.

    Parameters
    ----------
    parameters, every, wire, carried, group
        See DiLoCo.

    Raises
    ------
    TypeError, ValueError, CollectiveError
        See DiLoCo.

    Notes
    -----
    Stich, "Local SGD Converges Fast and Communicates Little" (ICLR 2019), Algorithm 1. McMahan et
    al., federated averaging (AISTATS 2017).

    Examples
    --------
    >>> import numpy as np
    >>> from ngd import train
    >>> weights = np.ones(3, np.float32)
    >>> local_sgd = train.LocalSGD([weights], every=1)
    >>> weights -= 0.5  # an inner step
    >>> local_sgd.step(), weights.tolist()
    (True, [0.5, 0.5, 0.5])
    """

    @check_constructor("train.LocalSGD")
    def __init__(
        self,
        parameters: Any,
        *,
        every: int,
        wire: Any = float32,
        carried: Any = (),
        group: Group | None = None,
    ) -> None:
        outer = optim.SGD(1.0, name="local_sgd")
        super().__init__(
            parameters, every=every, outer=outer, wire=wire, carried=carried, group=group
        )


def value_of(leaf: Any) -> Any:
    """The array of a variable, or an array."""
    return leaf.numpy() if isinstance(leaf, Variable) else leaf


def give(leaf: Any, value: Any) -> None:
    """Replace the value of a variable, or of an array."""
    if isinstance(leaf, Variable):
        leaf.assign(value)
    else:
        leaf[...] = value


def is_state(tree: Any) -> bool:
    """Return whether a part of `carried` is a live state: its variables may come later."""
    return isinstance(tree, LiveState)


def state_values(state: LiveState) -> tuple[dict[str, Any], bool]:
    """Return the values of a state by name, the pending ones too, and whether it is complete."""
    values = {name: v.numpy() for name, v in state.variables.items()}
    return values | state.pending, state.is_complete


def broadcast_state(state: LiveState, root: int, ranks: Group) -> tuple[dict[str, Any], bool]:
    """Return the values of one rank's state, and whether it is complete.

    The variables need not exist on the other ranks.
    """
    values, is_complete = state_values(state)
    types = [[name, value.dtype.name, list(value.shape)] for name, value in values.items()]
    header = json.dumps({"types": types, "is_complete": is_complete})
    text = np.frombuffer(header.encode(), np.uint8)
    count = int(broadcast(np.int64(text.size), root, group=ranks))
    text = broadcast(text if ranks.rank == root else np.empty(count, np.uint8), root, group=ranks)
    told = json.loads(text.tobytes())
    if ranks.rank != root:
        values = {name: np.empty(shape, np.dtype(dtype)) for name, dtype, shape in told["types"]}
    arrays = broadcast([*values.values()], root, group=ranks)
    return dict(zip(values, arrays, strict=True)), bool(told["is_complete"])


def wide_value(leaf: Any) -> Any:
    """Return the value of a variable or array as an outer weight."""
    return wide(value_of(leaf))


def wide(value: Any) -> Any:
    """Outer weights have at least float32, so that small outer steps are not lost."""
    return value if value.dtype == float64 else value.astype(float32)


def summed(part: Node, wire: Any, ranks: Group) -> Node:
    """The sum over the ranks of their parts of a mean, which travel as `wire`; see DiLoCo."""
    if wire == float32:
        return ops.all_reduce(part, op="sum", group=ranks)
    if wire == bfloat16:
        rounded = ops.all_reduce(ops.cast(part, float32), op="sum", compression="bf16", group=ranks)
        return ops.cast(rounded, part.dtype)
    codes, scales = encoded(part)
    codes, scales = (ops.all_gather(each, group=ranks) for each in (codes, scales))
    rows = (ranks.size, *codes.shape[1:])
    values = ops.cast(ops.reshape(codes, (ranks.size, -1, *rows[1:])), float32)
    total = ops.sum(values * ops.reshape(scales, (ranks.size, -1, 1)), 0)
    return ops.cast(ops.reshape(total, part.shape), part.dtype)


def encoded(x: Node) -> tuple[Node, Node]:
    """An array as int8 rows, and a float32 scale a row: their product is the array, nearly."""
    rows = ops.reshape(ops.cast(x, float32), (x.shape[0] if x.ndim > 1 else 1, -1))
    largest = ops.max(abs(rows), 1, keepdims=True)
    scales = ops.where(largest < LEAST, 1.0, largest / 127.0)  # of a NaN a NaN
    return ops.cast(ops.round(rows / scales), int8), scales
