# SPDX-License-Identifier: Apache-2.0
"""Tests of the rules of the code that a program can check: imports, and lengths of files."""

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
MAX_LINES_IN_PACKAGE = {"file": 600, "function": 50}
"""The limits in the package and in the core. Tests may be longer."""
LONG_FOR_A_REASON = "long because"
"""Words of a comment that gives the reason for the length of a function or file.

The comment is in the function, or in the first ten lines of the file.
"""

KERNEL_LAYERS = ["shapes", "tiles", "gemm", "reduce"]
"""The lower folders of kernels/. Each may include only the folders before it.

All other folders of kernels/ may include these, but not each other.
"""

ONE_PLACE = {
    "the full team of threads": (r"#pragma omp parallel", ["device/team.hpp"]),
    "the namespaces of the SIMD levels": (r"\bnamespace (baseline|avx2|avx512)\b", []),
    "the division that rounds up": (r"\+ (\w+) - 1\) / \1\b", ["base/bits.hpp"]),
    "the cgroups of this process": (r'= "(/proc/self|/sys/fs)/cgroup"', ["base/cgroup.hpp"]),
    "the conversion of 16-bit floats": (
        r"_cvt\w*(ph|sh|pbh|sbh)\w*\(|<< 16\)",
        ["base/dtype.hpp", "base/float16_loops.hpp"],
    ),
    "the transposition in registers": (
        r"interleave<|_unpack(lo|hi)_|_permute2f128_",
        ["kernels/tiles/transpose.hpp"],
    ),
    "the properties that must be equal on all ranks": (
        r"identity\.(kind|op|dtype|count|root|counts_hash|layout_hash) = ",
        ["comm/identity.cpp"],
    ),
    "the notification of other ranks": (
        r"catch \([^)]*\) \{[^}]*\b(abort|give_up|notify|close_failed)\(",
        ["base/error.hpp"],
    ),
}
"""Concepts of the core that only some files implement: a pattern of the source, and the files."""

INCLUDES = {
    "base": {"base"},
    "device": {"base", "device"},
    "kernels": {"base", "device", "kernels"},
    "comm": {"base", "device", "comm"},
    "runtime": {"base", "device", "kernels", "comm", "runtime"},
    "bridges": {"base", "device", "comm", "bridges"},
}

WAYS = {"shm": {"shm"}, "mpi": {"mpi"}, "hierarchical": {"hierarchical", "mpi"}}
"""For each folder of comm, the folders of comm that it may include.

All of them may include the files directly in comm.
"""

KNOW_NO_OP = ("compiler/", "devices/", "ops/_reverse_mode.py", "passes/")
"""Code that does not know ops by name, and asks for their traits (ngd.graph.node.Op) instead."""

USERS_OF_THE_PUBLIC_API = ("checkpoint.py", "data/", "nn/", "optim/", "train/")
"""Code that may import only public names of ngd, its own package, and HELPERS."""

HELPERS = ("ngd._util.", "ngd.graph.variable_names")
"""Modules that help to write error messages and warnings, and that name variables."""

COMPUTING = {op.name for op in OPS.values() if not isinstance(op, Leaf)}

PYTHON_FILES = sorted(PACKAGE.rglob("*.py"))
PACKAGE_SOURCES = sorted(p for p in PACKAGE.rglob("*") if p.suffix in (".py", ".pyx", ".pxi"))
CPP_FILES = sorted(p for p in CORE.rglob("*") if p.suffix in (".cpp", ".hpp", ".inc"))
ALL_FILES = sorted(
    path
    for folder in ("python", "src", "tests", "examples", "benchmarks", "cmake")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".pyx", ".pxd", ".pxi", ".pyi", ".cpp", ".hpp", ".inc", ".cmake")
    or path.name == "CMakeLists.txt"
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def is_in(path: Path, parts: tuple[str, ...]) -> bool:
    """Return if a file of the package is one of these files, or in one of these folders."""
    return str(path.relative_to(PACKAGE)).startswith(parts)


def imports_of(path: Path, tree: ast.AST) -> list[tuple[str, ...]]:
    """Return the dotted names that a file imports, even in functions and for type checkers."""
    names: list[tuple[str, ...]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            own_name = ("ngd", *path.relative_to(PACKAGE).parts)
            above = own_name[: -node.level] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            names += [(*base, alias.name) for alias in node.names]
    return names


def private_imports(path: Path, source: str) -> list[str]:
    """Return the private names that a file imports from other parts of the package."""
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    imports = []
    for name in imports_of(path, ast.parse(source)):
        dotted = ".".join(name)
        is_ours = len(name) > 1 and (name[1] == own or dotted.startswith(HELPERS))
        if name[0] == "ngd" and not is_ours and not {*name[1:]} & {*ngd.__all__, "typing"}:
            imports.append(dotted)
    return imports


def assigned_elsewhere(source: str) -> list[str]:
    """Return the statements at the top of a file that assign into an imported module or class."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if "ngd" in (getattr(node, "module", alias.name) or "ngd") or getattr(node, "level", 0)
    }
    statements = []
    for node in run_at_import(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [part for target in node.targets for part in parts_of(target)]
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and changes_first_argument(node):
            targets = [ast.Attribute(node.args[0], "attribute", ast.Store())]
        for target in targets:
            owner = target
            while isinstance(owner, (ast.Attribute, ast.Subscript)):
                owner = owner.value
            if owner is not target and isinstance(owner, ast.Name) and owner.id in imported:
                statements.append(ast.unparse(target))
    return statements


def run_at_import(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes of a file that run at its import: all except the bodies of functions."""
    nodes: list[ast.AST] = []
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop(0)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            nodes.append(node)
            pending += ast.iter_child_nodes(node)
    return nodes


def parts_of(target: ast.expr) -> list[ast.expr]:
    """Return the targets of an assignment. A tuple has several."""
    return list(target.elts) if isinstance(target, (ast.Tuple, ast.List)) else [target]


def changes_first_argument(call: ast.Call) -> bool:
    """Return if a call is one of setattr."""
    return isinstance(call.func, ast.Name) and call.func.id == "setattr" and bool(call.args)


def imported_files(path: Path, source: str) -> set[Path]:
    """Return the files of the package that this one imports by name."""
    names = imports_of(path, ast.parse(source))
    return {file for name in names if (file := file_of(name)) is not None} - {path}


def file_of(name: tuple[str, ...]) -> Path | None:
    """Return the file of the package that contains a dotted name."""
    for end in (len(name), len(name) - 1):
        module = PACKAGE.joinpath(*name[1:end])
        for file in (module.with_suffix(".py"), module / "__init__.py"):
            if name[:1] == ("ngd",) and end and file.exists():
                return file
    return None


def import_cycle(imports: Mapping[Path, set[Path]]) -> list[str]:
    """Return files of which each imports the next, and the last one the first, or nothing."""
    done: set[Path] = set()

    def below(file: Path, above: tuple[Path, ...]) -> list[str]:
        if file in above:
            return [name_of(f) for f in above[above.index(file) :]]
        for other in sorted(imports.get(file, set()) if file not in done else ()):
            if cycle := below(other, (*above, file)):
                return cycle
        done.add(file)
        return []

    return next((cycle for file in sorted(imports) if (cycle := below(file, ()))), [])


def ops_by_name(source: str) -> list[str]:
    """Return the lines in which a file has an op's name as a string, or asks for one.

    Error messages may have one.
    """
    tree = ast.parse(source)
    texts = {  # the strings of messages and docstrings
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and is_text(node.value))
        for part in ast.walk(node)
    }
    lines = []
    for node in ast.walk(tree):
        if is_text(node) and node.value in COMPUTING and id(node) not in texts:
            lines.append(f"line {node.lineno}: {node.value!r}")
        if isinstance(node, (ast.Compare, ast.Subscript)):
            nodes = ast.walk(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get":
            nodes = (part for argument in node.args for part in ast.walk(argument))
        else:
            continue
        names = {ast.unparse(part) for part in nodes if isinstance(part, ast.Attribute)}
        if any(re.search(r"\bop\.name$", name) for name in names):
            lines.append(f"line {node.lineno}: {ast.unparse(node)}")
    return lines


def is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    """Return if a node is a string."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def faults_of_includes(folder: str, source: str) -> list[str]:
    """Return the includes of a file in this folder of the core that are not allowed."""
    included = re.findall(r'^\s*#include "([^"]+)"', source, re.MULTILINE)
    folders = {path.split("/")[0] for path in included if "/" in path}
    return [f"{folder} includes {f}" for f in sorted(folders - INCLUDES[folder])]


def faults_of_ways(folder: str, source: str) -> list[str]:
    """Return the includes of a file of comm/FOLDER, or of comm itself, that are not allowed."""
    included = re.findall(r'^\s*#include "comm/(\w+)/', source, re.MULTILINE)
    return [f"{folder} includes {way}" for way in sorted(set(included) - WAYS.get(folder, set()))]


def included_folders(path: Path, source: str) -> set[Path]:
    """Return the other folders of the core whose files a file of the core includes."""
    included = re.findall(r'^\s*#include "([^"]+)"', source, re.MULTILINE)
    folders = {(CORE / file).parent for file in included if (CORE / file).exists()}
    return folders - {path.parent}


def faults_of_layers(folder: str, source: str) -> list[str]:
    """Return the folders of kernels that a file of kernels/FOLDER may not include, but includes."""
    included = set(re.findall(r'^\s*#include "kernels/(\w+)/', source, re.MULTILINE)) - {folder}
    layer = KERNEL_LAYERS.index(folder) if folder in KERNEL_LAYERS else len(KERNEL_LAYERS)
    return [f"{folder} includes {f}" for f in sorted(included - set(KERNEL_LAYERS[:layer]))]


def long_python_functions(source: str, most: int = MAX_FUNCTION_LINES) -> list[str]:
    """Return the functions that are too long, and have no comment with the reason."""
    lines = source.splitlines()
    functions = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            body = lines[node.lineno - 1 : node.end_lineno]
            if len(body) > most and LONG_FOR_A_REASON not in "\n".join(body):
                functions.append(f"{node.name}: {len(body)} lines")
    return functions


def long_cpp_functions(source: str, most: int = MAX_FUNCTION_LINES) -> list[str]:
    """Return the C++ functions that are too long, and have no comment with the reason.

    A function starts at a line that ends in `) {` or the like and is not a statement.
    """
    without_text = re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//.*', "", source)
    lines, bare = source.splitlines(), without_text.splitlines()
    functions = []
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
        if len(body) > most and LONG_FOR_A_REASON not in "\n".join(body):
            functions.append(f"{lines[number].strip()}: {len(body)} lines")
    return functions


def test_python_files_do_not_import_in_cycles() -> None:
    assert (
        import_cycle({path: imported_files(path, path.read_text()) for path in PYTHON_FILES}) == []
    )


@pytest.mark.parametrize("path", PYTHON_FILES, ids=name_of)
def test_no_module_assigns_into_another_one_when_it_is_imported(path: Path) -> None:
    assert assigned_elsewhere(path.read_text()) == []


@pytest.mark.parametrize("path", PACKAGE_SOURCES, ids=name_of)
def test_files_that_are_named_in_the_package_exist(path: Path) -> None:
    named = re.findall(r"(?<![\w/.-])((?:\w+/)*\w+\.(?:py|pxi|cpp|hpp|inc))\b", path.read_text())
    missing = {name for name in named if not any(str(f).endswith(f"/{name}") for f in ALL_FILES)}
    assert missing <= {"train.py"}  # the user's program


def test_no_package_exports_a_function_with_the_name_of_its_module() -> None:
    for path in PYTHON_FILES:
        if path.name == "__init__.py":
            modules = {p.stem for p in path.parent.glob("*.py")}
            modules |= {p.name for p in path.parent.iterdir() if p.is_dir()}
            bound = {
                alias.asname or alias.name
                for node in ast.parse(path.read_text()).body
                if isinstance(node, ast.ImportFrom) and node.module
                for alias in node.names
            }
            assert bound & modules == set(), name_of(path)


@pytest.mark.parametrize("path", [p for p in PYTHON_FILES if is_in(p, KNOW_NO_OP)], ids=name_of)
def test_no_pass_or_device_knows_an_op_by_name(path: Path) -> None:
    assert ops_by_name(path.read_text()) == []


@pytest.mark.parametrize(
    "path", [p for p in PYTHON_FILES if is_in(p, USERS_OF_THE_PUBLIC_API)], ids=name_of
)
def test_the_training_library_uses_the_public_api(path: Path) -> None:
    assert private_imports(path, path.read_text()) == []


def test_folders_of_the_core_have_no_include_cycles() -> None:
    includes: dict[Path, set[Path]] = {}
    for path in CPP_FILES:
        includes.setdefault(path.parent, set()).update(included_folders(path, path.read_text()))
    assert import_cycle(includes) == []


@pytest.mark.parametrize("idea", ONE_PLACE)
def test_a_concept_is_in_the_listed_files_only(idea: str) -> None:
    pattern, listed_files = ONE_PLACE[idea]
    files = [p for p in CPP_FILES if re.search(pattern, p.read_text())]
    assert [str(p.relative_to(CORE)) for p in files] == listed_files


@pytest.mark.parametrize("path", sorted((CORE / "kernels").glob("*/*.?pp")), ids=name_of)
def test_kernels_include_only_lower_layers(path: Path) -> None:
    assert faults_of_layers(path.parent.name, path.read_text()) == []


@pytest.mark.parametrize("path", CPP_FILES, ids=name_of)
def test_cpp_includes_only_what_its_folder_links(path: Path) -> None:
    folder = path.relative_to(CORE).parts[0]
    if path.parent != CORE:
        assert faults_of_includes(folder, path.read_text()) == []


@pytest.mark.parametrize("path", sorted((CORE / "comm").rglob("*.?pp")), ids=name_of)
def test_folders_of_comm_include_only_allowed_folders(path: Path) -> None:
    assert faults_of_ways(path.parent.name, path.read_text()) == []


def test_cython_includes_only_one_header() -> None:
    sources = "".join(p.read_text() for p in (PACKAGE / "_core").glob("*.p[yx][xd]"))
    headers = set(re.findall(r'cdef extern from "([^"]+)"', sources))
    assert "ngd.hpp" in headers
    own = {p.name for p in (PACKAGE / "_core").glob("*.hpp")}
    assert headers - own - {"Python.h"} == {"ngd.hpp"}


def test_cython_knows_no_device_by_name() -> None:
    sources = "".join(p.read_text() for p in (PACKAGE / "_core").glob("*.p[yx][xdi]"))
    assert re.findall(r"(?i)\bcpu(?:_table)?\b", sources) == []


@pytest.mark.parametrize("path", ALL_FILES, ids=name_of)
def test_files_are_short_and_name_their_license(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[:1] != []
    assert "SPDX-License-Identifier: Apache-2.0" in lines[0]
    in_package = path.is_relative_to(PACKAGE) or path.is_relative_to(CORE)
    most = MAX_LINES_IN_PACKAGE["file"] if in_package else MAX_FILE_LINES
    assert len(lines) <= most or LONG_FOR_A_REASON in "\n".join(lines[:10])


@pytest.mark.parametrize("path", [p for p in ALL_FILES if p.suffix == ".py"], ids=name_of)
def test_python_functions_are_short(path: Path) -> None:
    in_package = path.is_relative_to(PACKAGE)
    most = MAX_LINES_IN_PACKAGE["function"] if in_package else MAX_FUNCTION_LINES
    assert long_python_functions(path.read_text(), most) == []


@pytest.mark.parametrize("path", CPP_FILES, ids=name_of)
def test_cpp_functions_are_short(path: Path) -> None:
    assert long_cpp_functions(path.read_text(), MAX_LINES_IN_PACKAGE["function"]) == []


def test_the_rules_find_violations() -> None:
    sgd = PACKAGE / "optim" / "sgd.py"
    assert private_imports(sgd, "from ..graph.node import Node\nfrom .optimizer import x") == []
    assert private_imports(sgd, "import numpy\nfrom .. import ops\nfrom .._util.x import y") == []
    assert private_imports(sgd, "from ..graph.node import Op\nfrom .. import _core") == [
        *("ngd.graph.node.Op", "ngd._core")
    ]
    ops, cast = PACKAGE / "ops" / "__init__.py", PACKAGE / "ops" / "_casting.py"
    node = PACKAGE / "graph" / "node.py"
    for_types = (
        "if TYPE_CHECKING:\n    from ..graph.node import Node\nfrom . import _reductions, abs"
    )
    assert imported_files(cast, for_types) == {*(node, PACKAGE / "ops" / "_reductions.py", ops)}
    assert imported_files(ops, "from ._casting import cast\nimport ngd.graph.node") == {cast, node}
    assert assigned_elsewhere("from .a import B\nB.x = 1\nb, B.y[0] = 1, 2") == ["B.x", "B.y[0]"]
    assert assigned_elsewhere("from . import a\nfor b in c:\n    setattr(a.d, b, 1)") == [
        "a.d.attribute"
    ]
    assert assigned_elsewhere("from . import a\nb = {}\nb[1] = 2\ndef f():\n    a.x = 1") == []
    assert import_cycle({ops: {cast}, cast: {ops}}) == [name_of(ops), name_of(cast)]
    assert import_cycle({ops: {cast}, cast: set()}) == []
    assert ops_by_name('if node.op.name == "x": pass') == ["line 1: node.op.name == 'x'"]
    assert ops_by_name('R = {"matmul": 1}') == ["line 1: 'matmul'"]
    assert ops_by_name("RULES.get(op.name, ())") == ["line 1: RULES.get(op.name, ())"]
    assert ops_by_name("RULES[self.op.name]") == ["line 1: RULES[self.op.name]"]
    assert ops_by_name('"""add"""\nx = f"{node.op.name} add", "add it"') == []
    assert faults_of_includes("comm", '#include "kernels/a.hpp"\n#include "base/a.hpp"') == [
        "comm includes kernels"
    ]
    assert faults_of_layers("gemm", '#include "kernels/tiles/a.hpp"\n#include "base/a.hpp"') == []
    assert faults_of_layers("gemm", '#include "kernels/fused/a.hpp"') == ["gemm includes fused"]
    assert faults_of_layers("fused", '#include "kernels/onednn/a.hpp"') == ["fused includes onednn"]
    including = '#include "base/error.hpp"\n#include "device/threads.hpp"\n#include <omp.h>'
    assert included_folders(CORE / "base/x.cpp", including) == {CORE / "device"}
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
    """`ngd.function` then has one meaning: `from ngd import function` cannot import a module."""
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
