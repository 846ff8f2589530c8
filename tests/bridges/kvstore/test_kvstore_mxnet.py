# SPDX-License-Identifier: Apache-2.0
"""Compare stores for MXNet with those of MXNet, call by call and in training with its Trainer."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ngd
from tests.bridges.kvstore import kvstore_calls
from tests.support import harness
from tests.support.paths import ROOT

if importlib.util.find_spec("mxnet") is None:
    pytest.skip("needs MXNet 1.9.1", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MXNet's own warnings about deprecated names
    import ngd.kvstore.mxnet as kvstore

    import mxnet as mx  # isort: skip

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TOLERANCE = 1e-5
STEPS, BATCH = 20, 64


def mxnet_array(values: Any) -> Any:
    return mx.nd.array(values, dtype=values.dtype)


def calls(store: Any, seed: int, how: str, count: int) -> list[Any]:
    kvstore_calls.prepare(store, how)
    return kvstore_calls.Calls(store, mxnet_array, seed, how).run(count)


@pytest.mark.parametrize("how", kvstore_calls.HOWS)
@pytest.mark.parametrize("seed", [1, 2])
def test_random_calls_equal_the_local_store_of_mxnet(how: str, seed: int) -> None:
    name = "device" if how == "2bit" else "local"
    theirs = calls(mx.kv.create(name), seed, how, 120)
    assert calls(kvstore.create(name), seed, how, 120) == theirs
    assert 5 <= theirs.count("error") <= 40


def run_worker(seed: int, how: str, count: int) -> list[Any]:
    store = mx.kv.create("ngd")
    kvstore_calls.prepare(store, how)
    return kvstore_calls.Calls(store, mxnet_array, seed, how).run(count, wrong=0.0)


def run_mxnet_workers(seed: int, how: str, count: int, folder: Path) -> list[Any]:
    """Return the results of the two workers of MXNet's dist_sync, with a server and a scheduler.

    A worker that has waited for another one does not end by itself, so all are killed.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    variables = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(port)}
    variables |= {"DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": "2", "OMP_NUM_THREADS": "1"}
    begin = "import sys, numpy; numpy.bool = bool; "
    work = f"sys.argv = {['', str(seed), str(count), how, str(folder)]}; "
    work += f"sys.path.insert(0, {str(ROOT)!r}); "
    work += "from tests.bridges.kvstore import kvstore_calls; kvstore_calls.main()"
    roles = {"scheduler": "import mxnet", "server": "import mxnet", "worker": work}
    files = [folder / f"{rank}.json" for rank in range(2)]
    with contextlib.ExitStack() as ends:
        for role in ("scheduler", "server", "worker", "worker"):
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", begin + roles[role]],
                env={**os.environ, **variables, "DMLC_ROLE": role},
                start_new_session=True,
            )
            ends.callback(process.wait)
            ends.callback(process.kill)
        limit = time.monotonic() + 90
        while not all(file.exists() for file in files):
            assert time.monotonic() < limit, "MXNet's workers have not ended in 90 s"
            time.sleep(0.05)
    return [json.loads(file.read_text()) for file in files]


@harness.needs_ranks
@pytest.mark.parametrize("how", ["sum", "float32", "sgd", "adam", "2bit"])
def test_random_calls_equal_dist_sync_of_mxnet(how: str, tmp_path: Path) -> None:
    theirs = run_mxnet_workers(2, how, 170, tmp_path)
    arguments = {"seed": 2, "how": how, "count": 170}
    ours = [each.value for each in harness.run(run_worker, ranks=2, arguments=arguments)]
    assert len(ours[0]) == len(theirs[0]) >= 170
    for mine, other in zip(ours, theirs, strict=True):
        for i, (a, b) in enumerate(zip(mine, other, strict=True)):
            check_equal(a, b, i)


def check_equal(a: Any, b: Any, i: int) -> None:
    """Check that results are equal, except for the rounding of another order of summation."""
    assert a[0] == b[0], i
    for (dtype, x), (other, y) in zip(a[1], b[1], strict=True):
        assert dtype == other, i
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7, err_msg=f"call {i}")


def train(optimizer: str, on_store: bool, how: str = "ngd") -> list[Any]:
    """Return the weights after 20 steps on digits, with one global batch over all ranks."""
    from sklearn.datasets import load_digits

    world = ngd.init()
    mx.random.seed(0)  # a Trainer broadcasts rank 0's weights only after the first gradient
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32"), labels.astype("float32")
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(48, activation="relu"), mx.gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    options = {"learning_rate": 0.1 if optimizer == "sgd" else 0.003}
    options |= {"momentum": 0.9} if optimizer == "sgd" else {}
    store = how if how == "ngd" else kvstore.create(how)
    trainer = mx.gluon.Trainer(
        net.collect_params(), optimizer, options, kvstore=store, update_on_kvstore=on_store
    )
    mine = BATCH // world.size
    for step in range(STEPS):
        begin = step * BATCH + world.rank * mine
        x = mx.nd.array(images[begin : begin + mine])
        y = mx.nd.array(labels[begin : begin + mine])
        with mx.autograd.record():
            loss = loss_of(net(x), y)
        loss.backward()
        trainer.step(BATCH)
    weights = [parameter.data().asnumpy().tolist() for parameter in net.collect_params().values()]
    if how == "dist_async":
        trainer._kvstore.close()
    return weights


@harness.needs_ranks
@pytest.mark.parametrize("on_store", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_two_ranks_train_as_one_with_the_global_batch(optimizer: str, on_store: bool) -> None:
    arguments = {"optimizer": optimizer, "on_store": on_store}
    (alone,) = harness.run(train, ranks=1, arguments=arguments)
    both = harness.run(train, ranks=2, arguments=arguments)
    assert both[0].value == both[1].value
    for one, two in zip(alone.value, both[0].value, strict=True):
        np.testing.assert_allclose(two, one, rtol=TOLERANCE, atol=TOLERANCE)


@harness.needs_ranks
def test_a_trainer_trains_over_dist_async() -> None:
    """One rank over dist_async equals a local store. Two ranks give finite weights."""
    arguments = {"optimizer": "sgd", "on_store": True}
    (alone,) = harness.run(train, ranks=1, arguments={**arguments, "how": "dist_async"})
    (local,) = harness.run(train, ranks=1, arguments={**arguments, "how": "dist_sync"})
    assert alone.value == local.value
    for each in harness.run(train, ranks=2, arguments={**arguments, "how": "dist_async"}):
        assert all(np.isfinite(value).all() for value in each.value)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # MXNet's open files
def test_optimizer_states_can_be_loaded_by_mxnet(tmp_path: Path) -> None:
    path = str(tmp_path / "states")
    gradient, weights = mx.nd.array([1.0, -2.0, 0.5]), []
    ours, theirs = kvstore.create("local"), mx.kv.create("local")
    for store in (ours, theirs):
        store.init(0, mx.nd.ones(3))
        store.set_optimizer(mx.optimizer.Adam(learning_rate=0.1))
        store.push(0, gradient)
    ours.save_optimizer_states(path, dump_optimizer=True)
    theirs.load_optimizer_states(path)
    for store in (ours, theirs):
        out = mx.nd.zeros(3)
        store.pushpull(0, gradient, out=out)
        weights.append(out.asnumpy())
    np.testing.assert_array_equal(*weights)
    assert ours._updater.optimizer.learning_rate == 0.1


def test_row_sparse_pull_equals_mxnet() -> None:
    values = mx.nd.array(np.arange(12).reshape(4, 3))
    rows = [mx.nd.array([3, 0, 3], dtype="int64"), mx.nd.array([1], dtype="int64")]
    results = []
    for store in (kvstore.create("local"), mx.kv.create("local")):
        store.init("x", values.tostype("row_sparse"))
        outs = [mx.nd.sparse.zeros("row_sparse", (4, 3)) for _ in range(2)]
        store.row_sparse_pull("x", out=outs, row_ids=rows)
        results.append([out.asnumpy() for out in outs])
    np.testing.assert_array_equal(*results)


def test_memory_is_shared_and_sparse_arrays_raise() -> None:
    array = mx.nd.zeros((2, 3))
    kvstore.writable(array)[1] = 7
    assert array.asnumpy().tolist() == [[0, 0, 0], [7, 7, 7]]
    store = kvstore.create("local")
    store.init("x", array)
    with pytest.raises(TypeError, match="dense arrays of MXNet"):
        store.pull("x", out=mx.nd.sparse.zeros("row_sparse", (2, 3)))


def test_an_updater_gets_arrays_of_mxnet() -> None:
    store = kvstore.create("local")
    store.init("x", mx.nd.ones(3))
    store.set_updater(kvstore_calls.add_twice)
    out = mx.nd.zeros(3)
    store.pushpull("x", mx.nd.ones(3), out=out)
    assert out.asnumpy().tolist() == [3, 3, 3]


def run_page() -> None:
    """Run the programs of docs/mxnet.md."""
    text = (ROOT / "docs" / "mxnet.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, {})


@harness.needs_ranks
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_programs_of_the_page_run(ranks: int) -> None:
    harness.run(run_page, ranks=ranks)
