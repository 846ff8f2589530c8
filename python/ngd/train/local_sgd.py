# SPDX-License-Identifier: Apache-2.0
"""Local SGD and DiLoCo: many inner steps on each rank, and then one outer step on all ranks.

A rank makes an inner step alone. In an outer step, an optimizer applies the mean of the weight
changes of all ranks, so that all ranks continue with equal weights.

    inner = optim.AdamW(4e-4)
    gradients = ngd.grad(loss, parameters)
    step = ngd.compile([x], [loss], inner.apply(dict(zip(parameters, gradients))))
    diloco = train.DiLoCo(parameters, every=100, carried=inner.state)
    while diloco.round < rounds:
        step(next(batches))
        diloco.step()

Under `ngd run --min-ranks` ranks may leave and join at an outer step. A rank that joins gets the
weights and `carried` from another rank.
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
"""The values of the argument `wire`: the dtypes in which ranks send changes of their weights."""
MIN_MAGNITUDE: Final = 1e-30
"""The threshold below which wire=int8 sends a row of the outer gradient as zeros.

The largest magnitude in the row is compared with it.
"""
MAX_WORLDS: Final = 16
"""The maximum number of attempts at one outer step (a common update of the weights by all ranks).

In an elastic job, the loss of a rank makes an attempt fail. The remaining ranks then form a new
world, the group for the next attempt. If all attempts fail, the cause is probably not the loss of a
rank, and the error is raised.
"""
NO_ROUND: Final = -1
"""The value of `DiLoCo.round`, the number of outer steps, before the first call of `_catch_up`."""


class DiLoCo:
    """DiLoCo: many inner steps on each rank, then one outer step on all ranks together.

    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models"
    (arXiv:2311.08105), Algorithm 1. The outer gradient of a rank is its weights after the last
    outer step minus its weights now. The outer optimizer takes the mean of all outer gradients and
    updates the weights of the last outer step. All ranks continue with the result. The inner
    optimizer belongs to the caller, and each rank has its own state of it.

    All ranks make the same number of inner steps and call `step` after each. All ranks must call
    the constructor, too. They start with the weights of rank 0.

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
        Two DiLoCo objects need outer optimizers with different names.
    wire : dtype, default float32
        The dtype in which outer gradients are sent: float32, bfloat16 or int8. See Notes.
    carried : structure, optional
        Variables or arrays that a new rank of an elastic job receives with the weights, for example
        the state of the inner optimizer. The other ranks keep their own values.
    group : Group, optional
        The ranks. The default is the world.

    Attributes
    ----------
    state : LiveState
        The state for checkpoints: the outer weights (the weights after the last outer step), the
        state of the outer optimizer, and the round (the number of outer steps). It is equal on all
        ranks. Call `restart` after ngd.checkpoint.load.

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
    ranks. A new rank first receives the weights, the outer optimizer's state, the round and
    `carried` from a rank that has them. It takes part in the next outer step, but the mean
    excludes its outer gradient. A rank that was disconnected while the other ranks made an
    outer step is treated like a new rank.

    Wire. float32 sends float64 parameters as float64. bfloat16 rounds each outer gradient, sums in
    float32 and rounds the sum. For a mean M of the values x of n ranks, the error is at most
    2**-8 * (sum|x| / n + |M|) * (1 + 2**-8). int8 divides each row by (its largest magnitude) / 127
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
        self._leaves, names = self._check_leaves("parameters", parameters)
        self._on_graph = isinstance(self._leaves[0], Variable)
        self._check_leaves("carried", carried)
        self._carried = carried
        self.state = LiveState(f"{self.outer.name}.diloco", self.outer.state)
        self._start = [
            self.state.variable(f"{self.outer.name}.{name}.start", partial(outer_weight_of, leaf))
            for name, leaf in zip(names, self._leaves, strict=True)
        ]
        name = f"{self.outer.name}.round"
        self._round = self.state.variable(name, lambda: np.int64(NO_ROUND))
        self._group = group
        self._world: Group | None = None
        self._executable: Any = None
        self._num_inner = 0
        self.outer.apply({v: v for v in self._start})  # makes the outer optimizer's variables
        self._outer_step(weight=0.0)

    @property
    def round(self) -> int:
        """The number of outer steps so far."""
        return int(self._round.numpy())

    def restart(self) -> None:
        """Set the parameters to the outer weights: the weights after the last outer step.

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
            set_value(leaf, start.numpy())
        self._num_inner = 0

    def step(self) -> bool:
        """Count an inner step, and make the outer step after `every` inner steps.

        Returns
        -------
        bool
            True if the outer step was made.

        Raises
        ------
        CollectiveError
            A rank has ended, has not arrived within NGD_TIMEOUT seconds, or calls another
            collective. In an elastic job without the argument `group`, the failure is logged, and
            the remaining ranks try the step again. The error is then raised only if the ranks call
            different collectives, or if 16 attempts have failed.

        Examples
        --------
        >>> import numpy as np
        >>> from ngd import train
        >>> diloco = train.DiLoCo([np.zeros(2, np.float32)], every=3)
        >>> [diloco.step() for _ in range(4)]
        [False, False, True, False]
        """
        self._num_inner += 1
        if self._num_inner < self.every:
            return False
        self._outer_step(weight=1.0)
        self._num_inner = 0
        return True

    def _check_leaves(self, argument: str, tree: Any) -> tuple[list[Any], list[str]]:
        """Return the leaves of an argument of the constructor, and their names.

        Raise TypeError for a leaf of a wrong type. `argument` is "parameters" or "carried".
        """
        is_parameters = argument == "parameters"
        leaves, structure = trees.flatten(tree, None if is_parameters else is_state)
        for leaf, path in zip(leaves, structure.paths(argument), strict=True):
            is_valid = isinstance(leaf, Variable | LiveState) or (
                isinstance(leaf, np.ndarray) and leaf.flags.writeable
            )
            if not is_valid or (is_parameters and leaf.dtype not in FLOATS):
                raise TypeError(
                    f"{self.where}: {path}: expected a variable or a writable NumPy array"
                    f"{' of floats' if is_parameters else ''}; got {leaf!r}"
                )
        if is_parameters and len({isinstance(leaf, Variable) for leaf in leaves}) != 1:
            raise TypeError(
                f"{self.where}: parameters: expected only variables, or only arrays; got both"
            )
        if is_parameters and isinstance(leaves[0], Variable):
            unique = UniqueNames()
            add_names(self.where, leaves, unique)
            return leaves, [unique.names[v] for v in leaves]
        return leaves, structure.paths()

    def _outer_step(self, weight: float) -> None:
        """Make an outer step with the ranks of the argument `group`, or of the current world.

        The step computes a weighted mean of the changes that the ranks have made to the model.
        `weight` is this rank's weight in the mean: 1 after `every` inner steps, and 0 in the
        constructor. In a new world, a rank that missed outer steps first receives the state
        of a rank that missed none, and `weight` becomes 0. If an elastic job loses a rank, and the
        argument `group` was not given, this rank leaves the world. It then joins a new world with
        the remaining ranks and tries again.
        """
        for num_left in reversed(range(MAX_WORLDS)):
            try:
                ranks = self._ranks()
                if ranks is not self._world:
                    has_begun, is_behind = self._catch_up(ranks)
                    weight = 0.0 if is_behind else weight
                    if not has_begun:
                        return
                self._run(weight)
                return
            except CollectiveError as error:
                is_fixed = self._group is not None or newcomers() is None
                if is_fixed or num_left == 0 or isinstance(error, CollectiveMismatchError):
                    raise
                logger.warning("%s: outer step %d: %s", self.where, self.round + 1, error)
                self._leave()

    def _ranks(self) -> Group:
        """Return the group whose ranks make the next outer step (a common update of their weights).

        Return the argument `group` of the constructor if it was given. Otherwise return the world,
        ngd's default group. If new ranks of an elastic job wait, this rank first leaves the world
        and joins a new world with them.
        """
        if self._group is not None:
            return self._group
        world = init()
        num_newcomers = newcomers()
        if num_newcomers is not None and world is self._world:
            num_joining = int(all_reduce(np.int64(num_newcomers), op="max"))
            if num_joining:
                logger.info("%s: %d new members join", self.where, num_joining)
                self._leave()
                world = init()
        return world

    def _leave(self) -> None:
        """Leave the world, so that the next call of `init` joins a new one."""
        self._world = self._executable = None
        shutdown()

    def _catch_up(self, ranks: Group) -> tuple[bool, bool]:
        """Give the ranks that missed outer steps the state of a rank that missed none. Collective.

        An outer step is a common update of the weights by all ranks.

        Returns
        -------
        has_begun : bool
            True if a rank of `ranks` has completed an earlier call of this method. If False, every
            rank has received the weights of rank 0, and the caller makes no outer step.
        is_behind : bool
            True if this rank missed an outer step, and has now received the state of another rank.
        """
        own_round = self.round
        rounds = all_gather(np.array([own_round]), group=ranks)
        newest, root = int(rounds.max()), int(rounds.argmax())
        has_begun = newest != NO_ROUND
        leaves, _ = self._check_leaves("carried", self._carried if has_begun else ())
        states = [leaf for leaf in leaves if isinstance(leaf, LiveState)]
        shared = [*self.state.values(), *(v for v in leaves if not isinstance(v, LiveState))]
        values = broadcast([value_of(each) for each in shared], root, group=ranks)
        of_states = [broadcast_state(state, root, ranks) for state in states]
        executable = self._compile(ranks)
        is_behind = own_round < newest
        if is_behind or not has_begun:
            for each, value in zip(shared, values, strict=True):
                set_value(each, value)
            for state, (arrays, is_complete) in zip(states, of_states, strict=True):
                state.load(arrays, source=f"rank {root}", is_complete=is_complete)
            self.restart()
        if is_behind:
            logger.info("%s: got the state of rank %d, at round %d", self.where, root, newest)
        if not has_begun:
            self._round.assign(0)
        self._world, self._executable = ranks, executable
        return has_begun, is_behind

    def _compile(self, ranks: Group) -> Any:
        """Return the compiled outer step for the group `ranks`.

        The outer step updates the parameters by a weighted mean of their changes on all ranks. Its
        first input is this rank's weight in the mean. Parameters that are variables are updated in
        place. Parameters that are arrays are inputs, too: the outer step returns their new values,
        and `_run` copies the values to the arrays.
        """
        weight = placeholder("weight", ())
        current = self._leaves
        if not self._on_graph:
            pairs = zip(self._start, current, strict=True)
            current = [placeholder(start.name, leaf.shape, leaf.dtype) for start, leaf in pairs]
        total = ops.all_reduce(weight, op="sum", group=ranks)
        fraction = ops.where(total > 0, weight / total, 0.0)
        gradients = {}
        for start, leaf in zip(self._start, current, strict=True):
            outer_gradient = start - ops.cast(leaf, start.dtype)
            term = ops.where(weight > 0, outer_gradient * ops.cast(fraction, start.dtype), 0.0)
            gradients[start] = sum_over_ranks(term, self.wire, ranks)
        updates = self.outer.apply(gradients)
        updates[self._round] = self._round + 1
        results = [ops.cast(updates[s], v.dtype) for s, v in zip(self._start, current, strict=True)]
        if not self._on_graph:
            return compile([weight, *current], results, updates, group=ranks)
        updates |= dict(zip(current, results, strict=True))
        return compile([weight], [], updates, group=ranks)

    def _run(self, weight: float) -> None:
        """Run the compiled outer step.

        `weight` is this rank's weight in the mean of the changes that the ranks made to the model.
        """
        arrays = (
            []
            if self._on_graph
            else [np.ascontiguousarray(leaf).reshape(leaf.shape) for leaf in self._leaves]
        )
        results = self._executable(np.float32(weight), *arrays)
        if not self._on_graph:
            for leaf, result in zip(self._leaves, results, strict=True):
                leaf[...] = result
        assert self._world is not None
        logger.info("%s: outer step %d, %d ranks", self.where, self.round, self._world.size)


class LocalSGD(DiLoCo):
    """Local SGD: the ranks train separately and average their weights after every `every` steps.

    It is DiLoCo with the outer optimizer SGD(1.0). The steps of a rank between two averages are
    *inner steps*, and the optimizer of the caller that makes them is the *inner optimizer*. With
    every=1 and plain SGD as the inner optimizer, local SGD is data-parallel SGD.

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
    """Return the value of a variable as an array, or an array as it is."""
    return leaf.numpy() if isinstance(leaf, Variable) else leaf


def set_value(leaf: Any, value: Any) -> None:
    """Assign a value to a variable, or copy it to an array."""
    if isinstance(leaf, Variable):
        leaf.assign(value)
    else:
        leaf[...] = value


def is_state(tree: Any) -> bool:
    """Return True for a LiveState: a mapping of variables, such as `optimizer.state`.

    `trees.flatten` then treats the LiveState as one leaf, because its variables may be made later.
    """
    return isinstance(tree, LiveState)


def state_values(state: LiveState) -> tuple[dict[str, Any], bool]:
    """Return the values of a LiveState by name, and its attribute `is_complete`.

    The values include pending ones: values that were loaded for variables that do not exist yet.
    `is_complete` is True if these values include all variables that the state will have.
    """
    values = {name: v.numpy() for name, v in state.variables.items()}
    return values | state.pending, state.is_complete


def broadcast_state(state: LiveState, root: int, ranks: Group) -> tuple[dict[str, Any], bool]:
    """Send the values of rank `root`'s state to all ranks, and return them. Collective.

    All ranks return the result of `state_values` on rank `root`: (values by name, is_complete).
    `is_complete` is False if the owner of the state, such as an optimizer, may still add variables.
    The variables need not exist on the other ranks. So rank `root` first sends names, dtypes,
    shapes and `is_complete` as JSON, and then the values.
    """
    values, is_complete = state_values(state)
    types = [[name, value.dtype.name, list(value.shape)] for name, value in values.items()]
    header = json.dumps({"types": types, "is_complete": is_complete})
    text = np.frombuffer(header.encode(), np.uint8)
    count = int(broadcast(np.int64(text.size), root, group=ranks))
    text = broadcast(text if ranks.rank == root else np.empty(count, np.uint8), root, group=ranks)
    description = json.loads(text.tobytes())
    if ranks.rank != root:
        values = {
            name: np.empty(shape, np.dtype(dtype)) for name, dtype, shape in description["types"]
        }
    arrays = broadcast([*values.values()], root, group=ranks)
    return dict(zip(values, arrays, strict=True)), bool(description["is_complete"])


def outer_weight_of(leaf: Any) -> Any:
    """Return the value of a parameter as its first outer weight; 16-bit floats become float32.

    The outer weight of a parameter is its value after the last update by all ranks.
    """
    return widen_to_float32(value_of(leaf))


def widen_to_float32(value: Any) -> Any:
    """Convert 16-bit floats to float32, so that rounding does not lose small updates of weights."""
    return value if value.dtype == float64 else value.astype(float32)


def sum_over_ranks(term: Node, wire: Any, ranks: Group) -> Node:
    """Return the sum of `term` over the ranks.

    `term` is the outer gradient of a rank (how much its weights have decreased since the last outer
    step), times a factor: the fraction of the mean that this rank contributes, such as 1/4 for four
    equal ranks. So the sum is the mean. `wire` is the dtype in which the terms are sent. With
    bfloat16 and int8 they are rounded first; see the Notes of DiLoCo.
    """
    if wire == float32:
        return ops.all_reduce(term, op="sum", group=ranks)
    if wire == bfloat16:
        rounded = ops.all_reduce(ops.cast(term, float32), op="sum", compression="bf16", group=ranks)
        return ops.cast(rounded, term.dtype)
    codes, scales = encode_int8(term)
    codes, scales = (ops.all_gather(each, group=ranks) for each in (codes, scales))
    rows = (ranks.size, *codes.shape[1:])
    values = ops.cast(ops.reshape(codes, (ranks.size, -1, *rows[1:])), float32)
    total = ops.sum(values * ops.reshape(scales, (ranks.size, -1, 1)), 0)
    return ops.cast(ops.reshape(total, term.shape), term.dtype)


def encode_int8(x: Node) -> tuple[Node, Node]:
    """Return an array as rows of int8 and one float32 scale per row.

    The product of a row and its scale approximates the row of the array. An array of one axis is
    one row.
    """
    rows = ops.reshape(ops.cast(x, float32), (x.shape[0] if x.ndim > 1 else 1, -1))
    largest = ops.max(abs(rows), 1, keepdims=True)
    scales = ops.where(largest < MIN_MAGNITUDE, 1.0, largest / 127.0)  # a NaN makes it NaN
    return ops.cast(ops.round(rows / scales), int8), scales
