# SPDX-License-Identifier: Apache-2.0
"""Fixtures for devices, and the report of the tested ops and dtypes, reports/op_coverage.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ngd.dtypes import SHORT_NAMES, Array, DType
from ngd.graph.node import Node
from tests.ops.cases import all_cases, computing_ops, takes_two

DEVICES = ("INTERPRETER", "CPU")
ASPECTS = (*DEVICES, "gradient", "second gradient", "expansion")

Runner = Callable[[Sequence[Node], Sequence[Node], Sequence[Array]], list[Array]]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The name of each device."""
    name: str = request.param
    return name


@pytest.fixture
def run(device: str) -> Runner:
    """A function that compiles and calls a graph on the device, through the public API."""
    ngd: Any = pytest.importorskip("ngd")
    if not hasattr(ngd, "compile"):
        pytest.skip("ngd.compile is not importable: the compiled part is not built")

    def compile_and_call(
        inputs: Sequence[Node], outputs: Sequence[Node], arrays: Sequence[Array]
    ) -> list[Array]:
        results: list[Array] = ngd.compile(inputs, outputs, device=device)(*arrays)
        return results

    return compile_and_call


class Coverage:
    """The cases that passed: a mapping from aspect to op to dtypes."""

    def __init__(self) -> None:
        self.passed: dict[str, dict[str, set[str]]] = {a: defaultdict(set) for a in ASPECTS}
        self.cases_run: set[str] = set()

    def note(self, aspect: str, op: str, dtype: DType) -> None:
        """Record that a test of this aspect of an op passed in a dtype."""
        self.passed[aspect][op].add(SHORT_NAMES[dtype])

    def table(self) -> str:
        """Return the report, in Markdown."""
        order = list(SHORT_NAMES.values())
        lines = [
            "# Ops: what the tests covered",
            "",
            "Made by the tests from the op blocks' samples: the dtypes in which each op's result on"
            " a device agreed with its reference, its gradients with finite differences, and its"
            " expansion with its reference.",
            "",
            f"| op | {' | '.join(ASPECTS)} |",
            f"| --- |{' --- |' * len(ASPECTS)}",
        ]
        for op in computing_ops():
            cells = [" ".join(sorted(self.passed[a][op.name], key=order.index)) for a in ASPECTS]
            if takes_two(op):
                cells = ["between two ranks: tests/ops/collectives"] + [""] * (len(ASPECTS) - 1)
            lines.append(f"| {op.name} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def missing(self) -> list[str]:
        """Return the ops without a passed case, and the dtypes without one, per device."""
        found = []
        for device in DEVICES:
            for op in filter(lambda op: not takes_two(op), computing_ops()):
                passed = self.passed[device][op.name]
                lacking = [SHORT_NAMES[d] for d in op.dtypes if SHORT_NAMES[d] not in passed]
                if lacking or not passed:
                    found.append(f"{op.name} on {device}: {' '.join(lacking) or 'nothing passed'}")
        return found


_COVERAGE = pytest.StashKey[Coverage]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_COVERAGE] = Coverage()


@pytest.fixture
def coverage(request: pytest.FixtureRequest) -> Coverage:
    """The record of the cases that passed."""
    return request.config.stash[_COVERAGE]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report. A complete run fails if an op or a dtype was not tested."""
    coverage = session.config.stash[_COVERAGE]
    if not coverage.cases_run:
        return
    report = Path(session.config.rootpath, "reports", "op_coverage.md")
    report.parent.mkdir(exist_ok=True)
    report.write_text(coverage.table())
    cases = [case for case in all_cases() if not takes_two(case.op)]
    wanted = {f"{case} on {device}" for case in cases for device in DEVICES}
    missing = coverage.missing() if coverage.cases_run >= wanted else []
    if missing:
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.write_line("\nops left out of the coverage:\n  " + "\n  ".join(missing))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
