# SPDX-License-Identifier: Apache-2.0
"""Tests of the program of docs/architecture.md: it runs, and prints the lines of the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ngd
from ngd.devices.cpu import shared_variables as sharing
from ngd.graph.graph import Graph
from ngd.passes import pipeline
from ngd.passes.partition import Partition

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
LINE = re.compile(r"^  (?:%|\d+: )")
"""The beginning of a line of a printed graph or program."""


class Ranks:
    """The two ranks that compilation needs to know."""

    rank, size = 0, 2


def code_blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def compile_and_print(
    namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[str]:
    """Compile the page's step for two ranks; return the graph after each pass, and the program."""
    texts: list[str] = []

    def record(change: Callable[..., Graph]) -> Callable[..., Graph]:
        def run(graph: Graph, *context: Any) -> Graph:
            graph = change(graph, *context)
            texts.append(str(graph))
            return graph

        return run

    with monkeypatch.context() as patch:
        for name in ("PER_OP", "FUSION"):
            entries = [
                entry._replace(passes=tuple(map(record, entry.passes)))
                if isinstance(entry, pipeline.When)
                else record(entry)
                for entry in getattr(pipeline, name)
            ]
            patch.setattr(pipeline, name, tuple(entries))
        patch.setattr(sharing, "partition_of", lambda ranks, apart: Partition(ranks))
        group: Any = Ranks()
        arguments = [namespace["x"], namespace["y"]], [namespace["loss"]], namespace["updates"]
        step = ngd.compile(*arguments, device="NULL", group=group, **options)
    return [str(step.graph), *texts, str(step)]


def test_the_compiler_prints_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = code_blocks("python")
    namespace: dict[str, Any] = {}
    exec(compile(program, "architecture.md", "exec"), namespace)
    lines = {
        each for text in compile_and_print(namespace, monkeypatch) for each in text.splitlines()
    }
    sharded = {
        e for t in compile_and_print(namespace, monkeypatch, shard="host") for e in t.splitlines()
    }
    for block in code_blocks("text"):
        expected = [line for line in block.splitlines() if LINE.match(line)]
        assert set(expected) <= (sharded if "barrier" in block else lines), block
