# SPDX-License-Identifier: Apache-2.0
"""Data parallelism: a layer whose gradients are averaged over the ranks while they are computed."""

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
from .memory import Finish, Tensor, elements, nothing, place
from .world import Group, chosen

MEGABYTE: Final = 1 << 20

AT_END: Final[Any] = core.eager._add_backward_final_hook
"""Calls a function, once, at the end of the backward pass that goes on."""


class Gradients:
    """The gradients of parameters, averaged over the ranks in place.

    The order is that of the parameters, the last one first: so it is the same on all ranks. A
    bucket is sent when its gradients, and all buckets before it, are there; the backward pass goes
    on meanwhile, and ends with a wait for all of them.
    """

    def __init__(
        self, parameters: Sequence[Tensor], limits: tuple[int, int], unused: bool, ranks: Group
    ) -> None:
        self.parameters = list(reversed(parameters))
        self.unused, self.ranks = unused, ranks
        self.buckets = buckets_of(self.parameters, limits)
        self.bucket_of = [n for n, bucket in enumerate(self.buckets) for _ in bucket]
        self.armed = False
        """Whether backward passes reduce: the last forward pass decides."""
        self.failure: BaseException | None = None
        self.site = ""
        self.begin()
        for number, parameter in enumerate(self.parameters):
            parameter._register_backward_hook(listener(self, number))

    def begin(self) -> None:
        """No gradient is there."""
        self.there = [False] * len(self.parameters)
        self.missing = [len(bucket) for bucket in self.buckets]
        self.sent: list[tuple[Work, list[Finish]]] = []
        self.late: list[tuple[int, Tensor]] = []
        self.next = 0
        self.begun = False
        self.failure = None

    def arm(self, reduces: bool) -> None:
        """A forward pass begins, whose gradients are reduced or not."""
        if self.begun:  # something was raised amid the backward pass before
            self.abandon()
        self.armed, self.site = reduces, call_site()
        (EXPECTING.add if reduces else EXPECTING.discard)(self)

    def abandon(self) -> None:
        """Wait for what was sent, and forget it."""
        for work, _ in self.sent:
            with contextlib.suppress(CollectiveError):
                work.wait()
        self.begin()

    def arrived(self, number: int) -> None:
        """A backward pass has added to a gradient. Paddle bears no exception here."""
        if not self.armed or self.failure is not None:
            return
        if not self.begun:
            self.begun = True
            AT_END(self.end)
        if not self.there[number]:
            self.there[number] = True
            self.missing[self.bucket_of[number]] -= 1
        try:
            while self.next < len(self.buckets) and self.missing[self.next] == 0:
                self.send()
        except BaseException as error:
            self.failure = error

    def send(self) -> None:
        """Begin to reduce the next bucket."""
        places = [self.place_of(number) for number in self.buckets[self.next]]
        self.next += 1
        arrays = [array for array, _ in places]
        work = self.ranks.group.all_reduce(
            arrays, op="mean", out=arrays, async_op=True, site=self.site
        )
        self.sent.append((work, [finish for _, finish in places if finish is not nothing]))

    def place_of(self, number: int) -> tuple[Array, Finish]:
        """The memory of a gradient; one that is not there counts as zeros."""
        parameter = self.parameters[number]
        gradient = parameter.grad
        if gradient is None:
            gradient = paddle.zeros_like(parameter)
            self.late.append((number, gradient))
        return filled_place(gradient, "DataParallel")

    def end(self) -> None:
        """The backward pass is over: send what was not sent, and wait for all."""
        failure = self.failure
        EXPECTING.discard(self)
        if not self.begun:  # a pass that was abandoned
            return
        if failure is not None:
            self.abandon()
            raise failure
        try:
            pairs = zip(self.parameters, self.there, strict=True)
            absent = [parameter.name for parameter, there in pairs if not there]
            if self.unused:
                while self.next < len(self.buckets):
                    self.send()
            for work, finishes in self.sent:
                work.wait()
                for finish in finishes:
                    finish()
            if self.unused:
                self.take_late()
        finally:
            self.begin()
        if absent and not self.unused:
            raise RuntimeError(
                "DataParallel: expected a gradient for each parameter; got none for "
                f"{', '.join(absent)}. Give find_unused_parameters=True."
            )

    def take_late(self) -> None:
        """Give parameters that only other ranks have used their gradients."""
        used = np.array(self.there, np.uint8)
        self.ranks.group.all_reduce(used, op="max", out=used, site=self.site)
        for number, gradient in self.late:
            if used[number]:
                self.parameters[number].grad = gradient


EXPECTING: Final[set[Gradients]] = set()
"""Those of which a forward pass is over and a backward pass is not: nobody else may hold them."""


def listener(gradients: Gradients, number: int) -> Any:
    """A hook of a parameter, which cannot be removed and keeps nothing alive."""
    of = weakref.ref(gradients)

    def arrived() -> None:
        there = of()
        if there is not None:
            there.arrived(number)

    return arrived


def buckets_of(parameters: Sequence[Tensor], limits: tuple[int, int]) -> list[list[int]]:
    """Which gradients travel together: of one dtype; so many bytes, first and later."""
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
    """A layer of which each rank computes a part of the batch; its gradients are the ranks' means.

    Parameters and buffers begin as those of rank 0 of the group. When `backward()` returns, the
    gradients are those of the mean of the ranks' losses. An error of a rank comes out of
    `backward()` as a SystemError, whose `__cause__` it is: so Paddle does with what hooks raise.

    Parameters
    ----------
    layers
        The layer, with dense parameters on the CPU, the same on all ranks.
    strategy
        None.
    comm_buffer_size, last_comm_buffer_size
        Megabytes of gradients that travel together, at least; and of the first that are computed.
    find_unused_parameters
        Whether a backward pass may come to no gradient of some parameters; they differ from rank to
        rank. A parameter that no rank has used has no gradient. Otherwise it is an error.
    group
        The ranks: all by default.
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
        ranks = chosen(group)
        if not ranks.is_member():
            raise ValueError(f"DataParallel: group: expected one that has this rank; got {ranks!r}")
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
        """A block of forward passes whose gradients stay this rank's own, to be accumulated."""
        before, self.grad_need_sync = self.grad_need_sync, False
        try:
            yield
        finally:
            self.grad_need_sync = before

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """As the layer's."""
        if self._gradients is not None and paddle.is_grad_enabled():
            late = [p.name for p in self._frozen if not p.stop_gradient]
            if late:
                raise RuntimeError(
                    "DataParallel: expected the parameters that were trained when the layer was "
                    f"wrapped; got {', '.join(late)} as well. Wrap the layer again."
                )
            self._gradients.arm(self.grad_need_sync)
        return self._layers(*inputs, **kwargs)

    def scale_loss(self, loss: Any) -> Any:
        """The loss: gradients are averaged, and nothing is to be scaled."""
        return loss

    def apply_collective_grads(self) -> None:
        """Nothing: the backward pass has reduced them."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's, under its own names."""
        return self._layers.state_dict(*args, **kwargs)

    def set_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the layer's."""
        return self._layers.set_state_dict(*args, **kwargs)

    set_dict = load_dict = set_state_dict


def filled_place(tensor: Tensor, where: str) -> tuple[Array, Finish]:
    """Memory that is what a tensor holds, and becomes what it is to hold."""
    array, finish = place(tensor, where)
    if finish is not nothing:
        array[...] = elements(tensor, where)
    return array, finish


def broadcast_all(tensors: Sequence[Tensor], ranks: Group) -> None:
    """Give every rank the tensors of the first one."""
    places = [filled_place(tensor, "DataParallel") for tensor in tensors]
    arrays = [array for array, _ in places]
    ranks.group.broadcast(arrays, 0, out=arrays, site=call_site())
    for _, finish in places:
        finish()
