# SPDX-License-Identifier: Apache-2.0
"""The ops, one block each: what it means, its gradient, its slow reference, its samples.

The names that stand here are those that the families' files make public: by `register` those of the
ops, by `public` those of functions that are made of ops. For programs that only read this, the
families are named once more.
"""

from importlib import import_module as _import
from pkgutil import iter_modules as _files
from typing import TYPE_CHECKING

from .._util.unknown_names import attribute_errors as _attribute_errors
from ..graph.ir import PUBLIC as _PUBLIC
from .other_names import OTHER_NAMES as _OTHER_NAMES

if TYPE_CHECKING:
    from .activation import *
    from .activation_functions import *
    from .along_axis import *
    from .arithmetic import *
    from .casting import *
    from .collective import *
    from .compare import *
    from .compression import *
    from .contraction import *
    from .control import *
    from .convolution import *
    from .creation import *
    from .ctc import *
    from .cumulative import *
    from .differences import *
    from .exchange import *
    from .exponentials import *
    from .grids import *
    from .grouped_rows import *
    from .indexing import *
    from .iteration import *
    from .joining import *
    from .linear_algebra import *
    from .loops import *
    from .loss import *
    from .losses import *
    from .matrix_multiply import *
    from .nan_reductions import *
    from .norm import *
    from .numeric import *
    from .operands import *
    from .ordering import *
    from .pool import *
    from .random import *
    from .random_draws import *
    from .rearrange import *
    from .recurrent import *
    from .reductions import *
    from .resizing import *
    from .scaled_dot_product import *
    from .searching import *
    from .selection import *
    from .shape import *
    from .special import *
    from .statistics import *
    from .transcendental import *
    from .trigonometric import *

for _file in _files(__path__):
    _import(f"{__name__}.{_file.name}")

globals().update(_PUBLIC)
__all__ = sorted(_PUBLIC)

if not TYPE_CHECKING:  # type checkers report the name themselves
    __getattr__ = _attribute_errors(__name__, __all__, "ops", _OTHER_NAMES)
