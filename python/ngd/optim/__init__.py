# SPDX-License-Identifier: Apache-2.0
"""Optimizers, learning rate schedules and averages.

    optimizer = ngd.optim.AdamW(ngd.optim.cosine(3e-4, steps=1000), weight_decay=0.1)

    @ngd.function(updates=True)
    def step(x, y):
        loss = ops.mean(ops.softmax_cross_entropy(model(x), y))
        return loss, optimizer.minimize(loss, model.parameters())

An optimizer makes nodes of the graph. With `updates=True`, the function returns a pair: its result,
and a dict from each variable to the value that the step assigns to it. The learning rate is a
variable, or a schedule (a function of the number of updates so far). So it can change during the
training, and the step is not compiled again.
"""

from .._util.signature_errors import check_public_names as _check_public_names
from .adaptive import Adagrad, Adam, AdamW, RMSprop
from .averaging import ExponentialMovingAverage
from .clipping import clip_by_global_norm, global_norm
from .large_batch import LAMB, LARS
from .lion import Lion
from .loss_scale import LossScale
from .muon import Muon
from .optimizer import Optimizer, ParameterGroup, State, is_vector
from .schedules import constant, cosine, linear_scaling, polynomial, steps, warm_up
from .sgd import SGD

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "ExponentialMovingAverage",
    "Lion",
    "LossScale",
    "Muon",
    "Optimizer",
    "ParameterGroup",
    "RMSprop",
    "State",
    "clip_by_global_norm",
    "constant",
    "cosine",
    "global_norm",
    "is_vector",
    "linear_scaling",
    "polynomial",
    "steps",
    "warm_up",
]

_check_public_names(globals())
