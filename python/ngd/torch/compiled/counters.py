# SPDX-License-Identifier: Apache-2.0
"""Count the steps that draw random numbers. Each step derives its numbers from the count.

The counter is stored in `optimizer.param_groups[0]`, so a checkpoint of `optimizer.state_dict()`
contains it.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import torch
from torch.optim import Optimizer

from ... import ops
from ..._util.callsite import call_site
from ...comm import Group
from ...graph.node import Node
from ...graph.variable import Variable, variable

KEY: Final = "random_step"
"""The key under which RandomCounter stores its count in `optimizer.param_groups[0]`."""


class RandomCounter:
    """A counter of the steps that draw random numbers, so that each step draws different numbers.

    The first value depends on the seed of PyTorch on rank 0 (`torch.manual_seed`).

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer. Its first parameter group, `param_groups[0]`, stores the counter.
    group : Group
        The ranks that run the step.
    """

    def __init__(self, optimizer: Optimizer, group: Group) -> None:
        self._optimizer = optimizer
        digest = hashlib.blake2b(str(torch.initial_seed()).encode(), digest_size=4).digest()
        first = np.frombuffer(digest, np.uint32) // 4
        if group.size > 1:
            first = group.broadcast(first, root=0, site=call_site())
        self._value = int(first[0])
        self.variable: Variable = variable(KEY, np.int64(self._value))

    def offset(self) -> Node:
        """Return the node of the offset: the integer that ngd's random ops take besides the seed.

        The offset is computed from the counter and the rank. Each step and each rank has another
        offset, and thus draws other random numbers. This method does not change the counter.
        """
        rank = ops.cast(ops.own_rank(), "int64")
        return ops.add(self.variable * np.int64(2**32), rank)

    def read(self) -> None:
        """Read the counter from `param_groups[0]`, where `load_state_dict` may have changed it."""
        value = int(self._optimizer.param_groups[0].get(KEY, self._value))
        if value != self._value:
            self._value = value
            self.variable.assign(value)

    def count(self) -> None:
        """Add 1 to the counter in the optimizer, after a step that has drawn random numbers."""
        self._value += 1
        self._optimizer.param_groups[0][KEY] = self._value
