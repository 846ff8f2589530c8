# SPDX-License-Identifier: Apache-2.0
"""The ops of a captured model: translated, constant or missing.

ngd runs a translated op. PyTorch computes a constant op once, because all of its operands are
constants. A missing op has no translation rule.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from torch import fx

from .capture import Capture
from .rules.registry import rule_of
from .translate import site_of


class Coverage(NamedTuple):
    """The ops of a captured model, with the number of their calls.

    Attributes
    ----------
    translated : dict of str to int
        Ops that ngd runs.
    constants : dict of str to int
        Ops of constants, which PyTorch computes once, when the step is compiled.
    missing : dict of str to list of str
        Ops without a translation rule, with the lines that call them.
    """

    translated: dict[str, int]
    constants: dict[str, int]
    missing: dict[str, list[str]]

    def __str__(self) -> str:
        lines = [f"{sum(self.translated.values())} calls of ops that ngd runs:"]
        lines += _table(self.translated)
        lines.append(f"{sum(self.constants.values())} calls with constants, computed once:")
        lines += _table(self.constants)
        if self.missing:
            lines.append("ops that ngd has no rule for:")
            lines += [f"  {op}: {', '.join(sites)}" for op, sites in self.missing.items()]
        return "\n".join(lines)


def _table(counts: dict[str, int]) -> list[str]:
    """Return one line of text per op with its number of calls, the most frequent op first."""
    width = max(map(len, counts), default=0)
    return [f"  {op:{width}} {n:5}" for op, n in sorted(counts.items(), key=lambda i: -i[1])]


def coverage_of(captured: Capture) -> Coverage:
    """Return the translated, constant and missing ops of a captured model."""
    fixed = {each.name for each in captured.inputs if each.kind == "constant"}
    varying: set[fx.Node] = set()
    translated: Counter[str] = Counter()
    constants: Counter[str] = Counter()
    missing: dict[str, list[str]] = {}
    for node in captured.module.graph.nodes:
        if node.op == "placeholder" and node.name not in fixed:
            varying.add(node)
        if node.op != "call_function":
            continue
        rule, name = rule_of(node.target), str(node.target)
        if not varying.intersection(node.all_input_nodes) and not (rule and rule.is_random):
            constants[name] += 1
            continue
        varying.add(node)
        if rule is None:
            missing.setdefault(name, []).append(site_of(node))
        else:
            translated[name] += 1
    return Coverage(dict(translated), dict(constants), missing)
