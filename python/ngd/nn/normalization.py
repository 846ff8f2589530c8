# SPDX-License-Identifier: Apache-2.0
"""Normalization layers. Their variables are float32, unless Module.astype sets another dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops
from ..dtypes import int64
from ..graph.node import Node
from ..ops._operands import local_number
from .initializers import ones, zeros
from .inputs import expect_channels, expect_last_axes, expect_number_of_axes, input_error
from .modes import Training, current
from .module import Module
from .parameter import Buffer, Parameter


def extents(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple. One number is a shape of one axis."""
    return (shape,) if isinstance(shape, int) else tuple(shape)


class LayerNorm(Module):
    """Normalization over the last axes.

    Parameters
    ----------
    normalized_shape : int or sequence of ints
        The shape of the last axes, over which mean and variance are computed.
    eps : float, default 1e-5
        Added to the variance.
    elementwise_affine : bool, default True
        Multiply by a weight and add a bias.
    bias : bool, default True
        Add a bias. It has no effect without elementwise_affine.

    Notes
    -----
    (x - mean) / sqrt(variance + eps) * weight + bias. The variance is the mean of (x - mean)^2. See
    Ba, Kiros and Hinton, 2016 (arXiv:1607.06450), equation 4.

    Input: floats [..., *normalized_shape]. Output: the shape and dtype of the input.

    Variables: `weight` and `bias`, both of normalized_shape.

    Examples
    --------
    >>> layer = nn.LayerNorm(64)
    >>> hidden = ngd.placeholder("hidden", (8, 16, 64))
    >>> layer(hidden).shape
    (8, 16, 64)
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
        """Return x normalized over its last axes.

        Parameters
        ----------
        x : Node
            Floats [..., *normalized_shape].

        Returns
        -------
        Node
            An array with the shape and dtype of x.
        """
        expect_last_axes(self, x, self.shape)
        return ops.layer_norm(x, self.shape, self.weight, self.bias, self.eps)

    def describe(self) -> str:
        """Return the main arguments of the constructor, for `repr`."""
        return f"{self.shape}, eps={self.eps}"


class RMSNorm(Module):
    """Division by the root mean square over the last axes.

    Parameters
    ----------
    normalized_shape : int or sequence of ints
        The shape of the last axes, over which the mean square is computed.
    eps : float, default 1e-5
        Added to the mean square. PyTorch's default depends on the dtype.
    elementwise_affine : bool, default True
        Multiply by a weight.

    Notes
    -----
    x / sqrt(mean(x**2) + eps) * weight. See Zhang and Sennrich, 2019 (arXiv:1910.07467), equation
    4.

    Input: floats [..., *normalized_shape]. Output: the shape and dtype of the input.

    Variable: `weight` of normalized_shape.

    Examples
    --------
    >>> layer = nn.RMSNorm(64)
    >>> hidden = ngd.placeholder("hidden", (8, 16, 64))
    >>> layer(hidden).shape
    (8, 16, 64)
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
        """Return x divided by its root mean square over the last axes.

        Parameters
        ----------
        x : Node
            Floats [..., *normalized_shape].

        Returns
        -------
        Node
            An array with the shape and dtype of x.
        """
        expect_last_axes(self, x, self.shape)
        return ops.rms_norm(x, self.shape, self.weight, self.eps)

    def describe(self) -> str:
        """Return the main arguments of the constructor, for `repr`."""
        return f"{self.shape}, eps={self.eps}"


class GroupNorm(Module):
    """Normalization of each sample over groups of channels.

    Parameters
    ----------
    num_groups : int
        The number of groups, which divides num_channels.
    num_channels : int
        The size of axis 1 of the input.
    eps : float, default 1e-5
        Added to the variance.
    affine : bool, default True
        Multiply by a weight and add a bias per channel.

    Notes
    -----
    (x - mean) / sqrt(variance + eps) * weight + bias. Mean and variance are computed per sample and
    group, over the channels of the group and all spatial positions. See Wu and He, 2018
    (arXiv:1803.08494), section 3.1.

    Input: floats [batch, num_channels, ...]. Output: the shape and dtype of the input.

    Variables: `weight` and `bias`, both [num_channels].

    Examples
    --------
    >>> layer = nn.GroupNorm(4, 32)
    >>> maps = ngd.placeholder("maps", (8, 32, 7, 7))
    >>> layer(maps).shape
    (8, 32, 7, 7)
    """

    weight: Any
    bias: Any

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(
                f"nn.GroupNorm: expected a number of groups that divides {num_channels} channels; "
                f"got {num_groups}. Choose a divisor."
            )
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = Parameter(num_channels, ones) if affine else None
        self.bias = Parameter(num_channels, zeros) if affine else None

    def forward(self, x: Node) -> Node:
        """Return x normalized over groups of channels.

        Parameters
        ----------
        x : Node
            Floats [batch, num_channels, ...].

        Returns
        -------
        Node
            An array with the shape and dtype of x.
        """
        expect_channels(self, x, self.num_channels, "num_channels")
        return ops.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def describe(self) -> str:
        """Return the main arguments of the constructor, for `repr`."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"


class BatchNorm(Module):
    """Batch normalization of each channel, for any number of axes.

    Parameters
    ----------
    num_features : int
        The number of channels, the size of axis 1 of the input.
    eps : float, default 1e-5
        Added to the variance.
    momentum : float, optional
        The weight of the new batch in the running statistics. The default is 0.1. With None, the
        running statistics are the mean over all batches.
    affine : bool, default True
        Multiply by a weight and add a bias per channel.
    track_running_stats : bool, default True
        Store running statistics and use them in evaluation. If False, evaluation uses the
        statistics of its batch.
    synchronized : bool, default False
        Compute the statistics over the shards of all ranks, as torch.nn.SyncBatchNorm does.
    group : Group, optional
        The ranks whose shards are used if `synchronized` is True. The default is the group of the
        compiled step.

    Notes
    -----
    (x - mean) / sqrt(variance + eps) * weight + bias. In training, mean and variance are computed
    per channel over the batch. See Ioffe and Szegedy, 2015 (arXiv:1502.03167), algorithm 1.

    In training, running <- (1 - momentum) * running + momentum * batch. The nodes of the new
    running statistics are in `Training.updates`, which you give to ngd.compile. The running
    variance averages the unbiased variance, which is n / (n - 1) times the variance of the n
    elements of a channel.

    Input: floats [batch, num_features, ...]. Output: the shape and dtype of the input.

    Variables: `weight` and `bias`; buffers `running_mean` and `running_var`, all [num_features];
    and the buffer `num_batches_tracked`, an int64 scalar.

    Without `synchronized`, each rank has running statistics of its own shard. See
    `Module.averaged_buffers`.

    Examples
    --------
    >>> layer = nn.BatchNorm(16)
    >>> features = ngd.placeholder("features", (32, 16))
    >>> with nn.training() as state:
    ...     normalized = layer(features)
    >>> len(state.updates)
    3
    """

    axes: tuple[int, ...] | None = None
    """The allowed numbers of axes of an input, as a tuple. None allows every number >= 2."""

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
            per_rank = not synchronized
            self.running_mean = Buffer(num_features, zeros, per_rank=per_rank)
            self.running_var = Buffer(num_features, ones, per_rank=per_rank)
            self.num_batches_tracked = Buffer((), zeros, int64)

    def forward(self, x: Node) -> Node:
        """Return x normalized per channel.

        Parameters
        ----------
        x : Node
            Floats [batch, num_features, ...].

        Returns
        -------
        Node
            An array with the shape and dtype of x.
        """
        if self.axes is not None:
            expect_number_of_axes(self, x, self.axes)
        expect_channels(self, x, self.num_features, "num_features")
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
            count = local_number(math.prod(x.shape) // x.shape[1], variance)
        if state is not None and self.track_running_stats:
            self._track(state, mean, variance * (count / ops.maximum(count - 1.0, 1.0)))
        return y

    def _over_ranks(self, x: Node) -> tuple[Node, Node, Node, Node]:
        """Normalize x with statistics over all ranks; return (y, mean, variance, count).

        y is x normalized. mean and variance have a number per channel, over the elements of all
        ranks. count is the number of elements of a channel on all ranks.

        The statistics take two small all-reduces: one of sums and counts, and one of the sums of
        squared distances from the mean. A second pass over x loses less precision than a sum of
        squares. A rank may have no elements.
        """
        channels, axes = x.shape[1], (0, *range(2, x.ndim))
        x32 = x if x.dtype == np.float64 else ops.cast(x, np.float32)
        local_count = local_number(math.prod(x.shape) // max(channels, 1), x32)
        sums = ops.concat([ops.sum(x32, axes), ops.reshape(local_count, 1)])
        total = ops.all_reduce(sums, op="sum", group=self.group)
        count = total[channels]
        mean = total[:channels] / count
        distance = ops.square(x32 - ops.reshape(mean, (channels, *(1,) * (x.ndim - 2))))
        squares = ops.all_reduce(ops.sum(distance, axes), op="sum", group=self.group)
        variance = squares / count
        y = ops.batch_norm_inference(x, mean, variance, self.weight, self.bias, self.eps)
        return y, mean, variance, count

    def _track(self, state: Training, mean: Node, variance: Node) -> None:
        """Set the new values of running_mean, running_var and num_batches_tracked.

        They are stored in `state.updates`. A call of the compiled step assigns them to the buffers
        if `state.updates` was given to ngd.compile.
        """
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
        """Return the main arguments of the constructor, for `repr`."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class BatchNorm1d(BatchNorm):
    """Batch normalization of [batch, channels] or [batch, channels, length].

    Parameters
    ----------
    num_features : int
        The number of channels.
    eps, momentum, affine, track_running_stats, synchronized, group
        See `BatchNorm`.

    Examples
    --------
    >>> layer = nn.BatchNorm1d(16)
    >>> features = ngd.placeholder("features", (32, 16))
    >>> layer(features).shape
    (32, 16)
    """

    axes = (2, 3)


class BatchNorm2d(BatchNorm):
    """Batch normalization of [batch, channels, height, width].

    Parameters
    ----------
    num_features : int
        The number of channels.
    eps, momentum, affine, track_running_stats, synchronized, group
        See `BatchNorm`.

    Examples
    --------
    >>> layer = nn.BatchNorm2d(16)
    >>> maps = ngd.placeholder("maps", (8, 16, 32, 32))
    >>> with nn.training() as state:
    ...     normalized = layer(maps)
    >>> normalized.shape
    (8, 16, 32, 32)
    """

    axes = (4,)


class BatchNorm3d(BatchNorm):
    """Batch normalization of [batch, channels, depth, height, width].

    Parameters
    ----------
    num_features : int
        The number of channels.
    eps, momentum, affine, track_running_stats, synchronized, group
        See `BatchNorm`.

    Examples
    --------
    >>> layer = nn.BatchNorm3d(16)
    >>> volumes = ngd.placeholder("volumes", (8, 16, 4, 8, 8))
    >>> layer(volumes).shape
    (8, 16, 4, 8, 8)
    """

    axes = (5,)


class InstanceNorm(Module):
    """Normalization of each channel of each sample, for one or more spatial axes.

    Input: floats [batch, channels, ...]. Output: the shape and dtype of the input.

    Parameters
    ----------
    num_features : int
        The number of channels.
    eps : float, default 1e-5
        Added to the variance.
    affine : bool, default False
        Multiply by a weight and add a bias per channel.

    Notes
    -----
    (x - mean) / sqrt(variance + eps) * weight + bias. Mean and variance are computed per sample and
    channel. See Ulyanov, Vedaldi and Lempitsky, 2016 (arXiv:1607.08022). There are no running
    statistics, as in PyTorch's module by default.

    Variables: `weight` and `bias`, both [num_features].

    Examples
    --------
    >>> maps = ngd.placeholder("maps", (2, 3, 8, 8))
    >>> nn.InstanceNorm(3)(maps).shape
    (2, 3, 8, 8)
    """

    axes: tuple[int, ...] | None = None
    """The allowed values of `x.ndim` for an input x. None allows every x.ndim >= 3."""

    weight: Any
    bias: Any

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = False) -> None:
        self.num_features, self.eps = num_features, eps
        self.weight = Parameter(num_features, ones) if affine else None
        self.bias = Parameter(num_features, zeros) if affine else None

    def forward(self, x: Node) -> Node:
        """Return x normalized per sample and channel.

        Parameters
        ----------
        x : Node
            Floats [batch, num_features, spatial...].

        Returns
        -------
        Node
            An array with the shape and dtype of x.
        """
        if self.axes is not None:
            expect_number_of_axes(self, x, self.axes)
        elif x.ndim < 3:
            raise input_error(self, "of 3 axes or more", x, "Give it at least one spatial axis.")
        expect_channels(self, x, self.num_features, "num_features")
        return ops.group_norm(x, self.num_features, self.weight, self.bias, self.eps)

    def describe(self) -> str:
        """Return the main arguments of the constructor, for `repr`."""
        return f"{self.num_features}, eps={self.eps}"


class InstanceNorm1d(InstanceNorm):
    """Normalization of each channel of each sample of sequences.

    Input: floats [batch, channels, length]. Output: the shape and dtype of the input.

    Parameters
    ----------
    num_features, eps, affine
        See `InstanceNorm`.

    Examples
    --------
    >>> maps = ngd.placeholder("maps", (2, 3, 8))
    >>> nn.InstanceNorm1d(3)(maps).shape
    (2, 3, 8)
    """

    axes = (3,)


class InstanceNorm2d(InstanceNorm):
    """Normalization of each channel of each sample of images.

    Input: floats [batch, channels, height, width]. Output: the shape and dtype of the input.

    Parameters
    ----------
    num_features, eps, affine
        See `InstanceNorm`.

    Examples
    --------
    >>> maps = ngd.placeholder("maps", (2, 3, 8, 8))
    >>> nn.InstanceNorm2d(3)(maps).shape
    (2, 3, 8, 8)
    """

    axes = (4,)


class InstanceNorm3d(InstanceNorm):
    """Normalization of each channel of each sample of volumes.

    Input: floats [batch, channels, depth, height, width]. Output: the shape and dtype of the input.

    Parameters
    ----------
    num_features, eps, affine
        See `InstanceNorm`.

    Examples
    --------
    >>> maps = ngd.placeholder("maps", (2, 3, 2, 8, 8))
    >>> nn.InstanceNorm3d(3)(maps).shape
    (2, 3, 2, 8, 8)
    """

    axes = (5,)
