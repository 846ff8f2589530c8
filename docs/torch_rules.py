# SPDX-License-Identifier: Apache-2.0
"""Write docs/torch_ops.md, the table of PyTorch's ops: python docs/torch_rules.py.

It needs PyTorch. A test compares the page with the rules.
"""

from __future__ import annotations

from pathlib import Path

from ngd.torch.compiled.rules import FAMILIES, RULES

PAGE = Path(__file__).parent / "torch_ops.md"
HEAD = """# Supported PyTorch ops

[`ngd.torch.compile_step`](torch_models.md) translates these ops of PyTorch's ATen library.
PyTorch first decomposes other ops into these, if it has a decomposition. Ops of constants need
no rule: PyTorch computes them once. `python docs/torch_rules.py` writes this page from the rules
in `python/ngd/torch/compiled/rules/`.

| family | ops |
| --- | --- |
"""


def rows() -> list[str]:
    """Return the rows of the table, one per file of rules."""
    found = []
    for family in FAMILIES:
        mine = [op for op, rule in RULES.items() if rule.function.__module__ == family.__name__]
        names = sorted({str(op).rpartition(".")[0] for op in mine} - {""})
        title = family.__name__.rpartition(".")[2]
        found.append(f"| {title} | {', '.join(f'`{name}`' for name in names)} |")
    return found


def page() -> str:
    """Return the text of the page."""
    return HEAD + "\n".join(rows()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
