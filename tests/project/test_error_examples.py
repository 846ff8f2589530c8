# SPDX-License-Identifier: Apache-2.0
"""Tests that the example messages of docs/errors.md and docs/troubleshooting.md are real ones."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

import ngd

DOCS: Final = Path(__file__).parents[2] / "docs"
LAUNCH: Final = ["-m", "ngd.launch", "-n", "2", "--no-prefix"]
SCRIPTS: Final = {
    "ShapeError": """
import ngd
from ngd import nn

x = ngd.placeholder("x", (4, 16))
y = nn.Linear(17, 8)(x)
""",
    "DTypeError": """
import ngd
from ngd import ops

q = ngd.placeholder("q", (2, 4, 8, 16))
mask = ngd.placeholder("mask", (8, 8), "int64")
y = ops.attention(q, q, q, mask=mask)
""",
    "GradientError": """
import ngd
from ngd import ops

w, v = ngd.variable("w", [1.0, 2.0]), ngd.variable("v", [1.0, 2.0])
gradients = ngd.grad(ops.sum(w), [w, v])
""",
    "CompileError": """
import ngd

x, y = ngd.placeholder("x", (3,)), ngd.placeholder("y", (3,))
step = ngd.compile([x], [x + y])
""",
    "PoisonedVariableError": """
import os
import numpy as np
import ngd

os.environ["NGD_CHECK_FINITE"] = "1"
w, x = ngd.variable("w", np.zeros(3)), ngd.placeholder("x", (3,), "float64")
step = ngd.compile([x], [], {w: w / x})
try:
    step(np.zeros(3))
except ngd.errors.NotFiniteError:
    w.numpy()
""",
    "BusyError": """
import threading
import numpy as np
import ngd

w = ngd.variable("w", np.zeros((64, 64)))
y = w
for _ in range(20):
    y = ngd.ops.tanh(y @ w)
step = ngd.compile([], [], {w: y})
done = []


def repeat():
    while not done:
        step()


thread = threading.Thread(target=repeat)
thread.start()
try:
    for _ in range(100_000):
        w.numpy()
finally:
    done.append(True)
    thread.join()
""",
    "NotFiniteError": """
import os
import numpy as np
import ngd

os.environ["NGD_CHECK_FINITE"] = "1"
x = ngd.placeholder("x", (2,))
step = ngd.compile([x], [ngd.ops.log(x)])
step(np.array([1, -1], np.float32))
""",
    "OutOfRangeError": """
import numpy as np
import ngd
from ngd import ops

table = ngd.variable("table", np.zeros((4, 8)))
tokens = ngd.placeholder("tokens", (2,), "int64")
step = ngd.compile([tokens], [ops.embedding(tokens, table)])
step(np.array([1, 7]))
""",
    "NotMemberError": """
import numpy as np
import ngd

group = ngd.init().split(color=None)
ngd.all_reduce(np.ones(3), op="sum", group=group)
""",
    "InitError": """
import os
import ngd

os.environ["NGD_EXPECT_SIZE"] = "4"
ngd.init()
""",
    "WorkerError": """
import os
from ngd import data


class Source:
    def __len__(self):
        return 8

    def __getitem__(self, indices):
        os._exit(3)


if __name__ == "__main__":
    sampler = data.Sampler(8, 4, rank=0, size=1)
    with data.Loader(Source(), sampler, num_workers=1) as loader:
        next(iter(loader))
""",
    "UnevenBatchWarning": """
import numpy as np
from ngd import data

sampler = data.Sampler(20, 5, rank=0, size=2)
loader = data.Loader(data.Arrays(np.arange(20)), sampler)
for (x,) in loader:
    pass
""",
    "TypeError": """
import ngd
from ngd import ops

x = ngd.placeholder("x", (3, 2))
y = ops.sum(x, dim=1)
""",
    "ValueError": """
import numpy as np
import ngd

ngd.all_reduce(np.ones(3), op="average")
""",
    "UpdatesWarning": """
import ngd
from ngd import nn, ops, optim

model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))
x = ngd.placeholder("x", (8, 4))
with nn.training(nn.Random(seed=1)) as state:
    loss = ops.mean(model(x) ** 2)
updates = optim.SGD(0.1).minimize(loss, model.parameters())
step = ngd.compile([x], [loss], updates)
""",
    "EnvironmentVariableWarning": """
import os
import ngd

os.environ["NGD_TREADS"] = "2"
ngd.init()
""",
    "EqualModelsWarning": """
import ngd
from ngd import nn, ops, optim

first, second = nn.Linear(4, 4), nn.Linear(4, 4)
x = ngd.placeholder("x", (8, 4))
loss = ops.mean((first(x) + second(x)) ** 2)
updates = optim.SGD(0.1).minimize(loss, [first.parameters(), second.parameters()])
step = ngd.compile([x], [loss], updates)
""",
    "PrecisionWarning": """
import os

os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
import ngd

x, w = ngd.placeholder("x", (4, 8)), ngd.placeholder("w", (8, 8))
step = ngd.compile([x, w], [x @ w], precision="bfloat16")
""",
    "PromotionWarning": """
import numpy as np
import ngd

scores = ngd.placeholder("scores", (8, 4))
step = ngd.compile([scores], [scores / np.sqrt(4.0)])
""",
    "RetraceWarning": """
import numpy as np
import ngd


@ngd.function
def scaled(x, n):
    return x * n


for number in range(20):
    scaled(np.ones(3), number)
""",
}
SCRIPTS_OF_TWO_RANKS: Final = {
    "VaryingVariableWarning": """
import numpy as np
import ngd
from ngd import ops

ngd.init()
w, x = ngd.variable("w", np.zeros(3)), ngd.placeholder("x", (3,), "float64")
loss = ops.all_reduce(ops.sum(w), op="mean")
step = ngd.compile([x], [loss], {w: w - 0.1 * x})
""",
    "VariableMismatchError": """
import numpy as np
import ngd
from ngd import ops, optim

rank = ngd.init().rank
w = ngd.variable("w", np.full(3, rank, "float32"))
loss = ops.mean(w**2)
step = ngd.compile([], [loss], optim.SGD(0.1).minimize(loss, [w]))
step()
""",
    "CollectiveMismatchError": """
import numpy as np
import ngd

if ngd.init().rank == 0:
    ngd.all_reduce(np.ones(1000), op="sum")
else:
    ngd.all_reduce(np.ones(999), op="mean")
""",
    "CollectiveMismatchError 2": """
import numpy as np
import ngd
from ngd import ops

rank, x = ngd.init().rank, ngd.placeholder("x", (4,))

if rank == 0:
    y = ops.all_reduce(x, op="sum")
else:
    y = ops.all_reduce(x, op="mean")
step = ngd.compile([x], [y])
step(np.ones(4, np.float32))
""",
    "CollectiveTimeoutError": """
import os
import time
import numpy as np
import ngd

ngd.init()
os.environ["NGD_TIMEOUT"] = "2"
ngd.shutdown()
if ngd.init().rank == 1:
    time.sleep(4)
ngd.all_reduce(np.ones(1000), op="mean")
""",
    "RankLostError": """
import os
import time
import numpy as np
import ngd

if ngd.init().rank == 1:
    time.sleep(0.5)
    os.kill(os.getpid(), 9)
ngd.all_reduce(np.ones(1000), op="mean")
""",
    "RemoteRankError": """
import numpy as np
import ngd

if ngd.init().rank == 1:
    raise ValueError("shard 7 is damaged")
ngd.all_reduce(np.ones(1000), op="mean")
""",
    "GroupClosedError": """
import time
import numpy as np
import ngd

rank = ngd.init().rank
for number in range(5):
    try:
        if rank == 1:
            time.sleep(0.5)
            raise ValueError("shard 7 is damaged")
        ngd.all_reduce(np.ones(1000), op="mean")
    except ngd.errors.RemoteRankError:
        pass
""",
    "MemoryError": """
import os
import resource
import ngd

if os.environ["RANK"] == "1":
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
ngd.init()
""",
}


def normalized(text: str) -> str:
    """Join wrapped lines, and replace folders, process numbers and sizes, which differ."""
    text = re.sub(r'[^\s"(]*train\.py', "train.py", text)
    text = re.sub(r"(process|--pid) \d+", r"\1 N", text)
    return " ".join(re.sub(r"\d+ MiB", "N MiB", text).split())


def examples(page: str) -> dict[str, list[str]]:
    """Return the example messages of a page by class."""
    messages: dict[str, list[str]] = {}
    for block in re.findall(r"^```text\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S):
        begin = re.search(r"^(?:ngd\.errors\.)?(\w+(?:Error|Warning)): ", block, re.M)
        if begin is not None:
            messages.setdefault(begin[1], []).append(normalized(block[begin.start() :]))
    return messages


def output_of(name: str, folder: Path) -> str:
    """Run a script, and return its standard error output."""
    script = {**SCRIPTS, **SCRIPTS_OF_TWO_RANKS}[name].lstrip("\n")
    (folder / "train.py").write_text(script)
    arguments = [*(LAUNCH if name in SCRIPTS_OF_TWO_RANKS else []), "train.py"]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stderr


def check(name: str, folder: Path) -> None:
    kind, _, number = name.partition(" ")
    example = examples("errors.md")[kind][int(number or 1) - 1]
    assert example in normalized(output_of(name, folder))
    elsewhere = examples("troubleshooting.md").get(name)
    assert elsewhere is None or example in elsewhere


def test_each_example_has_a_script() -> None:
    scripts = Counter(name.partition(" ")[0] for name in (*SCRIPTS, *SCRIPTS_OF_TWO_RANKS))
    numbers = {kind: len(blocks) for kind, blocks in examples("errors.md").items()}
    assert {kind: numbers.get(kind) for kind in scripts} == scripts


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_an_example_is_the_message_of_its_script(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.skipif(ngd.build_info()["mode"] == "OFF", reason="built without collectives")
@pytest.mark.parametrize("name", sorted(SCRIPTS_OF_TWO_RANKS))
def test_an_example_of_two_ranks_is_the_message_of_its_script(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)
