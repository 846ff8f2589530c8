# SPDX-License-Identifier: Apache-2.0
"""Horovod's names for Keras, where scripts for TensorFlow look for them."""

from ..keras import *  # noqa: F403
from ..keras import __all__, callbacks  # noqa: F401
