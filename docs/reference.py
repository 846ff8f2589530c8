# SPDX-License-Identifier: Apache-2.0
"""Write docs/ops.md, the page of all ops, from their docstrings: python docs/reference.py.

Each op gets its signature, a text, parameters, the dtypes that it takes, and an example that this
program runs.
"""

from __future__ import annotations

import contextlib
import doctest
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

import ngd
from ngd.dtypes import ALL, FLOATS, INTEGERS, NUMBERS, SHORT_NAMES, Type, float32
from ngd.graph.node import Op
from ngd.graph.registry import PUBLIC

PAGE = Path(__file__).parent / "ops.md"
BEGINNING = """\
# Ops

The functions of `ngd.ops`. They take nodes, variables and NumPy arrays, and return nodes. The
script `docs/reference.py` writes this page from the docstrings of the ops.

An op computes when a step runs. Each example makes a step of one op by `ngd.function`, calls it
with NumPy arrays, and shows the result. Examples of collectives show the result of a single rank.

```python
import numpy as np

import ngd
from ngd import ops

step = ngd.function(ops.relu)
step(np.array([-1.0, 2.0]))  # array([0., 2.])
```

The line at the end of an entry lists the dtypes that the op accepts, and says if `ngd.grad` can
differentiate it. An entry without this line is a function that consists of other ops and has their
gradients.
"""

KINDS: Final = {"every dtype": ALL, "numbers": NUMBERS, "floats": FLOATS, "integers": INTEGERS}

TITLES: Final = {
    "creation": "Create arrays",
    "arithmetic": "Arithmetic",
    "numeric": "Arithmetic",
    "transcendental": "Exponentials, logarithms and trigonometry",
    "exponentials": "Exponentials, logarithms and trigonometry",
    "trigonometric": "Exponentials, logarithms and trigonometry",
    "special": "Exponentials, logarithms and trigonometry",
    "compare": "Comparisons, logic and bits",
    "reductions": "Reductions",
    "statistics": "Reductions",
    "nan_reductions": "Reductions",
    "cumulative": "Cumulative ops and differences",
    "differences": "Cumulative ops and differences",
    "casting": "Dtypes and gradients",
    "operands": "Dtypes and gradients",
    "shape": "Shapes and axes",
    "concatenation": "Shapes and axes",
    "rearrangement": "Shapes and axes",
    "joining": "Shapes and axes",
    "indexing": "Indexing",
    "slicing": "Indexing",
    "gathering": "Indexing",
    "selection": "Indexing",
    "along_axis": "Indexing",
    "sorting": "Sort and search",
    "searching": "Sort and search",
    "matmul": "Linear algebra",
    "grouped_rows": "Linear algebra",
    "contraction": "Linear algebra",
    "linear_algebra": "Linear algebra",
    "activation": "Activations",
    "activation_functions": "Activations",
    "convolution": "Convolutions",
    "pooling": "Pooling and resizing",
    "resizing": "Pooling and resizing",
    "grids": "Pooling and resizing",
    "normalization": "Normalization",
    "attention": "Attention",
    "recurrent": "Recurrent layers",
    "softmax": "Losses",
    "losses": "Losses",
    "ctc": "Losses",
    "random": "Random numbers and dropout",
    "random_draws": "Random numbers and dropout",
    "control": "Loops and branches",
    "collectives": "Collectives",
    "custom": "Custom ops",
}
"""The title of a family by the module of its ops, in the order of the page."""

TOPICS: Final = {
    **dict.fromkeys(("zeros", "ones", "full", "arange", "one_hot", "tri"), "Create arrays"),
    **dict.fromkeys(("take", "scatter_add", "slice"), "Indexing"),
    **dict.fromkeys(("softmax", "log_softmax"), "Activations"),
    "stop_gradient": "Dtypes and gradients",
}
"""The title of the family of an op, if it is not that of its module."""

SECTION = re.compile(r"^([A-Z][A-Za-z ]+)\n-+$", re.MULTILINE)


def docstring_of(public: Callable[..., Any]) -> str:
    """Return the docstring of an op, without indentation."""
    return inspect.cleandoc(public.__doc__ or "")


def module_of(public: Callable[..., Any]) -> str:
    """Return the name of the module or folder of ngd.ops that defines an op."""
    home = type(public) if isinstance(public, Op) else public
    return str(home.__module__).removeprefix("ngd.ops.").split(".")[0].lstrip("_")


def entry_of(name: str, public: Callable[..., Any], table: dict[str, str]) -> str | None:
    """Return the entry of an op in a table: by module and name, or by name."""
    return table.get(f"{module_of(public)}.{name}") or table.get(name)


def title_of(name: str, public: Callable[..., Any]) -> str:
    """Return the title of the family of an op."""
    module = module_of(public)
    default = TITLES.get(module) or module.replace("_", " ").capitalize()
    return entry_of(name, public, TOPICS) or default


def signature(name: str, public: Callable[..., Any]) -> str:
    """Return the call of an op, without types."""
    given = inspect.signature(public)
    bare = []
    for p in given.parameters.values():
        default = p.default
        if isinstance(default, np.dtype):
            default = Name(default.name)
        bare.append(p.replace(annotation=p.empty, default=default))
    line = f"{name}{given.replace(parameters=bare, return_annotation=given.empty)}"
    if len(line) + len("ops.") <= SIGNATURE_COLUMNS:
        return line
    rows, kinds = [str(p) for p in bare], [p.kind for p in bare]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        rows.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    return f"{name}(\n" + "".join(f"    {row},\n" for row in rows) + ")"


SIGNATURE_COLUMNS = 76
"""The width of a block of code on the site."""


class Name(str):
    """A text whose representation has no quotes."""

    __slots__ = ()

    __repr__ = str.__str__


def escaped(text: str) -> str:
    """Escape the characters of prose that Markdown would interpret."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*_<\[\]|])", r"\\\1", p) for p in parts)


def sections_of(docstring: str) -> dict[str, str]:
    """Split a NumPy docstring: the text before the first section is that of ""."""
    parts = SECTION.split(docstring)
    return {"": parts[0].strip(), **dict(zip(parts[1::2], parts[2::2], strict=True))}


def markdown(text: str) -> Iterator[str]:
    """Yield the lines of prose and of indented code as Markdown."""
    for paragraph in text.strip("\n").split("\n\n"):
        if paragraph.strip() == "::":
            continue
        if paragraph.startswith("    "):
            yield f"```text\n{inspect.cleandoc(paragraph)}\n```\n"
        else:
            yield escaped(paragraph) + "\n"


ITEM = re.compile(r"[*\w]+(, [*\w]+)*( : .*)?")


def without_prose(section: str) -> tuple[str, str]:
    """Split a section: its items, and paragraphs after them that are not items."""
    parts = re.split(r"\n\n(?=\S)", section.strip("\n"))
    ends = [n for n, part in enumerate(parts) if n and not ITEM.fullmatch(part.split("\n")[0])]
    first = min(ends, default=len(parts))
    return "\n\n".join(parts[:first]), "\n\n".join(parts[first:])


def items_of(section: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a section and their descriptions, on one line each."""
    for item in re.split(r"\n(?=\S)", section.strip("\n")):
        head, _, body = item.partition("\n")
        yield head.strip(), " ".join(inspect.cleandoc(body).split())


def listed(section: str) -> Iterator[str]:
    """Yield a list of the items of a section."""
    for head, body in items_of(section):
        name, colon, kind = head.partition(" : ")
        about = f" ({escaped(kind)})" if colon else ""
        yield f"- `{name}`{about}: {escaped(body)}"
    yield ""


def returned(section: str) -> Iterator[str]:
    """Yield the section of results: each one's type and description."""
    for head, body in items_of(section):
        about = f"{escaped(head)}. " if head and body else escaped(head)
        yield f"- {about}{escaped(body)}"
    yield ""


def dtypes(op: Op) -> str:
    """Return the dtypes that an op accepts."""
    for words, known in KINDS.items():
        if set(op.dtypes) == set(known):
            return words
    return ", ".join(dtype.name for dtype in op.dtypes if dtype in SHORT_NAMES)


def is_differentiable(op: Op) -> bool:
    """Return True if an op has a gradient for one of its samples."""
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


def statements_of(section: str) -> list[str]:
    """Return the statements of a section of examples."""
    parsed = doctest.DocTestParser().get_examples(inspect.cleandoc(section))
    return [each.source.rstrip("\n") for each in parsed]


def example(name: str, statements: list[str]) -> Iterator[str]:
    """Run the statements of an example, and yield them with their results."""
    names: dict[str, Any] = {"np": np, "ngd": ngd, "ops": ngd.ops}
    yield "```pycon"
    for statement in statements:
        yield ">>> " + statement.replace("\n", "\n... ")
        try:
            value = run(statement, names)
        except Exception as error:
            raise RuntimeError(f"ops.{name}: its example fails: {statement}") from error
        if value is not None:
            with np.printoptions(precision=4, suppress=True, floatmode="maxprec"):
                yield repr(value)
    yield "```\n"


def run(statement: str, names: dict[str, Any]) -> Any:
    """Run a statement; return the value of an expression."""
    try:
        code = compile(statement, "<example>", "eval")
    except SyntaxError:
        exec(statement, names)
        return None
    return eval(code, names)


def entry(name: str, public: Callable[..., Any]) -> Iterator[str]:
    """Yield the lines of the page about one op."""
    sections = sections_of(docstring_of(public))
    yield f"### {name}\n"
    yield f"```text\nops.{signature(name, public)}\n```\n"
    yield from markdown(sections[""])
    after = ""
    if "Parameters" in sections:
        items, after = without_prose(sections["Parameters"])
        yield "**Parameters**\n"
        yield from listed(items)
    if "Returns" in sections:
        yield "**Returns**\n"
        yield from returned(sections["Returns"])
    for title in ("Raises", "Warns"):
        if title in sections:
            yield f"**{title}**\n"
            yield from listed(sections[title])
    for notes in (after, sections.get("Notes", "")):
        if notes:
            yield from markdown(notes)
    statements = statements_of(sections.get("Examples", ""))
    if not statements:
        raise RuntimeError(f"ops.{name}: expected an Examples section in its docstring; got none")
    yield "**Example**\n"
    yield from example(name, statements)
    if isinstance(public, Op):
        takes = f"Dtypes: {dtypes(public)}. " if public.dtypes else ""
        yield f"{takes}Gradient: {'yes' if is_differentiable(public) else 'no'}.\n"


def page() -> str:
    """Return the whole page: a section per family, in the order of TITLES."""
    families: dict[str, list[str]] = {title: [] for title in TITLES.values()}
    for name, public in sorted(PUBLIC.items()):
        families.setdefault(title_of(name, public), []).append(name)
    parts = [BEGINNING]
    for title, names in families.items():
        if names:
            parts.append(f"## {title}\n")
            parts.append(", ".join(f"[{name}](#{name})" for name in names) + "\n")
        for name in names:
            parts += entry(name, PUBLIC[name])
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
