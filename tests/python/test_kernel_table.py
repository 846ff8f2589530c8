# SPDX-License-Identifier: Apache-2.0
"""Names do not drift: what Python lowers to, C++ has, and C++ has nothing that nobody asks for."""

from __future__ import annotations

import re
from pathlib import Path

from ngd import _core, ops  # noqa: F401  (the ops fill the registry)
from ngd.ir import REGISTRY, Leaf

MADE_BY_PASSES = {"elementwise", "reduce", "copy"}
OPCODES = Path(__file__).parents[2] / "src/cpp/kernels/fused/elementwise.inc"


def test_every_kernel_serves_an_op() -> None:
    served = {op for op, _ in _core.kernel_table()}
    assert served - MADE_BY_PASSES <= REGISTRY.keys()


def test_every_op_has_a_way_to_run() -> None:
    served = {op for op, _ in _core.kernel_table()}
    lowered = {"sum", "mean", "max", "min", "prod"}  # to reduce
    for op in REGISTRY.values():
        elsewhere = isinstance(op, Leaf) or op.collective or op.elementwise or op.view
        settled = op.name in ("broadcast_to", "is_rank")  # by fusion, by order_collectives
        assert elsewhere or settled or op.name in served | lowered or op.expands, op.name


def test_every_elementwise_op_is_an_opcode() -> None:
    opcodes = set(re.findall(r"^[A-Z_0-9]+\((\w+),", OPCODES.read_text(), re.MULTILINE))
    assert opcodes
    elementwise = {op.name for op in REGISTRY.values() if op.elementwise}
    assert elementwise - opcodes == {"cast"}  # of two dtypes: not a line of the table
    assert opcodes - elementwise <= {"copy"}
