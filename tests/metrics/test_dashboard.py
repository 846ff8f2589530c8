# SPDX-License-Identifier: Apache-2.0
"""Tests that the dashboard in packaging/grafana uses metrics and labels that ngd exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import ops
from tests.support import harness
from tests.support.harness import run

FILE = Path(__file__).parents[2] / "packaging" / "grafana" / "ngd.json"
WORDS = {"by", "count", "histogram_quantile", "le", "max", "rate", "sum"}
"""The words of the query language."""


def expressions() -> list[tuple[str, str]]:
    """Return the expression and the legend of each target of each panel."""
    board = json.loads(FILE.read_text())
    return [(t["expr"], t["legendFormat"]) for panel in board["panels"] for t in panel["targets"]]


def exported() -> dict[str, list[str]] | None:
    """Return the labels of each sample on the page of a job that used steps and collectives."""
    from urllib.request import urlopen

    from prometheus_client.parser import text_string_to_metric_families

    ngd.init()
    x = ngd.placeholder("x", (4,))
    ngd.compile([x], [ops.all_reduce(x, op="sum")])(np.ones(4, np.float32))
    ngd.barrier()
    address = ngd.metrics.address()
    labels_of: dict[str, list[str]] | None = None
    if address is not None:
        with urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=30) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        labels_of = {s.name: sorted(s.labels) for family in families for s in family.samples}
    ngd.barrier()
    return labels_of


@pytest.fixture(scope="module")
def labels() -> dict[str, Any]:
    outcomes = run(exported, 2, env={"NGD_METRICS": "0"})
    (labels_of,) = [o.value for o in outcomes if o.value is not None]
    return dict(labels_of)


@harness.needs_ranks
@pytest.mark.parametrize(("expression", "legend"), expressions())
def test_expressions_and_legends_use_exported_metrics_and_labels(
    labels: dict[str, Any], expression: str, legend: str
) -> None:
    (name,) = re.findall(r"\b(?:ngd|process)_\w+(?=\{)", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\"[^\"]*\"", "", expression)
    words = set(re.findall(r"[a-z_]\w*", bare)) | set(re.findall(r"\{(\w+)=", expression))
    words |= set(re.findall(r"\{\{(\w+)\}\}", legend))
    assert words - WORDS - {"instance", name} <= set(labels[name]), expression


@harness.needs_ranks
def test_the_dashboard_shows_all_metrics_of_ngd(labels: dict[str, Any]) -> None:
    shown = " ".join(expression for expression, _ in expressions())
    families = {re.sub(r"_(bucket|sum|count)$", "", n) for n in labels if n.startswith("ngd_")}
    assert {name for name in families if name not in shown} == set()


def test_the_panels_do_not_overlap() -> None:
    panels = json.loads(FILE.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
