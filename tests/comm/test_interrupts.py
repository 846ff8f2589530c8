# SPDX-License-Identifier: Apache-2.0
"""A short form of tests/stress/interrupts.py, mostly with calls that once failed."""

from __future__ import annotations

import pytest

from tests.stress import interrupts
from tests.support.harness import needs_ranks

pytestmark = needs_ranks


def run(*arguments: object) -> None:
    options = interrupts.parser().parse_args([*map(str, arguments), "--seed", "1"])
    report = interrupts.run(options)
    assert (report["runs"], report["findings"]) == (options.runs, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [
        *("all_reduce_ring", "all_reduce_rounded", "all_reduce_sparse_list", "all_gather_v"),
        *("all_reduce_weighted", "join", "compare_ranks"),
        *("works_of_forms", "works_asked", "step_of_the_interpreter", "step_twice"),
        "traced_function",
        *("make_mesh", "broadcast_variables", "assign", "init", "shutdown"),
    ],
)
def test_an_interrupt_between_two_bytecodes(case: str) -> None:
    # After a shutdown, the other ranks wait in their next collective until the deadline.
    run("--runs", 4 if case == "shutdown" else 12, "--case", case)


@pytest.mark.long
def test_interrupts_between_bytecodes_of_any_call() -> None:
    run("--runs", 40)


@pytest.mark.long
def test_signals_while_ranks_wait() -> None:
    run("--runs", 40, "--mode", "signal")
