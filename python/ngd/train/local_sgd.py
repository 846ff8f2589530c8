# SPDX-License-Identifier: Apache-2.0
"""Training whose ranks make many steps alone, and then one together: local SGD and DiLoCo.

    inner = optim.AdamW(4e-4)
    gradients = ngd.grad(loss, parameters)
    step = ngd.compile([x], [loss], inner.apply(dict(zip(parameters, gradients))))
    diloco = train.DiLoCo(parameters, every=100, carried=inner.state)
    while diloco.round < rounds:
        step(next(batches))
        diloco.step()

Under `ngd run --min-ranks` ranks may be lost, and new ones come, at the next outer step.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import Any, Final

import numpy as np

from .. import (
    Group,
    LiveState,
    Node,
    Variable,
    all_gather,
    all_reduce,
    bfloat16,
    broadcast,
    compile,
    float16,
    float32,
    float64,
    init,
    int8,
    newcomers,
    ops,
    optim,
    placeholder,
    shutdown,
    trees,
)
from ..errors import CollectiveError, CollectiveMismatchError

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
    """Inner steps on each rank alone, and each H of them an outer step of all ranks together.

    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models"
    (arXiv:2311.08105), Algorithm 1. The outer gradient of a rank is what its weights were after the
    last outer step, minus what they are now; the mean of all ranks' goes to the outer optimizer,
    which moves the weights of then; all ranks go on with what it gives. The inner optimizer is the
    caller's, and stays each rank's own.

    All ranks make as many inner steps, and call `step` after each. Construction is collective, too:
    all begin with the weights of rank 0.

    Members that come and go: under `ngd run --min-ranks` (ngd.newcomers() is not None) the world is
    made by this class, unless `group` is given. A rank that is lost is missing from the next outer
    step, whose mean is that of the others. A new one takes part in the next outer step with weight
    0, after it was given the weights, the outer optimizer's state, the round and `carried` by a
    rank that has them; then it trains like the others. So does a rank that was cut off while the
    others finished a round.

    Parameters
    ----------
    parameters
        What is trained, in any structure (ngd.trees): variables, which the outer step reads and
        writes on the graph; or writable NumPy arrays, which it changes in place (of a tensor of
        PyTorch on the CPU: `p.detach().numpy()`). Floating; of one kind.
    every
        H: how many inner steps there are to an outer one, at least 1.
    outer
        The outer optimizer, of ngd.optim; by default SGD(0.7, momentum=0.9, nesterov=True), as in
        the paper. Another DiLoCo needs one of another name.
    wire
        What outer gradients travel as. "float32" (float64 for float64 parameters). "bfloat16":
        each rank's share is rounded to it, the sum is made in float32 and rounded once: for a mean
        M of n ranks' x the error is at most 2**-8 * (sum|x| / n + |M|) * (1 + 2**-8). "int8": each
        row (what one index of the first axis holds; all of an array of fewer than two axes) is
        divided by its largest magnitude / 127 and rounded to the nearest whole number; the mean is
        made in float32: an element's error is at most the mean over ranks of that row's largest
        magnitude, / 254, beside float32's rounding.
    carried
        Variables or arrays, in any structure, that a new member is given beside the weights, so
        that it does not begin without them: the state of the inner optimizer. Others keep theirs.
    group
        The ranks; by default the world.
    """

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
        """The outer weights, the outer optimizer's state and the round, for checkpoints.

        They are equal on all ranks. After ngd.checkpoint.load call `restart`.
        """
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
        """How many outer steps were made, by all members together."""
        return int(self._round.numpy())

    def restart(self) -> None:
        """Go back to the last outer step: give the parameters the outer weights."""
        for leaf, start in zip(self._leaves, self._start, strict=True):
            give(leaf, start.numpy())
        self._inner = 0

    def step(self) -> bool:
        """Note an inner step; make the outer one if it is due, which is then told.

        Raises
        ------
        CollectiveError
            A rank is lost, late or disagrees, and the ranks are fixed. Where members come and go
            that is logged, and a world without the lost one makes the step.
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
            raise TypeError(f"{self.where}: parameters: expected variables alone, or arrays alone")
        pairs = zip(leaves, structure.paths(), strict=True)
        return leaves, [v.name if isinstance(v, Variable) else path for v, path in pairs]

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
    """The mean of all ranks' weights, each H steps.

    Stich, "Local SGD Converges Fast and Communicates Little" (ICLR 2019), Algorithm 1; McMahan et
    al., federated averaging (AISTATS 2017). It is DiLoCo whose outer optimizer is SGD of rate 1;
    what is averaged is how far each rank has moved. With H = 1 and plain SGD inside it is
    data-parallel SGD. Arguments are as in DiLoCo.
    """

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
        node: Node = ops.all_reduce(part, op="sum", group=ranks)
        return node
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
