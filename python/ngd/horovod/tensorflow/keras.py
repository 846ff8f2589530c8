# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for Keras, under the name `horovod.tensorflow.keras` of TensorFlow scripts."""

from ..keras import *  # noqa: F403
from ..keras import __all__, callbacks  # noqa: F401
