# SPDX-License-Identifier: Apache-2.0
"""An optimizer of PyTorch whose step first reduces the gradients over the ranks."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..calls import SMALL, Adasum, Average, Handle, expect_average, op_of
from ..world import HorovodInternalError, ProcessSet, global_process_set, size
from .compression import Compression, Compressor
from .operations import allreduce_async_, grouped_allreduce_async_, sparse_allreduce_async

TOGETHER: Final = 1 << 18
"""Elements of small gradients that travel together, at most."""

Bucket = list[Tensor]
Arrival = tuple[Tensor, Tensor, Any]
"""A parameter, what its gradient travels as, and what its compressor wants to know."""


class Gradients:
    """The gradients of an optimizer: each is sent when it, and all before it, are there.

    The order is one of the parameters, so it is the same on all ranks, whatever the order in which
    backward passes come to them. A parameter that has no gradient counts as one of zeros.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        compression: type[Compressor],
        passes: int,
        op: int,
        predivide: float,
        names: dict[Tensor, str],
        groups: int | Sequence[Sequence[Tensor]] | None,
        sparse_as_dense: bool,
        ranks: ProcessSet,
    ) -> None:
        self.compression, self.op, self.ranks = compression, op, ranks
        self.scales = (1.0 / predivide, predivide)
        self.sparse_as_dense, self.names = sparse_as_dense, names
        self.hooks: list[Any] = []
        self.buckets = buckets_of(list(reversed(parameters)), groups)
        self.place = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.waits_for(passes)
        self.begin()
        self.alone = not ranks.included() or ranks.size() == 1
        weakref.finalize(self, release, self.hooks)
        self.listen(parameters)

    def listen(self, parameters: Iterable[Tensor]) -> None:
        """Hear of the gradients of parameters; who has heard of them before does so no more."""
        if self.alone:
            return
        me = weakref.ref(self)

        def arrived(parameter: Tensor) -> None:
            of = me()
            if of is not None:
                of.arrived(parameter)

        for p in parameters:
            before = LISTENERS.get(p)
            if before is not None:
                release(before)
            self.hooks.append(p.register_post_accumulate_grad_hook(arrived))
            LISTENERS[p] = self.hooks

    def include(self, parameters: Iterable[Tensor]) -> None:
        """Take in parameters that came, or are trained, since; each travels alone."""
        new = [p for p in parameters if p.requires_grad and p not in self.place]
        for p in new:
            self.place[p] = len(self.buckets)
            self.names.setdefault(p, f"allreduce.noname.{len(self.names)}")
            self.buckets.append([p])
            self.left[p] = 0
            self.missing.append(0)
        self.listen(new)

    def waits_for(self, passes: int) -> None:
        """So many backward passes make a gradient."""
        if passes < 1:
            raise ValueError(
                "hvd.DistributedOptimizer: backward_passes_per_step: expected at least 1; got "
                f"{passes}"
            )
        self.passes = passes
        self.left = dict.fromkeys(self.place, passes)

    def begin(self) -> None:
        """No gradient is there."""
        self.left = dict.fromkeys(self.place, self.passes)
        self.missing = [len(bucket) for bucket in self.buckets]
        self.sent: list[tuple[Handle, list[Arrival]]] = []
        self.next = 0

    def arrived(self, parameter: Tensor) -> None:
        """A backward pass has added to a gradient."""
        if self.left[parameter] == 0:
            raise RuntimeError(
                "hvd.DistributedOptimizer: expected step() after backward_passes_per_step="
                f"{self.passes} backward passes; got another pass. Set a larger number to "
                "accumulate gradients."
            )
        self.left[parameter] -= 1
        if self.left[parameter] == 0:
            self.missing[self.place[parameter]] -= 1
            while self.next < len(self.buckets) and self.missing[self.next] == 0:
                self.send()

    def send(self) -> None:
        """Begin to reduce the next gradients; their names are compared."""
        bucket = self.buckets[self.next]
        self.next += 1
        dense: list[Arrival] = []
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if p.grad.is_sparse and not self.sparse_as_dense:
                name = f"{self.names[p]}, sparse"
                handle = sparse_allreduce_async(p.grad, name, self.op, self.ranks)
                self.sent.append((handle, [(p, p.grad, None)]))
                continue
            value = p.grad.to_dense() if p.grad.is_sparse else p.grad
            value, ctx = self.compression.compress(value.detach())
            dense.append((p, value.contiguous(), ctx))
        values = [value for _, value, _ in dense]
        name = ", ".join(self.names[p] for p, _, _ in dense)
        handle = grouped_allreduce_async_(values, None, name, self.op, *self.scales, self.ranks)
        self.sent.append((handle, dense))

    def reduce(self) -> None:
        """Send what was not sent, and put what comes where the gradients are."""
        if self.alone:
            self.begin()
            return
        while self.next < len(self.buckets):
            self.send()
        sent, failure = self.sent, None
        self.begin()
        for handle, arrivals in sent:
            try:
                result = handle.wait()
            except HorovodInternalError as error:
                failure = failure or error  # the others are waited for, too
                continue
            if isinstance(result, Tensor):  # a sparse one
                arrivals[0][0].grad = result
                continue
            for p, value, ctx in arrivals:
                self.put(p, self.compression.decompress(value, ctx))
        if failure is not None:
            raise failure

    @staticmethod
    def put(parameter: Tensor, value: Tensor) -> None:
        """Give a parameter its reduced gradient."""
        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            parameter.grad = value.to_sparse()
        elif parameter.grad.data_ptr() != value.data_ptr():
            parameter.grad.copy_(value)

    @property
    def under_way(self) -> bool:
        """Whether some gradients were sent."""
        return bool(self.sent)


LISTENERS: Final[Any] = WeakTensorKeyDictionary()
"""By parameter, the hooks of the optimizer that was told of it last."""


def release(hooks: list[Any]) -> None:
    """Remove hooks."""
    while hooks:
        hooks.pop().remove()


def buckets_of(
    parameters: list[Tensor], groups: int | Sequence[Sequence[Tensor]] | None
) -> list[Bucket]:
    """Which gradients travel together: large ones alone, unless the caller says something else."""
    if isinstance(groups, int) and groups > 0:
        share = -(-len(parameters) // groups) or 1
        return [parameters[i : i + share] for i in range(0, len(parameters), share)]
    if groups is not None and not isinstance(groups, int):
        there = {id(p) for p in parameters}
        named = [[p for p in group if id(p) in there] for group in groups]
        inside = [id(p) for group in named for p in group]
        if len(inside) != len(set(inside)):
            raise ValueError(
                "hvd.DistributedOptimizer: groups: expected each parameter once; got one several "
                "times. Remove it from the other groups."
            )
        return [g for g in named if g] + [[p] for p in parameters if id(p) not in set(inside)]
    buckets: list[Bucket] = []
    small: Bucket = []
    for p in parameters:
        if p.numel() >= SMALL:
            buckets.append([p])
            continue
        small.append(p)
        if sum(each.numel() for each in small) >= TOGETHER:
            buckets.append(small)
            small = []
    return [*buckets, small] if small else buckets


class Reduced(torch.optim.Optimizer):
    """What the class of a wrapped optimizer is derived from, beside its own."""

    _gradients: Gradients
    _reduced = False
    _reduces = True

    def synchronize(self) -> None:
        """Reduce the gradients; `step` does it by itself."""
        self._reduce()
        self._reduced = True

    def _reduce(self) -> None:
        """Reduce the gradients of all parameters that there are now."""
        self._gradients.include(p for group in self.param_groups for p in group["params"])
        self._gradients.reduce()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A block in which `step` does not reduce: after `synchronize` was called."""
        self._reduces = False
        try:
            yield
        finally:
            self._reduces = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients over the ranks and update; with a closure after each call of it."""
        if not self._reduces:
            self._reduced = False
            return super().step(closure)
        if closure is not None:
            return super().step(self._then_reduced(closure))
        if self._reduced:
            warnings.warn(
                "hvd.DistributedOptimizer: step() after synchronize() reduces once more; "
                "expected `with optimizer.skip_synchronize(): optimizer.step()`",
                stacklevel=2,
            )
        self._reduce()
        self._reduced = False
        return super().step()

    def _then_reduced(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def reduced() -> Any:
            loss = closure()
            self._reduce()
            return loss

        return reduced

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; refused while they are on their way."""
        if self._gradients.under_way:
            raise RuntimeError(
                "hvd.DistributedOptimizer: expected zero_grad() before backward(); got it while "
                "the gradients are reduced. Call step() or synchronize() first."
            )
        self._gradients.begin()
        super().zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Let so many backward passes make a gradient, from the next step on."""
        self._gradients.waits_for(passes)
        self._gradients.begin()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As of the optimizer; a step that was begun is forgotten."""
        super().load_state_dict(*args, **kwargs)
        self._gradients.begin()


class Combined(torch.optim.Optimizer):
    """Combines updates, not gradients, by Adasum: of each rank's own step."""

    _compression: type[Compressor]
    _ranks: ProcessSet

    def synchronize(self) -> None:
        """Nothing: `step` reduces what it has computed."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update by this rank's gradients, and then by what all ranks' updates make together."""
        if not self._ranks.included():
            return super().step(closure)
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        before = [p.detach().clone() for p in parameters]
        loss = super().step(closure)
        with torch.no_grad():
            sent = []
            for p, start in zip(parameters, before, strict=True):
                delta, ctx = self._compression.compress((p.detach() - start).contiguous())
                handle = allreduce_async_(delta, op=Adasum, process_set=self._ranks)
                sent.append((handle, ctx))
            for p, start, (handle, ctx) in zip(parameters, before, sent, strict=True):
                p.copy_(start + self._compression.decompress(handle.wait(), ctx))
        return loss


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:  # long because each argument is described
    """The optimizer, of a class derived from its own, whose step reduces the gradients first.

    It shares state and options with the one that it is made of.

    Parameters
    ----------
    optimizer
        Any optimizer of PyTorch.
    named_parameters
        `model.named_parameters()`: names are checked to be there and unique.
    compression
        What gradients travel as: `Compression.none`, `.fp16`, `.bf16`.
    backward_passes_per_step
        So many backward passes accumulate a gradient before it is reduced.
    op
        Average, Sum or Adasum; the last one combines the ranks' own updates.
    gradient_predivide_factor
        With Average: divide by it before the sum, and multiply by it after.
    groups, num_groups
        Which gradients travel together: lists of parameters, or how many groups to make.
    sparse_as_dense, process_set
        Whether to reduce sparse gradients as dense ones; the ranks.
    """
    expect_average("DistributedOptimizer", gradient_predivide_factor, op)
    op = op_of(op, None)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    names = names_of(parameters, named_parameters)
    trained = [p for p in parameters if p.requires_grad]
    if op == Adasum and size() > 1:
        made = derived(optimizer, Combined)
        made._compression, made._ranks = compression, process_set
        return made
    made = derived(optimizer, Reduced)
    made._gradients = Gradients(
        trained,
        compression=compression,
        passes=backward_passes_per_step,
        op=op,
        predivide=gradient_predivide_factor,
        names=names,
        groups=groups if groups is not None else num_groups or None,
        sparse_as_dense=sparse_as_dense,
        ranks=process_set,
    )
    return made


def derived(optimizer: torch.optim.Optimizer, base: type) -> Any:
    """An optimizer with the state of another one, and with a class before its own."""
    kind: Any = type(type(optimizer).__name__, (base, type(optimizer)), {})
    made = object.__new__(kind)
    own = {k: v for k, v in optimizer.__dict__.items() if k not in ("step", "zero_grad")}
    made.__dict__.update(own)  # but what a scheduler has put before these methods
    return made


def names_of(parameters: list[Tensor], given: Iterable[Any] | None) -> dict[Tensor, str]:
    """By parameter its name; refused where names are none, or not those of these parameters."""
    if given is None:
        return {p: f"allreduce.noname.{i}" for i, p in enumerate(parameters)}
    named = list(given)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in named):
        raise ValueError(
            "hvd.DistributedOptimizer: named_parameters: expected pairs of a name and a parameter; "
            "got other values. Pass model.named_parameters()."
        )
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            "hvd.DistributedOptimizer: named_parameters: expected names that differ; got more than "
            f"once: {', '.join(twice)}"
        )
    without = {id(p) for p in parameters} - {id(p) for _, p in named}
    if without:
        raise ValueError(
            "hvd.DistributedOptimizer: named_parameters: expected a name for each parameter of the "
            f"optimizer; got none for {len(without)}. Pass model.named_parameters()."
        )
    return {p: name for name, p in named}


__all__ = ["DistributedOptimizer"]
