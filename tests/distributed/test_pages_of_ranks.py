# SPDX-License-Identifier: Apache-2.0
"""Run the Python blocks of README.md and of pages about collectives on ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest
from harness import run

import ngd
from ngd import nn, ops, optim

pytestmark = harness.needs_ranks

ROOT = Path(__file__).parents[2]
FLAGS = re.DOTALL | re.MULTILINE
BLOCK = re.compile(r"^```python\n(.*?)^```$", FLAGS)
SHOWN = r"^\$ ngd run -n {} train\.py\n(.*?)"
SCRIPT = re.compile(r"# (\w+\.py)\n")


def execute(page: str, containing: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the one block of a page that contains this text; what it leaves is in `names`."""
    (block,) = [b for b in BLOCK.findall((ROOT / page).read_text()) if containing in b]
    exec(compile(block, f"{page}: {containing}", "exec"), names)
    return names


def modules() -> dict[str, Any]:
    return {"np": np, "ngd": ngd, "nn": nn, "ops": ops, "optim": optim}


def sharding() -> None:
    names = execute("docs/sharding.md", "kept_once", modules())
    step, w, size = names["step"], names["w"], names["world"].size
    assert names["kept_once"] == (3 * w.type.bytes if size > 1 else 0)
    given = [np.full(n.shape, 1 + names["world"].rank, np.float32) for n in step.graph.inputs]
    losses = [float(step(*given)[0]) for _ in range(20)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_sharding(ranks: int) -> None:
    run(sharding, ranks)


def whole_page(page: str) -> None:
    """Run all blocks of the page except its program."""
    names = modules()
    for number, block in enumerate(BLOCK.findall((ROOT / page).read_text())):
        if not SCRIPT.match(block):
            exec(compile(block, f"{page}, block {number + 1}", "exec"), names)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_readmes_python_runs(ranks: int) -> None:
    run(whole_page, ranks, arguments={"page": "README.md"})


def test_the_collectives_of_the_concepts_run_on_three_ranks() -> None:
    run(whole_page, 3, arguments={"page": "docs/concepts.md"})


def test_the_readmes_program_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text()
    (script,) = [block for block in BLOCK.findall(page) if SCRIPT.match(block)]
    assert script in (ROOT / "docs/index.md").read_text()
    file = tmp_path / "train.py"
    file.write_text(script)
    shown = re.search(rf"{SHOWN.format(1)}{SHOWN.format(2)}^```$", page, FLAGS)
    assert shown is not None
    for ranks, lines in zip((1, 2), shown.groups(), strict=True):
        command = [sys.executable, "-m", "ngd", "run", "-n", str(ranks), str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        printed, expected = (re.findall(r"loss ([\d.]+)", text) for text in (done.stdout, lines))
        assert len(printed) == 5
        # The last digits depend on the SIMD level and on the number of ranks.
        assert [float(x) for x in printed] == pytest.approx([float(x) for x in expected], abs=5e-3)


def eager_page() -> dict[str, Any]:
    world = ngd.init()
    names = execute("docs/collectives.md", "everyones =", modules())
    gathered = list(names["everyones"].shape)
    gradient = np.full(2, world.rank, np.float32)
    execute("docs/collectives.md", "work.wait()", names | {"gradient": gradient, "compute": list})
    after_work = gradient.tolist()
    gradient = np.full(2, world.rank, np.float32)
    names |= {"world": world, "gradient": gradient}
    names = execute("docs/collectives.md", "color=", names)
    half, mean = names["half"], names["mean"]
    batches = [np.full(2, 10 * world.rank + i, np.float64) for i in range(1 + world.rank)]
    given = modules() | {"batches": batches, "gradient_of": lambda batch: batch}
    joined = execute("docs/collectives.md", "ngd.join", given)
    return {
        "gathered": gathered,
        "after_work": after_work,
        "half": [half.rank, half.size],
        "mean": mean.tolist(),
        "last": joined["mean"].tolist(),
    }


def test_the_pages_collectives_on_arrays_run() -> None:
    for outcome in run(eager_page, 4):
        value = outcome.value
        assert value["gathered"] == [4000]
        assert value["after_work"] == [1.5, 1.5]
        assert value["half"] == [outcome.rank // 2, 2]
        assert value["mean"] == [1 + outcome.rank % 2] * 2
        assert value["last"] == [33, 33]  # of the fourth batch, which rank 3 alone has


def tensor_parallel(ranks: int) -> list[Any]:
    """The page's gradients, of this rank's parts of the weights."""
    world = ngd.init()
    rng = np.random.default_rng(1)
    whole = {"W0": (5, 8), "b0": (8,), "W1": (8, 3), "b1": (3,)}
    values = {name: rng.normal(size=shape) for name, shape in whole.items()}
    mine = slice(world.rank * 8 // ranks, (world.rank + 1) * 8 // ranks)
    parts = {"W0": np.s_[:, mine], "b0": mine, "W1": np.s_[mine], "b1": np.s_[:]}
    given: dict[str, Any] = {
        name: ngd.variable(name, np.ascontiguousarray(values[name][part]))
        for name, part in parts.items()
    }
    x, labels = rng.normal(size=(4, 5)), rng.integers(0, 3, 4)
    given |= {"x": ngd.constant(x), "labels": ngd.constant(labels)}
    given["mesh"] = ngd.make_mesh((1, ranks), ("data", "model"))
    names = execute("docs/collectives.md", "my columns of W0", modules() | given)
    step = ngd.compile([], [names["loss"], names["gW0"], names["gb0"], names["gW1"], names["gb1"]])
    return [np.asarray(result).tolist() for result in step()]


def test_the_pages_tensor_parallel_gradients_are_those_of_one_rank() -> None:
    (alone,) = run(tensor_parallel, 1, arguments={"ranks": 1})
    loss, g_w0, g_b0, g_w1, g_b1 = map(np.array, alone.value)
    first, second = (o.value for o in run(tensor_parallel, 2, arguments={"ranks": 2}))
    for value in (first, second):
        np.testing.assert_allclose(value[0], loss, rtol=1e-12)
        np.testing.assert_allclose(value[4], g_b1, rtol=1e-10, atol=1e-12)
    pairs = zip(first[1:4], second[1:4], (g_w0, g_b0, g_w1), (1, 0, 0), strict=True)
    for one, other, both, axis in pairs:
        np.testing.assert_allclose(np.concatenate([one, other], axis), both, rtol=1e-10, atol=1e-12)


def pipeline() -> list[float]:
    """The page's two stages, trained for some steps; rank 0 has no loss, only its token."""
    rank = ngd.init().rank
    rng = np.random.default_rng(2)
    x, w, v, y = (rng.normal(size=s).astype("f") for s in ((8, 3), (3, 4), (4, 2), (8, 2)))
    given = {
        "rank": rank,
        "x": ngd.placeholder("x", x.shape),
        "y": ngd.placeholder("y", y.shape),
        "w": ngd.variable("w", w),
        "v": ngd.variable("v", v),
    }
    step = execute("docs/collectives.md", "token =", modules() | given)["step"]
    return [float(np.sum(step(y if rank else x)[0])) for _ in range(20)]


def test_the_pages_two_stages_learn_as_one_network() -> None:
    rng = np.random.default_rng(2)
    x, w, v, y = (rng.normal(size=s) for s in ((8, 3), (3, 4), (4, 2), (8, 2)))
    losses = []
    for _ in range(20):
        h = np.tanh(x @ w)
        error = h @ v - y
        losses.append(float(np.mean(error**2)))
        d = 2 * error / error.size
        w, v = w - 0.1 * x.T @ (d @ v.T * (1 - h**2)), v - 0.1 * h.T @ d
    assert run(pipeline, 2)[1].value == pytest.approx(losses, rel=1e-4)


def divided_layers(limit: float) -> list[list[float]]:
    """The page's loop over layers of which each rank has two columns, and its branch."""
    world = ngd.init()
    mine = slice(2 * world.rank, 2 * world.rank + 2)
    x, firsts, seconds = matrices()
    given = {"x": x, "firsts": firsts[:, :, mine], "seconds": seconds[:, mine]}
    nodes = {k: ngd.constant(np.ascontiguousarray(v)) for k, v in given.items()}
    names = execute("docs/collectives.md", "too_large =", modules() | nodes | {"limit": limit})
    return [r.tolist() for r in ngd.compile([], [names["deep"], names["scaled"]])()]


def matrices() -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.normal(size=shape) for shape in ((2, 4), (3, 4, 6), (3, 6, 4))]


@pytest.mark.parametrize("limit", [0.0, 1e9])
def test_the_pages_layers_are_those_of_one_rank(limit: float) -> None:
    deep, firsts, seconds = matrices()
    for first, second in zip(firsts, seconds, strict=True):
        deep = deep + np.tanh(deep @ first) @ second
    scaled = deep if limit else deep / deep.max()
    for outcome in run(divided_layers, 3, arguments={"limit": limit}):
        for found, wanted in zip(outcome.value, (deep, scaled), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-12)
