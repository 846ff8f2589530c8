# SPDX-License-Identifier: Apache-2.0
"""Training loops: the Trainer, and local SGD and DiLoCo, whose ranks communicate rarely."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .._util.signature_errors import name_calls as _name_calls
from .._util.unknown_names import attribute_errors as _attribute_errors
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

_name_calls("train", globals(), __all__)

if not _TYPE_CHECKING:  # type checkers report the name themselves
    __getattr__ = _attribute_errors(__name__, __all__, "api/train")
