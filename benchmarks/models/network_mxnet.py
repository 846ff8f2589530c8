# SPDX-License-Identifier: Apache-2.0
"""One turn of MXNet over ngd's store, for turns.py, with networks.resnet50."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from timing import read_case, report

case = read_case()
os.environ["OMP_NUM_THREADS"] = str(case.threads)

import ngd.kvstore.mxnet  # noqa: E402 F401 I001  # before mxnet, which it makes importable
import mxnet as mx  # noqa: E402
from mxnet.gluon import nn  # noqa: E402


def normed(outputs: int, size: int, stride: int = 1, active: bool = True) -> list[Any]:
    """Return a convolution, its batch norm, and an activation if there is one."""
    made = [nn.Conv2D(outputs, size, stride, size // 2, use_bias=False), nn.BatchNorm()]
    return [*made, nn.Activation("relu")] if active else made


def sequence(*blocks: Any) -> Any:
    made = nn.HybridSequential()
    made.add(*blocks)
    return made


class Bottleneck(nn.HybridBlock):  # type: ignore[misc,name-defined]
    """A bottleneck with the stride in the middle convolution."""

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        middle = normed(inner, 3, stride)
        self.body = sequence(*normed(inner, 1), *middle, *normed(4 * inner, 1, active=False))
        same = stride == 1 and inputs == 4 * inner
        self.around = None if same else sequence(*normed(4 * inner, 1, stride, active=False))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        around = x if self.around is None else self.around(x)
        return F.relu(self.body(x) + around)


def resnet50() -> Any:
    blocks, inputs = [*normed(64, 7, 2), nn.MaxPool2D(3, 2, 1)], 64
    for inner, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(count):
            blocks.append(Bottleneck(inputs, inner, stride if block == 0 else 1))
            inputs = 4 * inner
    return sequence(*blocks, nn.GlobalAvgPool2D(), nn.Dense(1000))


if case.network != "resnet50" or case.precision != "float32":
    raise SystemExit("network_mxnet.py: expected --network resnet50 in float32")
mx.random.seed(0)  # equal weights on all ranks
net = resnet50()
net.initialize(mx.init.Xavier())
net.hybridize(static_alloc=True, static_shape=True)
loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
store = mx.kv.create("ngd")
options = {"learning_rate": 0.01, "momentum": 0.9}
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", options, kvstore=store)
random = np.random.default_rng(0)
inputs = mx.nd.array(random.normal(size=(case.batch, 3, 224, 224)).astype(np.float32))
labels = mx.nd.array(random.integers(1000, size=case.batch).astype(np.float32))


def steps(count: int) -> None:
    for _ in range(count):
        with mx.autograd.record():
            loss = loss_of(net(inputs), labels)
        loss.backward()
        trainer.step(case.batch * store.num_workers)
    mx.nd.waitall()


report(f"ngd.kvstore.mxnet, MXNet {mx.__version__}", case, steps)
