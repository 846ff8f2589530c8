# SPDX-License-Identifier: Apache-2.0
"""All-reduce in its forms: of one array or many, weighted, compressed.

Each form is a step around the plain one: it replaces what is sent by something else, and says how
the results come back from that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..dtype import bfloat16, float16, float32, is_float
from ..ir import Array
from ..ops.collective import ALGORITHMS, REDUCTIONS
from .arrays import destinations, is_list, operand
from .compression import TopK
from .work import Pending, Submitted, in_turn

if TYPE_CHECKING:
    from .group import Group


Started = tuple[list[Pending], Callable[[], Any], Any]
"""What is on its way; how the results come to be when it is there; what must live until then."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a call says beside its arrays."""

    group: Group
    op: str
    algorithm: str
    site: str


def check_op(op: str, where: str) -> None:
    """Refuse what is no reduction."""
    if op not in REDUCTIONS:
        raise ValueError(f"{where}: expected op among {', '.join(REDUCTIONS)}; got {op!r}")


def check_algorithm(algorithm: str, compression: Any) -> None:
    """Refuse what is no algorithm, and one for what has none."""
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"all_reduce: expected algorithm among {', '.join(ALGORITHMS)}; got {algorithm!r}"
        )
    if algorithm != "auto" and isinstance(compression, TopK):
        raise ValueError(
            f"all_reduce: ngd.TopK gathers and has no algorithm to choose; got {algorithm!r}"
        )


def begin(call: Call, array: Any, out: Any, weight: float | None, compression: Any) -> Started:
    """Start the all-reduce of an array, or of a list of them."""
    check_op(call.op, "all_reduce")
    check_algorithm(call.algorithm, compression)
    many = is_list(array)
    sources = [operand(a, "all_reduce") for a in (array if many else [array])]
    buffers = destinations(out, sources, many, "all_reduce")
    results = list(buffers) if out is None else list(out) if many else [out]
    if weight is not None and compression is not None:
        raise ValueError("all_reduce: weight does not go with compression; scale the array first")
    if weight is not None:
        pending, fill, keep = weighted(call, sources, buffers, weight)
    elif compression is None:
        pending, fill, keep = plain(call, sources, buffers)
    elif isinstance(compression, TopK):
        residuals = [compression[i] for i in range(len(sources))] if many else [compression]
        pending, fill, keep = sparse(call, sources, buffers, residuals)
    elif compression == "bf16":
        pending, fill, keep = rounded(call, sources, buffers)
    else:
        raise ValueError(
            f"all_reduce: compression: expected 'bf16', an ngd.TopK or None; got {compression!r}"
        )

    def finish() -> Any:
        fill()
        return results if many else results[0]

    return pending, finish, keep


def plain(call: Call, sources: list[Array], buffers: list[Array]) -> Started:
    """The arrays as they are: one by itself, many with one hand-off."""
    communicator = call.group.communicator
    pending: list[Pending] = []
    if len(sources) == 1:
        number = communicator.submit_arrays(
            "all_reduce",
            call.op,
            sources[0],
            buffers[0],
            sources[0].size,
            algorithm=call.algorithm,
            site=call.site,
        )
        pending.append(Submitted(communicator, number))
    else:
        pending.append(
            _core.Grouped(
                communicator,
                "all_reduce",
                call.op,
                0,
                sources,
                buffers,
                algorithm=call.algorithm,
                site=call.site,
            )
        )
    return pending, lambda: None, (sources, buffers)


def weighted(call: Call, sources: list[Array], buffers: list[Array], weight: float) -> Started:
    """As the op in the graph: two sums, of two-byte floats in float32; 0 where all weigh 0."""
    for source in sources:
        if call.op != "mean" or not is_float(source.dtype):
            raise ValueError(
                "all_reduce: weight goes with op='mean' and floats; "
                f"got op={call.op!r} and {source.dtype}"
            )
    try:
        weight = float(weight)
    except (TypeError, ValueError):
        raise TypeError(f"all_reduce: weight: expected a number; got {weight!r}") from None
    if not 0 <= weight < float("inf"):
        raise ValueError(f"all_reduce: expected a finite weight >= 0; got {weight}")
    wide = [float32 if s.dtype in (float16, bfloat16) else s.dtype for s in sources]
    scaled = [
        s.astype(d) * d.type(weight) if weight else np.zeros(s.shape, d)
        for s, d in zip(sources, wide, strict=True)
    ]
    totals = {d: np.array(weight, d) for d in wide}
    sent = [*totals.values(), *(np.asarray(s) for s in scaled)]
    pending, _, keep = plain(replace(call, op="sum"), sent, sent)

    def fill() -> None:
        for buffer, sums, dtype in zip(buffers, sent[len(totals) :], wide, strict=True):
            total = totals[dtype]
            buffer[...] = (sums / total if total else np.zeros_like(sums)).astype(buffer.dtype)

    return pending, fill, keep


def rounded(call: Call, sources: list[Array], buffers: list[Array]) -> Started:
    """float32 as bfloat16 on the wire. The engine accumulates that in float32 and rounds once."""
    for source in sources:
        if source.dtype != float32:
            raise ValueError(
                f"all_reduce: compression='bf16' is for float32 arrays; got {source.dtype}"
            )
    sent = [source.astype(bfloat16) for source in sources]
    pending, _, keep = plain(call, sent, sent)

    def fill() -> None:
        for buffer, result in zip(buffers, sent, strict=True):
            buffer[...] = result

    return pending, fill, keep


def sparse(
    call: Call, sources: list[Array], buffers: list[Array], residuals: list[TopK]
) -> Started:
    """Of each array the largest elements, with their places; the rest stays for the next call."""
    group = call.group
    for source, residual in zip(sources, residuals, strict=True):
        residual.check(call.op, source)
    pending: list[Pending] = []
    fills: list[Callable[[], None]] = []
    keep: list[Any] = []
    for source, buffer, residual in zip(sources, buffers, residuals, strict=True):
        mine = residual.choose(source)
        gathered = [np.empty((group.size, *part.shape), part.dtype) for part in mine]
        for part, whole in zip(mine, gathered, strict=True):
            submit = functools.partial(
                group.communicator.submit_arrays,
                "all_gather",
                "none",
                part,
                whole,
                part.size,
                site=call.site,
            )
            number = in_turn(group, submit) if pending else submit()
            pending.append(Submitted(group.communicator, number))
        fills.append(_summed(call, buffer, gathered[0], gathered[1]))
        keep.append((mine, gathered))

    def fill() -> None:
        for each in fills:
            each()

    return pending, fill, keep


def _summed(call: Call, buffer: Array, places: Array, values: Array) -> Callable[[], None]:
    """Adds the ranks' elements up, in the order of ranks: the same bits everywhere."""

    def fill() -> None:
        total = np.zeros(buffer.size, buffer.dtype)
        for place, value in zip(places, values, strict=True):
            total[place] += value  # a rank names each place once
        if call.op == "mean":
            total /= call.group.size
        buffer[...] = total.reshape(buffer.shape)

    return fill
