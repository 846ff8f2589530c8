# SPDX-License-Identifier: Apache-2.0
"""Tests of the API reference: every public name is on a page, and examples of docstrings run."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import nn, ops, optim
from ngd.graph.registry import PUBLIC

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "api"
TEXT = "\n".join(page.read_text() for page in sorted(PAGES.glob("*.md")))
ENTRIES = set(re.findall(r"^::: (\S+)$", TEXT, re.MULTILINE))

MODULES = (
    "ngd",
    "ngd.checkpoint",
    "ngd.data",
    "ngd.kvstore",
    "ngd.metrics",
    "ngd.nn",
    "ngd.optim",
    "ngd.train",
    "ngd.trees",
)
"""The modules with a public `__all__`. docs/ops.md has the names of ngd.ops."""

BRIDGES = {
    "torch/__init__.py": "ngd.torch",
    "torch/transformers.py": "ngd.torch.transformers",
    "jax/__init__.py": "ngd.jax",
    "paddle/__init__.py": "ngd.paddle",
    "ray/__init__.py": "ngd.ray",
}
"""Files of modules that need a framework. Their `__all__` is read without an import."""

OF_THE_FRAMEWORK = {
    "ngd.paddle.ParallelEnv",
    "ngd.paddle.ReduceOp",
    "ngd.paddle.fleet",
    "ngd.paddle.functional",
}
"""Names of PaddlePaddle, and modules that have its names."""

MOST_USED = [
    "ngd.init",
    "ngd.all_reduce",
    "ngd.all_gather",
    "ngd.broadcast",
    "ngd.reduce_scatter",
    "ngd.barrier",
    "ngd.broadcast_variables",
    "ngd.make_mesh",
    "ngd.Group",
    "ngd.Work",
    "ngd.Mesh",
    "ngd.compile",
    "ngd.function",
    "ngd.grad",
    "ngd.value_and_grad",
    "ngd.variable",
    "ngd.Variable",
    "ngd.placeholder",
    "ngd.constant",
    "ngd.profile",
    "ngd.timeline",
    "ngd.nn.Module",
    "ngd.nn.Parameter",
    "ngd.nn.Buffer",
    "ngd.nn.Sequential",
    "ngd.nn.ModuleList",
    "ngd.nn.training",
    "ngd.nn.Random",
    "ngd.nn.Linear",
    "ngd.nn.Embedding",
    "ngd.nn.Dropout",
    "ngd.nn.Conv1d",
    "ngd.nn.Conv2d",
    "ngd.nn.ConvTranspose2d",
    "ngd.nn.MaxPool2d",
    "ngd.nn.AvgPool2d",
    "ngd.nn.BatchNorm1d",
    "ngd.nn.BatchNorm2d",
    "ngd.nn.LayerNorm",
    "ngd.nn.RMSNorm",
    "ngd.nn.GroupNorm",
    "ngd.nn.LSTM",
    "ngd.nn.GRU",
    "ngd.nn.MultiHeadAttention",
    "ngd.nn.ReLU",
    "ngd.nn.GELU",
    "ngd.nn.Flatten",
    "ngd.optim.Optimizer",
    "ngd.optim.SGD",
    "ngd.optim.Adam",
    "ngd.optim.AdamW",
    "ngd.optim.cosine",
    "ngd.optim.warm_up",
    "ngd.optim.clip_by_global_norm",
    "ngd.data.Sampler",
    "ngd.data.Loader",
    "ngd.data.Arrays",
    "ngd.train.Trainer",
    "ngd.checkpoint.save",
    "ngd.checkpoint.load",
]
"""The 60 most used names. Their docstrings have parameters, shapes and an example."""

WITHOUT_PARAMETERS = {
    "ngd.Group": "ngd.init returns it",
    "ngd.Work": "async_op=True returns it",
    "ngd.Variable": "ngd.variable makes it",
    "ngd.nn.Module": "its subclasses have parameters",
    "ngd.nn.ReLU": "it takes none",
    "ngd.barrier": "",
    "ngd.profile": "it takes none",
}
"""Names whose docstring needs no section of parameters, with the reason."""

WITHOUT_ARRAYS = {
    "ngd.init",
    "ngd.barrier",
    "ngd.broadcast_variables",
    "ngd.make_mesh",
    "ngd.Group",
    "ngd.Mesh",
    "ngd.profile",
    "ngd.timeline",
    "ngd.nn.training",
    "ngd.nn.Random",
    "ngd.nn.ModuleList",
    "ngd.optim.Optimizer",
    "ngd.optim.SGD",
    "ngd.optim.Adam",
    "ngd.optim.AdamW",
    "ngd.optim.cosine",
    "ngd.optim.warm_up",
    "ngd.data.Sampler",
    "ngd.data.Loader",
    "ngd.train.Trainer",
}
"""Names that take no arrays, so that their docstring has no shape."""

SHAPE = re.compile(r"\[[^\]`]*\]|\bshapes?\b|\bscalar\b", re.IGNORECASE)


def module_names(module: ModuleType) -> list[str]:
    """Return the public names of a module."""
    if module.__name__ == "ngd.errors":
        kinds = [o for o in vars(module).values() if inspect.isclass(o)]
        return [kind.__name__ for kind in kinds if kind.__module__ == "ngd.errors"]
    return list(module.__all__)


def names_in(path: Path) -> list[str]:
    """Return `__all__` of a file, without an import."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise AssertionError(f"{path}: expected a literal __all__")


def look_up(name: str) -> Any:
    """Return the object of a dotted name."""
    module, _, key = name.rpartition(".")
    return getattr(importlib.import_module(module), key)


def is_listed(name: str, value: Any) -> bool:
    """Return if a page has an entry, or names a module, a number or a dtype in its text."""
    has_docstring = callable(value) and not isinstance(value, ModuleType)
    return name in ENTRIES or (not has_docstring and f"`{name}`" in TEXT)


@pytest.mark.parametrize("name", [*MODULES, "ngd.errors"])
def test_each_public_name_is_on_a_page(name: str) -> None:
    module = importlib.import_module(name)
    missing = [
        f"{name}.{key}"
        for key in module_names(module)
        if not is_listed(f"{name}.{key}", getattr(module, key))
    ]
    if name == "ngd.metrics":  # the page lists its internal names in a sentence
        missing = [each for each in missing if f"`{each}`" not in TEXT]
    assert not missing, f"docs/api has no `::: NAME` for {', '.join(missing)}"


@pytest.mark.parametrize("path", BRIDGES)
def test_each_name_of_a_bridge_is_on_a_page(path: str) -> None:
    names = {f"{BRIDGES[path]}.{key}" for key in names_in(ROOT / "python" / "ngd" / path)}
    assert names - OF_THE_FRAMEWORK <= ENTRIES


def test_each_entry_is_a_name_of_ngd() -> None:
    for name in sorted(ENTRIES):
        module = name.rpartition(".")[0]
        if not module.startswith((*BRIDGES.values(), "ngd.horovod")):
            assert look_up(name) is not None


def test_each_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in PAGES.glob("*.md") if f"api/{page.name}" not in navigation] == []


def test_the_site_separates_parameters_that_share_a_description() -> None:
    pytest.importorskip("griffe", reason="only the site needs it")
    separated = runpy.run_path(str(ROOT / "docs" / "separate_parameters.py"))["separated"]
    text = "First.\n\nParameters\n----------\na\n    A.\nb, c : int\n    Text, text.\n"
    text += "\nReturns\n-------\nx, y\n    Two."
    expected = text.replace("b, c : int", "b : int\n    Text, text.\nc : int")
    assert separated(text) == expected


def test_each_class_of_nn_has_an_example() -> None:
    for key in nn.__all__:
        if inspect.isclass(look_up(f"ngd.nn.{key}")):
            text = inspect.getdoc(look_up(f"ngd.nn.{key}")) or ""
            assert ">>> " in text, key


def test_there_are_sixty_most_used_names() -> None:
    assert len(set(MOST_USED)) == len(MOST_USED) == 60


@pytest.mark.parametrize("name", MOST_USED)
def test_the_most_used_names_have_parameters_shapes_and_an_example(name: str) -> None:
    text = inspect.getdoc(look_up(name)) or ""
    assert text.split("\n")[0].endswith("."), "the first line is a sentence"
    assert "\nExamples\n--------\n" in text
    assert ">>> " in text
    if name not in WITHOUT_PARAMETERS:
        assert "\nParameters\n----------\n" in text
    if name not in WITHOUT_ARRAYS:
        assert SHAPE.search(text.partition("\nExamples\n")[0]), "the docstring names no shape"


def with_own_members(cls: type) -> list[Any]:
    """Return a class with its public methods and properties that have docstrings of their own.

    The ops that classes contain are not among them: tests/ops/ runs their examples.
    """
    inside = [vars(cls)[key] for key in vars(cls) if not key.startswith("_")]
    inside = [each for each in inside if getattr(each, "__func__", each) not in PUBLIC.values()]
    return [cls, *(each for each in inside if callable(each) or isinstance(each, property))]


def docstrings() -> dict[str, str]:
    """Return the docstrings with examples of all entries, and of their methods."""
    examples = {}
    for name in sorted(ENTRIES):
        if name.startswith((*BRIDGES.values(), "ngd.horovod", "ngd.kvstore")):
            continue
        value = look_up(name)
        for each in with_own_members(value) if inspect.isclass(value) else [value]:
            text = inspect.getdoc(each) or ""
            if ">>> " in text:
                key = name if each is value else f"{name}.{getattr(each, '__name__', 'property')}"
                examples[key] = text
    return examples


EXAMPLES = docstrings()


def names_for_examples(folder: Path) -> dict[str, Any]:
    """Return the variables that the examples of docstrings may use."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = ngd.placeholder("x", (2, 4)), ngd.placeholder("y", (2,), ngd.int64)
    optimizer = optim.SGD(0.1, name="examples")
    images, labels = np.ones((2, 4), np.float32), np.zeros(2, np.int64)
    return {
        "ngd": ngd,
        "np": np,
        "nn": nn,
        "ops": ops,
        "optim": optim,
        "AdamW": optim.AdamW,
        "ParameterGroup": optim.ParameterGroup,
        "is_vector": optim.is_vector,
        "model": model,
        "parameters": model.parameters(),
        "optimizer": optimizer,
        "x": x,
        "y": y,
        "loss": ops.mean(ops.softmax_cross_entropy(model(x), y)),
        "images": images,
        "labels": labels,
        "folder": folder,
        "features": np.ones((2, 4), np.float32),
        "weights": np.ones((4, 3), np.float32),
        "read_images": lambda folder: images,
    }


@pytest.mark.parametrize("name", sorted(EXAMPLES))
@pytest.mark.filterwarnings("ignore::ngd.errors.UpdatesWarning")
@pytest.mark.filterwarnings("ignore::ngd.errors.PrecisionWarning")  # for CPUs without float16
def test_the_examples_of_a_docstring_run(name: str, tmp_path: Path) -> None:
    text = EXAMPLES[name]
    parsed = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    names = names_for_examples(tmp_path)
    checker = doctest.OutputChecker()
    try:
        for example in parsed.examples:
            got = run(example.source, names)
            if example.want:
                flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
                assert checker.check_output(example.want, got, flags), (example.source, got)
    finally:
        ngd.shutdown()


def run(source: str, names: dict[str, Any]) -> str:
    """Run one example; return its output, or the representation of its value."""
    printed: list[str] = []
    names["print"] = lambda *values: printed.append(" ".join(map(str, values)) + "\n")
    try:
        code = compile(source.strip(), "<example>", "eval")
    except SyntaxError:
        exec(compile(source, "<example>", "exec"), names)
        return "".join(printed)
    value = eval(code, names)
    return "".join(printed) + ("" if value is None else f"{value!r}\n")


BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {page.name: BLOCK.findall(page.read_text()) for page in sorted(PAGES.glob("*.md"))}


@pytest.mark.parametrize("page", [name for name, blocks in BLOCKS.items() if blocks])
def test_the_programs_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    try:
        for block in BLOCKS[page]:
            exec(compile(block, page, "exec"), names)
    finally:
        ngd.shutdown()
