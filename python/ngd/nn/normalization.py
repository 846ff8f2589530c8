# SPDX-License-Identifier: Apache-2.0
"""Normalizations. Their variables are float32, or as Module.astype says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import Node, int64, ops
from .initializers import ones, zeros
from .modes import Training, current
from .module import Buffer, Module, Parameter


def extents(shape: int | Sequence[int]) -> tuple[int, ...]:
    """A shape from a number, or several."""
    return (shape,) if isinstance(shape, int) else tuple(shape)


class LayerNorm(Module):
    """Normalize over the last axes, of extents normalized_shape: ops.layer_norm.

    Ba, Kiros and Hinton, 2016 (arXiv:1607.06450).
    """

    weight: Any
    bias: Any

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        self.shape, self.eps = extents(normalized_shape), eps
        self.weight = Parameter(self.shape, ones) if elementwise_affine else None
        self.bias = Parameter(self.shape, zeros) if elementwise_affine and bias else None

    def forward(self, x: Node) -> Node:
        """Of the shape and dtype of x."""
        y: Node = ops.layer_norm(x, self.shape, self.weight, self.bias, self.eps)
        return y

    def describe(self) -> str:
        """See Module."""
        return f"{self.shape}, eps={self.eps}"


class RMSNorm(Module):
    """Divide by the root of the mean square over the last axes: ops.rms_norm.

    Zhang and Sennrich, 2019 (arXiv:1910.07467). PyTorch's eps is by default the dtype's.
    """

    weight: Any

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
    ) -> None:
        self.shape, self.eps = extents(normalized_shape), eps
        self.weight = Parameter(self.shape, ones) if elementwise_affine else None

    def forward(self, x: Node) -> Node:
        """Of the shape and dtype of x."""
        y: Node = ops.rms_norm(x, self.shape, self.weight, self.eps)
        return y

    def describe(self) -> str:
        """See Module."""
        return f"{self.shape}, eps={self.eps}"


class GroupNorm(Module):
    """Normalize [N, C, ...] over groups of channels: ops.group_norm.

    Wu and He, 2018 (arXiv:1803.08494).
    """

    weight: Any
    bias: Any

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(
                f"nn.GroupNorm: expected a number of groups that divides {num_channels} channels; "
                f"got {num_groups}"
            )
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = Parameter(num_channels, ones) if affine else None
        self.bias = Parameter(num_channels, zeros) if affine else None

    def forward(self, x: Node) -> Node:
        """Of the shape and dtype of x."""
        y: Node = ops.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        return y

    def describe(self) -> str:
        """See Module."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"


class BatchNorm(Module):
    """Normalize each channel of [N, C, ...]; for any number of axes.

    Ioffe and Szegedy, 2015 (arXiv:1502.03167). In training by the mean and variance of the batch,
    and running <- (1 - momentum) running + momentum * that of the batch, in Training.updates; the
    running variance is the unbiased one, n / (n - 1) times that of the n elements. momentum None
    makes the running statistics the mean of those of all batches. In evaluation by the running
    statistics; by those of the batch where track_running_stats is False.

    synchronized=True takes the batch of all ranks of `group` (by default those of the executable),
    as torch.nn.SyncBatchNorm. Without, each rank has running statistics of its own: see
    Module.averaged_buffers.
    """

    axes: tuple[int, ...] | None = None
    """How many axes the argument may have; None: any number from two on."""

    weight: Any
    bias: Any
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        synchronized: bool = False,
        group: Any = None,
    ) -> None:
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.track_running_stats = track_running_stats
        self.synchronized, self.group = synchronized, group
        self.weight = Parameter(num_features, ones) if affine else None
        self.bias = Parameter(num_features, zeros) if affine else None
        if track_running_stats:
            own = not synchronized
            self.running_mean = Buffer(num_features, zeros, per_rank=own)
            self.running_var = Buffer(num_features, ones, per_rank=own)
            self.num_batches_tracked = Buffer((), zeros, int64)

    def forward(self, x: Node) -> Node:
        """Of the shape and dtype of x."""
        if self.axes is not None and x.ndim not in self.axes:
            wanted = " or ".join(map(str, self.axes))
            raise ValueError(f"nn.{type(self).__name__}: expected {wanted} axes; got {x!r}")
        state = current()
        affine = (self.weight, self.bias, self.eps)
        y: Node
        if state is None and self.track_running_stats:
            y = ops.batch_norm_inference(x, self.running_mean, self.running_var, *affine)
            return y
        if self.synchronized:
            y, mean, variance, count = self._over_ranks(x)
        else:
            y, mean, variance = ops.batch_norm(x, *affine)
            count = ops.full((), math.prod(x.shape) // x.shape[1], variance.dtype)
        if state is not None and self.track_running_stats:
            self._track(state, mean, variance * (count / ops.maximum(count - 1.0, 1.0)))
        return y

    def _over_ranks(self, x: Node) -> tuple[Node, Node, Node, Node]:
        """The value, the mean, the variance, and how many elements a channel, of all ranks.

        Two small all-reduces: sums and counts, then the sums of the squared distances from the
        mean. A rank may have no elements.
        """
        channels, axes = x.shape[1], (0, *range(2, x.ndim))
        wide = x if x.dtype == np.float64 else ops.cast(x, np.float32)
        mine = ops.full((1,), math.prod(x.shape) // max(channels, 1), wide.dtype)
        sums = ops.concat([ops.sum(wide, axes), mine])
        total = ops.all_reduce(sums, op="sum", group=self.group)
        count = total[channels]
        mean = total[:channels] / count
        distance = ops.square(wide - ops.reshape(mean, (channels, *(1,) * (x.ndim - 2))))
        squares = ops.all_reduce(ops.sum(distance, axes), op="sum", group=self.group)
        variance = squares / count
        y = ops.batch_norm_inference(x, mean, variance, self.weight, self.bias, self.eps)
        return y, mean, variance, count

    def _track(self, state: Training, mean: Node, variance: Node) -> None:
        """Note the next running statistics."""
        batches = state.now(self.num_batches_tracked) + 1
        state.updates[self.num_batches_tracked] = batches
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            old = state.now(running)
            new = ops.stop_gradient(ops.cast(new, running.dtype))
            if self.momentum is None:
                state.updates[running] = old + (new - old) / ops.cast(batches, running.dtype)
            else:
                state.updates[running] = (1.0 - self.momentum) * old + self.momentum * new

    def describe(self) -> str:
        """See Module."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class BatchNorm1d(BatchNorm):
    """BatchNorm of [N, C] or [N, C, L]."""

    axes = (2, 3)


class BatchNorm2d(BatchNorm):
    """BatchNorm of [N, C, H, W]."""

    axes = (4,)


class BatchNorm3d(BatchNorm):
    """BatchNorm of [N, C, D, H, W]."""

    axes = (5,)


class InstanceNorm(Module):
    """Normalize each channel of each sample of [N, C, ...] by its own mean and variance.

    Ulyanov, Vedaldi and Lempitsky, 2016 (arXiv:1607.08022). It has no running statistics, as
    PyTorch's module by default.

    Parameters
    ----------
    num_features : int
        The number of channels, C.
    eps : float
        Added to the variance.
    affine : bool
        Whether a weight and a bias per channel follow.
    """

    axes: tuple[int, ...] | None = None
    """How many axes the argument may have; None: any number from three on."""

    weight: Any
    bias: Any

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = False) -> None:
        self.num_features, self.eps = num_features, eps
        self.weight = Parameter(num_features, ones) if affine else None
        self.bias = Parameter(num_features, zeros) if affine else None

    def forward(self, x: Node) -> Node:
        """Of the shape and dtype of x."""
        if x.ndim < 3 or (self.axes is not None and x.ndim not in self.axes):
            wanted = "at least 3" if self.axes is None else " or ".join(map(str, self.axes))
            raise ValueError(f"nn.{type(self).__name__}: expected {wanted} axes; got {x!r}")
        if x.shape[1] != self.num_features:
            raise ValueError(
                f"nn.{type(self).__name__}: expected {self.num_features} channels; got {x!r}"
            )
        y: Node = ops.group_norm(x, self.num_features, self.weight, self.bias, self.eps)
        return y

    def describe(self) -> str:
        """See Module."""
        return f"{self.num_features}, eps={self.eps}"


class InstanceNorm1d(InstanceNorm):
    """InstanceNorm of [N, C, L]."""

    axes = (3,)


class InstanceNorm2d(InstanceNorm):
    """InstanceNorm of [N, C, H, W]."""

    axes = (4,)


class InstanceNorm3d(InstanceNorm):
    """InstanceNorm of [N, C, D, H, W]."""

    axes = (5,)
