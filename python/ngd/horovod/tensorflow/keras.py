# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for Keras: `ngd.horovod.keras` under the module name that TensorFlow scripts use.

Replace `import horovod.tensorflow.keras as hvd` by `import ngd.horovod.tensorflow.keras as hvd`.
"""

from ..keras import *  # noqa: F403
from ..keras import __all__, callbacks  # noqa: F401
