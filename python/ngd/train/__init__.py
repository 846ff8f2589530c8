# SPDX-License-Identifier: Apache-2.0
"""Training loops: the Trainer, and local SGD and DiLoCo, whose ranks communicate rarely."""

from ..calls import name_calls as _name_calls
from .callbacks import Callback, EarlyStopping
from .local_sgd import DiLoCo, LocalSGD
from .trainer import LOG, StopSignals, Trainer, evaluate

__all__ = [
    "LOG",
    "Callback",
    "DiLoCo",
    "EarlyStopping",
    "LocalSGD",
    "StopSignals",
    "Trainer",
    "evaluate",
]

_name_calls("train", globals(), __all__)
