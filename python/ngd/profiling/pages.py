# SPDX-License-Identifier: Apache-2.0
"""The output of a report: a table of text, or a page of HTML."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from .collectives import shown_names
from .rows import Row

SHOWN: Final = 40
"""The largest number of rows in the table of text."""
HEAD: Final = ("#", "op", "calls", "us", "%", "GFLOP/s", "GB/s", "% of peak", "call site", "")
NUMBERS: Final = range(2, 8)

STYLE: Final = """
body { font: 14px sans-serif; margin: 2em; color: #222 }
table { border-collapse: collapse }
td, th { padding: 2px 8px; text-align: left; vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
tr:nth-child(even) { background: #f4f4f4 }
.bar { background: #7aa7d9; height: 10px; display: inline-block }
small { color: #666 }
"""


def text(summary: str, rows: Sequence[Row]) -> str:
    """Return a text with the summary and a table of the rows that took the longest time."""
    rows = sorted(rows, key=lambda row: -row.seconds)
    visible = rows[:SHOWN]
    table = [HEAD, *[cells(row) for row in visible]]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if i in NUMBERS else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    ]
    hidden = [row for row in rows[SHOWN:] if row.depth == 0]
    if hidden:
        share = 100 * sum(row.share for row in hidden)
        lines.append(f"and {len(rows) - SHOWN} more, {share:.1f} % of the time; .rows has all")
    return "\n".join([summary, *lines])


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row as texts."""
    mean = row.mean
    return (
        "  " * row.depth + row.number,
        row.title,
        str(row.calls),
        micros(mean) if row.calls else "",
        f"{100 * row.share:.1f}" if row.calls else "",
        rate(row.cost.flops, mean),
        rate(row.cost.bytes, mean),
        f"{100 * row.of_peak:.0f}" if row.of_peak else "",
        short(row.site),
        detail(row),
    )


def detail(row: Row) -> str:
    """Return the text of the last column of the table: the details of an instruction.

    For a wait for a collective, the text has the types of the results, the variables that are
    updated from them, the overlap of the collective with other work (`Row.overlap`), and how often
    each rank arrived last. For an instruction of several ops, the text has the ops and their lines
    of code. Otherwise it has the types of the operands and results, and the layout if it is not
    row-major.
    """
    if row.action == "wait":
        types = ", ".join(type.short for type in row.results if type.bytes)
        names = f" of {shown_names(row.variables)}" if row.variables else ""
        last = " ".join(f"{rank}:{times}" for rank, times in row.last.items())
        facts = [f"{types}{names}", f"overlap {100 * row.overlap:.0f} %"]
        facts += [f"last to arrive on this line {last}"] if last else []
        return ", ".join(filter(None, facts))
    if len(row.made_of) > 1:
        counted = Counter(op for op, _ in row.made_of)
        ops = " ".join(f"{op} x{n}" if n > 1 else op for op, n in counted.items())
        lines = dict.fromkeys(short(site) for _, site in row.made_of if site != row.site)
        other_lines = f"; also {', '.join(lines)}" if lines else ""
        return f"{ops}{other_lines}"
    return row.types + ("" if row.layout == "row-major" else f", {row.layout}")


def micros(seconds: float) -> str:
    """Return seconds as a text in microseconds, with one decimal below 100."""
    return f"{seconds * 1e6:.1f}" if seconds < 1e-4 else f"{seconds * 1e6:.0f}"


def rate(amount: int, seconds: float) -> str:
    """Return `amount` per second as a text, in units of 1e9; empty if amount or time is 0."""
    return f"{amount / seconds / 1e9:.1f}" if amount and seconds else ""


def short(site: str) -> str:
    """Return a call site, `file:line` or `file:line in LAYER`, without its folders."""
    line = re.match(r".*?:\d+(?= in |$)", site)
    file = line[0] if line else site
    return os.path.basename(file) + site[len(file) :]


def html(title: str, summary: str, rows: Sequence[Row], memory: Mapping[str, int]) -> str:
    """Return an HTML page with all rows, in the order of the program."""
    head = "".join(f"<th{number(i)}>{name}</th>" for i, name in enumerate(HEAD))
    body = "\n".join(html_row(row) for row in rows)
    lines = escape(summary).replace("\n", "<br>")
    sizes = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in memory.items())
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>ngd report</title>\n'
        f"<style>{STYLE}</style>\n<h1>{escape(title)}</h1>\n<p>{lines}</p>\n"
        f"<p>memory: {escape(sizes)}</p>\n"
        f"<table><tr>{head}<th></th></tr>\n{body}\n</table></html>\n"
    )


def html_row(row: Row) -> str:
    """Return a row of the HTML table: the cells, and a bar for the row's share of the time."""
    escaped = [escape(cell).replace("  ", "&nbsp;&nbsp;") for cell in cells(row)]
    columns = "".join(f"<td{number(i)}>{cell}</td>" for i, cell in enumerate(escaped))
    sites = escape("\n".join(f"{op} {site}" for op, site in row.made_of) or row.site)
    bar = f'<span class="bar" style="width:{300 * min(row.share, 1.0):.0f}px"></span>'
    return f'<tr title="{sites}">{columns}<td>{bar}</td></tr>'


def number(column: int) -> str:
    """Return the HTML attribute that aligns numbers to the right; empty for a column of texts."""
    return ' class="n"' if column in NUMBERS else ""


def escape(text: str) -> str:
    """Return a text with the special characters of HTML escaped."""
    from html import escape as escape_html  # here, because it is slow to import

    return escape_html(text)
