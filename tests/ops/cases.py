# SPDX-License-Identifier: Apache-2.0
"""The samples of all ops as one list of test cases."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.testing as npt

import ngd.ops  # noqa: F401  (fills the registry)
from ngd.devices.interpreter.evaluate import evaluate
from ngd.dtypes import (
    SHORT_NAMES,
    Array,
    DType,
    Type,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    is_float,
)
from ngd.graph.graph import Graph
from ngd.graph.leaves import PLACEHOLDER, Leaf
from ngd.graph.node import Node, Op
from ngd.graph.registry import OPS
from ngd.graph.samples import Operand, Sample
from ngd.ops.collectives.reductions import Collective
from ngd.ops.control.bodies import Control

TOLERANCES = {
    float64: (1e-12, 1e-13),
    float32: (1e-5, 2e-6),
    float16: (2e-3, 1e-3),
    bfloat16: (1.6e-2, 8e-3),
}
"""The relative and absolute tolerance of a device, compared with the reference, by dtype.

For 16-bit floats the tolerance is two units of the last place just below a power of two, and one
unit elsewhere. Device and reference compute in float32 and round once, and the rounding may
differ. All other results are exact.
"""


@dataclass(frozen=True)
class Case:
    """One sample of one op in one dtype."""

    op: Op
    number: int
    sample: Sample
    dtype: DType | None
    """The dtype under test, or None if the sample fixes all dtypes."""

    def __str__(self) -> str:
        dtype = SHORT_NAMES[self.dtype] if self.dtype is not None else "fixed"
        return f"{self.op.name}-{self.number}-{dtype}"

    @property
    def types(self) -> list[Type]:
        """The types of the operands."""
        return [Type(operand_dtype(o, self.dtype), o.shape) for o in self.sample.operands]

    @property
    def results(self) -> tuple[Type, ...]:
        """The types of the results, which the op infers."""
        inferred = self.op.infer(*self.types, **self.sample.attrs)
        return inferred if isinstance(inferred, tuple) else (inferred,)

    @property
    def readings(self) -> list[tuple[int, ...]]:
        """The floating results that a loss may read: all of them, and each of them separately."""
        floats = tuple(i for i, type in enumerate(self.results) if is_float(type.dtype))
        return [floats] if len(floats) < 2 else [floats, *((i,) for i in floats)]

    def apply(self, operands: Sequence[Node]) -> tuple[Node, ...]:
        """Return the results of the op on nodes."""
        return self.op.node(operands, self.sample.attrs).results

    def arrays(self) -> list[Array]:
        """Return the values of the operands. They are equal in each call."""
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        return [
            draw(operand, type.dtype, rng)
            for operand, type in zip(self.sample.operands, self.types, strict=True)
        ]

    def reference(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the results of the reference, without NumPy's warnings."""
        with np.errstate(all="ignore"):
            if isinstance(self.op, Control):
                made = self.op.run(evaluate_body, *arrays, **self.sample.attrs)
            else:
                made = self.op.reference(*arrays, **self.sample.attrs)
        return [np.asarray(value) for value in (made if isinstance(made, tuple) else (made,))]


def evaluate_body(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Evaluate the body of a loop or a branch with the references of its ops."""
    return evaluate(graph, inputs, {})[0]


def operand_dtype(operand: Operand, dtype: DType | None) -> DType:
    """Return the dtype of an operand in a test of `dtype`."""
    chosen = operand.dtype or dtype
    assert chosen is not None
    return chosen


def draw(operand: Operand, dtype: DType, rng: np.random.Generator) -> Array:
    """Return random values in the range that the operand declares."""
    shape, low, high = operand.shape, operand.low, operand.high
    if dtype == bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if not is_float(dtype):
        limits = np.iinfo(dtype)
        first = max(int(np.ceil(low)), int(limits.min))
        values = np.array(rng.integers(first, min(int(high), int(limits.max)) + 1, shape))
        if operand.away_from_zero:
            values[values == 0] = 1
        if operand.ascending:
            values = np.sort(values)
        return values.astype(dtype)
    count = int(np.prod(shape))
    if operand.distinct:
        values = rng.permutation(np.linspace(low, high, count)).reshape(shape)
    else:
        values = np.array(rng.uniform(low, high, shape))
    if operand.away_from_zero:
        values = np.where(values < 0, np.minimum(values, -0.1), np.maximum(values, 0.1))
    return np.asarray(values.astype(np.float32 if dtype == bfloat16 else dtype).astype(dtype))


def computing_ops() -> list[Op]:
    """Return all ops except leaves."""
    return [op for op in OPS.values() if not isinstance(op, Leaf)]


def takes_two(op: Op) -> bool:
    """Return whether an op needs another rank; tests/ops/collectives has its cases."""
    return isinstance(op, Collective) and op.kind.is_point_to_point


def all_cases() -> list[Case]:
    """Return each sample of each op in each dtype that the op declares."""
    found = []
    for op in computing_ops():
        for number, sample in enumerate(op.samples()):
            free = any(operand.dtype is None for operand in sample.operands)
            dtypes: Sequence[DType | None] = op.dtypes if free else (None,)
            found += [Case(op, number, sample, dtype) for dtype in dtypes]
    return found


def placeholders(types: Sequence[Type]) -> list[Node]:
    """Return a placeholder of each type."""
    return [
        Node(PLACEHOLDER, (), {"name": f"x{i}", "uniform": False}, type)
        for i, type in enumerate(types)
    ]


def run_reference(inputs: Sequence[Node], outputs: Sequence[Node], arrays: Sequence[Array]) -> Any:
    """Evaluate nodes with the references of their ops."""
    graph = Graph(tuple(inputs), tuple(outputs))
    graph.verify()
    return evaluate(graph, arrays, {})[0]


def assert_close(actual: Array, expected: Array, slack: float = 1) -> None:
    """Check that dtype and shape are equal, and that the values agree within TOLERANCES."""
    assert Type(actual.dtype, actual.shape) == Type(expected.dtype, expected.shape)
    if not is_float(expected.dtype):
        npt.assert_array_equal(actual, expected)
        return
    relative, absolute = TOLERANCES[expected.dtype]
    npt.assert_allclose(
        actual.astype(np.float64),
        expected.astype(np.float64),
        rtol=relative * slack,
        atol=absolute * slack,
    )
