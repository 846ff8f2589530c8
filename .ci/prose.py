# SPDX-License-Identifier: Apache-2.0
"""Check the project's prose against docs/style.md.

    python .ci/prose.py                   check every file of the project
    python .ci/prose.py FILE...           check these files
    python .ci/prose.py --rewrite         store the present number of hits per file
    python .ci/prose.py --commits BASE    check the subjects of the commits since BASE

Prose is the text of Markdown files, and the comments and strings of programs: docstrings, error
messages, help texts. Code blocks, code spans, links and quoted identifiers are not prose. Names of
functions and classes are checked too: a past participle or a preposition alone says nothing.

Files that are older than docs/style.md have many hits. The allow list .ci/prose.txt has a line
`PATH COUNT` for each of them, and a file without a line may have no hits. The check fails if a file
has more hits than its count. If a file has fewer hits, the check reports it: lower the count.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from prose_patterns import NAMES, PATTERNS

ROOT = Path(__file__).parents[1]
ALLOW_LIST = ROOT / ".ci" / "prose.txt"
QUOTING = {
    "docs/style.md",
    "docs/glossary.md",
    ".ci/prose_patterns.py",
    "tests/project/test_prose.py",
}
"""The files that quote the old style."""
PYTHON = (".py", ".pyi", ".pyx", ".pxi", ".pxd")
CPP = (".cpp", ".hpp", ".inc")
SCRIPTS = (".ci/run", ".ci/clusters")
SOURCES = ("*.md", "*.sh", *(f"*{suffix}" for suffix in (*PYTHON, *CPP)), *SCRIPTS)

CHECKS = [(name, re.compile(regex.replace(" ", r"\s"), re.I), fix) for name, regex, fix in PATTERNS]

NOT_PROSE = re.compile(
    r"^[ >]*(?P<fence>```+|~~~+)(?s:.*?)(?:^[ >]*(?P=fence)$|\Z)"  # a code block
    r"|^[ \t]*>>> .*$"  # a line of an interpreter session
    r"|(?P<ticks>`+)(?:[^`\n]|\n(?!\s*\n))+(?P=ticks)"  # a code span
    r"|\]\([^)\s]*\)|\bhttps?://\S+|<[^<>\n]+>"  # the target of a link, an address, a tag
    r"|\"[\w.=-]+\"|(?<!\w)'[\w.=-]+'|\{[^{}\n]+\}",  # a quoted identifier, a field
    re.MULTILINE,
)
MARKUP = re.compile(r"(?:#+|[-+*>]|\d+\.) +|\|")
QUOTED = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
STRING = re.compile(  # a docstring, or adjacent strings, which are one
    rf'(?ms:^ *r?"""(?P<docstring>.*?)""")|(?:[fr]*{QUOTED.pattern}\s*)+'
)
BEFORE = r'(?:[^"\n]|"(?:[^"\\\n]|\\.)*")*?'
COMMENT = {
    mark: re.compile(rf"(?P<before>{BEFORE}(?<!\S)){mark} (?P<text>.*)") for mark in ("#", "//")
}
"""A comment, on a line of its own or after code."""
DEFINED = re.compile(
    r"^[ \t]*(?:(?:cp?)?def|class)\b.*?\b(?P<python>\w+)(?=[\[(:])"
    r"|^[ \t]*(?!return\b|throw\b|co_|else\b)[\w:<>,*& ]+[ *&](?P<cpp>\w+)\([^;]*\)[^;]*\{",
    re.MULTILINE,
)
"""The definition of a function or class in Python and Cython, or of a function in C++."""
OLD_NAME = re.compile(rf"_*(?:{NAMES})_*")

SUBJECT = re.compile(r"[\w./-]+(?:, [\w./-]+)*: (?P<verb>\S+) \S.*[^.]")
NOT_IMPERATIVE = re.compile(  # articles, pronouns, "adds", "added", "adding"
    r"the|an?|all|no|what|who|whether|how|where|it|of|in|on|one|each|some"
    r"|(?!focus|bias|alias)\w+[^s]s|(?!embed)\w+[^e]ed|(?!bring|string)\w{2,}ing"
)


def passages(text: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, list items and table cells of a text, each with its line number."""
    rows = NOT_PROSE.sub(lambda found: "x" + "\n" * found[0].count("\n"), text).split("\n")
    passage: list[str] = []
    for number, row in enumerate([*map(str.strip, rows), ""], line):
        markup = MARKUP.match(row)
        if passage and (markup or not row):
            yield number - len(passage), re.sub(r"[*\[\]]", "", "\n".join(passage))
            passage = []
        if row.startswith("|"):
            yield from ((number, cell.strip(" *")) for cell in row.split("|"))
        elif row:
            passage.append(row[markup.end() :] if markup else row)


def strings(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the line number and the text of each string, and whether it is a docstring."""
    for literal in STRING.finditer(source):
        docstring = literal["docstring"]
        text = docstring or "".join(QUOTED.findall(literal[0])).replace("\\n", " ")
        if docstring or text.count(" ") > 1:  # a string of fewer words is a name
            yield source.count("\n", 0, literal.start()) + 1, text, bool(docstring)


def comments(source: str, mark: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the line number and the text of each comment. Adjacent lines are one comment."""
    first, rows = 0, []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        found = COMMENT[mark].match(line)
        is_own_line = found is not None and not found["before"].strip()
        if rows and not is_own_line:
            yield first, "\n".join(rows), False
            rows = []
        if is_own_line:
            first = first if rows else number
            rows.append(found["text"])
        elif found is not None:
            yield number, found["text"], False


def texts(path: str, source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the line number and the text of each passage of prose, and if it is a docstring."""
    if path.endswith(".md"):
        yield 1, source, False
        return
    if path.endswith((*PYTHON, *CPP)):
        yield from strings(source)
    yield from comments(source, "//" if path.endswith(CPP) else "#")


def names(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and a message for each name of a function or class in the old style."""
    if not path.endswith((*PYTHON, *CPP)):
        return
    group = "cpp" if path.endswith(CPP) else "python"
    for found in DEFINED.finditer(source):
        if found[group] and OLD_NAME.fullmatch(found[group]):
            line = source.count("\n", 0, found.start()) + 1
            yield line, f"name: `{found[group]}`; write: a verb, or the name of what is returned"


def hits(path: str, text: str) -> list[tuple[int, str]]:
    """Return the hits in a file: the line number of each, and a message."""
    found = list(names(path, text))
    for line, string, is_docstring in texts(path, text):
        for first, passage in passages(string, line):
            for name, regex, fix in CHECKS:
                if name == "docstring-start" and not (is_docstring and first == line):
                    continue
                for hit in regex.finditer(passage):
                    number = first + passage.count("\n", 0, hit.start())
                    phrase = " ".join(hit[0].split())
                    found.append((number, f'{name}: "{phrase}"; write: {fix}'))
    return sorted(found)


def subject_faults(subject: str) -> list[str]:
    """Return the faults of a commit subject, the first line of its message."""
    faults = [message for _, message in hits("subject.md", subject)]
    if len(subject) > 72:
        faults.append(f"expected at most 72 characters; got {len(subject)}")
    form = SUBJECT.fullmatch(subject)
    if not form or NOT_IMPERATIVE.fullmatch(form["verb"]) or form["verb"].istitle():
        faults.append("expected `area: imperative verb + object` without a period")
    return faults


def git(*arguments: str) -> list[str]:
    """Return the lines that a Git command prints."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def check_commits(base: str) -> int:
    """Check the subjects of the commits since `base`, and return the exit status."""
    log = git("log", "--no-merges", "--reverse", "--format=%s", f"{base}..HEAD")
    faults = [f"{subject!r}: {fault}" for subject in log for fault in subject_faults(subject)]
    print("\n".join(faults) or f"{len(log)} subjects are right")
    return int(bool(faults))


def check_files(paths: list[str], *, rewrite: bool) -> int:
    """Compare the hits per file with the allow list, and return the exit status."""
    found = {path: hits(path, (ROOT / path).read_text("utf-8")) for path in paths}
    if rewrite:
        rows = [f"{path} {len(messages)}\n" for path, messages in found.items() if messages]
        ALLOW_LIST.write_text("".join(rows))
    allowed = dict(row.split() for row in ALLOW_LIST.read_text().splitlines())
    status = 0
    for path, messages in found.items():
        count, limit = len(messages), int(allowed.get(path, 0))
        if count > limit:
            status = 1
            print(*(f"{path}:{line}: {message}" for line, message in messages), sep="\n")
            print(f"{path}: expected at most {limit} hits; got {count}")
        elif count < limit:
            print(f"{path}: {count} hits, {limit} allowed; run python .ci/prose.py --rewrite")
    return status


def main() -> int:
    """Run the command line, and return the exit status."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="paths from the root of the tree")
    parser.add_argument("--rewrite", action="store_true", help="write the counts of all files")
    parser.add_argument("--commits", metavar="BASE", help="check commit subjects instead of files")
    args = parser.parse_args()
    if args.commits:
        return check_commits(args.commits)
    listed = git("ls-files", "--cached", "--others", "--exclude-standard", *SOURCES)
    every = [path for path in listed if (ROOT / path).is_file()]  # deleted files are still listed
    paths = every if args.rewrite else args.files or every
    return check_files([path for path in paths if path not in QUOTING], rewrite=args.rewrite)


if __name__ == "__main__":
    sys.exit(main())
