# SPDX-License-Identifier: Apache-2.0
"""Names do not drift: what Python lowers to, C++ has, and C++ has nothing that nobody asks for."""

from __future__ import annotations

import re
from pathlib import Path

from ngd import ops  # noqa: F401  (the ops fill the registry)
from ngd.devices.cpu import target as cpu
from ngd.graph.leaves import Leaf
from ngd.graph.registry import OPS

MADE_BY_PASSES = {"elementwise", "elementwise_reduce", "elementwise_product", "reduce", "copy"}
OPCODES = Path(__file__).parents[3] / "src/cpp/kernels/tiles/opcodes.inc"


def test_every_kernel_serves_an_op() -> None:
    served = {op for op, _ in cpu.DEVICE.kernel_table()}
    computing = [op for op in OPS.values() if not isinstance(op, Leaf)]
    asked = {op.lower(**sample.attrs)[0] for op in computing for sample in op.samples()}
    assert served - MADE_BY_PASSES <= asked


def test_every_op_has_a_way_to_run() -> None:
    served = {op for op, _ in cpu.DEVICE.kernel_table()}
    for op in OPS.values():
        leaf = isinstance(op, Leaf)
        fused = op.kernel.is_elementwise or op.kernel.is_broadcast
        kernels = set() if leaf else {op.lower(**sample.attrs)[0] for sample in op.samples()}
        compiled = op.comm.is_collective or op.comm.has_group_value or op.kernel.control_flow
        known = leaf or compiled or op.kernel.is_view
        assert known or fused or op.has_expansion or kernels <= served, op.name


def test_every_elementwise_op_is_an_opcode() -> None:
    opcodes = set(re.findall(r"^[A-Z_0-9]+\((\w+),", OPCODES.read_text(), re.MULTILINE))
    assert opcodes
    kernels = {op.name: op.kernel for op in OPS.values()}
    fused = {name: k for name, k in kernels.items() if k.is_elementwise or k.is_broadcast}
    one_dtype = {k.opcode or name for name, k in fused.items() if not k.is_conversion}
    assert one_dtype == opcodes
