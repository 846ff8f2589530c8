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
OPCODES = Path(__file__).parents[2] / "src/cpp/kernels/fused/elementwise.inc"


def test_every_kernel_serves_an_op() -> None:
    served = {op for op, _ in cpu.DEVICE.kernel_table()}
    computing = [op for op in OPS.values() if not isinstance(op, Leaf)]
    asked = {op.lower(**sample.attrs)[0] for op in computing for sample in op.samples()}
    assert served - MADE_BY_PASSES <= asked


def test_every_op_has_a_way_to_run() -> None:
    served = {op for op, _ in cpu.DEVICE.kernel_table()}
    for op in OPS.values():
        leaf = isinstance(op, Leaf)
        fused = op.elementwise or op.broadcasts
        kernels = set() if leaf else {op.lower(**sample.attrs)[0] for sample in op.samples()}
        known = leaf or op.collective or op.view or op.settled_by or op.nested
        assert known or fused or op.expands or kernels <= served, op.name


def test_every_elementwise_op_is_an_opcode() -> None:
    opcodes = set(re.findall(r"^[A-Z_0-9]+\((\w+),", OPCODES.read_text(), re.MULTILINE))
    assert opcodes
    fused = [op for op in OPS.values() if op.elementwise or op.broadcasts]
    one_dtype = {op.opcode or op.name for op in fused if not op.converts}
    assert one_dtype == opcodes
