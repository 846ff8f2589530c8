# SPDX-License-Identifier: Apache-2.0
"""Training loops: the Trainer, and local SGD and DiLoCo, whose ranks communicate rarely."""

from .._util.signature_errors import check_public_names as _check_public_names
from .callbacks import Callback, EarlyStopping
from .local_sgd import DiLoCo, LocalSGD
from .stop_signals import StopSignals
from .trainer import LOG, Trainer, evaluate

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

_check_public_names(globals())
