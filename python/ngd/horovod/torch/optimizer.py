# SPDX-License-Identifier: Apache-2.0
"""PyTorch optimizers that reduce the gradients over the ranks before their step.

The gradients are divided into buckets; a bucket is reduced in one all-reduce. The order of the
buckets is the reversed order of the parameters, so it is the same on all ranks. The order in which
a backward pass computes the gradients does not matter. A bucket is sent when its gradients are
complete and all buckets before it have been sent. `step` sends the remaining buckets and waits for
all of them.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..calls import SEPARATE_SIZE, Adasum, Average, Handle, expect_average, op_of
from ..world import HorovodInternalError, ProcessSet, global_process_set, size
from .compression import Compression, Compressor
from .operations import allreduce_async_, grouped_allreduce_async_, sparse_allreduce_async

FULL_BUCKET: Final = 1 << 18
"""A bucket of small gradients is full when it has at least this number of elements."""

Bucket = list[Tensor]
Entry = tuple[Tensor, Tensor, Any]
"""A parameter, the compressed gradient that is sent, and the object that `decompress` needs.

`compress` returned this object as its second value.
"""


class Gradients:
    """The gradients of an optimizer, which are reduced during the backward pass.

    Buckets and their order are described in the docstring of this module. If the `grad` of a
    parameter is None when its bucket is sent, `grad` is set to zeros, and the zeros are reduced.
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
        self.buckets = make_buckets(list(reversed(parameters)), groups)
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.set_passes(passes)
        self.reset()
        self.is_alone = not ranks.included() or ranks.size() == 1
        weakref.finalize(self, remove_hooks, self.hooks)
        self.register_hooks(parameters)

    def register_hooks(self, parameters: Iterable[Tensor]) -> None:
        """Register a hook on each parameter that calls `on_gradient` after each backward pass.

        If another DistributedOptimizer has a hook on one of these parameters, first remove the
        hooks of that optimizer from all its parameters. Only the newest optimizer then reduces.
        Register nothing if this rank has no other rank to reduce with.
        """
        if self.is_alone:
            return
        self_ref = weakref.ref(self)

        def on_gradient(parameter: Tensor) -> None:
            gradients = self_ref()
            if gradients is not None:
                gradients.on_gradient(parameter)

        for p in parameters:
            before = HOOKS.get(p)
            if before is not None:
                remove_hooks(before)
            self.hooks.append(p.register_post_accumulate_grad_hook(on_gradient))
            HOOKS[p] = self.hooks

    def add_parameters(self, parameters: Iterable[Tensor]) -> None:
        """Append one bucket for each parameter that has no bucket and requires a gradient.

        Such a parameter was added to the optimizer later, or was frozen when the optimizer was
        made. `step` and `synchronize` call this method before they reduce.
        """
        new = [p for p in parameters if p.requires_grad and p not in self.bucket_of]
        for p in new:
            self.bucket_of[p] = len(self.buckets)
            self.names.setdefault(p, f"allreduce.noname.{len(self.names)}")
            self.buckets.append([p])
            self.passes_left[p] = 0
            self.num_missing.append(0)
        self.register_hooks(new)

    def set_passes(self, passes: int) -> None:
        """Set the number of backward passes that accumulate a gradient before it is reduced."""
        if passes < 1:
            raise ValueError(
                "hvd.DistributedOptimizer: backward_passes_per_step: expected at least 1; got "
                f"{passes}"
            )
        self.passes = passes
        self.passes_left = dict.fromkeys(self.bucket_of, passes)

    def reset(self) -> None:
        """Reset to the state before the first backward pass of a step."""
        self.passes_left = dict.fromkeys(self.bucket_of, self.passes)
        self.num_missing = [len(bucket) for bucket in self.buckets]
        self.pending: list[tuple[Handle, list[Entry]]] = []
        self.next_bucket = 0

    def on_gradient(self, parameter: Tensor) -> None:
        """Count one backward pass for a parameter's gradient, and send the complete buckets.

        A bucket is complete after `self.passes` backward passes for each of its parameters.
        """
        if self.passes_left[parameter] == 0:
            raise RuntimeError(
                "hvd.DistributedOptimizer: expected step() after backward_passes_per_step="
                f"{self.passes} backward passes; got another pass. Set a larger number to "
                "accumulate gradients."
            )
        self.passes_left[parameter] -= 1
        if self.passes_left[parameter] == 0:
            self.num_missing[self.bucket_of[parameter]] -= 1
            while self.next_bucket < len(self.buckets) and self.num_missing[self.next_bucket] == 0:
                self.send()

    def send(self) -> None:
        """Start to reduce the next bucket.

        The name of the reduction consists of the names of the bucket's parameters. If the process
        set is the world, different names on the ranks raise HorovodInternalError when the reduction
        completes.
        """
        bucket = self.buckets[self.next_bucket]
        self.next_bucket += 1
        dense: list[Entry] = []
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if p.grad.is_sparse and not self.sparse_as_dense:
                name = f"{self.names[p]}, sparse"
                handle = sparse_allreduce_async(p.grad, name, self.op, self.ranks)
                self.pending.append((handle, [(p, p.grad, None)]))
                continue
            value = p.grad.to_dense() if p.grad.is_sparse else p.grad
            value, ctx = self.compression.compress(value.detach())
            dense.append((p, value.contiguous(), ctx))
        values = [value for _, value, _ in dense]
        name = ", ".join(self.names[p] for p, _, _ in dense)
        handle = grouped_allreduce_async_(values, None, name, self.op, *self.scales, self.ranks)
        self.pending.append((handle, dense))

    def reduce(self) -> None:
        """Send the remaining buckets, wait for all of them, and store the results as gradients."""
        if self.is_alone:
            self.reset()
            return
        while self.next_bucket < len(self.buckets):
            self.send()
        pending, failure = self.pending, None
        self.reset()
        for handle, entries in pending:
            try:
                result = handle.wait()
            except HorovodInternalError as error:
                failure = failure or error  # raised after all other buckets have completed
                continue
            if isinstance(result, Tensor):  # a sparse gradient
                entries[0][0].grad = result
                continue
            for p, value, ctx in entries:
                self.store_gradient(p, self.compression.decompress(value, ctx))
        if failure is not None:
            raise failure

    @staticmethod
    def store_gradient(parameter: Tensor, value: Tensor) -> None:
        """Store a reduced gradient in `parameter.grad`, as a sparse tensor if `grad` is sparse."""
        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            parameter.grad = value.to_sparse()
        elif parameter.grad.data_ptr() != value.data_ptr():
            parameter.grad.copy_(value)

    @property
    def is_pending(self) -> bool:
        """True if buckets have been sent whose results are not yet stored."""
        return bool(self.pending)


HOOKS: Final[Any] = WeakTensorKeyDictionary()
"""A map from each parameter to the hooks of the newest DistributedOptimizer that has it.

The value is the list of the hooks of that optimizer on all its parameters, not only on this one.
"""


def remove_hooks(hooks: list[Any]) -> None:
    """Remove hooks from their parameters, and empty the list."""
    while hooks:
        hooks.pop().remove()


def make_buckets(
    parameters: list[Tensor], groups: int | Sequence[Sequence[Tensor]] | None
) -> list[Bucket]:
    """Divide parameters into buckets, and return the list of the buckets.

    If `groups` is a positive number, there are at most that many buckets. If `groups` is a list of
    lists of parameters, each list is a bucket, and each parameter in no list has its own bucket.
    Otherwise, each parameter with at least SEPARATE_SIZE elements has its own bucket, and smaller
    parameters share buckets. Raise ValueError if a parameter occurs several times in `groups`.
    """
    if isinstance(groups, int) and groups > 0:
        bucket_size = -(-len(parameters) // groups) or 1
        return [parameters[i : i + bucket_size] for i in range(0, len(parameters), bucket_size)]
    if groups is not None and not isinstance(groups, int):
        known_ids = {id(p) for p in parameters}
        named = [[p for p in group if id(p) in known_ids] for group in groups]
        grouped_ids = [id(p) for group in named for p in group]
        if len(grouped_ids) != len(set(grouped_ids)):
            raise ValueError(
                "hvd.DistributedOptimizer: groups: expected each parameter once; got one several "
                "times. Remove it from the other groups."
            )
        return [g for g in named if g] + [[p] for p in parameters if id(p) not in set(grouped_ids)]
    buckets: list[Bucket] = []
    small: Bucket = []
    for p in parameters:
        if p.numel() >= SEPARATE_SIZE:
            buckets.append([p])
            continue
        small.append(p)
        if sum(each.numel() for each in small) >= FULL_BUCKET:
            buckets.append(small)
            small = []
    return [*buckets, small] if small else buckets


class ReducingOptimizer(torch.optim.Optimizer):
    """The methods of a DistributedOptimizer whose `step` first reduces the gradients.

    A DistributedOptimizer is derived from this class and from the class of the user's optimizer, in
    this order.
    """

    _gradients: Gradients
    _is_synchronized = False
    _needs_reduction = True

    def synchronize(self) -> None:
        """Reduce the gradients now.

        `step` reduces them again, unless it is called in `with optimizer.skip_synchronize():`.
        """
        self._reduce()
        self._is_synchronized = True

    def _reduce(self) -> None:
        """Add buckets for new parameters, then reduce the gradients of all parameters."""
        self._gradients.add_parameters(p for group in self.param_groups for p in group["params"])
        self._gradients.reduce()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Return a context in which `step` does not reduce; use it after `synchronize`."""
        self._needs_reduction = False
        try:
            yield
        finally:
            self._needs_reduction = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients over the ranks, and update the parameters.

        `closure`, if not None, computes the loss and the gradients. The gradients are then reduced
        after each call of `closure`.
        """
        if not self._needs_reduction:
            self._is_synchronized = False
            return super().step(closure)
        if closure is not None:
            return super().step(self._with_reduction(closure))
        if self._is_synchronized:
            warnings.warn(
                "hvd.DistributedOptimizer: step() after synchronize() reduces again; "
                "expected `with optimizer.skip_synchronize(): optimizer.step()`",
                stacklevel=2,
            )
        self._reduce()
        self._is_synchronized = False
        return super().step()

    def _with_reduction(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a function that calls `closure`, reduces the gradients, and returns the loss."""

        def closure_with_reduction() -> Any:
            loss = closure()
            self._reduce()
            return loss

        return closure_with_reduction

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients.

        Raise RuntimeError if gradients have been sent and their results are not yet stored.
        """
        if self._gradients.is_pending:
            raise RuntimeError(
                "hvd.DistributedOptimizer: expected zero_grad() before backward(); got it while "
                "the gradients are reduced. Call step() or synchronize() first."
            )
        self._gradients.reset()
        super().zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes per step, from the next step on."""
        self._gradients.set_passes(passes)
        self._gradients.reset()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load a state of the optimizer, and drop the reductions that have started in this step.

        The next backward pass counts as the first one of a step. The attribute `grad` of the
        parameters is not cleared.
        """
        super().load_state_dict(*args, **kwargs)
        self._gradients.reset()


class AdasumOptimizer(torch.optim.Optimizer):
    """The methods of a DistributedOptimizer whose `step` combines the ranks' updates by Adasum.

    Each rank first updates its parameters by its own gradients. The changes of the parameters are
    then combined, not the gradients. A DistributedOptimizer with op=Adasum is derived from this
    class and from the class of the user's optimizer, in this order.
    """

    _compression: type[Compressor]
    _ranks: ProcessSet

    def synchronize(self) -> None:
        """Do nothing: `step` combines the updates."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters, and replace each change by the Adasum of all ranks' changes.

        Each rank uses its own gradients. A rank outside the process set keeps its own changes.
        """
        if not self._ranks.included():
            return super().step(closure)
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        before = [p.detach().clone() for p in parameters]
        loss = super().step(closure)
        with torch.no_grad():
            pending = []
            for p, start in zip(parameters, before, strict=True):
                delta, ctx = self._compression.compress((p.detach() - start).contiguous())
                handle = allreduce_async_(delta, op=Adasum, process_set=self._ranks)
                pending.append((handle, ctx))
            for p, start, (handle, ctx) in zip(parameters, before, pending, strict=True):
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
    """Return an optimizer that reduces the gradients over the ranks before its step.

    The class of the result is derived from the class of `optimizer`. Both objects share parameters,
    state and options.

    Corresponds to `horovod.torch.DistributedOptimizer`.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer.
    named_parameters : iterable of (str, Tensor), optional
        `model.named_parameters()`. Each parameter of the optimizer must have a name, and names must
        be unique.
    compression : class
        The dtype in which floats are sent: `Compression.none`, `.fp16` or `.bf16`.
    backward_passes_per_step : int
        The number of backward passes that accumulate a gradient before it is reduced.
    op : int
        Average, Sum or Adasum. Adasum combines the ranks' updates instead of their gradients.
    gradient_predivide_factor : float
        The gradients are divided by this number before they are averaged, and the average is
        multiplied by this number. A number other than 1 (the default) needs `op=Average`.
    num_groups : int
        The largest number of buckets; the gradients of a bucket are reduced together. It is ignored
        if `groups` is given. With 0, small gradients share buckets, and each large gradient has its
        own bucket.
    groups : list of lists of Tensor, or int, optional
        The buckets, as lists of parameters; each parameter in no list has its own bucket. A number
        has the meaning of `num_groups`.
    sparse_as_dense : bool
        If True, sparse gradients are reduced as dense tensors. If False, the indices and values of
        all ranks are gathered.
    process_set : ProcessSet
        The ranks; by default the world.
    """
    expect_average("DistributedOptimizer", gradient_predivide_factor, op)
    op = op_of(op, None)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    names = names_of(parameters, named_parameters)
    trained = [p for p in parameters if p.requires_grad]
    if op == Adasum and size() > 1:
        wrapped = derive_optimizer(optimizer, AdasumOptimizer)
        wrapped._compression, wrapped._ranks = compression, process_set
        return wrapped
    wrapped = derive_optimizer(optimizer, ReducingOptimizer)
    wrapped._gradients = Gradients(
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
    return wrapped


def derive_optimizer(optimizer: torch.optim.Optimizer, base: type) -> Any:
    """Return an optimizer whose class is derived from `base` and the class of `optimizer`.

    Methods of `base` override those of the class of `optimizer`. The new optimizer shares
    parameters, state and options with `optimizer`.
    """
    kind: Any = type(type(optimizer).__name__, (base, type(optimizer)), {})
    wrapped = object.__new__(kind)
    attributes = {k: v for k, v in optimizer.__dict__.items() if k not in ("step", "zero_grad")}
    # A scheduler may have replaced `step` in the instance: that wrapper must not be copied.
    wrapped.__dict__.update(attributes)
    return wrapped


def names_of(parameters: list[Tensor], pairs: Iterable[Any] | None) -> dict[Tensor, str]:
    """Return a dict from parameter to name. Raise ValueError if names are missing or not unique."""
    if pairs is None:
        return {p: f"allreduce.noname.{i}" for i, p in enumerate(parameters)}
    named = list(pairs)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in named):
        raise ValueError(
            "hvd.DistributedOptimizer: named_parameters: expected pairs of a name and a parameter; "
            "got other values. Pass model.named_parameters()."
        )
    names = [name for name, _ in named]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(
            "hvd.DistributedOptimizer: named_parameters: expected names that differ; got more than "
            f"once: {', '.join(duplicates)}"
        )
    unnamed = {id(p) for p in parameters} - {id(p) for _, p in named}
    if unnamed:
        raise ValueError(
            "hvd.DistributedOptimizer: named_parameters: expected a name for each parameter of the "
            f"optimizer; got none for {len(unnamed)}. Pass model.named_parameters()."
        )
    return {p: name for name, p in named}


__all__ = ["DistributedOptimizer"]
