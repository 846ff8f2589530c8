# SPDX-License-Identifier: Apache-2.0
"""Run the Python blocks of README.md, of the guides and of pages about collectives on ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import nn, ops, optim
from tests.support import harness
from tests.support.harness import run

pytestmark = harness.needs_ranks

ROOT = Path(__file__).parents[2]
FLAGS = re.DOTALL | re.MULTILINE
BLOCK = re.compile(r"^```python\n(.*?)^```$", FLAGS)
SHOWN = r"^\$ ngd run -n {} train\.py\n(.*?)"
SCRIPT = re.compile(r"# (\w+\.py)\n")


def execute(page: str, containing: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the only block of a page that contains this text. Its variables are added to `names`."""
    (block,) = [b for b in BLOCK.findall((ROOT / page).read_text()) if containing in b]
    exec(compile(block, f"{page}: {containing}", "exec"), names)
    return names


def modules() -> dict[str, Any]:
    return {"np": np, "ngd": ngd, "nn": nn, "ops": ops, "optim": optim}


def sharding() -> None:
    names = run_page("docs/sharding.md")
    step, w, size = names["train_step"], names["w"], ngd.world_size()
    assert names["sharded_bytes"] == (3 * w.type.bytes if size > 1 else 0)
    arrays = [np.full(names[n].shape, 1 + ngd.rank(), np.float32) for n in ("x", "t")]
    losses = [float(step(*arrays)) for _ in range(20)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_sharding(ranks: int) -> None:
    run(sharding, ranks)


def run_blocks(page: str) -> None:
    """Run all blocks of the page except its program."""
    names = modules()
    for number, block in enumerate(BLOCK.findall((ROOT / page).read_text())):
        if not SCRIPT.match(block):
            exec(compile(block, f"{page}, block {number + 1}", "exec"), names)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_readmes_python_runs(ranks: int) -> None:
    run(run_blocks, ranks, arguments={"page": "README.md"})


def test_the_collectives_of_the_concepts_run_on_three_ranks() -> None:
    run(run_blocks, 3, arguments={"page": "docs/concepts.md"})


def test_the_readmes_program_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text()
    (script,) = [block for block in BLOCK.findall(page) if SCRIPT.match(block)]
    assert script in (ROOT / "docs/index.md").read_text()
    file = tmp_path / "train.py"
    file.write_text(script)
    match = re.search(rf"{SHOWN.format(1)}{SHOWN.format(2)}^```$", page, FLAGS)
    assert match is not None
    for ranks, lines in zip((1, 2), match.groups(), strict=True):
        command = [sys.executable, "-m", "ngd", "run", "-n", str(ranks), str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        printed, expected = (re.findall(r"loss ([\d.]+)", text) for text in (done.stdout, lines))
        assert len(printed) == 5
        # The last digits depend on the SIMD level and on the number of ranks.
        assert [float(x) for x in printed] == pytest.approx([float(x) for x in expected], abs=5e-3)


def run_page(page: str, without: str = "only this page") -> dict[str, Any]:
    """Run all blocks of a page in one namespace, except those that contain a text."""
    names: dict[str, Any] = {"__name__": page}
    for block in BLOCK.findall((ROOT / page).read_text()):
        if without not in block:
            exec(compile(block, page, "exec"), names)
    return names


def collectives_page() -> dict[str, Any]:
    names = run_page("docs/collectives.md")
    return {
        "gathered": [*names["gathered"].shape, float(names["gathered"][0])],
        "half": [names["half"].rank, names["half"].size],
        "joined": names["mean"].tolist(),
    }


def test_the_page_of_collectives_runs() -> None:
    for outcome in run(collectives_page, 4):
        value = outcome.value
        assert value["gathered"] == [4000, 1.5]
        assert value["half"] == [outcome.rank // 2, 2]
        assert value["joined"] == [33, 33]  # of the fourth batch, which only rank 3 has


def data_parallel_page() -> list[float]:
    names = run_page("docs/data_parallel.md")
    return [float(names["loss"]), float(np.sum(names["model"].variables()["2.bias"].numpy()))]


def test_the_page_of_data_parallelism_runs() -> None:
    (alone,) = run(data_parallel_page, 1)
    assert alone.value[0] < 0.2
    for outcome in run(data_parallel_page, 2):
        assert outcome.value[0] == pytest.approx(alone.value[0], rel=1e-3)


def model_parallel_page() -> float:
    return float(run_page("docs/model_parallel.md", without="ops.send(")["loss"])


def test_the_page_of_model_parallelism_trains_as_one_rank() -> None:
    (alone,) = run(model_parallel_page, 1)
    assert alone.value < 1
    for outcome in run(model_parallel_page, 4):
        assert outcome.value == pytest.approx(alone.value, rel=1e-9)


def tensor_parallel(ranks: int) -> list[Any]:
    """Compute the gradients of the page, of this rank's shards of the weights."""
    names = run_page("docs/model_parallel.md", without="ops.send(")
    rng = np.random.default_rng(1)
    full_shapes = {"W0": (12, 16), "b0": (16,), "W1": (16, 3), "b1": (3,)}
    values = {name: rng.normal(size=shape) for name, shape in full_shapes.items()}
    mine = np.s_[ngd.rank() * 16 // ranks : (ngd.rank() + 1) * 16 // ranks]
    shards = {"W0": np.s_[:, mine], "b0": mine, "W1": np.s_[mine], "b1": np.s_[:]}
    for name, shard in shards.items():
        names[name].assign(np.ascontiguousarray(values[name][shard]))
    x, labels = rng.normal(size=(4, 12)), rng.integers(0, 3, 4)
    loss, gradients = names["loss_and_gradients"](ngd.constant(x), ngd.constant(labels))
    step = ngd.compile([], [loss, *gradients])
    return [np.asarray(result).tolist() for result in step()]


def test_tensor_parallel_gradients_equal_those_of_one_rank() -> None:
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
    """Train the two stages of the page for some steps. Rank 0 has no loss, only its token."""
    rank = ngd.init().rank
    rng = np.random.default_rng(2)
    x, w, v, y = (rng.normal(size=s).astype("f") for s in ((8, 3), (3, 4), (4, 2), (8, 2)))
    variables = {
        "rank": rank,
        "x": ngd.placeholder("x", x.shape),
        "y": ngd.placeholder("y", y.shape),
        "w": ngd.variable("w", w),
        "v": ngd.variable("v", v),
    }
    step = execute("docs/model_parallel.md", "token =", modules() | variables)["step"]
    return [float(np.sum(step(y if rank else x)[0])) for _ in range(20)]


def test_two_stages_train_as_one_network() -> None:
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


def micro_batches() -> list[float]:
    """Run the two stages of the page with two micro-batches in a step."""
    rank = ngd.init().rank
    rng = np.random.default_rng(2)
    x, w, v, y = (rng.normal(size=s).astype("f") for s in ((8, 3), (3, 4), (4, 2), (8, 2)))
    variables = {
        "parts": [ngd.placeholder(f"x{i}", (4, 3)) for i in range(2)],
        "targets": [ngd.placeholder(f"y{i}", (4, 2)) for i in range(2)],
        "w": ngd.variable("w", w),
        "v": ngd.variable("v", v),
    }
    step = execute("docs/model_parallel.md", "tokens =", modules() | variables)["step"]
    halves = np.split(y if rank else x, 2)
    return [float(np.sum(step(*halves)[0])) for _ in range(20)]


def test_micro_batches_train_as_one_batch() -> None:
    one_batch, parts = run(pipeline, 2)[1].value, run(micro_batches, 2)[1].value
    assert parts == pytest.approx(one_batch, rel=1e-4)


def divided_layers() -> list[float]:
    """Run the loop of the page over layers. Each rank has two columns of each layer."""
    rank = ngd.rank()
    mine = slice(2 * rank, 2 * rank + 2)
    x, firsts, seconds = matrices()
    variables = {"x": x, "firsts": firsts[:, :, mine], "seconds": seconds[:, mine]}
    nodes = {k: ngd.constant(np.ascontiguousarray(v)) for k, v in variables.items()}
    names = execute("docs/model_parallel.md", "def layer", modules() | {"model": ngd.init()})
    return np.ravel(ngd.compile([], names["deep_network"](**nodes))()).tolist()


def matrices() -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.normal(size=shape) for shape in ((2, 4), (3, 4, 6), (3, 6, 4))]


def test_divided_layers_equal_those_of_one_rank() -> None:
    deep, firsts, seconds = matrices()
    for first, second in zip(firsts, seconds, strict=True):
        deep = deep + np.tanh(deep @ first) @ second
    for outcome in run(divided_layers, 3):
        np.testing.assert_allclose(outcome.value, np.ravel(deep), rtol=1e-12)
