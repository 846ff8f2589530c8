# SPDX-License-Identifier: Apache-2.0
"""Preparation of an all-reduce: plain, weighted, or compressed; of one array or of a list.

Each variant returns the collectives to start and a function `fill`. `fill` runs when the
collectives are complete, and computes the results from the received arrays:

- `plan_plain`: the collectives write the results themselves, and `fill` does nothing.
- `plan_weighted`: the mean is sum(w_r * x_r) / sum(w_r) over the ranks r, with weight w_r and array
  x_r. `plan_weighted` itself gathers the weights of all ranks. Then it divides all weights by the
  same power of two, which does not change the mean. With these weights, sum(w_r) is less than 1/2,
  so sum(w_r * x_r) is at most half the largest abs(x_r), and cannot overflow. The collectives add
  the arrays w_r * x_r, and `fill` divides the result by sum(w_r).
- `plan_rounded`: the ranks send bfloat16 copies, and `fill` converts the result to float32.
- `plan_sparse`: the ranks gather the elements that each `TopK` chose, and `fill` adds them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from ..dtypes import Array, bfloat16, float16, float32, is_float
from ..errors import DTypeError
from .buffers import destinations, is_list, operand
from .checks import check_op
from .compression import TOP_K, TopK
from .kinds import ALGORITHMS
from .summation import sum_in_order
from .work import Plan, RankGroup

CallsAndFill = tuple[list[_core.Call], Callable[[], None]]
"""The collectives to start, and `fill`: a function to call when these collectives are complete.

`fill` computes the results of the all-reduce.
"""


class Options(NamedTuple):
    """The group and the options of an all-reduce."""

    group: RankGroup
    op: str
    algorithm: str
    site: str


def check_algorithm(algorithm: str, compression: Any) -> None:
    """Raise ValueError if the algorithm is unknown or does not fit the compression.

    With an ngd.TopK, only "auto" fits, because a TopK gathers elements and uses none of the
    algorithms of an all-reduce.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"all_reduce: expected algorithm among {', '.join(ALGORITHMS)}; got {algorithm!r}"
        )
    if algorithm != "auto" and isinstance(compression, TopK):
        raise ValueError(
            "all_reduce: expected algorithm='auto' with ngd.TopK, which gathers; got "
            f"{algorithm!r}. Leave algorithm out."
        )


def plan(options: Options, array: Any, out: Any, weight: float | None, compression: Any) -> Plan:
    """Prepare the all-reduce of an array or of a list of arrays."""
    check_op(options.op, "all_reduce")
    check_algorithm(options.algorithm, compression)
    is_sequence = is_list(array)
    sources = [operand(a, "all_reduce") for a in (array if is_sequence else [array])]
    buffers = destinations(out, sources, is_sequence, "all_reduce")
    results = list(buffers) if out is None else list(out) if is_sequence else [out]
    if weight is not None and compression is not None:
        raise ValueError(
            "all_reduce: expected weight or compression; got both. Scale the array instead of "
            "weight."
        )
    if weight is not None:
        calls, fill = plan_weighted(options, sources, buffers, weight)
    elif compression is None:
        calls, fill = plan_plain(options, sources, buffers)
    elif isinstance(compression, TopK):
        residuals = [compression[i] for i in range(len(sources))] if is_sequence else [compression]
        calls, fill = plan_sparse(options, sources, buffers, residuals)
    elif compression == "bf16":
        calls, fill = plan_rounded(options, sources, buffers)
    else:
        raise ValueError(
            f"all_reduce: compression: expected 'bf16', an ngd.TopK or None; got {compression!r}"
        )

    def finish() -> Any:
        fill()
        return results if is_sequence else results[0]

    return Plan(calls, finish)


def plan_plain(options: Options, sources: list[Array], buffers: list[Array]) -> CallsAndFill:
    """Prepare an all-reduce without weight or compression, as one call of the communicator."""
    communicator = options.group.communicator
    if len(sources) == 1:
        call = _core.Call.on_array(
            communicator,
            "all_reduce",
            options.op,
            sources[0],
            buffers[0],
            sources[0].size,
            shape=sources[0].shape,
            algorithm=options.algorithm,
            site=options.site,
        )
    else:
        call = _core.Call.on_list(
            communicator,
            "all_reduce",
            options.op,
            0,
            sources,
            buffers,
            algorithm=options.algorithm,
            site=options.site,
        )
    return [call], lambda: None


def plan_weighted(
    options: Options, sources: list[Array], buffers: list[Array], weight: float
) -> CallsAndFill:
    """Prepare a weighted mean, with the same result as ngd.ops.all_reduce with a weight.

    If all weights are 0, the result is 0. 16-bit floats are multiplied and added in float32. The
    other functions `plan_...` only prepare collectives. This function also runs one: it gathers the
    weights of all ranks. It divides them by a common power of two, so that the sum cannot overflow,
    and multiplies the array of this rank by its weight.
    """
    for source in sources:
        if options.op != "mean" or not is_float(source.dtype):
            error_class = ValueError if options.op != "mean" else DTypeError
            raise error_class(
                f"all_reduce: expected op='mean' and floats with weight; got op={options.op!r} and "
                f"{source.dtype}. Cast the array, or leave weight out."
            )
    try:
        weight = float(weight)
    except (TypeError, ValueError):
        raise TypeError(
            f"all_reduce: weight: expected a number; got {weight!r}. Give the number of samples of "
            "this rank."
        ) from None
    if not 0 <= weight < float("inf"):
        raise ValueError(f"all_reduce: expected a finite weight >= 0; got {weight}")
    weights = options.group.all_gather(np.float64(weight), site=f"all_reduce() at {options.site}")
    weights /= power_of_two(weights.max())
    raw_total = sum_in_order([float(w) for w in weights], operator.add)
    unit = 4 * power_of_two(max(raw_total, 1.0))
    share, total = weights[options.group.rank] / unit, raw_total / unit
    dtypes = [float32 if s.dtype in (float16, bfloat16) else s.dtype for s in sources]
    scaled = [
        np.asarray(s.astype(d) * d.type(share)) if weight else np.zeros(s.shape, d)
        for s, d in zip(sources, dtypes, strict=True)
    ]
    calls, _ = plan_plain(options._replace(op="sum"), scaled, scaled)

    def fill() -> None:
        for buffer, sums in zip(buffers, scaled, strict=True):
            finite = np.isfinite(sums)
            with np.errstate(over="ignore"):
                mean = np.asarray(sums / sums.dtype.type(total)) if total else np.zeros_like(sums)
            # The mean of finite values exceeds the maximum only by rounding.
            maximum = np.finfo(sums.dtype).max
            np.clip(mean, -maximum, maximum, out=mean, where=finite)
            buffer[...] = mean.astype(buffer.dtype)

    return calls, fill


def power_of_two(x: float) -> float:
    """Return the largest power of two that is at most x, for x > 0.

    Return 1 for x = 0, so that the caller can divide by the result.
    """
    return math.ldexp(1.0, math.frexp(x)[1] - 1) if x else 1.0


def plan_rounded(options: Options, sources: list[Array], buffers: list[Array]) -> CallsAndFill:
    """Prepare an all-reduce of float32 arrays that are sent as bfloat16.

    The communicator accumulates in float32 and rounds the result to bfloat16 once.
    """
    for source in sources:
        if source.dtype != float32:
            raise DTypeError(
                f"all_reduce: expected float32 arrays for compression='bf16'; got {source.dtype}. "
                "Cast the array, or leave compression out."
            )
    compressed = [source.astype(bfloat16) for source in sources]
    calls, _ = plan_plain(options, compressed, compressed)

    def fill() -> None:
        for buffer, result in zip(buffers, compressed, strict=True):
            buffer[...] = result

    return calls, fill


def plan_sparse(
    options: Options, sources: list[Array], buffers: list[Array], residuals: list[TopK]
) -> CallsAndFill:
    """Prepare a sparse all-reduce: gather the elements that each TopK chooses, and their indices.

    The elements that are not chosen become the residual of the TopK.
    """
    group = options.group
    for source, residual in zip(sources, residuals, strict=True):
        residual.check(options.op, source)
    calls: list[_core.Call] = []
    fills: list[Callable[[], None]] = []
    for source, buffer, residual in zip(sources, buffers, residuals, strict=True):
        chosen, remaining = residual.choose(source)
        gathered = [np.empty((group.size, *part.shape), part.dtype) for part in chosen]
        calls += [
            _core.Call.on_array(
                group.communicator,
                "all_gather",
                "none",
                part,
                destination,
                part.size,
                shape=source.shape,
                more=1 + TOP_K.index(options.op),
                site=options.site,
            )
            for part, destination in zip(chosen, gathered, strict=True)
        ]
        residual.keep(remaining, calls[0])
        fills.append(_add_elements(options, buffer, gathered[0], gathered[1]))

    def fill() -> None:
        for each in fills:
            each()

    return calls, fill


def _add_elements(
    options: Options, buffer: Array, indices: Array, values: Array
) -> Callable[[], None]:
    """Return a function that adds the gathered elements of all ranks into `buffer`.

    It adds them in the order of ranks, so all ranks get the same bits.
    """

    def fill() -> None:
        total = np.zeros(buffer.size, buffer.dtype)
        for index, value in zip(indices, values, strict=True):
            total[index] += value  # the indices of one rank are distinct
        if options.op == "mean":
            total /= options.group.size
        buffer[...] = total.reshape(buffer.shape)

    return fill
