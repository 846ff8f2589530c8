# SPDX-License-Identifier: Apache-2.0
"""Compare all_reduce on random arrays with mpi4py and with NumPy code in the canonical order."""

from __future__ import annotations

import functools
import hashlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import dtypes
from tests.support import harness
from tests.support.harness import run

Array = Any
HALVES = (dtypes.float16, dtypes.bfloat16)
COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "mean": np.add,
    "min": np.minimum,  # NaN propagates
    "max": np.maximum,
    "prod": np.multiply,
}
# Unit roundoffs: half of the spacing of the numbers around 1.
ROUNDOFF = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53}


@dataclass(frozen=True)
class Example:
    count: int
    dtype: str
    op: str
    algorithm: str
    kind: str  # of the values: "ordinary", "wide" or "special"
    in_place: bool
    seed: int


@functools.cache
def draw_examples(number: int) -> list[dict[str, Any]]:
    """Return the fields of examples, which depend only on `number`: they are equal in each run."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    counts = st.one_of(
        st.integers(0, 40),
        *[st.integers(0, 5_000)] * 4,
        st.integers(100_000, 600_000),
        st.sampled_from([0, 1, 960, 961, 1 << 16, (1 << 18) + 1, 2_000_000, 5_000_000]),
    )
    any_example = st.builds(
        Example,
        count=counts,
        dtype=st.sampled_from([d.name for d in dtypes.ALL]),
        op=st.sampled_from(sorted(COMBINE)),
        algorithm=st.sampled_from(["flat", "ring"]),
        kind=st.sampled_from(["ordinary", "wide", "special"]),
        in_place=st.booleans(),
        seed=st.integers(0, 2**31),
    ).filter(lambda e: (e.dtype, e.op) != ("bool", "sum"))
    examples: list[dict[str, Any]] = []

    @settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(any_example.filter(lambda e: e.op != "mean" or "float" in e.dtype))
    def collect(example: Example) -> None:
        examples.append(asdict(example))

    collect()
    return examples


def contribution(example: Example, rank: int) -> Array:
    """Return the array that a rank contributes."""
    dtype = dtypes.as_dtype(example.dtype, "contribution")
    random = np.random.default_rng((example.seed, rank))
    if dtype == dtypes.bool_:
        return random.random(example.count) < 0.7
    if dtype in dtypes.INTEGERS:
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, example.count, dtype, endpoint=True)
    values = random.standard_normal(example.count)
    if example.op == "prod":
        values = np.sign(values) * random.uniform(0.5, 2, example.count)
    elif example.kind == "wide":
        values *= np.exp2(random.integers(-7, 7, example.count))
    result = values.astype(dtype)
    if example.kind == "special" and example.count:
        specials = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7], dtype)
        indices = random.integers(0, example.count, min(example.count, 12))
        result[indices] = random.choice(specials, len(indices))
    return result


def tree(terms: list[Array], combine: Callable[[Array, Array], Array]) -> Array:
    """Reduce in the canonical order: the left subtree takes the largest power of two below n."""
    if len(terms) == 1:
        return terms[0]
    left = 1
    while left * 2 < len(terms):
        left *= 2
    return combine(tree(terms[:left], combine), tree(terms[left:], combine))


def canonical_result(example: Example, terms: list[Array]) -> Array:
    """Return the canonical result. 16-bit floats are reduced in float32 and rounded once."""
    dtype = terms[0].dtype
    operands = [t.astype(np.float32) for t in terms] if dtype in HALVES else terms
    with np.errstate(all="ignore"):
        result = tree(operands, COMBINE[example.op])
        if example.op == "mean":
            result = result / result.dtype.type(len(terms))
        return result.astype(dtype)


def check_flat(example: Example, result: Array, want: Array) -> None:
    """Check that all bits are equal. Only the bits of a NaN may differ."""
    if want.dtype in dtypes.FLOATS:
        nan = np.isnan(want)
        assert np.array_equal(np.isnan(result), nan), example
        result, want = result[~nan], want[~nan]
        if example.op in ("min", "max"):  # the sign of a zero may differ
            assert np.array_equal(result, want), example
            return
    assert result.tobytes() == want.tobytes(), example


def check_ring(example: Example, result: Array, want: Array, terms: list[Array]) -> None:
    """Check a result within the error bound of a sum in another order.

    Two orders of n terms differ by at most 2 (n - 1) u times the sum of their absolute values.
    u is the unit roundoff of the arithmetic (Higham, Accuracy and Stability of Numerical
    Algorithms, 2002, section 4.2). For products the bound is relative to the product. 16-bit floats
    are rounded once more.
    """
    exact = result.dtype not in dtypes.FLOATS or example.op in ("min", "max")
    if exact or len(terms) <= 2:
        check_flat(example, result, want)
        return
    finite = np.isfinite(want.astype(np.float64))
    assert np.array_equal(result[~finite], want[~finite], equal_nan=True), example
    sizes = [np.abs(t[finite].astype(np.float64)) for t in terms]
    scale = np.multiply.reduce(sizes) if example.op == "prod" else np.add.reduce(sizes)
    scale = scale / len(terms) if example.op == "mean" else scale
    arithmetic = ROUNDOFF["float32" if result.dtype in HALVES else result.dtype.name]
    bound = 2.02 * len(terms) * arithmetic * scale
    if result.dtype in HALVES:
        size = np.abs(want[finite].astype(np.float64))
        bound += 2.02 * ROUNDOFF[result.dtype.name] * size + 2**-24
    difference = np.abs(result[finite].astype(np.float64) - want[finite].astype(np.float64))
    assert np.all(difference <= bound), example


def mpi_result(example: Example, mine: Array) -> Array | None:
    """Return mpi4py's result, or None if MPI cannot compute it (16-bit floats and means)."""
    from mpi4py import MPI

    names = {"min": (MPI.MIN, MPI.LAND), "max": (MPI.MAX, MPI.LOR), "prod": (MPI.PROD, MPI.LAND)}
    op = names.get(example.op, (MPI.SUM, MPI.LOR))[mine.dtype == dtypes.bool_]
    if mine.dtype in HALVES or example.op == "mean":
        return None
    result = np.empty_like(mine)
    MPI.COMM_WORLD.Allreduce(mine, result, op)
    return result


def program_with_mpi(examples: list[dict[str, Any]]) -> dict[str, Any]:
    """Run `program` with mpi4py, and abort all ranks after an error.

    Without the abort, mpi4py's finalizer would wait for the other ranks.
    """
    from mpi4py import MPI

    try:
        return program(examples, against_mpi=True)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
        raise


def program(examples: list[dict[str, Any]], against_mpi: bool) -> dict[str, Any]:
    world = ngd.init()
    digests, compared = [], 0
    for example in (Example(**fields) for fields in examples):
        mine = contribution(example, world.rank)
        from_mpi = mpi_result(example, mine) if against_mpi else None
        out = mine.copy() if example.in_place else None
        source = mine if out is None else out
        result = ngd.all_reduce(source, op=example.op, out=out, algorithm=example.algorithm)
        digests.append(hashlib.sha256(result.tobytes()).hexdigest())
        if world.rank != 0:
            continue
        terms = [contribution(example, r) for r in range(world.size)]
        want = canonical_result(example, terms)
        if example.algorithm == "flat":
            check_flat(example, result, want)
        else:
            check_ring(example, result, want, terms)
        has_nan = result.dtype in dtypes.FLOATS and bool(np.isnan(result).any())
        exact = result.dtype not in dtypes.FLOATS or example.op in ("min", "max")
        if from_mpi is not None and exact and not has_nan:
            assert np.array_equal(result, from_mpi), example
            compared += 1
    return {"digests": digests, "name": world.communicator.name, "compared": compared}


def check_equal_on_all(outcomes: list[harness.Outcome]) -> list[str]:
    digests: list[str] = outcomes[0].value["digests"]
    assert len(digests) >= 20
    for outcome in outcomes:
        assert outcome.value["digests"] == digests, f"rank {outcome.rank} has other bits"
    return digests


@harness.needs_ranks
@pytest.mark.skipif(not harness.HAS_OPEN_MPI, reason="needs Open MPI's mpirun and mpi4py")
@pytest.mark.parametrize(
    "ranks", [2, 4, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 3))]
)
@pytest.mark.parametrize("communicator", harness.communicators())
def test_random_arrays_have_the_results_of_mpi4py(communicator: str, ranks: int) -> None:
    pytest.importorskip("mpi4py")
    outcomes = run(
        program_with_mpi,
        ranks,
        arguments={"examples": draw_examples(150)},
        # Open MPI's vector code saturates short integers, but its scalar code wraps.
        env={"NGD_COMM": communicator, "OMPI_MCA_op": "^avx"},
        launcher="mpirun",
        seconds=280,
    )
    check_equal_on_all(outcomes)
    assert outcomes[0].value["name"] == communicator
    assert outcomes[0].value["compared"] >= 10


@pytest.mark.long
@harness.needs_ranks
@pytest.mark.parametrize("ranks", [2, 4])
def test_two_runs_give_the_same_bits(ranks: int) -> None:
    arguments = {"examples": draw_examples(30), "against_mpi": False}
    first = check_equal_on_all(run(program, ranks, arguments=arguments))
    assert check_equal_on_all(run(program, ranks, arguments=arguments)) == first


@pytest.mark.long
def test_ngd_allreduce_chooses_the_algorithm() -> None:
    """NGD_ALLREDUCE changes the bits of a sum of 3 ranks, because the terms cancel."""
    if harness.MODE == "OFF":
        pytest.skip("built with NGD_DISTRIBUTED_ENABLE=OFF")
    results = {
        (name, explicit): run(
            hash_of_cancelling_sum,
            3,
            arguments={"algorithm": explicit},
            env={"NGD_ALLREDUCE": name},
        )[0].value
        for name, explicit in [("flat", "auto"), ("ring", "auto"), ("flat", "ring")]
    }
    assert results["ring", "auto"] == results["flat", "ring"]
    assert results["ring", "auto"] != results["flat", "auto"]


def hash_of_cancelling_sum(algorithm: str) -> str:
    rank = ngd.init().rank
    term = np.random.default_rng(rank).standard_normal(100_000).astype(np.float32)
    return hashlib.sha256(ngd.all_reduce(term, op="sum", algorithm=algorithm).tobytes()).hexdigest()
