# SPDX-License-Identifier: Apache-2.0
"""Apply the table of renamed modules and names to a tree: files move, and every mention follows.

    python .ci/renames/rename.py ROOT [SECTION...]

A line `a.b -> a.c` renames the module, the function or the class `a.b`. If it is a module whose
file exists, the file moves. Import statements, dotted names and paths of files are rewritten in
programs (including those inside strings), documents and golden files. Sections of table.txt are
applied in their order; a name that is in no line keeps its parent's new name.

A line `tests/a/x.py -> tests/b/y.py` moves a file of the tests, and rewrites its path everywhere. A
line `x -> tests.b.y` makes the tests import a module from its package instead of by its bare name.

In the section [cpp], a line `src/cpp/a.hpp -> src/cpp/b/c.hpp` moves a file, and rewrites its path
in #include lines, CMake lists and documents. A line `cpp:Old -> New` renames an identifier in C++
and Cython. All lines of the section are applied at once.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TABLE = Path(__file__).with_name("table.txt")
IMPORT = re.compile(
    r"\bfrom (?P<module>\.+[\w.]*|ngd[\w.]*) import "
    r"(?P<names>\((?:[^()]|\n)*\)|\w+(?: as \w+)?(?:, ?\w+(?: as \w+)?)*)"
)
TEXTS = {".py", ".pyx", ".pxi", ".pyi", ".md", ".toml", ".txt", ".yml", ".hpp", ".cpp", ".sh", ""}
CPP_TEXTS = {".hpp", ".cpp", ".inc", ".pxd", ".pxi"}
CPP_ROOT = "src/cpp/"
WIDTH = 100
DONE = "\0"
"""A mark on names that are already renamed."""
KEPT = {"ngd.launch"}
"""Names that stay in texts, because `python -m ngd.launch` is public."""


def sections() -> dict[str, dict[str, str]]:
    """Return the table of Python names: the renamed names of each section."""
    return {name: table for name, table in all_sections().items() if name != "cpp"}


def all_sections() -> dict[str, dict[str, str]]:
    """Return the whole table, including the section [cpp]."""
    found: dict[str, dict[str, str]] = {}
    for line in TABLE.read_text().splitlines():
        if line.startswith("["):
            current = found.setdefault(line.strip("[]"), {})
        elif " -> " in line and not line.startswith("#"):
            old, new = line.split(" -> ")
            current[old] = new
    return found


def split_table(table: dict[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the names, the paths of tests, and the modules of tests in a section."""
    paths = {old: new for old, new in table.items() if "/" in old}
    modules = {old: new for old, new in table.items() if new.startswith("tests.")}
    names = {old: new for old, new in table.items() if old not in paths and old not in modules}
    return names, paths, modules


def renamed(name: str, table: dict[str, str]) -> str:
    """Return the new form of a dotted name, by its longest prefix in the table."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if (new := table.get(".".join(parts[:end]))) is not None:
            return ".".join([new, *parts[end:]])
    return name


def replace_words(text: str, words: dict[str, str], before: str, after: str) -> str:
    """Replace words of a text, all at once, between characters that are not in these classes."""
    if not words:
        return text
    names = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.sub(rf"(?<![{before}])(?:{names})(?![{after}])", lambda m: words[m[0]], text)


def import_from_packages(text: str, modules: dict[str, str]) -> str:
    """Return a program that imports the modules from their packages."""
    for old, new in modules.items():
        parent, _, leaf = new.rpartition(".")
        shown = leaf if leaf == old else f"{leaf} as {old}"
        text = re.sub(
            rf"(?m)^( *)import {old} as (\w+)", rf"\1from {parent} import {leaf} as \2", text
        )
        text = re.sub(rf"(?m)^( *)import {old}\b", rf"\1from {parent} import {shown}", text)
        text = re.sub(rf"(?m)^( *)from {old} import ", rf"\1from {new} import ", text)
    return text


class Tree:
    """A tree of files whose package is python/ngd."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root / "python"
        self.modules = {self.name_of(file) for file in (self.package / "ngd").rglob("*.py")}

    def name_of(self, file: Path) -> str:
        """Return the dotted name of a module of the package."""
        parts = file.relative_to(self.package).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def files(self) -> Iterator[Path]:
        """Yield the tracked text files that may mention a name."""
        listed = subprocess.run(
            ["git", "ls-files"], cwd=self.root, capture_output=True, text=True, check=True
        )
        for name in listed.stdout.splitlines():
            file = self.root / name
            skipped = name.startswith((".ci/renames/", "CHANGELOG")) or file.is_symlink()
            if file.suffix in TEXTS | CPP_TEXTS and not skipped and file.exists():
                yield file

    def apply(self, table: dict[str, str]) -> None:
        """Rewrite all files, then move those of renamed modules."""
        names, paths, modules = split_table(table)
        if names:
            self.apply_names(names)
        if paths or modules:
            self.apply_to_tests(paths, modules)

    def apply_cpp(self, table: dict[str, str]) -> None:
        """Rename identifiers of C++, rewrite the paths of files, and move them."""
        names = {
            old.removeprefix("cpp:"): new for old, new in table.items() if old.startswith("cpp:")
        }
        moves = {old: new for old, new in table.items() if "/" in old}
        paths = moves | {
            old.removeprefix(CPP_ROOT): new.removeprefix(CPP_ROOT) for old, new in moves.items()
        }
        for file in self.files():
            text = changed = file.read_text()
            if file.suffix in CPP_TEXTS:
                changed = replace_words(changed, names, r"\w", r"\w")
            changed = replace_words(changed, paths, r"\w/", r"\w")
            if file.name == "CMakeLists.txt":
                here = f"{file.parent.relative_to(self.root)}/"
                local = {
                    old.removeprefix(here): new.removeprefix(here)
                    for old, new in moves.items()
                    if old.startswith(here) and new.startswith(here)
                }
                changed = replace_words(changed, local, r"\w/", r"\w")
            if changed != text:
                file.write_text(changed)
        self.move_files([(self.root / old, self.root / new) for old, new in moves.items()])

    def move_files(self, moves: list[tuple[Path, Path]]) -> None:
        """Move the files that exist; a file may take the old path of another one."""
        moves = [(source, target) for source, target in moves if source.exists()]
        for source, _ in moves:
            aside = f"{source}.moving"
            subprocess.run(["git", "mv", source, aside], cwd=self.root, check=True)
        for source, target in moves:
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = f"{source}.moving"
            subprocess.run(["git", "mv", aside, target], cwd=self.root, check=True)

    def apply_to_tests(self, paths: dict[str, str], modules: dict[str, str]) -> None:
        """Move files of the tests; rewrite their paths, and imports of modules of the tests."""
        old_paths = sorted(map(re.escape, paths), key=len, reverse=True)
        mentioned = re.compile(rf"(?<![\w/])(?:{'|'.join(old_paths) or '(?!)'})(?!\w)")
        for file in self.files():
            text = file.read_text()
            changed = mentioned.sub(lambda match: paths[match[0]], text)
            if file.is_relative_to(self.root / "tests") and file.suffix == ".py":
                changed = import_from_packages(changed, modules)
            if changed != text:
                file.write_text(changed)
        for old, new in paths.items():
            if (self.root / old).exists():
                (self.root / new).parent.mkdir(parents=True, exist_ok=True)
                subprocess.run(["git", "mv", old, new], cwd=self.root, check=True)

    def apply_names(self, table: dict[str, str]) -> None:
        """Rewrite all files, then move those of renamed modules of the package."""
        for file in self.files():
            try:
                text = file.read_text()
            except UnicodeDecodeError:
                continue
            changed = self.rewrite(file, text, table)
            if changed != text:
                file.write_text(changed)
        self.move(table)

    def move(self, table: dict[str, str]) -> None:
        """Move the files of renamed modules, and make the packages that they need."""
        moves = []
        for old, new in table.items():
            source = self.package.joinpath(*old.split("."))
            target = self.package.joinpath(*new.split("."))
            if source.is_dir() and (source / "__init__.py").exists():
                moves.extend(
                    (file, target / file.name)
                    for file in source.glob("*.py")
                    if file.name == "__init__.py" or self.name_of(file) not in table
                )
            elif source.with_suffix(".py").exists():
                moves.append((source.with_suffix(".py"), target.with_suffix(".py")))
        self.move_files(moves)

    def rewrite(self, file: Path, text: str, table: dict[str, str]) -> str:
        """Return a file's text with the new names."""
        if file.suffix in (".py", ".pyx", ".pyi") or file.suffix == ".md":
            inside = file.is_relative_to(self.package / "ngd")
            module = self.name_of(file) if inside else ""
            is_package = file.name == "__init__.py"
            text = IMPORT.sub(lambda m: self.imports(m, text, module, is_package, table), text)
        names = "|".join(re.escape(name) for name in sorted(table, key=len, reverse=True))
        dotted = re.compile(rf"(?<![\w./\0-])(?:{names})(?![\w/-])(?!\.py\b)")
        text = dotted.sub(lambda m: m[0] if m[0] in KEPT else table[m[0]], text).replace(DONE, "")
        for old, new in table.items():
            path, moved = old.replace(".", "/"), new.replace(".", "/")
            text = re.sub(rf"(?<![\w]){path}\.py\b", f"{moved}.py", text)
            short, new_short = path.removeprefix("ngd/"), moved.removeprefix("ngd/")
            if "/" in short:
                text = re.sub(rf"(?<![\w/]){short}\.py\b", f"{new_short}.py", text)
        return text

    def imports(
        self, match: re.Match[str], text: str, module: str, is_package: bool, table: dict[str, str]
    ) -> str:
        """Return an import statement with the new names, one statement per module."""
        written, names = match["module"], match["names"]
        dots = len(written) - len(written.lstrip("."))
        if dots and not module:
            return match[0]
        parts = module.split(".")
        base = parts if is_package else parts[:-1]
        above = base[: len(base) - dots + 1] if dots else []
        source = ".".join([*above, *filter(None, written.lstrip(".").split("."))])
        new_module = renamed(module, table) if module else ""
        statements: dict[str, list[str]] = {}
        comment = re.findall(r"#.*", names)
        for item in re.sub(r"#.*", "", names).strip("()").replace("\n", " ").split(","):
            if not item.strip():
                continue
            name, _, alias = item.strip().partition(" as ")
            full = renamed(f"{source}.{name}", table)
            if name == "*":
                full = renamed(source, table) + ".*"
            parent, _, leaf = full.rpartition(".")
            shown = alias or name
            where = self.relative(parent, new_module, is_package) if dots else parent
            statements.setdefault(where, []).append(leaf if shown == leaf else f"{leaf} as {shown}")
        start = text.rfind("\n", 0, match.start()) + 1
        indent = text[start : match.start()]
        indent = indent if not indent.strip() else ""
        whole = "(" in names
        lines = []
        for where, leaves in statements.items():
            where = DONE + where
            line = f"from {where} import {', '.join(leaves)}"
            if (whole and comment) or (len(indent + line) > WIDTH and indent.strip() == ""):
                inner = "".join(f"{indent}    {leaf},\n" for leaf in leaves)
                line = f"from {where} import (\n{inner}{indent})"
            lines.append(line)
        inline = text[start : match.start()].strip() != ""
        return ("; " if inline else f"\n{indent}").join(lines)

    def relative(self, target: str, module: str, is_package: bool) -> str:
        """Return the relative form of a module's name, for an import in another module."""
        here = module.split(".") if is_package else module.split(".")[:-1]
        there = target.split(".")
        common = 0
        while common < min(len(here), len(there)) and here[common] == there[common]:
            common += 1
        return "." * (len(here) - common + 1) + ".".join(there[common:])


def main() -> None:
    """Apply the sections that the command line names, or all of them."""
    root, *wanted = sys.argv[1:]
    for name, table in all_sections().items():
        if not wanted or name in wanted:
            tree = Tree(Path(root).resolve())
            tree.apply_cpp(table) if name == "cpp" else tree.apply(table)


if __name__ == "__main__":
    main()
