# SPDX-License-Identifier: Apache-2.0
"""A ProcessGroup of torch.distributed that runs its collectives on an ngd.Group."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import profiler
from torch.distributed import ReduceOp

from ... import _core
from ..._util.callsite import call_site
from ...comm import Group
from ...comm.world import shutdown
from ...errors import CollectiveError
from . import works
from .operands import (
    check,
    contiguous,
    destination_for,
    destination_for_all,
    pack,
    reduction,
    scale_operand,
    wire,
)
from .untraced import exclude_from_tracing
from .works import Queue, Work, poll_group, profiler_range, start_work, wait_for_group

CPU: Final = torch.device("cpu")


@exclude_from_tracing
class ProcessGroup(torch.distributed.ProcessGroup):
    """A group of ranks of torch.distributed that communicates through ngd.

    Users call the functions of torch.distributed. Those functions, DistributedDataParallel and
    fully_shard call the methods of this class. Corresponds to `torch.distributed.ProcessGroup`.

    Parameters
    ----------
    group : ngd.Group
        The group of ngd with the same ranks.
    ranks : list of int or None
        The global ranks of the members; None for the default group.
    timeout : datetime.timedelta
        The longest time of a wait.
    store : Store
        The store by which the ranks found each other.
    owned : bool
        True if the group was created for torch.distributed, so `shutdown` closes it. False if it is
        ngd's own world, which stays open.
    counts : bool
        True if ngd's errors about this group report ranks as indices in the group, from 0. False if
        they report global ranks.
    """

    def __init__(
        self,
        group: Group,
        ranks: list[int] | None,
        timeout: timedelta,
        store: Any,
        *,
        owned: bool,
        counts: bool = False,
    ) -> None:
        super().__init__(group.rank, group.size)
        self.group = group
        self.communicator = group.communicator
        self.queue = Queue()
        self.ranks = ranks
        """The global ranks of the members; None for the default group."""
        self.seconds = timeout.total_seconds()
        self._store = store
        self._is_owned = owned
        self._has_group_ranks = counts
        self._has_failed = False
        self._rank, self._size = group.rank, group.size
        self._name = self._description = ""

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return "ngd"

    # PyTorch keeps the name of a group in its C++ backends. This group has none, so it stores the
    # name itself. Python reads the properties, and C++ calls the two getters.

    @property
    def group_name(self) -> str:
        """The name that torch.distributed gave the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """The description that torch.distributed gave the group."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupName(self) -> str:
        """Return `group_name`. PyTorch's C++ code calls this method."""
        return self._name

    def getGroupDesc(self) -> str:
        """Return `group_desc`. PyTorch's C++ code calls this method."""
        return self._description

    def get_group_store(self) -> Any:
        """Return the store by which the ranks found each other."""
        return self._store

    # A C++ group has one backend per device. This group is its own backend.

    supports_splitting = supports_coalescing = supports_time_estimate = False

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices of the tensors that collectives of the group accept: the CPU."""
        return [CPU]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        """Return the backend of a device; RuntimeError unless it is the CPU."""
        if torch.device(device).type != CPU.type:
            raise RuntimeError(
                f"torch.distributed: expected CPU tensors for the ngd backend; got {device}. Move "
                "them: tensor.cpu()."
            )
        return self

    def supports_tensor_alloc(self, _: torch.device) -> bool:
        """Return False: the group does not allocate tensors."""
        return False

    def add_ranks(self, error: Exception) -> Exception:
        """Mark this group as failed, and return the error to raise in place of `error`.

        If this group is not the default group and `error` is a CollectiveError, return a new error
        of the same class. Its message also lists the global ranks of the group, and its attribute
        `ranks` has global ranks. Otherwise return `error`. If a group that uses ngd's own world is
        marked as failed, `shutdown` closes this world.
        """
        self._has_failed = True
        if self.ranks is None or not isinstance(error, CollectiveError):
            return error
        kind: type[CollectiveError] = type(error)
        where = "counted in" if self._has_group_ranks else "in"
        with_ranks = kind(f"{error} ({where} the group of the global ranks {self.ranks})")
        with_ranks.ranks = (
            tuple(self.ranks[r] for r in error.ranks) if self._has_group_ranks else error.ranks
        )
        return with_ranks

    def abort_interrupted(self, error: BaseException) -> None:
        """Close the group after `error`, an exception that interrupted a call (such as Ctrl-C).

        If the group stayed open, the other ranks could pair their calls of the interrupted
        collective with the next collective of this rank. The core may still use the tensors of
        pending collectives, so the tensors are not released here. They are released when a later
        poll (a call that advances collectives without waiting) finds that the group is closed.
        """
        self._has_failed = True
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        self.group.abort(f"interrupted in a call of torch.distributed by {text}")

    def shutdown(self) -> None:
        """Wait for the collectives that are not complete, and leave the group.

        A group that was created for torch.distributed is closed. ngd's default group, the world, is
        closed only if this ProcessGroup uses it and a call of this ProcessGroup has failed.
        """
        wait_for_group(self)
        if self._is_owned:
            self.group.close()
        elif self._has_failed:
            shutdown()
        poll_group(self)

    def abort(self) -> None:
        """Leave the group immediately. The other ranks are notified."""
        self._has_failed = True
        self.group.abort("torch.distributed aborted this process group")
        poll_group(self)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the longest time of later waits."""
        self.seconds = timeout.total_seconds()

    # ---- collectives with equal operands and results

    def allreduce(self, tensors: Any, opts: Any = None, *_: Any) -> Work:
        """Reduce each tensor over the ranks, in place."""
        return self._in_place("all_reduce", tensors, reduce_op(opts))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Any, opts: Any = 0, *_: Any) -> Work:
        """Overwrite the tensors on all ranks with the root's tensors."""
        root = opts if isinstance(opts, int) else opts.rootRank
        return self._in_place("broadcast", tensors, None, root)

    def reduce(self, tensors: Any, opts: Any, op: Any = None, *_: Any) -> Work:
        """Reduce each tensor over the ranks. The root receives the result."""
        if isinstance(opts, int):
            return self._in_place("reduce", tensors, reduce_op(op), opts)
        return self._in_place("reduce", tensors, opts.reduceOp, opts.rootRank)

    def _in_place(self, kind: str, tensors: Any, op: Any, root: int = 0) -> Work:
        outputs = as_list(tensors)
        call = Call(self, kind)
        for tensor in outputs:
            check(tensor, kind)
            scaled = tensor if op is None else scale_operand(op, tensor)
            source = destination = contiguous(scaled)
            if kind == "reduce" and root != self._rank:
                destination = None
            elif source is not tensor:
                destination = call.receive(tensor)
            call.submit(source, destination, tensor.numel(), op, root=root)
        return call.start(outputs)

    # ---- collectives with one block per rank

    def allgather(self, output_tensors: Any, input_tensors: Any, *_: Any) -> Work:
        """Give every rank the tensors of all ranks. Different ranks may send different sizes."""
        inputs, outputs = as_list(input_tensors), as_lists(output_tensors)
        call = Call(self, "all_gather")
        for tensor, blocks in zip(inputs, outputs, strict=True):
            call.check_blocks(blocks, "output", tensor, self._rank)
            destination = call.receive_all(blocks)
            call.submit(
                contiguous(tensor), destination, tensor.numel(), counts=counts_if_uneven(blocks)
            )
        return call.start([block for blocks in outputs for block in blocks])

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], *_: Any
    ) -> Work:
        """Gather several tensors, as `allgather` does.

        `output_lists[r][i]` receives input i of rank r. `allgather` takes the two indices in the
        other order, `[i][r]`.
        """
        list_sizes = [len(of_rank) for of_rank in output_lists]
        if list_sizes != [len(inputs)] * self._size:
            raise ValueError(
                f"all_gather: expected {self._size} lists of outputs, one per rank, of "
                f"{len(inputs)} tensors each, one per input; got lists of {list_sizes} tensors"
            )
        return self.allgather([list(blocks) for blocks in zip(*output_lists, strict=True)], inputs)

    def all_gather_single(self, output: Tensor, input: Tensor, *_: Any) -> Work:
        """Give every rank the tensors of all ranks, one after the other in one tensor."""
        return self.all_gather_single_coalesced([output], [input])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], *_: Any
    ) -> Work:
        """Gather several tensors, as `all_gather_single` does."""
        call = Call(self, "all_gather")
        for output, tensor in zip(outputs, inputs, strict=True):
            call.check_whole(output, "output", tensor, "input")
            call.submit(contiguous(tensor), call.receive(output), tensor.numel())
        return call.start(outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        """Reduce over the ranks. Each rank receives its block of the result."""
        outputs, inputs = as_list(output_tensors), as_lists(input_tensors)
        call = Call(self, "reduce_scatter")
        for output, blocks in zip(outputs, inputs, strict=True):
            call.check_blocks(blocks, "input", output, self._rank)
            call.reduce_blocks(pack(blocks), output, reduce_op(opts), counts_if_uneven(blocks))
        return call.start(outputs)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Reduce and scatter as `reduce_scatter` does, with all blocks in one tensor."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """Reduce and scatter several tensors, as `reduce_scatter_single` does."""
        call = Call(self, "reduce_scatter")
        for output, tensor in zip(outputs, inputs, strict=True):
            call.check_whole(tensor, "input", output, "output")
            call.reduce_blocks(contiguous(tensor), output, reduce_op(opts))
        return call.start(outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *_: Any) -> Work:
        """Give the root the tensors of all ranks."""
        root = opts if isinstance(opts, int) else opts.rootRank
        inputs = as_list(input_tensors)
        outputs = as_lists(output_tensors) if self._rank == root else [[] for _ in inputs]
        call = Call(self, "gather")
        for tensor, blocks in zip(inputs, outputs, strict=True):
            destination = None
            if self._rank == root:
                call.check_blocks(blocks, "output", tensor, self._rank, is_even=True)
                destination = call.receive_all(blocks)
            call.submit(contiguous(tensor), destination, tensor.numel(), root=root)
        return call.start([block for blocks in outputs for block in blocks])

    def gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Work:
        """Give the root the tensors of all ranks, one after the other in the root's `output`."""
        call, is_root = Call(self, "gather"), self._rank == opts.rootRank
        if is_root:
            call.check_whole(output, "output", input, "input")
        destination = call.receive(output) if is_root else None
        call.submit(contiguous(input), destination, input.numel(), root=opts.rootRank)
        return call.start([output] if is_root else [])

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *_: Any) -> Work:
        """Give every rank its block of the root's tensors."""
        root = opts if isinstance(opts, int) else opts.rootRank
        outputs = as_list(output_tensors)
        inputs = as_lists(input_tensors) if self._rank == root else [[] for _ in outputs]
        call = Call(self, "scatter")
        for output, blocks in zip(outputs, inputs, strict=True):
            source = None
            if self._rank == root:
                call.check_blocks(blocks, "input", output, self._rank, is_even=True)
                source = pack(blocks)
            call.submit(source, call.receive(output), output.numel(), root=root)
        return call.start(outputs)

    def alltoall(self, output_tensors: Any, input_tensors: Any, *_: Any) -> Work:
        """Send one tensor to each rank, and receive one tensor from each rank."""
        call = Call(self, "all_to_all")
        for tensors, role in ((output_tensors, "output"), (input_tensors, "input")):
            call.check_blocks(tensors, role)
        call.submit(
            pack(input_tensors),
            call.receive_all(output_tensors),
            input_tensors[0].numel(),
            counts=[tensor.numel() for tensor in input_tensors],
            receive_counts=[tensor.numel() for tensor in output_tensors],
        )
        return call.start(output_tensors)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        *_: Any,
    ) -> Work:
        """Exchange blocks as `alltoall` does, with the blocks one after the other in one tensor.

        A split size is the length of a block on the first axis. Without sizes, blocks are equal.
        """
        call = Call(self, "all_to_all")
        call.submit(
            contiguous(input),
            call.receive(output),
            input.numel() // self._size,
            counts=call.split(input, input_split_sizes, "input"),
            receive_counts=call.split(output, output_split_sizes, "output"),
        )
        return call.start([output])

    alltoall_base = all_to_all_single

    # ---- messages between two ranks, and the barrier

    def send(self, tensors: Any, rank: int, tag: int = 0) -> Work:
        """Send tensors to a rank."""
        call = Call(self, "send")
        for tensor in as_list(tensors):
            call.submit(contiguous(tensor), None, tensor.numel(), root=rank, tag=tag)
        return call.start([])

    def recv(self, tensors: Any, rank: int, tag: int = 0) -> Work:
        """Receive tensors from a rank."""
        outputs = as_list(tensors)
        call = Call(self, "recv")
        for tensor in outputs:
            call.submit(None, call.receive(tensor), tensor.numel(), root=rank, tag=tag)
        return call.start(outputs)

    def recv_anysource(self, tensors: Any, tag: int) -> Work:
        """Raise ValueError: a receive must name the rank that sends."""
        raise ValueError("recv: expected src, the rank that sends; got none. Give src.")

    def barrier(self, opts: Any = None) -> Work:
        """Start a barrier and return its work. A timeout in `opts` replaces that of the group."""
        call = Call(self, "barrier")
        call.submit(None, None, 0)
        timeout = getattr(opts, "timeout", None)
        return call.start([], timeout.total_seconds() if timeout is not None else 0.0)


class Call:
    """The collectives of one call of a ProcessGroup method, which `start` submits together.

    `submit` adds a collective. Its argument `count` is the number of elements in a rank's block, or
    in the tensor if there are no blocks. If blocks are unequal, `counts` has one number per block.
    """

    def __init__(self, group: ProcessGroup, kind: str) -> None:
        self.group = group
        self.kind = kind
        self.site = call_site()
        self.copies: list[tuple[Tensor, Tensor]] = []  # (tensor, received memory to copy to it)
        self._calls: list[_core.Call] = []
        self._tensors: list[Tensor] = []

    def submit(
        self,
        source: Tensor | None,
        destination: Tensor | None,
        count: int,
        op: Any = None,
        *,
        root: int = 0,
        tag: int = 0,
        counts: list[int] | None = None,
        receive_counts: list[int] | None = None,
    ) -> None:
        """Add a collective to this call; `start` submits it. For `counts`, see class Call."""
        tensors = [tensor for tensor in (source, destination) if tensor is not None]
        reduce, dtype, factor = "none", "uint8", 1
        for tensor in tensors:
            check(tensor, self.kind)
            if tensor.dtype is not tensors[0].dtype:
                raise TypeError(
                    f"{self.kind}: expected one dtype; got {tensors[0].dtype} and {tensor.dtype}"
                )
        if tensors:
            dtype, factor = wire(tensors[0])
        if op is not None:
            reduce = reduction(op, tensors[0].dtype, self.kind)
            if factor != 1 and not tensors[0].is_complex():
                raise TypeError(
                    f"{self.kind}: expected a dtype that ngd reduces; got {tensors[0].dtype}. Cast "
                    "the tensor."
                )
        if factor != 1:
            counts = counts and [factor * c for c in counts]
            receive_counts = receive_counts and [factor * c for c in receive_counts]
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in (source, destination)]
        self._tensors += tensors
        self._calls.append(
            _core.Call.on_memory(
                self.group.communicator,
                self.kind,
                reduce,
                dtype,
                factor * count,
                root,
                *addresses,
                site=self.site,
                counts=counts,
                receive_counts=receive_counts,
                tag=tag,
            )
        )

    def start(self, outputs: list[Tensor], seconds: float = 0.0) -> Work:
        """Submit all collectives and return their handle.

        `seconds` > 0 is the longest time of a wait; otherwise the timeout of the group applies.
        """
        work = Work(self.group, self.kind, self._calls, outputs, self._tensors, self.copies)
        if seconds > 0:
            work.seconds = seconds
        if profiler._is_profiler_enabled:
            with profiler_range(self.kind, self._tensors), works.turns:
                return start_work(work)
        with works.turns:
            return start_work(work)

    def receive(self, tensor: Tensor) -> Tensor:
        """Return contiguous memory to receive a tensor into.

        If it is not the memory of the tensor, the data is copied to the tensor after the receive.
        """
        check(tensor, self.kind)
        destination = destination_for(tensor)
        if destination is not tensor:
            self.copies.append((tensor, destination))
        return destination

    def receive_all(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return memory to receive several tensors into, one after the other."""
        destination, copies = destination_for_all(tensors)
        self.copies += copies
        return destination

    def reduce_blocks(
        self, source: Tensor, output: Tensor, op: Any, counts: list[int] | None = None
    ) -> None:
        """Add a reduce_scatter: `source` has all blocks; `output` receives this rank's block."""
        self.submit(
            scale_operand(op, source), self.receive(output), output.numel(), op, counts=counts
        )

    def check_blocks(
        self,
        blocks: Sequence[Tensor],
        role: str,
        own: Tensor | None = None,
        rank: int = 0,
        is_even: bool = False,
    ) -> None:
        """Raise unless there is one block per rank, of one dtype.

        If `own`, a tensor of this rank, is given, the numbers of elements are checked, too. If
        `is_even` is True, every block must have as many elements as `own`. Otherwise only the block
        of rank `rank` must.
        """
        size = self.group.size()
        if len(blocks) != size:
            raise ValueError(
                f"{self.kind}: expected {size} {role} tensors, one per rank; got {len(blocks)}"
            )
        for number, block in enumerate(blocks):
            check(block, self.kind)
            if block.dtype is not blocks[0].dtype:
                raise TypeError(
                    f"{self.kind}: expected one dtype; got {blocks[0].dtype} and {block.dtype}"
                )
            must_match = own is not None and (is_even or number == rank)
            if must_match and own is not None and block.numel() != own.numel():
                raise ValueError(
                    f"{self.kind}: expected {own.numel()} elements in {role} tensor {number}; "
                    f"got {block.numel()}"
                )

    def check_whole(self, whole: Tensor, name: str, block: Tensor, block_name: str) -> None:
        """Raise ValueError unless `whole` has as many elements as one `block` per rank."""
        size = self.group.size()
        if whole.numel() != size * block.numel():
            raise ValueError(
                f"{self.kind}: expected an {name} of {size} x {block.numel()} elements, one "
                f"{block_name} per rank; got {whole.numel()}"
            )

    def split(self, tensor: Tensor, sizes: Sequence[int], role: str) -> list[int]:
        """Return the number of elements in each rank's block of a tensor.

        `sizes` has the lengths of the blocks on the first axis; if it is empty, they are equal.
        """
        size = self.group.size()
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            if rows % size:
                raise ValueError(
                    f"{self.kind}: expected an {role} whose first axis {size} divides; "
                    f"got {tuple(tensor.shape)}"
                )
            return [tensor.numel() // size] * size
        if len(sizes) != size or sum(sizes) != rows:
            raise ValueError(
                f"{self.kind}: expected {size} {role} split sizes whose sum is {rows}; "
                f"got {list(sizes)}"
            )
        row = tensor.numel() // rows if rows else 0
        return [each * row for each in sizes]


def reduce_op(opts: Any) -> Any:
    """Return the reduction in the options of a call; without options it is a sum."""
    return getattr(opts, "reduceOp", ReduceOp.SUM if opts is None else opts)


def as_list(tensors: Any) -> list[Tensor]:
    """Return a tensor or a list of tensors as a list of tensors."""
    return [tensors] if isinstance(tensors, Tensor) else tensors


def as_lists(tensors: Any) -> list[list[Tensor]]:
    """Return a list of lists as it is; return [[a, b]] for a list of tensors [a, b].

    Each inner list has one tensor per rank.
    """
    return [tensors] if tensors and isinstance(tensors[0], Tensor) else tensors


def counts_if_uneven(blocks: Sequence[Tensor]) -> list[int] | None:
    """Return the number of elements of each block, or None if all blocks have the same number."""
    counts = [block.numel() for block in blocks]
    return counts if len(set(counts)) > 1 else None
