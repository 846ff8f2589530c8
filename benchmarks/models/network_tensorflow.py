# SPDX-License-Identifier: Apache-2.0
"""One turn of TensorFlow over ngd.horovod, for turns.py, with networks.resnet50."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from timing import read_case, report

case = read_case()
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402

import ngd.horovod.tensorflow as hvd  # noqa: E402


def normed(x: Any, outputs: int, size: int, stride: int = 1) -> Any:
    """Return a convolution and its batch norm, with the padding of PyTorch."""
    padded = layers.ZeroPadding2D(size // 2)(x) if size > 1 else x
    x = layers.Conv2D(outputs, size, stride, use_bias=False)(padded)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def bottleneck(x: Any, inner: int, stride: int) -> Any:
    """Return a bottleneck with the stride in the middle convolution."""
    around = x
    if stride != 1 or x.shape[-1] != 4 * inner:
        around = normed(x, 4 * inner, 1, stride)
    y = layers.ReLU()(normed(x, inner, 1))
    y = layers.ReLU()(normed(y, inner, 3, stride))
    return layers.ReLU()(layers.Add()([normed(y, 4 * inner, 1), around]))


def resnet50() -> Any:
    """Return ResNet-50 with channels last, TensorFlow's layout on CPUs."""
    images = keras.Input((224, 224, 3))
    x = layers.ReLU()(normed(images, 64, 7, 2))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for inner, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            x = bottleneck(x, inner, stride if block == 0 else 1)
    return keras.Model(images, layers.Dense(1000)(layers.GlobalAveragePooling2D()(x)))


if case.network != "resnet50" or case.precision != "float32":
    raise SystemExit("network_tensorflow.py: expected --network resnet50 in float32")
tf.config.threading.set_intra_op_parallelism_threads(case.threads)
hvd.init()
model = resnet50()
hvd.broadcast_variables(model.variables, root_rank=0)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
random = np.random.default_rng(0)
inputs = tf.constant(random.normal(size=(case.batch, 224, 224, 3)).astype(np.float32))
labels = tf.constant(random.integers(1000, size=case.batch))


@tf.function  # type: ignore[untyped-decorator]
def step() -> Any:
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(inputs, training=True))
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


def steps(count: int) -> None:
    for _ in range(count):
        loss = step()
    loss.numpy()


report(f"ngd.horovod.tensorflow, TensorFlow {tf.__version__}", case, steps)
