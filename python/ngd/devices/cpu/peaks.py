# SPDX-License-Identifier: Apache-2.0
"""The speed of this machine, for reports: of a large matmul per dtype, and of a copy.

`peak` measures each of these speeds once per process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ... import _core
from ...dtypes import DType, Type, uint8
from ...graph.variable import placeholder
from ..native import native_attrs, spec
from .target import DEVICE


@cache
def peak(dtype: DType | None) -> float:
    """Return the measured FLOP/s of a matmul of two 1024 x 1024 matrices of a dtype.

    For None, return the bytes/s that a copy reads and writes, measured on an array of 64 MiB.
    """
    if dtype is None:
        size = 1 << 26
        return 2 * size / seconds_of("copy", {}, [Type(uint8, (size,))], Type(uint8, (size,)))
    node = placeholder("a", (1024, 1024), dtype) @ placeholder("b", (1024, 1024), dtype)
    operands = [operand.type for operand in node.inputs]
    name, attrs = node.op.lower(**node.attrs)
    flops = node.op.cost(operands, [node.type], **node.attrs).flops
    return flops / seconds_of(name, attrs, operands, node.type)


def seconds_of(
    kernel: str, attrs: Mapping[str, Any], operands: Sequence[Type], result: Type
) -> float:
    """Return the shortest time of 5 runs of the C++ kernel `kernel`, in seconds.

    All elements of the operands are 0. `attrs` has the attributes of the kernel.
    """
    builder = _core.ProgramBuilder()
    inputs = [builder.add_value(*spec(t), "input", i, 0) for i, t in enumerate(operands)]
    output = builder.add_value(*spec(result), "output", 0, 0)
    native = native_attrs(attrs)
    builder.add_instruction("run", kernel, inputs, [output], native, -1, 0, "ngd", [])
    builder.set_sizes(len(operands), 1, 0)
    run = _core.Executable(DEVICE, builder, [], [], [], []).run
    arrays = [np.zeros(t.shape, t.dtype) for t in operands], [np.zeros(result.shape, result.dtype)]
    run(*arrays)
    times = []
    for _ in range(5):
        started = _core.clock_ns()
        run(*arrays)
        times.append(_core.clock_ns() - started)
    return min(times) / 1e9
