# SPDX-License-Identifier: Apache-2.0
"""Optimizers: what makes the next values of variables from their gradients.

    optimizer = ngd.optim.AdamW(ngd.optim.cosine(3e-4, steps=1000), weight_decay=0.1)
    step = ngd.compile([x, y], [loss], updates=optimizer.update(loss, parameters))

All of it is nodes: the learning rate is a variable, or a schedule of a step counter, so that one
compiled step serves a whole training.
"""

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
