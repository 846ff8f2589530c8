# SPDX-License-Identifier: Apache-2.0
"""The ops: one class per op, with its shape rule, gradient, NumPy reference and samples.

The names of this package are those in the registry: ops that call `register`, and functions that
call `public`. Type checkers read the list of imports, because they do not run programs.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING

from .._util.unknown_names import attribute_errors as _attribute_errors
from ..graph.registry import PUBLIC as _PUBLIC
from ._other_names import OTHER_NAMES as _OTHER_NAMES

if TYPE_CHECKING:
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

_MODULES = (
    "_activation",
    "_activation_functions",
    "_adjoints",
    "_along_axis",
    "_arithmetic",
    "_attention",
    "_casting",
    "_channels_last",
    "_compare",
    "_composite",
    "_concatenation",
    "_contraction",
    "_convolution",
    "_creation",
    "_ctc",
    "_cumulative",
    "_custom",
    "_differences",
    "_elementwise",
    "_exponentials",
    "_gathering",
    "_grids",
    "_grouped_rows",
    "_host",
    "_host_calls",
    "_indexing",
    "_joining",
    "_linear_algebra",
    "_losses",
    "_matmul",
    "_nan_reductions",
    "_normalization",
    "_numeric",
    "_numpy_compositions",
    "_numpy_functions",
    "_operands",
    "_pooling",
    "_precision",
    "_random",
    "_random_draws",
    "_rearrangement",
    "_recurrent",
    "_reductions",
    "_resizing",
    "_rows",
    "_searching",
    "_selection",
    "_shape",
    "_slicing",
    "_softmax",
    "_sorting",
    "_special",
    "_statistics",
    "_transcendental",
    "_trigonometric",
    "_windows",
    "batching.axes",
    "batching.control_flow",
    "batching.gathering",
    "batching.products",
    "batching.random_draws",
    "batching.rewrite",
    "batching.user_functions",
    "collectives.checks",
    "collectives.compression",
    "collectives.exchanges",
    "collectives.groups",
    "collectives.point_to_point",
    "collectives.reductions",
    "control.bodies",
    "control.body_analysis",
    "control.branches",
    "control.iteration",
    "control.loops",
    "control.tracing",
)
"""The modules that fill the registry when they are imported."""

for _module in _MODULES:
    _import(f"{__name__}.{_module}")

globals().update(_PUBLIC)
__all__ = sorted(_PUBLIC)

if not TYPE_CHECKING:  # type checkers report the name themselves
    __getattr__ = _attribute_errors(__name__, __all__, "ops", _OTHER_NAMES)
