# SPDX-License-Identifier: Apache-2.0
"""Check the links of the Markdown files, and the addresses of pages in the sources.

    python .ci/links.py            check every Markdown file and source file of the project
    python .ci/links.py FILE...    check these files

A relative link names a file or folder of the tree, and its fragment is the anchor of a heading. An
address of the documentation site names a page of docs/. A source file that contains the path of a
page has the path of one that exists. Other addresses are checked only for their form, without the
network.
"""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
SITE = "https://ngd-runtime.readthedocs.io/en/latest/"
QUOTING = {"tests/project/test_links.py"}
"""The files that contain dead links on purpose."""
SOURCES = ("*.py", "*.pyx", "*.pxi", "*.cpp", "*.hpp", "*.sbatch", "*.yaml", "*.yml", "*.toml")

CODE = re.compile(
    r"^(?P<indent>[ >]*)(?P<fence>```+|~~~+)(?s:.*?)(?:^[ >]*(?P=fence)$|\Z)"  # a code block
    r"|(?P<ticks>`+)(?:[^`\n]|\n(?!\s*\n))+(?P=ticks)(?!`)",  # a code span
    re.MULTILINE,
)
LINK = re.compile(r"\]\(\s*<?([^)\s>]*)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[([^\]]+)\]:\s+(\S+)$", re.MULTILINE)
REFERENCE = re.compile(r"\[([^\[\]]+)\]\[([^\[\]]*)\]")
ADDRESS = re.compile(r"\bhttps?:[^\s)>\]\"'`|]*[^\s)>\]\"'`|.,;:]")
HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$", re.MULTILINE)
ENTRY = re.compile(r"^::: (\S+)$", re.MULTILINE)
PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")
HOST = re.compile(r"localhost|[\d.]+|(?:[a-z\d-]+\.)+[a-z]{2,}")


def blank(text: str) -> str:
    """Return a text without its code blocks and the contents of its code spans."""
    return CODE.sub(lambda found: "x" + "\n" * found[0].count("\n"), text)


def site_slug(heading: str) -> str:
    """Return the anchor of a heading on the site."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def repository_slug(heading: str) -> str:
    """Return the anchor of a heading where a repository shows the file."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


def anchors(text: str, slug: Callable[[str], str], separator: str) -> set[str]:
    """Return the anchors of a file. The anchors of equal headings have a number at the end."""
    body = re.sub(r"^([ >]*)(```+|~~~+)(?s:.*?)(?:^[ >]*\2$|\Z)", "", text, flags=re.MULTILINE)
    headings = [
        re.sub(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])|[`*]", r"\1", each)
        for each in HEADING.findall(body)
    ]
    seen: Counter[str] = Counter()
    found = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", body))
    for name in map(slug, headings):
        found.add(f"{name}{separator}{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found | set(ENTRY.findall(body))


def has_anchor(text: str, fragment: str, *, is_on_site: bool) -> bool:
    """Return True if a page has an anchor. An entry of the API reference has one per member."""
    slug, separator = (site_slug, "_") if is_on_site else (repository_slug, "-")
    names = anchors(text, slug, separator)
    return any(fragment == name or fragment.startswith(f"{name}.") for name in names)


def page_fault(address: str) -> str | None:
    """Return the fault of an address of the site, or None."""
    path, _, fragment = address.removeprefix(SITE).partition("#")
    page = ROOT / "docs" / f"{path.strip('/') or 'index'}.md"
    if not page.is_file():
        page = page.with_suffix("") / "index.md"
    if not page.is_file():
        return f"expected a page of docs/; got {address}"
    if fragment and not has_anchor(page.read_text("utf-8"), fragment, is_on_site=True):
        return f"expected an anchor of {page.relative_to(ROOT)}; got #{fragment}"
    return None


def address_fault(address: str) -> str | None:
    """Return the fault of an absolute address, or None."""
    if address.startswith(SITE):
        return page_fault(address)
    parts = urlsplit(address)
    if parts.scheme == "mailto":
        return None if "@" in parts.path else f"expected mailto:NAME@HOST; got {address}"
    if parts.scheme not in ("http", "https") or not HOST.fullmatch(parts.hostname or ""):
        return f"expected https://HOST/PATH; got {address}"
    return None


def relative_fault(path: str, text: str, link: str) -> str | None:
    """Return the fault of a relative link in the file at `path` with this text, or None."""
    target, _, fragment = link.partition("#")
    is_on_site = path.startswith("docs/")
    file = (ROOT / path).parent / unquote(target)
    if target.startswith("/") or not file.exists():
        return f"expected a file of the tree, relative to {PurePosixPath(path).parent}; got {link}"
    if is_on_site and target and (ROOT / "docs") not in file.resolve().parents:
        return f"expected a file in docs/, which the site contains; got {link}"
    if fragment:
        page = text if not target else file.read_text("utf-8") if file.is_file() else ""
        if not has_anchor(page, fragment, is_on_site=is_on_site):
            return f"expected an anchor of {target or path}; got #{fragment}"
    return None


def links(text: str) -> Iterator[tuple[int, str]]:
    """Yield the position and the target of each link of a Markdown text."""
    targets = {found.start(1): found[1] for found in LINK.finditer(text)}
    targets |= {found.start(2): found[2] for found in DEFINITION.finditer(text)}
    bare = {found.start(): found[0] for found in ADDRESS.finditer(text)}
    yield from (bare | targets).items()


def markdown_faults(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the position and the message of each fault of a Markdown file."""
    prose = blank(text)
    for position, link in links(prose):
        is_absolute = re.match(r"[a-z]+:", link)
        fault = address_fault(link) if is_absolute else relative_fault(path, text, link)
        if fault:
            yield prose.count("\n", 0, position), fault
    names = {name.lower() for name, _ in DEFINITION.findall(prose)}
    for found in REFERENCE.finditer(prose):
        name = found[2] or found[1]
        if name.lower() not in names:
            yield prose.count("\n", 0, found.start()), f"expected a line [{name}]: TARGET; got none"


def source_faults(text: str) -> Iterator[tuple[int, str]]:
    """Yield the position and the message of each fault of a source file."""
    for found in PAGE.finditer(text):
        if not (ROOT / found[0]).is_file():
            yield text.count("\n", 0, found.start()), f"expected a page of docs/; got {found[0]}"


def faults(path: str, text: str) -> list[tuple[int, str]]:
    """Return the line number and the message of each fault of a file."""
    is_markdown = path.endswith(".md")
    found = markdown_faults(path, text) if is_markdown else source_faults(text)
    return sorted((row + 1, message) for row, message in found)


def tracked() -> list[str]:
    """Return the paths of all Markdown files and source files of the project."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    command += ["--", "*.md", *SOURCES]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [path for path in listed if (ROOT / path).is_file() and path not in QUOTING]


def main() -> int:
    """Run the command line, and return the exit status."""
    status = 0
    for path in sys.argv[1:] or tracked():
        for line, message in faults(path, (ROOT / path).read_text("utf-8")):
            print(f"{path}:{line}: {message}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
