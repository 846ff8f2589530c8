# SPDX-License-Identifier: Apache-2.0
"""Tests of Horovod's API for TensorFlow and Keras: ranks train as one process does."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import digits, harness

# The import of Keras needs a backend. Only the ranks import it, and choose theirs.
if importlib.util.find_spec("keras") is None:
    pytest.skip("Keras is not installed", allow_module_level=True)

pytestmark = harness.needs_ranks
STEPS, BATCH = 20, 6
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


def backends_of_keras() -> list[Any]:
    """Return the backends of Keras as parameters. A backend that is not installed is skipped."""
    backends = []
    for name in ("tensorflow", "jax", "torch"):
        try:
            __import__(name)
            marks: Any = ()
        except ImportError:
            marks = pytest.mark.skip(reason=f"{name} is not installed")
        backends.append(pytest.param(name, marks=marks))
    return backends


def run(program: Any, ranks: int, backend: str = "tensorflow", **arguments: Any) -> list[Any]:
    env = {**QUIET, "KERAS_BACKEND": backend}
    outcomes = harness.run(program, ranks, arguments=arguments, env=env, seconds=200)
    return [outcome.value for outcome in outcomes]


def largest_difference(a: Any, b: Any) -> float:
    """Return the largest difference of two lists of arrays, relative to the largest value."""
    import numpy as np

    pairs = [(np.asarray(p), np.asarray(q)) for p, q in zip(a, b, strict=True)]
    return max(float(np.abs(p - q).max() / np.abs(q).max()) for p, q in pairs)


def network(seed: int) -> Any:
    import keras

    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(300, activation="tanh"), keras.layers.Dense(300, "relu")]
    outputs = keras.layers.Dense(digits.CLASSES)
    return keras.Sequential([keras.Input((digits.FEATURES,)), *layers, outputs])


def train_with_a_tape() -> float:
    import tensorflow as tf

    import ngd.horovod.tensorflow as hvd

    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    model, reference = network(rank), network(0)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    mine, reference_optimizer = tf.keras.optimizers.SGD(0.1, 0.9), tf.keras.optimizers.SGD(0.1, 0.9)

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        mine.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    hvd.broadcast_variables(model.variables, root_rank=0)
    for i in range(STEPS):
        x, y = digits.batch(i, size * BATCH)
        step(tf.constant(x[rank * BATCH :][:BATCH]), tf.constant(y[rank * BATCH :][:BATCH]))
        with tf.GradientTape() as tape:
            loss = loss_of(y, reference(x, training=True))
        gradients = tape.gradient(loss, reference.trainable_variables)
        reference_optimizer.apply_gradients(
            zip(gradients, reference.trainable_variables, strict=True)
        )
    return largest_difference(model.get_weights(), reference.get_weights())


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_gradient_tape_trains_as_one_process(ranks: int) -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    assert all(difference < 1e-5 for difference in run(train_with_a_tape, ranks))


def fit(compression: str) -> list[Any]:
    import keras
    import numpy as np

    import ngd.horovod.keras as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    model, reference = network(rank), network(0)
    batches = [digits.batch(i, size * BATCH) for i in range(STEPS)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1, 0.9), compression=getattr(hvd.Compression, compression)
    )
    model.compile(optimizer, loss, metrics=["accuracy"])
    reference.compile(keras.optimizers.SGD(0.1, 0.9), loss, metrics=["accuracy"])
    x = np.concatenate([x[rank * BATCH :][:BATCH] for x, _ in batches])
    y = np.concatenate([y[rank * BATCH :][:BATCH] for _, y in batches])
    calls = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    how = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    mine = model.fit(x, y, callbacks=calls, **how)
    all_data = [np.concatenate([each[i] for each in batches]) for i in range(2)]
    theirs = reference.fit(*all_data, **{**how, "batch_size": size * BATCH})
    metrics = [[h.history[name][0] for name in ("loss", "accuracy")] for h in (mine, theirs)]
    return [largest_difference(model.get_weights(), reference.get_weights()), *metrics]


@pytest.mark.parametrize("backend", backends_of_keras())
@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_fit_on_each_backend(backend: str, compression: str) -> None:
    for difference, mine, theirs in run(fit, 2, backend, compression=compression):
        if compression == "none":
            assert difference < 1e-5
            assert mine == pytest.approx(theirs, rel=1e-4)
        else:
            assert 1e-6 < difference < 0.3


def reduce_tensors() -> list[Any]:
    import numpy as np
    import tensorflow as tf

    import ngd.horovod.tensorflow as hvd

    hvd.init()
    r, n = hvd.rank(), hvd.size()
    x = tf.Variable([1.0, 1.0])
    results: list[Any] = []
    for call in (
        lambda: hvd.allreduce(x) * (r + 1),
        lambda: hvd.allreduce(x, op=hvd.Sum, postscale_factor=2.0) * (r + 1),
        lambda: hvd.allgather(x) * tf.range(1.0, 2 * n + 1) * (r + 1.0),
        lambda: hvd.broadcast(x, 1) * (r + 1.0),
        lambda: hvd.alltoall(x, [1, 1])[0] * tf.constant([1.0, 10.0]) * (r + 1.0),
        lambda: hvd.reducescatter(x) * (r + 1.0),
    ):
        for function in (call, tf.function(call)):
            with tf.GradientTape() as tape:
                total = tf.reduce_sum(function())
            results.append(tape.gradient(total, x).numpy().tolist())
    rows = tf.IndexedSlices(tf.ones((1, 1)) * (r + 1), tf.constant([r]), tf.constant([3, 1]))
    results.append(tf.convert_to_tensor(hvd.allreduce(rows)).numpy().ravel().tolist())
    half = tf.constant([0.5, 1.0], tf.bfloat16) * r
    results.append(hvd.allreduce(half, op=hvd.Sum).numpy().astype(np.float32).tolist())
    results.append(hvd.alltoall(tf.range(4) + 10 * r).numpy().tolist())
    results.append([int(hvd.rank_op()), int(hvd.size_op())])
    return results


def test_collectives_of_tensors_have_gradients() -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    first, second = run(reduce_tensors, 2)
    expected: Any = [
        ([1.5, 1.5], [1.5, 1.5]),
        ([6.0, 6.0], [6.0, 6.0]),
        ([1.5, 3.0], [4.5, 6.0]),  # averages, as in Horovod
        ([0.0, 0.0], [1.5, 1.5]),
        ([1.0, 2.0], [10.0, 20.0]),
        ([1.0, 2.0], [1.0, 2.0]),
    ]
    for i, (of_first, of_second) in enumerate(expected):
        assert first[2 * i] == first[2 * i + 1] == of_first
        assert second[2 * i] == second[2 * i + 1] == of_second
    assert first[12] == second[12] == [0.5, 1.0, 0.0]
    assert first[13] == second[13] == [0.5, 1.0]
    assert (first[14], second[14]) == ([0, 1, 10, 11], [2, 3, 12, 13])
    assert (first[15], second[15]) == ([0, 2], [1, 2])


def train_with_schedules() -> list[Any]:
    import keras
    import numpy as np

    import ngd.horovod.keras as hvd

    hvd.init()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.4)), "mse")
    rates: list[float] = []

    class Rates(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            hvd.callbacks.sync_jax_state(model)
            rates.append(float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)))

    calls = [
        hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2),
        hvd.callbacks.LearningRateScheduleCallback(0.4, 0.5, start_epoch=3),
        Rates(),
    ]
    x = np.zeros((4, 1), np.float32)
    model.fit(x, x, batch_size=2, epochs=5, verbose=0, callbacks=calls)
    return rates


@pytest.mark.parametrize("backend", backends_of_keras())
def test_callbacks_set_the_learning_rate(backend: str) -> None:
    # From 0.2 (half of 0.4, for two ranks) to 0.4 in four batches; then constant, then halved.
    for rates in run(train_with_schedules, 2, backend):
        assert rates[:6] == pytest.approx([0.25, 0.3, 0.35, 0.4, 0.4, 0.4])
        assert rates[6:] == pytest.approx([0.4, 0.4, 0.2, 0.2])


def save_and_load(path: str) -> list[Any]:
    import keras

    import ngd.horovod.keras as hvd

    hvd.init()
    model = network(0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss)
    x, y = digits.batch(0, BATCH)
    model.fit(x, y, verbose=0)
    if hvd.rank() == 0:
        model.save(path)
    hvd.barrier()
    loaded = hvd.load_model(path)
    for each in (model, loaded):
        each.fit(x * (hvd.rank() + 1), y, verbose=0, shuffle=False)
    name = type(keras.models.load_model(path).optimizer).__name__
    return [largest_difference(loaded.get_weights(), model.get_weights()), name]


def test_a_loaded_model_continues_the_training(tmp_path: Any) -> None:
    backend = next(p.values[0] for p in backends_of_keras() if not p.marks)
    for difference, name in run(save_and_load, 2, backend, path=str(tmp_path / "model.keras")):
        assert difference < 1e-5
        assert name == "Adam"


def fit_without_input(half: bool) -> list[Any]:
    """Fit a model without Input, so that the first batch makes the variables.

    Each rank has its own seeds of dropout.
    """
    import keras
    import numpy as np

    import ngd.horovod.keras as hvd

    hvd.init()
    if half:
        keras.config.set_dtype_policy("mixed_float16")
    keras.utils.set_random_seed(hvd.rank())
    layers = [keras.layers.Dense(20, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential([*([keras.Input((4,))] if half else []), *layers])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    x = np.random.default_rng(hvd.rank()).normal(size=(32, 4)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    if half and hvd.rank() == 1:
        y[8:16] = 1e30  # infinite gradients on one rank: all ranks skip the step
    calls = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False, callbacks=calls)
    seeds = [v for v in model.variables if v.name == hvd.callbacks.SEEDS]
    weights = np.concatenate([np.asarray(w, np.float64).ravel() for w in model.get_weights()[:2]])
    return [weights.tolist(), [np.asarray(seed.value).tolist() for seed in seeds]]


@pytest.mark.parametrize("backend", backends_of_keras())
@pytest.mark.parametrize("half", [False, True])
def test_models_built_by_the_first_batch_or_in_float16(backend: str, half: bool) -> None:
    first, second = run(fit_without_input, 2, backend, half=half)
    assert first[0] == second[0]
    assert first[1] != second[1]


def make_bad_optimizers() -> list[str]:
    import keras

    import ngd.horovod.keras as hvd

    hvd.init()
    used = keras.optimizers.SGD()
    used.build([keras.Variable([1.0])])
    wrap = hvd.DistributedOptimizer
    messages = []
    for call in (
        lambda: wrap(keras.optimizers.SGD(), backward_passes_per_step=2),
        lambda: wrap(keras.optimizers.SGD(), op=hvd.Sum, gradient_predivide_factor=2.0),
        lambda: wrap(used),
        lambda: wrap("sgd"),
    ):
        try:
            call()
        except Exception as error:
            messages.append(str(error))
    return messages


def test_errors_of_the_optimizer() -> None:
    backend = next(p.values[0] for p in backends_of_keras() if not p.marks)
    (got,) = run(make_bad_optimizers, 1, backend)
    assert "gradient_accumulation_steps" in got[0]
    assert "expected op=Average" in got[1]
    assert "an optimizer that has not been used" in got[2]
    assert "expected a Keras optimizer; got str" in got[3]
    assert os.environ.get("KERAS_BACKEND", "") in ("", backend)


def run_page() -> list[float]:
    """Run the program of docs/keras.md and return the weights of its layer."""
    text = (Path(__file__).parents[3] / "docs" / "keras.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(block, names)
    return [float(w) for w in names["model"].get_weights()[0].ravel()]


@pytest.mark.parametrize("backend", backends_of_keras())
def test_the_page_runs(backend: str) -> None:
    first, second = run(run_page, 2, backend)
    assert first == second
    assert len(first) == 10
