# SPDX-License-Identifier: Apache-2.0
"""Run PyTorch's tests of torch.distributed over "gloo" and over "ngd".

    python -m tests.bridges.torch.distributed_suite [--match REGEX] [--backends gloo ngd]
        [--log FILE]

The tests are the class DistributedTest of the installed PyTorch, which needs the package
expecttest. Four ranks run them. Tests that require gloo by name run over ngd, too. The exit status
is 1 if a test passes over gloo and fails over ngd, and docs/torch.md has no reason for it. The
last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import unittest
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RANKS = 4
REASONS = Path(__file__).parents[3] / "docs" / "torch.md"


def suite_of(folder: str, deadline: float) -> tuple[Any, type[unittest.TestCase]]:
    """Return PyTorch's module of tests, and a class of these tests whose ranks are forked.

    A forked rank does not need to import PyTorch.
    """
    for name in ("barrier", "test_dir", "init_dir"):
        os.mkdir(f"{folder}/{name}")
    os.environ |= {
        "BACKEND": "gloo",  # selects the tests
        "WORLD_SIZE": str(RANKS),
        "TEMP_DIR": folder,
        "INIT_METHOD": f"file://{folder}/init_dir/shared_init_file",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "OMP_NUM_THREADS": "1",
    }
    import torch
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test as theirs

    import ngd.torch  # noqa: F401

    torch.set_num_threads(1)
    common_distributed.TIMEOUT_DEFAULT = deadline
    common_distributed.TIMEOUT_OVERRIDE.clear()

    class Forked(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/init_dir/shared_init_file")
            self._start_processes(multiprocessing.get_context("fork").Process)

        def run_test(self, test_name: str, parent_pipe: Any) -> None:
            if "accumulate_gradients" in test_name:
                theirs.BACKEND = "gloo"  # they make no model for another name; the group exists
            super().run_test(test_name, parent_pipe)

        def tearDown(self) -> None:
            for process in self.processes:
                process.kill()
                process.join()
            super().tearDown()

    return theirs, Forked


def run(case: unittest.TestCase) -> tuple[str, str]:
    """Run a test, and return "passed", "skipped" or "failed", and a reason."""
    result = unittest.TestResult()
    case.run(result)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    bad = [*result.failures, *result.errors]
    return ("failed", error_line(bad[0][1])) if bad else ("passed", "")


def error_line(text: str) -> str:
    """Return the line with the error of a rank."""
    kinds = re.compile(r"[\w.]+(Error|Exception|Exit)\b: (?!Process \d)")
    lines = [line.strip() for line in text.splitlines()]
    return ([line for line in lines if kinds.match(line)] or lines[-1:])[-1][:150]


@contextlib.contextmanager
def output_to(path: str) -> Iterator[None]:
    """Redirect the output of the ranks to a file."""
    descriptors = [os.dup(1), os.dup(2)]
    sys.stdout.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), descriptors, strict=True):
            os.dup2(old, number)
            os.close(old)
        os.close(file)


def compare(options: argparse.Namespace, theirs: Any, cases: type[unittest.TestCase]) -> int:
    """Run the tests, and return 1 if docs/torch.md has no reason for a failure of ngd only."""
    names = unittest.defaultTestLoader.getTestCaseNames(cases)
    names = [name for name in names if re.search(options.match, name)]
    outcomes: dict[str, dict[str, tuple[str, str]]] = {name: {} for name in names}
    begin = time.monotonic()
    for name in names:
        for backend in options.backends:
            theirs.BACKEND = backend
            if outcomes[name].get("gloo", ("",))[0] in ("skipped", "failed"):
                continue
            with output_to(options.log):
                print(f"==== {name} {backend}", flush=True)
                outcomes[name][backend] = run(cases(name))
                if backend == "gloo" and outcomes[name][backend][0] == "failed":
                    outcomes[name][backend] = run(cases(name))  # a failure may be random
    listed = set(re.findall(r"\btest_\w+", REASONS.read_text(encoding="utf-8")))
    unexplained = []
    for name, outcome in outcomes.items():
        for backend, (how, why) in outcome.items():
            if how == "failed":
                note = " (listed)" if backend == "ngd" and name in listed else ""
                print(f"{backend:5} {name}: {how}{note}: {why}")
        theirs_passed = outcome.get("gloo", ("passed",))[0] == "passed"
        if theirs_passed and outcome.get("ngd", ("passed",))[0] != "passed" and name not in listed:
            unexplained.append(name)
    counts = {
        backend: Counter(outcome[backend][0] for outcome in outcomes.values() if backend in outcome)
        for backend in options.backends
    }
    report = {**counts, "unexplained": unexplained, "seconds": round(time.monotonic() - begin)}
    print(json.dumps(report))
    return 1 if unexplained else 0


def main() -> int:
    """Run the command line, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--match", default="", help="the tests whose names match (default: all)")
    parser.add_argument("--backends", nargs="+", default=["gloo", "ngd"])
    parser.add_argument("--deadline", type=float, default=120, help="seconds for a test")
    parser.add_argument("--log", default=os.devnull, help="where what the ranks say goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ngd-suite-") as folder:
        return compare(options, *suite_of(folder, options.deadline))


if __name__ == "__main__":
    sys.exit(main())
