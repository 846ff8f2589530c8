# SPDX-License-Identifier: Apache-2.0
"""The ops: one class per op, with its shape rule, gradient, NumPy reference and test samples.

This file imports the names in `__all__` of the modules below. They are the public names, such as
`ops.relu`. The dict PUBLIC in ngd/graph/registry.py has the same names. The function `register`
adds a public op to this dict. The decorator `public` adds a public function that calls ops.
"""

from typing import TYPE_CHECKING

from .._util.unknown_names import attribute_errors as _attribute_errors
from ..graph.registry import PUBLIC as _PUBLIC
from . import _channels_last, _numpy_functions  # for the entries that they make in the registry
from ._activation import *
from ._activation_functions import *
from ._along_axis import *
from ._arithmetic import *
from ._attention import *
from ._casting import *
from ._compare import *
from ._concatenation import *
from ._contraction import *
from ._convolution import *
from ._creation import *
from ._ctc import *
from ._cumulative import *
from ._differences import *
from ._exponentials import *
from ._gathering import *
from ._grids import *
from ._grouped_rows import *
from ._indexing import *
from ._joining import *
from ._linear_algebra import *
from ._losses import *
from ._matmul import *
from ._nan_reductions import *
from ._normalization import *
from ._numeric import *
from ._operands import *
from ._other_names import OTHER_NAMES as _OTHER_NAMES
from ._pooling import *
from ._random import *
from ._random_draws import *
from ._rearrangement import *
from ._recurrent import *
from ._reductions import *
from ._resizing import *
from ._searching import *
from ._selection import *
from ._shape import *
from ._slicing import *
from ._softmax import *
from ._sorting import *
from ._special import *
from ._statistics import *
from ._transcendental import *
from ._trigonometric import *
from .collectives.compression import *
from .collectives.exchanges import *
from .collectives.point_to_point import *
from .collectives.reductions import *
from .control.branches import *
from .control.iteration import *
from .control.loops import *
from .control.tracing import *

if not TYPE_CHECKING:  # type checkers take the public names from the imports above
    __all__ = sorted(_PUBLIC)
    __getattr__ = _attribute_errors(__name__, __all__, "ops", _OTHER_NAMES)


def __dir__() -> list[str]:
    """Return the names of the public ops for dir(ngd.ops), without the names of submodules."""
    return sorted(_PUBLIC)
