# SPDX-License-Identifier: Apache-2.0
"""An extension of the API reference: parameters that share a description have one entry each.

A docstring may describe several parameters together, as in `betas, eps`. The reader of docstrings
gives all of them the type and the default of the first one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import griffe

HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
TOGETHER = re.compile(r"(\w+(?:, \w+)+)( *:.*)?")


def items(section: str) -> Iterator[list[str]]:
    """Yield the lines of each item of a section. An item starts at the section's indentation."""
    item: list[str] = []
    for line in section.split("\n"):
        if item and line[:1].strip():
            yield item
            item = []
        item.append(line)
    yield item


def separated(docstring: str) -> str:
    """Return a docstring, in which the lines have no common indentation, with one item per name."""
    before, *sections = HEADING.split(docstring)
    result = [before]
    for heading, text in zip(sections[::2], sections[1::2], strict=True):
        body = parameters(text) if heading == "Parameters" else text
        result.append(f"{heading}\n{'-' * len(heading)}\n{body}")
    return "".join(result)


def parameters(section: str) -> str:
    """Return a section of parameters with one item per name."""
    result = []
    for head, *body in items(section):
        found = TOGETHER.fullmatch(head)
        heads = [name + (found[2] or "") for name in found[1].split(", ")] if found else [head]
        result += ["\n".join([each, *body]).rstrip() + "\n" for each in heads]
    return "".join(result) + "\n"


class SeparateParameters(griffe.Extension):
    """The extension that mkdocs.yml names."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Separate the parameters of the docstring of an object."""
        if obj.docstring:
            obj.docstring.value = separated(obj.docstring.value)
