# SPDX-License-Identifier: Apache-2.0
"""Write docs/ops.md, the page of all ops, from their blocks: python docs/reference.py."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ngd
from ngd.devices import cpu
from ngd.dtype import ALL, FLOATS, INTEGERS, NUMBERS, SHORT_NAMES, Type, float32
from ngd.ir import PUBLIC, Op

PAGE = Path(__file__).parent / "ops.md"
BEGINNING = """\
# Ops

Every function of `ngd.ops`. This page is written by `docs/reference.py` from the ops themselves.

An argument `x` is a node, a variable, or what NumPy makes an array of. **Takes** says which
dtypes an op is made for, **Gradient** whether `ngd.grad` passes through it. **CPU** says what
computes it on that device: `onednn`, `portable` and `winograd` are kernels (the vendor library's,
and our own), *fused* is the kernel that computes a chain of elementwise ops at once, *made of ops*
is a graph of other ops, and a *view* changes no byte. The device INTERPRETER computes every op with
NumPy.
"""

NAMES = re.compile(r"[A-Za-z]\w*(, \w+| of \w+)*")
"""A parameter, several, or a type, of which the lines below it tell."""

KINDS = {"every dtype": ALL, "numbers": NUMBERS, "floats": FLOATS, "integers": INTEGERS}


def family(public: Callable[..., Any]) -> str:
    """The module that an op stands in."""
    home = type(public) if isinstance(public, Op) else public
    return str(home.__module__)


def signature(name: str, public: Callable[..., Any]) -> str:
    """How it is called, without types."""
    given = inspect.signature(public)
    bare = [p.replace(annotation=p.empty) for p in given.parameters.values()]
    return f"{name}{given.replace(parameters=bare, return_annotation=given.empty)}"


def escaped(line: str) -> str:
    """A line of prose whose stars and underscores are meant as they stand."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(p if p.startswith("`") else re.sub(r"([*_<\[\]|])", r"\\\1", p) for p in parts)


def prose(name: str, text: str) -> str:
    """A docstring as Markdown: paragraphs, blocks of code, lists of parameters."""
    text = re.sub(rf"^{name}\([^\n]*?\)(: |\.\n+)", "", text)
    text = re.sub(r"[.;]\s+attrs: [^.]*\.", ".", text, flags=re.IGNORECASE)
    lines, code = [], False
    previous = ""
    rows = text.splitlines()
    for line, after in zip(rows, [*rows[1:], ""], strict=True):
        if set(line) == {"-"}:
            lines[-1] = f"**{previous}**\n"
            continue
        if line == "::":
            code = True
            continue
        indented = line.startswith("    ")
        code = code and (indented or not line)
        if indented and not code:
            line = f"  {escaped(line.strip())}"
        elif not indented and NAMES.fullmatch(line) and after.startswith("    "):
            line = f"- `{line}`:"
        elif not code:
            line = escaped(line)
        lines.append(line)
        previous = line.strip() or previous
    return "\n".join(lines)


def dtypes(op: Op) -> str:
    """What an op takes, in few words."""
    for words, known in KINDS.items():
        if set(op.dtypes) == set(known):
            return words
    return ", ".join(SHORT_NAMES[dtype] for dtype in op.dtypes)


def differentiable(op: Op) -> bool:
    """Whether an op has a gradient for one of its samples."""
    usual = next((d for d in (float32, *op.dtypes) if d in op.dtypes), float32)
    for sample in op.samples():
        types = [Type(operand.dtype or usual, operand.shape) for operand in sample.operands]
        inputs = [ngd.placeholder(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)]
        node = op.node(inputs, sample.attrs)
        adjoints = tuple(ngd.placeholder("dy", r.shape, r.dtype) for r in node.results)
        several = isinstance(op.infer(*types, **sample.attrs), tuple)
        with contextlib.suppress(ngd.errors.GradientError):
            found = op.grad(node, adjoints if several else adjoints[0])
            if any(r.dtype in FLOATS for r in node.results) and any(g is not None for g in found):
                return True
    return False


def computed_by(op: Op) -> str:
    """What computes an op on the device CPU."""
    if op.elementwise or op.broadcasts:
        return "*fused*"
    if op.collective:
        return "a collective"
    if op.settled_by:
        return f"known from the {op.settled_by}"
    if op.nested:
        return "programs inside the program"
    names = {op.lower(**sample.attrs)[0] for sample in op.samples()}
    kernels = dict.fromkeys(f"`{i}`" for name, i in cpu.DEVICE.kernel_table() if name in names)
    view = ["*view*"] if op.view else []
    made = ["*made of ops*"] if op.expands else []
    return ", ".join([*view, *kernels, *made])


def entry(name: str, public: Callable[..., Any]) -> Iterator[str]:
    """What the page says of one op."""
    yield f"### {name}\n"
    yield f"```text\nops.{signature(name, public)}\n```\n"
    yield prose(name, inspect.cleandoc(public.__doc__ or "")) + "\n"
    if isinstance(public, Op):
        takes = f"**Takes** {dtypes(public)}. " if public.dtypes else ""
        gradient = "yes" if differentiable(public) else "no"
        yield f"{takes}**Gradient** {gradient}. **CPU** {computed_by(public)}.\n"
    else:
        yield "**CPU** *made of ops*, whose gradients it has.\n"


def page() -> str:
    """The whole page: a section a family."""
    families: dict[str, list[str]] = {}
    for name, public in sorted(PUBLIC.items()):
        families.setdefault(family(public), []).append(name)
    parts = [BEGINNING]
    for module, names in sorted(families.items()):
        title = inspect.cleandoc(sys.modules[module].__doc__ or "").split("\n\n")[0]
        heading = module.rpartition(".")[2].replace("_", " ").capitalize()
        parts += [f"## {heading}\n", escaped(title) + "\n"]
        for name in names:
            parts += entry(name, PUBLIC[name])
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
