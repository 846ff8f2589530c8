# SPDX-License-Identifier: Apache-2.0
"""Compare the tests and golden files of two trees, after the table of renamed names is applied.

    python .ci/renames/compare.py OLD NEW

Each golden file of OLD, with the new names, must be in NEW byte for byte. Each `assert`, `raises`
and `approx` of the tests of OLD, with the new names, must be in the tests of NEW, the same number
of times. The program prints what is missing, and returns 1 if anything is.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

from rename import sections, split_table

GOLDEN = ("**/golden/**/*.*", "**/golden_*.txt")
CALLS = ("raises", "warns", "approx", "assert_array_equal", "assert_allclose", "match")
LOCAL_NAMES = {"Alone": "FakeGroup"}
"""Identifiers of tests that were renamed by hand."""


def new_words() -> dict[str, str]:
    """Return the identifiers whose last part was renamed."""
    words = dict(LOCAL_NAMES)
    for table in sections().values():
        paths = split_table(table)[1]
        words.update({Path(old).stem: Path(new).stem for old, new in paths.items()})
    for table in sections().values():
        for old, new in table.items():
            before, after = old.rpartition(".")[2], new.rpartition(".")[2]
            if before != after and not after.islower():
                words[before] = after
            elif before != after:
                words.setdefault(before, after)
    return words


def checks_of(root: Path, words: dict[str, str]) -> Counter[str]:
    """Return the checks of all tests as text without formatting."""
    found: Counter[str] = Counter()
    for path in sorted((root / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert) or (
                isinstance(node, ast.Call) and getattr(node.func, "attr", "") in CALLS
            ):
                found[renamed(ast.unparse(node), words)] += 1
    return found


def renamed(text: str, words: dict[str, str]) -> str:
    """Return a text with the new words, and without the modules before a name."""
    text = re.sub(r"\b\w+\b", lambda word: words.get(word[0], word[0]), text)
    return re.sub(r"\b[a-z_]+\.(?=[a-z_]+\b)", "", text)


def missing_checks(old: Path, new: Path) -> list[str]:
    """Return the checks of the old tests that the new tests do not have."""
    words = new_words()
    left = checks_of(old, words) - checks_of(new, {**words})
    return sorted(left.elements())


def changed_golden(old: Path, new: Path) -> list[str]:
    """Return the golden files that differ after the table is applied."""
    tables = [split_table(table) for table in sections().values()]
    dotted = {before: after for names, _, _ in tables for before, after in names.items()}
    moved = {before: after for _, paths, _ in tables for before, after in paths.items()}
    changed = []
    for pattern in GOLDEN:
        for path in sorted((old / "tests").glob(pattern)):
            text = path.read_text()
            for before, after in dotted.items():
                text = re.sub(rf"(?<![\w.]){re.escape(before)}(?!\w)", after, text)
            text = re.sub(r"\btests/[\w/.]+\.py\b", lambda file: moved.get(file[0], file[0]), text)
            name = str(path.relative_to(old))
            other = new / moved.get(name, name)
            if not other.exists() or other.read_text() not in (text, path.read_text()):
                changed.append(name)
    return changed


def main() -> int:
    """Print what is missing."""
    old, new = map(Path, sys.argv[1:])
    files, checks = changed_golden(old, new), missing_checks(old, new)
    print("\n".join(["changed golden files:", *files, "missing checks:", *checks]))
    return 1 if files or checks else 0


if __name__ == "__main__":
    sys.exit(main())
