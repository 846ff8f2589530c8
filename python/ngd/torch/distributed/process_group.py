# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's ProcessGroup, call by call, as collectives of an ngd.Group."""

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
    packed,
    place_for,
    place_for_all,
    premultiplied,
    reduction,
    wire,
)
from .untraced import untraced
from .works import Queue, Work, complete_all_of, look_at_all_of, recorded, started

CPU: Final = torch.device("cpu")


@untraced
class ProcessGroup(torch.distributed.ProcessGroup):
    """Ranks of torch.distributed that communicate through ngd.

    The methods are those that torch.distributed's functions, DistributedDataParallel and
    fully_shard call; users call torch.distributed.
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
        """Their global numbers; None of the default group."""
        self.seconds = timeout.total_seconds()
        self._store = store
        self._owned = owned  # not ngd's own world
        self._counts = counts  # ranks from 0, in what the engine says
        self._failed = False
        self._rank, self._size = group.rank, group.size
        self._name = self._description = ""

    def getBackendName(self) -> str:
        """The name under which it is registered."""
        return "ngd"

    # torch keeps a group's name in its C++ backends, of which there are none here: Python asks the
    # properties, C++ the other two.

    @property
    def group_name(self) -> str:
        """The name that torch.distributed gave it."""
        return self._name

    @property
    def group_desc(self) -> str:
        """What torch.distributed says that it is for."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupName(self) -> str:
        """For C++: as group_name."""
        return self._name

    def getGroupDesc(self) -> str:
        """For C++: as group_desc."""
        return self._description

    def get_group_store(self) -> Any:
        """The store over which the ranks met."""
        return self._store

    # A group written in Python has no backends beneath it, one a device: it is its own.

    supports_splitting = supports_coalescing = supports_time_estimate = False

    @property
    def _device_types(self) -> list[torch.device]:
        """Where tensors may be."""
        return [CPU]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        """Who communicates for a device."""
        if torch.device(device).type != CPU.type:
            raise RuntimeError(
                f"torch.distributed: expected CPU tensors for the ngd backend; got {device}. Move "
                "them: tensor.cpu()."
            )
        return self

    def supports_tensor_alloc(self, _: torch.device) -> bool:
        """Whether it has memory of its own to give."""
        return False

    def explained(self, error: Exception) -> Exception:
        """The error; of a smaller group, with its ranks."""
        self._failed = True
        if self.ranks is None or not isinstance(error, CollectiveError):
            return error
        kind: type[CollectiveError] = type(error)
        where = "counted in" if self._counts else "in"
        told = kind(f"{error} ({where} the group of the global ranks {self.ranks})")
        told.ranks = tuple(self.ranks[r] for r in error.ranks) if self._counts else error.ranks
        return told

    def interrupted(self, error: BaseException) -> None:
        """Something was raised in mid-call, by Ctrl-C or the handler of a signal: leave at once.

        What the rank would call next, the peers would take for the call that they are in. The works
        under way stay outstanding until a look at them finds the group closed.
        """
        self._failed = True
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        self.group.abort(f"interrupted in a call of torch.distributed by {text}")

    def shutdown(self) -> None:
        """Complete what is under way, and leave; ngd's own world stays, if it is in good order."""
        complete_all_of(self)
        if self._owned:
            self.group.close()
        elif self._failed:
            shutdown()
        look_at_all_of(self)

    def abort(self) -> None:
        """Leave at once: the peers are told."""
        self._failed = True
        self.group.abort("torch.distributed aborted this process group")
        look_at_all_of(self)

    def set_timeout(self, timeout: timedelta) -> None:
        """How long a wait may last, from now on."""
        self.seconds = timeout.total_seconds()

    # ---- the same number of elements in and out

    def allreduce(self, tensors: Any, opts: Any = None, *_: Any) -> Work:
        """Reduce each tensor over the ranks, in place."""
        return self._in_place("all_reduce", tensors, reduce_op(opts))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Any, opts: Any = 0, *_: Any) -> Work:
        """Give every rank the root's tensors."""
        root = opts if isinstance(opts, int) else opts.rootRank
        return self._in_place("broadcast", tensors, None, root)

    def reduce(self, tensors: Any, opts: Any, op: Any = None, *_: Any) -> Work:
        """Reduce each tensor over the ranks; the root receives the result."""
        if isinstance(opts, int):
            return self._in_place("reduce", tensors, reduce_op(op), opts)
        return self._in_place("reduce", tensors, opts.reduceOp, opts.rootRank)

    def _in_place(self, kind: str, tensors: Any, op: Any, root: int = 0) -> Work:
        outputs = as_list(tensors)
        call = Call(self, kind)
        for tensor in outputs:
            check(tensor, kind)
            scaled = tensor if op is None else premultiplied(op, tensor)
            source = place = contiguous(scaled)
            if kind == "reduce" and root != self._rank:
                place = None
            elif source is not tensor:
                place = call.receive(tensor)
            call.submit(source, place, tensor.numel(), op, root=root)
        return call.start(outputs)

    # ---- a block a rank

    def allgather(self, output_tensors: Any, input_tensors: Any, *_: Any) -> Work:
        """Give every rank the tensors of all; those of different ranks may differ in size."""
        inputs, outputs = as_list(input_tensors), as_lists(output_tensors)
        call = Call(self, "all_gather")
        for tensor, blocks in zip(inputs, outputs, strict=True):
            call.check_blocks(blocks, "output", tensor, self._rank)
            place = call.receive_all(blocks)
            call.submit(contiguous(tensor), place, tensor.numel(), counts=uneven(blocks))
        return call.start([block for blocks in outputs for block in blocks])

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], *_: Any
    ) -> Work:
        """As allgather, for several tensors: of each rank, the list of its tensors."""
        lengths = [len(of_rank) for of_rank in output_lists]
        if lengths != [len(inputs)] * self._size:
            raise ValueError(
                f"all_gather: expected {self._size} lists of outputs, one a rank, of "
                f"{len(inputs)} tensors each, one an input; got lists of {lengths} tensors"
            )
        return self.allgather([list(blocks) for blocks in zip(*output_lists, strict=True)], inputs)

    def all_gather_single(self, output: Tensor, input: Tensor, *_: Any) -> Work:
        """Give every rank the tensors of all, end to end in one."""
        return self.all_gather_single_coalesced([output], [input])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], *_: Any
    ) -> Work:
        """As all_gather_single, for several tensors."""
        call = Call(self, "all_gather")
        for output, tensor in zip(outputs, inputs, strict=True):
            call.check_whole(output, "output", tensor, "input")
            call.submit(contiguous(tensor), call.receive(output), tensor.numel())
        return call.start(outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        """Reduce over the ranks; each receives its block of the result."""
        outputs, inputs = as_list(output_tensors), as_lists(input_tensors)
        call = Call(self, "reduce_scatter")
        for output, blocks in zip(outputs, inputs, strict=True):
            call.check_blocks(blocks, "input", output, self._rank)
            call.reduce_blocks(packed(blocks), output, reduce_op(opts), uneven(blocks))
        return call.start(outputs)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """As reduce_scatter, the blocks end to end in one tensor."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """As reduce_scatter_single, for several tensors."""
        call = Call(self, "reduce_scatter")
        for output, tensor in zip(outputs, inputs, strict=True):
            call.check_whole(tensor, "input", output, "output")
            call.reduce_blocks(contiguous(tensor), output, reduce_op(opts))
        return call.start(outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *_: Any) -> Work:
        """Give the root the tensors of all."""
        root = opts if isinstance(opts, int) else opts.rootRank
        inputs = as_list(input_tensors)
        outputs = as_lists(output_tensors) if self._rank == root else [[] for _ in inputs]
        call = Call(self, "gather")
        for tensor, blocks in zip(inputs, outputs, strict=True):
            place = None
            if self._rank == root:
                call.check_blocks(blocks, "output", tensor, self._rank, even=True)
                place = call.receive_all(blocks)
            call.submit(contiguous(tensor), place, tensor.numel(), root=root)
        return call.start([block for blocks in outputs for block in blocks])

    def gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Work:
        """As gather, end to end in one tensor, which the others give empty."""
        call, here = Call(self, "gather"), self._rank == opts.rootRank
        if here:
            call.check_whole(output, "output", input, "input")
        place = call.receive(output) if here else None
        call.submit(contiguous(input), place, input.numel(), root=opts.rootRank)
        return call.start([output] if here else [])

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *_: Any) -> Work:
        """Give every rank its block of the root's."""
        root = opts if isinstance(opts, int) else opts.rootRank
        outputs = as_list(output_tensors)
        inputs = as_lists(input_tensors) if self._rank == root else [[] for _ in outputs]
        call = Call(self, "scatter")
        for output, blocks in zip(outputs, inputs, strict=True):
            source = None
            if self._rank == root:
                call.check_blocks(blocks, "input", output, self._rank, even=True)
                source = packed(blocks)
            call.submit(source, call.receive(output), output.numel(), root=root)
        return call.start(outputs)

    def alltoall(self, output_tensors: Any, input_tensors: Any, *_: Any) -> Work:
        """Give every rank a tensor, and receive one from each."""
        call = Call(self, "all_to_all")
        for tensors, what in ((output_tensors, "output"), (input_tensors, "input")):
            call.check_blocks(tensors, what)
        call.submit(
            packed(input_tensors),
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
        """As alltoall, the blocks end to end; split sizes count along the first axis."""
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

    # ---- two ranks, or nothing at all

    def send(self, tensors: Any, rank: int, tag: int = 0) -> Work:
        """Send to a rank."""
        call = Call(self, "send")
        for tensor in as_list(tensors):
            call.submit(contiguous(tensor), None, tensor.numel(), root=rank, tag=tag)
        return call.start([])

    def recv(self, tensors: Any, rank: int, tag: int = 0) -> Work:
        """Receive from a rank."""
        outputs = as_list(tensors)
        call = Call(self, "recv")
        for tensor in outputs:
            call.submit(None, call.receive(tensor), tensor.numel(), root=rank, tag=tag)
        return call.start(outputs)

    def recv_anysource(self, tensors: Any, tag: int) -> Work:
        """Not done: a receive names the rank that sends."""
        raise ValueError("recv: expected src, the rank that sends; got none. Give src.")

    def barrier(self, opts: Any = None) -> Work:
        """Meet all ranks; the options may bring a timeout of their own."""
        call = Call(self, "barrier")
        call.submit(None, None, 0)
        timeout = getattr(opts, "timeout", None)
        return call.start([], timeout.total_seconds() if timeout is not None else 0.0)


class Call:
    """One call of a ProcessGroup before its start: its collectives, tensors and copies."""

    def __init__(self, group: ProcessGroup, kind: str) -> None:
        self.group = group
        self.kind = kind
        self.site = call_site()
        self.copies: list[tuple[Tensor, Tensor]] = []
        self._calls: list[_core.Call] = []
        self._held: list[Tensor] = []

    def submit(
        self,
        source: Tensor | None,
        place: Tensor | None,
        count: int,
        op: Any = None,
        *,
        root: int = 0,
        tag: int = 0,
        counts: list[int] | None = None,
        receive_counts: list[int] | None = None,
    ) -> None:
        """Add a collective."""
        tensors = [tensor for tensor in (source, place) if tensor is not None]
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
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in (source, place)]
        self._held += tensors
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
        """Submit everything, and return the handle. seconds: a deadline, where it is > 0."""
        work = Work(self.group, self.kind, self._calls, outputs, self._held, self.copies)
        if seconds > 0:
            work.seconds = seconds
        if profiler._is_profiler_enabled:
            with recorded(self.kind, self._held), works.turns:
                return started(work)
        with works.turns:
            return started(work)

    def receive(self, tensor: Tensor) -> Tensor:
        """Contiguous memory that becomes the tensor's content."""
        check(tensor, self.kind)
        place = place_for(tensor)
        if place is not tensor:
            self.copies.append((tensor, place))
        return place

    def receive_all(self, tensors: Sequence[Tensor]) -> Tensor:
        """Blocks end to end that become the tensors' contents."""
        place, copies = place_for_all(tensors)
        self.copies += copies
        return place

    def reduce_blocks(
        self, source: Tensor, output: Tensor, op: Any, counts: list[int] | None = None
    ) -> None:
        """Add a reduce_scatter."""
        self.submit(
            premultiplied(op, source), self.receive(output), output.numel(), op, counts=counts
        )

    def check_blocks(
        self,
        blocks: Sequence[Tensor],
        what: str,
        mine: Tensor | None = None,
        rank: int = 0,
        even: bool = False,
    ) -> None:
        """A block for each rank, of one dtype, of which my own has the size of `mine`."""
        size = self.group.size()
        if len(blocks) != size:
            raise ValueError(
                f"{self.kind}: expected {size} {what} tensors, one a rank; got {len(blocks)}"
            )
        for number, block in enumerate(blocks):
            check(block, self.kind)
            if block.dtype is not blocks[0].dtype:
                raise TypeError(
                    f"{self.kind}: expected one dtype; got {blocks[0].dtype} and {block.dtype}"
                )
            asked = mine is not None and (even or number == rank)
            if asked and mine is not None and block.numel() != mine.numel():
                raise ValueError(
                    f"{self.kind}: expected {mine.numel()} elements in {what} tensor {number}; "
                    f"got {block.numel()}"
                )

    def check_whole(self, whole: Tensor, name: str, block: Tensor, block_name: str) -> None:
        """A block a rank, end to end."""
        size = self.group.size()
        if whole.numel() != size * block.numel():
            raise ValueError(
                f"{self.kind}: expected an {name} of {size} x {block.numel()} elements, one "
                f"{block_name} a rank; got {whole.numel()}"
            )

    def split(self, tensor: Tensor, sizes: Sequence[int], what: str) -> list[int]:
        """The elements of each rank's block of a tensor that is split along its first axis."""
        size = self.group.size()
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            if rows % size:
                raise ValueError(
                    f"{self.kind}: expected an {what} whose first axis {size} divides; "
                    f"got {tuple(tensor.shape)}"
                )
            return [tensor.numel() // size] * size
        if len(sizes) != size or sum(sizes) != rows:
            raise ValueError(
                f"{self.kind}: expected {size} {what} split sizes whose sum is {rows}; "
                f"got {list(sizes)}"
            )
        row = tensor.numel() // rows if rows else 0
        return [each * row for each in sizes]


def reduce_op(opts: Any) -> Any:
    """The reduction that options name; a sum where there are none."""
    return getattr(opts, "reduceOp", ReduceOp.SUM if opts is None else opts)


def as_list(tensors: Any) -> list[Tensor]:
    """One tensor, or a list."""
    return [tensors] if isinstance(tensors, Tensor) else tensors


def as_lists(tensors: Any) -> list[list[Tensor]]:
    """The blocks of one tensor, or a list of those of several."""
    return [tensors] if tensors and isinstance(tensors[0], Tensor) else tensors


def uneven(blocks: Sequence[Tensor]) -> list[int] | None:
    """The blocks' elements, where they differ."""
    counts = [block.numel() for block in blocks]
    return counts if len(set(counts)) > 1 else None
