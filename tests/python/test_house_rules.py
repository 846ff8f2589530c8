# SPDX-License-Identifier: Apache-2.0
"""Which module may import which, how long things may be: what a program can check of the rules."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard

import pytest

import ngd
import ngd.ops
from ngd.graph.leaves import Leaf
from ngd.graph.registry import OPS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "ngd"
CORE = ROOT / "src" / "cpp"

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 60
LONG_FOR_A_REASON = "long because"
"""A comment with these words, in a function or a file's first ten lines, argues its length."""

# Each row may import the rows above it, and within itself.
LAYERS = (
    {"errors", "kinds", "links", "local", "unknown_names"},
    {"dtype", "config", "environment", "binding", "members", "sites"},
    {"logs"},
    {"array_methods", "calls", "cost", "listing", "narrowing", "notes", "trees", "variable_names"},
    {"ir"},
    {"arrays"},
    {"ops"},
    {"autodiff", "compile_warnings", "reference", "variables", "state", "passes"},
    {"collectives"},
    {"metrics"},
    {"arguments", "distributed"},
    {"world"},
    {"host_calls"},
    {"profiling"},
    {"devices"},
    {"compiler"},
    {"functions"},
    {"differentiation"},
    {"transforms", "vectorization"},
    {"__init__", "launch"},
    {"optim"},
    {"nn", "data", "checkpoint"},
    {"train"},
    {"doctor", "examples", "horovod", "jax", "kvstore", "paddle", "profiler", "ray", "torch"},
    {"cli"},
    {"__main__"},
)
USERS_OF_THE_CORE = {
    "collectives",
    "compiler",
    "devices",
    "distributed",
    "host_calls",
    "jax",
    "metrics",
    "profiling",
    "torch",
    "variables",
}

INCLUDES = {
    "base": {"base"},
    "device": {"base", "device"},
    "kernels": {"base", "device", "kernels"},
    "comm": {"base", "device", "comm"},
    "runtime": {"base", "device", "kernels", "comm", "runtime"},
    "bridges": {"base", "device", "comm", "bridges"},
}

WAYS = {"shm": {"shm"}, "mpi": {"mpi"}, "hierarchical": {"hierarchical", "mpi"}}
"""Of the folders of comm: which of these each includes. All of them include what is above them."""

KNOW_NO_OP = {"autodiff", "compiler", "devices", "passes", "reference"}
"""They ask an op for its properties (ngd.graph.node.Op), and do not know its name."""

USERS_OF_THE_PUBLIC_API = {"checkpoint", "data", "nn", "optim", "train"}
"""They import public names only, and one another, and MESSAGES."""

MESSAGES = {"calls", "sites", "unknown_names", "variable_names"}
"""Modules that help to write error messages and warnings, and that name variables."""

COMPUTING = {op.name for op in OPS.values() if not isinstance(op, Leaf)}

PYTHON_FILES = sorted(PACKAGE.rglob("*.py"))
CPP_FILES = sorted(p for p in CORE.rglob("*") if p.suffix in (".cpp", ".hpp", ".inc"))
ALL_FILES = sorted(
    path
    for folder in ("python", "src", "tests", "examples", "benchmarks", "cmake")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".pyx", ".pxd", ".pyi", ".cpp", ".hpp", ".inc", ".cmake")
    or path.name == "CMakeLists.txt"
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    """The part of the package that a file belongs to: the first name below ngd."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def what_runs(source: str) -> list[ast.AST]:
    """All parts of a program, but what only type checkers read: no import of it is made."""
    tree = ast.parse(source)
    for_types = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in ast.walk(node)
    }
    return [node for node in ast.walk(tree) if node not in for_types]


def imported_modules(path: Path, source: str) -> set[str]:
    """The parts of the package that this file imports."""
    inside = path.relative_to(PACKAGE).parts
    found: set[str] = set()
    for node in what_runs(source):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            here = ["ngd", *inside[:-1]]
            base = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from . import x` names a part of the package; `from .x import y` has named it.
            names = [f"{module}.{a.name}" for a in node.names] if module == "ngd" else [module]
        found |= {name.split(".")[1] for name in names if name.startswith("ngd.")}
    return found


def faults_of_imports(path: Path, source: str) -> list[str]:
    """What this file of the package imports although it may not."""
    mine = module_of(path)
    level = next((i for i, layer in enumerate(LAYERS) if mine in layer), None)
    if level is None:
        return [] if mine == "_core" else [f"{mine} stands in no layer"]
    below = set().union(*LAYERS[: level + 1])
    faults = []
    for module in sorted(imported_modules(path, source) - {mine}):
        if module == "_core":
            if mine not in USERS_OF_THE_CORE:
                faults.append(f"{mine} imports _core")
        elif module not in below and any(module in layer for layer in LAYERS):
            faults.append(f"{mine} imports {module}")
    return faults


def private_imports(path: Path, source: str) -> list[str]:
    """What this file imports of the package that `ngd` does not offer."""
    inside = path.relative_to(PACKAGE).parts
    found = []
    for node in what_runs(source):
        if isinstance(node, ast.Import):
            names = [(*alias.name.split("."), "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ("ngd", *inside)[: -node.level] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            names = [(*base, alias.name) for alias in node.names]
        else:
            continue
        for name in names:
            known = {module_of(path), *MESSAGES, *ngd.__all__}
            own = len(name) > 1 and name[1] in known
            if name[0] == "ngd" and name[1] and not own:
                found.append(".".join(name).rstrip("."))
    return found


def imported_files(path: Path, source: str) -> set[Path]:
    """The files of the package that this one imports by name."""
    found: set[Path] = set()
    for node in what_runs(source):
        if isinstance(node, ast.Import):
            wanted = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            here = ("ngd", *path.relative_to(PACKAGE).parts)
            above = here[: -node.level] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            wanted = [(*base, alias.name) for alias in node.names]
        else:
            continue
        found |= {file for name in wanted if (file := file_of(name)) is not None}
    return found - {path}


def file_of(name: tuple[str, ...]) -> Path | None:
    """The file of the package that a dotted name stands in."""
    for end in (len(name), len(name) - 1):
        place = PACKAGE.joinpath(*name[1:end])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if name[:1] == ("ngd",) and end and file.exists():
                return file
    return None


def circle(imports: Mapping[Path, set[Path]]) -> list[str]:
    """Some files of which each imports the next, and the last one the first."""
    done: set[Path] = set()

    def below(file: Path, above: tuple[Path, ...]) -> list[str]:
        if file in above:
            return [name_of(f) for f in above[above.index(file) :]]
        for other in sorted(imports.get(file, set()) if file not in done else ()):
            if found := below(other, (*above, file)):
                return found
        done.add(file)
        return []

    return next((found for file in sorted(imports) if (found := below(file, ()))), [])


def ops_by_name(source: str) -> list[str]:
    """Where a file holds an op's name as a string, or asks for one but in a message."""
    tree = ast.parse(source)
    texts = {  # of messages, and of docstrings
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and is_text(node.value))
        for part in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if is_text(node) and node.value in COMPUTING and id(node) not in texts:
            found.append(f"line {node.lineno}: {node.value!r}")
        if isinstance(node, (ast.Compare, ast.Subscript)):
            asked = ast.walk(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get":
            asked = (part for argument in node.args for part in ast.walk(argument))
        else:
            continue
        names = {ast.unparse(part) for part in asked if isinstance(part, ast.Attribute)}
        if any(re.search(r"\bop\.name$", name) for name in names):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    """Whether this is a string."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def faults_of_includes(folder: str, source: str) -> list[str]:
    """What a file of this folder of the core includes although it may not."""
    included = re.findall(r'^\s*#include "([^"]+)"', source, re.MULTILINE)
    folders = {path.split("/")[0] for path in included if "/" in path}
    return [f"{folder} includes {f}" for f in sorted(folders - INCLUDES[folder])]


def faults_of_ways(folder: str, source: str) -> list[str]:
    """What a file of comm/FOLDER, or of comm itself, includes although it may not."""
    included = re.findall(r'^\s*#include "comm/(\w+)/', source, re.MULTILINE)
    return [f"{folder} includes {way}" for way in sorted(set(included) - WAYS.get(folder, set()))]


def long_python_functions(source: str) -> list[str]:
    """Functions of more lines than allowed that do not say why."""
    lines = source.splitlines()
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            body = lines[node.lineno - 1 : node.end_lineno]
            if len(body) > MAX_FUNCTION_LINES and LONG_FOR_A_REASON not in "\n".join(body):
                found.append(f"{node.name}: {len(body)} lines")
    return found


def long_cpp_functions(source: str) -> list[str]:
    """As above, where a line ends in `) {` or the like and is no statement."""
    without_text = re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//.*', "", source)
    lines, bare = source.splitlines(), without_text.splitlines()
    found = []
    for number, line in enumerate(bare):
        opening = re.match(r" *\S.*\) ?(?:const|noexcept|override|final|mutable| )*\{$", line)
        statement = re.match(r" *(?:if|for|while|switch|else|\} else|do|return)\b", line)
        if not opening or statement:
            continue
        end, depth = number, 1
        while depth > 0 and end + 1 < len(bare):
            end += 1
            depth += bare[end].count("{") - bare[end].count("}")
        body = lines[number : end + 1]
        if len(body) > MAX_FUNCTION_LINES and LONG_FOR_A_REASON not in "\n".join(body):
            found.append(f"{lines[number].strip()}: {len(body)} lines")
    return found


@pytest.mark.parametrize("path", PYTHON_FILES, ids=name_of)
def test_python_imports_only_what_stands_below(path: Path) -> None:
    assert faults_of_imports(path, path.read_text()) == []


def test_python_files_import_in_no_circle() -> None:
    assert circle({path: imported_files(path, path.read_text()) for path in PYTHON_FILES}) == []


@pytest.mark.parametrize(
    "path", [p for p in PYTHON_FILES if module_of(p) in KNOW_NO_OP], ids=name_of
)
def test_no_pass_or_device_knows_an_op_by_name(path: Path) -> None:
    assert ops_by_name(path.read_text()) == []


@pytest.mark.parametrize(
    "path", [p for p in PYTHON_FILES if module_of(p) in USERS_OF_THE_PUBLIC_API], ids=name_of
)
def test_the_training_library_uses_the_public_api(path: Path) -> None:
    assert private_imports(path, path.read_text()) == []


@pytest.mark.parametrize("path", CPP_FILES, ids=name_of)
def test_cpp_includes_only_what_its_folder_links(path: Path) -> None:
    folder = path.relative_to(CORE).parts[0]
    if path.parent != CORE:
        assert faults_of_includes(folder, path.read_text()) == []


@pytest.mark.parametrize("path", sorted((CORE / "comm").rglob("*.?pp")), ids=name_of)
def test_the_ways_to_communicate_include_one_another_one_way(path: Path) -> None:
    assert faults_of_ways(path.parent.name, path.read_text()) == []


def test_cython_includes_only_the_one_header() -> None:
    sources = "".join(p.read_text() for p in (PACKAGE / "_core").glob("*.p[yx][xd]"))
    headers = set(re.findall(r'cdef extern from "([^"]+)"', sources))
    assert "ngd.hpp" in headers
    own = {p.name for p in (PACKAGE / "_core").glob("*.hpp")}
    assert headers - own - {"Python.h"} == {"ngd.hpp"}


def test_cython_knows_no_device_by_name() -> None:
    sources = "".join(p.read_text() for p in (PACKAGE / "_core").glob("*.p[yx][xdi]"))
    assert re.findall(r"(?i)\bcpu(?:_table)?\b", sources) == []


@pytest.mark.parametrize("path", ALL_FILES, ids=name_of)
def test_files_are_short_and_say_their_license(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[:1] != []
    assert "SPDX-License-Identifier: Apache-2.0" in lines[0]
    assert len(lines) <= MAX_FILE_LINES or LONG_FOR_A_REASON in "\n".join(lines[:10])


@pytest.mark.parametrize("path", [p for p in ALL_FILES if p.suffix == ".py"], ids=name_of)
def test_python_functions_are_short(path: Path) -> None:
    assert long_python_functions(path.read_text()) == []


@pytest.mark.parametrize("path", CPP_FILES, ids=name_of)
def test_cpp_functions_are_short(path: Path) -> None:
    assert long_cpp_functions(path.read_text()) == []


def test_the_rules_find_what_breaks_them() -> None:
    assert faults_of_imports(PACKAGE / "ir.py", "from . import ops") == ["ir imports ops"]
    assert faults_of_imports(PACKAGE / "ops" / "norm.py", "from ..compiler import x") == [
        "ops imports compiler"
    ]
    assert faults_of_imports(PACKAGE / "autodiff.py", "import ngd._core") == [
        "autodiff imports _core"
    ]
    assert faults_of_imports(PACKAGE / "nn" / "layers.py", "from .. import _core") == [
        "nn imports _core"
    ]
    for_types = "if TYPE_CHECKING:\n    from . import ops"
    assert faults_of_imports(PACKAGE / "ir.py", for_types) == []
    assert faults_of_imports(PACKAGE / "new.py", "") == ["new stands in no layer"]
    assert faults_of_imports(PACKAGE / "ops" / "a.py", "from ..ir import Node, ops") == []
    sgd = PACKAGE / "optim" / "sgd.py"
    assert private_imports(sgd, "from .. import Node, ops\nfrom .optimizer import x") == []
    assert private_imports(sgd, "import numpy, ngd\nfrom ..errors import Error") == []
    assert private_imports(sgd, "from ..ir import Node\nfrom .. import _core") == [
        *("ngd.graph.node.Node", "ngd._core")
    ]
    ops, cast = PACKAGE / "ops" / "__init__.py", PACKAGE / "ops" / "casting.py"
    assert imported_files(cast, "from ..ir import Node\nfrom . import reductions, abs") == {
        *(PACKAGE / "ir.py", PACKAGE / "ops" / "reductions.py", ops)
    }
    assert imported_files(ops, "from .casting import cast\nimport ngd.graph.node") == {
        *(cast, PACKAGE / "ir.py")
    }
    assert circle({ops: {cast}, cast: {ops}}) == [name_of(ops), name_of(cast)]
    assert circle({ops: {cast}, cast: set()}) == []
    assert ops_by_name('if node.op.name == "x": pass') == ["line 1: node.op.name == 'x'"]
    assert ops_by_name('R = {"matmul": 1}') == ["line 1: 'matmul'"]
    assert ops_by_name("RULES.get(op.name, ())") == ["line 1: RULES.get(op.name, ())"]
    assert ops_by_name("RULES[self.op.name]") == ["line 1: RULES[self.op.name]"]
    assert ops_by_name('"""add"""\nx = f"{node.op.name} add", "add it"') == []
    assert faults_of_includes("comm", '#include "kernels/a.hpp"\n#include "base/a.hpp"') == [
        "comm includes kernels"
    ]
    assert faults_of_ways("shm", '#include "comm/mpi/a.hpp"') == ["shm includes mpi"]
    assert faults_of_ways("mpi", '#include "comm/hierarchical/a.hpp"\n#include "comm/a.hpp"') == [
        "mpi includes hierarchical"
    ]
    assert faults_of_ways("hierarchical", '#include "comm/mpi/a.hpp"') == []
    assert faults_of_ways("comm", '#include "comm/shm/a.hpp"') == ["comm includes shm"]
    long_body = "\n".join(["  x();"] * MAX_FUNCTION_LINES)
    assert long_cpp_functions(f"void f(int a) {{\n{long_body}\n}}\n") != []
    assert long_cpp_functions(f"void f(int a) {{\n  // long because\n{long_body}\n}}\n") == []
    assert long_python_functions("def f():\n" + "    x()\n" * MAX_FUNCTION_LINES) != []


def test_no_package_exports_a_name_of_its_own_submodules() -> None:
    """`ngd.function` is then one thing: `from ngd import function` cannot mean a module too."""
    for init in sorted(PACKAGE.rglob("__init__.py")):
        own = {path.stem for path in init.parent.glob("*.py")} - {"__init__"}
        exported = {
            alias.asname or alias.name
            for statement in ast.walk(ast.parse(init.read_text()))
            if isinstance(statement, ast.ImportFrom) and statement.module
            for alias in statement.names
        }
        assert not exported & own, init
    ops = {path.stem for path in (PACKAGE / "ops").glob("*.py")}
    assert not ops & set(ngd.ops.__all__)
