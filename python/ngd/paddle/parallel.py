# SPDX-License-Identifier: Apache-2.0
"""A layer whose gradients are averaged over the ranks during the backward pass."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import paddle
from paddle.base import core

from .._util.callsite import call_site
from ..comm import Work
from ..dtypes import Array
from ..errors import CollectiveError
from .memory import Finish, Tensor, destination_for, elements, no_copy
from .world import Group, group_or_world

MEGABYTE: Final = 1 << 20

add_final_hook: Final[Any] = core.eager._add_backward_final_hook
"""Paddle's function that registers a hook for the end of the running backward pass.

Paddle calls the hook once. If the hook raises an exception, `backward()` raises it as a
SystemError.
"""


class Gradients:
    """The gradients of parameters, which are averaged over the ranks in place.

    The parameters, from the last to the first, are divided into buckets. All ranks send the buckets
    in this fixed order. One all-reduce per bucket averages the gradients. It starts when all
    gradients of the bucket are computed and all earlier buckets have been sent. The backward pass
    continues during the all-reduces, and waits for all of them at its end.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        limits: tuple[int, int],
        allows_unused: bool,
        ranks: Group,
    ) -> None:
        self.parameters = list(reversed(parameters))
        self.allows_unused, self.ranks = allows_unused, ranks
        self.buckets = make_buckets(self.parameters, limits)
        self.bucket_of = [n for n, bucket in enumerate(self.buckets) for _ in bucket]
        self.is_armed = False
        """True if the next backward pass averages the gradients.

        Each forward pass that records gradients sets it: to False inside `DataParallel.no_sync`,
        else to True.
        """
        self.failure: BaseException | None = None
        self.site = ""
        self.reset()
        for number, parameter in enumerate(self.parameters):
            parameter._register_backward_hook(make_hook(self, number))

    def reset(self) -> None:
        """Clear the state of the last backward pass, so that the next one can start."""
        self.has_gradient = [False] * len(self.parameters)
        self.num_missing = [len(bucket) for bucket in self.buckets]
        self.pending: list[tuple[Work, list[Finish]]] = []
        self.substitutes: list[tuple[int, Tensor]] = []
        self.next_bucket = 0
        self.is_started = False
        self.failure = None

    def start_forward(self, reduces: bool) -> None:
        """Prepare for the next backward pass, at the start of a forward pass.

        If `reduces` is True, this backward pass will average the gradients over the ranks. If
        `reduces` is False, the gradients stay those of this rank.
        """
        if self.is_started:  # an exception ended the last backward pass
            self.abandon()
        self.is_armed, self.site = reduces, call_site()
        (ACTIVE.add if reduces else ACTIVE.discard)(self)

    def abandon(self) -> None:
        """End a backward pass that failed: wait for the buckets that were sent, and reset.

        The averages of these buckets are not used.
        """
        for work, _ in self.pending:
            with contextlib.suppress(CollectiveError):
                work.wait()
        self.reset()

    def on_gradient(self, number: int) -> None:
        """Record that the backward pass has computed the gradient of parameter `number`.

        Also start the all-reduces of the buckets whose gradients are now complete. Paddle does not
        allow exceptions here, so an error is stored and raised at the end of the pass.
        """
        if not self.is_armed or self.failure is not None:
            return
        if not self.is_started:
            self.is_started = True
            add_final_hook(self.finish_backward)
        if not self.has_gradient[number]:
            self.has_gradient[number] = True
            self.num_missing[self.bucket_of[number]] -= 1
        try:
            while self.next_bucket < len(self.buckets) and self.num_missing[self.next_bucket] == 0:
                self.send()
        except BaseException as error:
            self.failure = error

    def send(self) -> None:
        """Start the all-reduce of the next bucket."""
        destinations = [self.memory_of(number) for number in self.buckets[self.next_bucket]]
        self.next_bucket += 1
        arrays = [array for array, _ in destinations]
        work = self.ranks.group.all_reduce(
            arrays, op="mean", out=arrays, async_op=True, site=self.site
        )
        self.pending.append((work, [finish for _, finish in destinations if finish is not no_copy]))

    def memory_of(self, number: int) -> tuple[Array, Finish]:
        """Return an array with the gradient of parameter `number`, and a function.

        Call the function after the all-reduce: it copies the array to the gradient. If the gradient
        is contiguous, the array is its memory and the function does nothing. If the parameter has
        no gradient on this rank, the array is zeros, because other ranks may have a gradient. The
        pair (`number`, tensor of zeros) is then appended to `substitutes`.
        """
        parameter = self.parameters[number]
        gradient = parameter.grad
        if gradient is None:
            gradient = paddle.zeros_like(parameter)
            self.substitutes.append((number, gradient))
        return filled_memory(gradient, "DataParallel")

    def finish_backward(self) -> None:
        """Finish the backward pass: send the remaining buckets, and wait for all of them."""
        failure = self.failure
        ACTIVE.discard(self)
        if not self.is_started:  # a pass that was abandoned
            return
        if failure is not None:
            self.abandon()
            raise failure
        try:
            pairs = zip(self.parameters, self.has_gradient, strict=True)
            absent = [parameter.name for parameter, has_gradient in pairs if not has_gradient]
            if self.allows_unused:
                while self.next_bucket < len(self.buckets):
                    self.send()
            for work, finishes in self.pending:
                work.wait()
                for finish in finishes:
                    finish()
            if self.allows_unused:
                self.assign_substitutes()
        finally:
            self.reset()
        if absent and not self.allows_unused:
            raise RuntimeError(
                "DataParallel: expected a gradient for each parameter; got none for "
                f"{', '.join(absent)}. Give find_unused_parameters=True."
            )

    def assign_substitutes(self) -> None:
        """Store the averages for parameters that had no gradient on this rank.

        A parameter gets the average if another rank's backward pass has used the parameter. If no
        rank has used the parameter, it stays without a gradient.
        """
        used = np.array(self.has_gradient, np.uint8)
        self.ranks.group.all_reduce(used, op="max", out=used, site=self.site)
        for number, gradient in self.substitutes:
            if used[number]:
                self.parameters[number].grad = gradient


ACTIVE: Final[set[Gradients]] = set()
"""The `Gradients` objects whose forward pass has run and whose backward pass has not ended.

Paddle's hooks have only weak references to these objects, so this set keeps the objects alive.
"""


def make_hook(gradients: Gradients, number: int) -> Any:
    """Return a hook that calls `gradients.on_gradient(number)` for parameter `number`.

    The hook has only a weak reference to `gradients`, so `gradients` can be freed although Paddle
    never removes the hook from the parameter.
    """
    gradients_ref = weakref.ref(gradients)

    def hook() -> None:
        alive = gradients_ref()
        if alive is not None:
            alive.on_gradient(number)

    return hook


def make_buckets(parameters: Sequence[Tensor], limits: tuple[int, int]) -> list[list[int]]:
    """Divide parameters into buckets of one dtype, and return the indices of each bucket.

    A bucket gets parameters until its size is at least its limit, or the dtype changes. `limits`
    has two limits in bytes: that of the first bucket, whose gradients are sent first, and that of
    each later bucket.
    """
    buckets: list[list[int]] = []
    size = 0
    for number, parameter in enumerate(parameters):
        limit = limits[len(buckets) > 1]
        alike = buckets and parameters[buckets[-1][-1]].dtype == parameter.dtype
        if not alike or size >= limit:
            buckets.append([])
            size = 0
        buckets[-1].append(number)
        size += parameter.size * parameter.element_size()
    return buckets


class DataParallel(paddle.nn.Layer):
    """A layer whose gradients are averaged over the ranks; each rank computes a part of the batch.

    Parameters and buffers start with the values of rank 0 of the group. When `backward()` returns,
    the gradients are those of the mean of the ranks' losses. An error of a collective is raised by
    `backward()` as a SystemError, because Paddle converts the exceptions of hooks; its `__cause__`
    is the original error.

    Corresponds to `paddle.DataParallel`.

    Parameters
    ----------
    layers : paddle.nn.Layer
        The layer, the same on all ranks, with dense parameters on the CPU.
    strategy
        It must be None.
    comm_buffer_size : float
        The size in MiB at which a bucket of gradients is full. The gradients of a bucket are
        averaged together.
    last_comm_buffer_size : float
        The same size for the bucket that is sent first, which has the last parameters of the layer.
    find_unused_parameters : bool
        If True, a backward pass may compute no gradient for some parameters, and these parameters
        may differ between ranks. A parameter that no rank has used has no gradient. If False, a
        missing gradient is an error.
    group : Group, optional
        The ranks; by default the world.
    """

    def __init__(
        self,
        layers: Any,
        strategy: Any = None,
        comm_buffer_size: float = 25,
        last_comm_buffer_size: float = 1,
        find_unused_parameters: bool = False,
        group: Group | None = None,
    ) -> None:
        if not isinstance(layers, paddle.nn.Layer):
            raise TypeError(
                f"DataParallel: layers: expected a paddle.nn.Layer; got {type(layers).__name__}"
            )
        if strategy is not None:
            raise ValueError(
                f"DataParallel: strategy: expected None; got {strategy!r}. Leave it out."
            )
        ranks = group_or_world(group)
        if not ranks.is_member():
            raise ValueError(
                f"DataParallel: group: expected one that includes this rank; got {ranks!r}"
            )
        super().__init__(layers.full_name() + "_data_parallel")
        self._layers = layers
        self.group = ranks
        self.find_unused_parameters = find_unused_parameters
        self.grad_need_sync = True
        own = [p for p in layers.parameters() if not getattr(p, "no_sync", False)]
        self._frozen = [p for p in own if p.stop_gradient]
        trained = [p for p in own if not p.stop_gradient]
        if not trained:
            raise ValueError("DataParallel: layers: expected some parameters to train; got none")
        self._gradients = None
        if ranks.nranks > 1:
            broadcast_all([*own, *layers.buffers()], ranks)
            limits = int(last_comm_buffer_size * MEGABYTE), int(comm_buffer_size * MEGABYTE)
            self._gradients = Gradients(trained, limits, find_unused_parameters, ranks)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Return a context for forward passes whose gradients are accumulated and not averaged."""
        before, self.grad_need_sync = self.grad_need_sync, False
        try:
            yield
        finally:
            self.grad_need_sync = before

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Prepare the gradients for the next backward pass, and return the result of the layer."""
        if self._gradients is not None and paddle.is_grad_enabled():
            unfrozen = [p.name for p in self._frozen if not p.stop_gradient]
            if unfrozen:
                raise RuntimeError(
                    "DataParallel: expected the parameters that were trained when the layer was "
                    f"wrapped; got {', '.join(unfrozen)} as well. Wrap the layer again."
                )
            self._gradients.start_forward(self.grad_need_sync)
        return self._layers(*inputs, **kwargs)

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss unchanged: gradients are averaged, so it needs no scale."""
        return loss

    def apply_collective_grads(self) -> None:
        """Do nothing: the backward pass has reduced the gradients."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of the wrapped layer, under the names that the layer itself uses.

        The names have no prefix for DataParallel.
        """
        return self._layers.state_dict(*args, **kwargs)

    def set_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state, under the names that the layer itself uses, into the wrapped layer."""
        return self._layers.set_state_dict(*args, **kwargs)

    set_dict = load_dict = set_state_dict


def filled_memory(tensor: Tensor, where: str) -> tuple[Array, Finish]:
    """Return a contiguous array with a tensor's values, and a function.

    The function copies the array to the tensor. If the tensor is contiguous, the array is the
    tensor's memory and the function does nothing.
    """
    array, finish = destination_for(tensor, where)
    if finish is not no_copy:
        array[...] = elements(tensor, where)
    return array, finish


def broadcast_all(tensors: Sequence[Tensor], ranks: Group) -> None:
    """Overwrite tensors on all ranks of a group by those of the rank 0 of the group."""
    destinations = [filled_memory(tensor, "DataParallel") for tensor in tensors]
    arrays = [array for array, _ in destinations]
    ranks.group.broadcast(arrays, 0, out=arrays, site=call_site())
    for _, finish in destinations:
        finish()
