# SPDX-License-Identifier: Apache-2.0
"""Tests that ops in Python and kernels in C++ agree: no kernel is missing, and none is unused."""

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
    kernel_ops = {op for op, _ in cpu.DEVICE.kernel_table()}
    computing = [op for op in OPS.values() if not isinstance(op, Leaf)]
    lowered_ops = {op.lower(**sample.attrs)[0] for op in computing for sample in op.samples()}
    assert kernel_ops - MADE_BY_PASSES <= lowered_ops


def test_every_op_has_a_kernel_or_another_way_to_run() -> None:
    kernel_ops = {op for op, _ in cpu.DEVICE.kernel_table()}
    for op in OPS.values():
        leaf = isinstance(op, Leaf)
        fused = op.kernel.is_elementwise or op.kernel.is_broadcast
        kernels = set() if leaf else {op.lower(**sample.attrs)[0] for sample in op.samples()}
        compiled = op.comm.is_collective or op.comm.has_group_value or op.kernel.control_flow
        known = leaf or compiled or op.kernel.is_view
        assert known or fused or op.has_expansion or kernels <= kernel_ops, op.name


def test_the_opcodes_are_the_elementwise_ops() -> None:
    opcodes = set(re.findall(r"^[A-Z_0-9]+\((\w+),", OPCODES.read_text(), re.MULTILINE))
    assert opcodes
    kernels = {op.name: op.kernel for op in OPS.values()}
    fused = {name: k for name, k in kernels.items() if k.is_elementwise or k.is_broadcast}
    one_dtype = {k.opcode or name for name, k in fused.items() if not k.is_conversion}
    assert one_dtype == opcodes
