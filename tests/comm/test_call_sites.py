# SPDX-License-Identifier: Apache-2.0
"""Tests of the call sites at which collectives are counted, on the fast and the slow path."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import ngd
from tests.support import harness

pytestmark = harness.needs_ranks

TIMES = 3
BODY = "def call(function, *args):\n    return function(*args)\n"
LIBRARY = "/home/me/.venv/lib/python3.12/site-packages/lightning/loops.py"


def call_from(file: str) -> Callable[..., Any]:
    """Return a function of a file with that name. It calls its argument."""
    names: dict[str, Any] = {}
    exec(compile(BODY, file, "exec"), names)
    return names["call"]  # type: ignore[no-any-return]


def calls_by_site() -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in ngd.comm_stats():
        counts[row.site.rpartition("/")[2]] += row.calls
    return counts


def call_through_many_callers() -> list[str]:
    """Call the same collectives through several callers, and return the counted sites, sorted."""
    group, x, library = ngd.init(), np.ones(2, np.float32), call_from(LIBRARY)
    quick = functools.partial(ngd.all_reduce, x, op="sum", out=x)
    slow = functools.partial(ngd.all_reduce, x[::-1], op="sum")
    for call in (quick, slow, ngd.barrier, functools.partial(group.broadcast, x, 0)):
        before = calls_by_site()
        for _ in range(TIMES):
            library(library, call)
            with contextlib.ExitStack() as stack:
                stack.callback(call)
        thread = threading.Thread(target=library, args=(call,))
        thread.start()
        thread.join()
        counts = calls_by_site() - before
        assert sorted(counts.values()) == [1, TIMES, TIMES], counts
        assert counts["loops.py:2"] == 1, counts  # the thread, which has no other frame
        del counts["loops.py:2"]
        assert all(site.startswith("test_call_sites.py:") for site in counts), counts
    return ["fine"]


def test_collectives_are_counted_at_the_users_line() -> None:
    assert [o.value for o in harness.run(call_through_many_callers, 2)] == [["fine"]] * 2
