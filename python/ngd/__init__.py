# SPDX-License-Identifier: Apache-2.0
"""A library that trains neural networks on many CPU processes.

Its compiler treats a collective as an op of the graph.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING, Any

from . import errors, logs, metrics, ops, trees
from ._util.signature_errors import name_calls as _name_calls
from ._util.unknown_names import attribute_errors as _attribute_errors
from .comm import CallStats, CommStats, Group, Mesh, TopK, Work, comm_stats
from .comm.calls import (
    all_gather,
    all_gather_v,
    all_reduce,
    all_to_all,
    all_to_all_v,
    barrier,
    broadcast,
    build_info,
    gather,
    join,
    reduce,
    reduce_scatter,
    scatter,
)
from .comm.membership import newcomers
from .comm.mesh import make_mesh
from .comm.point_to_point import recv, send
from .comm.world import call_after_joining as _call_after_joining
from .comm.world import init, is_initialized, raise_together, rank, shutdown, world_size
from .compiler.driver import compile
from .compiler.functions import Function, function
from .devices.executable import Executable
from .dtypes import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from .graph.graph import Graph
from .graph.live_state import LiveState
from .graph.node import Node
from .graph.precision_marks import full_precision
from .graph.variable import Variable, broadcast_variables, constant, placeholder, variable
from .ops._host_calls import call_host, print
from .profiling import Peaks, Recording, Report, Row, profile, timeline
from .transforms.custom import custom_gradient
from .transforms.forward_reverse import jvp, vjp
from .transforms.gradient import grad, value_and_grad
from .transforms.jacobians import hessian, jacobian
from .transforms.rematerialisation import remat
from .transforms.vectorization import vmap

if TYPE_CHECKING:
    from . import checkpoint, data, nn, optim, train

__version__ = str(build_info()["version"])

__all__ = [
    "CallStats",
    "CommStats",
    "Executable",
    "Function",
    "Graph",
    "Group",
    "LiveState",
    "Mesh",
    "Node",
    "Peaks",
    "Recording",
    "Report",
    "Row",
    "TopK",
    "Variable",
    "Work",
    "__version__",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "barrier",
    "bfloat16",
    "bool_",
    "broadcast",
    "broadcast_variables",
    "build_info",
    "call_host",
    "checkpoint",
    "comm_stats",
    "compile",
    "constant",
    "custom_gradient",
    "data",
    "errors",
    "float16",
    "float32",
    "float64",
    "full_precision",
    "function",
    "gather",
    "grad",
    "hessian",
    "init",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_initialized",
    "jacobian",
    "join",
    "jvp",
    "logs",
    "make_mesh",
    "metrics",
    "newcomers",
    "nn",
    "ops",
    "optim",
    "placeholder",
    "print",
    "profile",
    "raise_together",
    "rank",
    "recv",
    "reduce",
    "reduce_scatter",
    "remat",
    "scatter",
    "send",
    "shutdown",
    "timeline",
    "train",
    "trees",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "value_and_grad",
    "variable",
    "vjp",
    "vmap",
    "world_size",
]

_unknown_name = _attribute_errors(__name__, __all__, "api/ngd")


def __getattr__(name: str) -> Any:
    """Import `checkpoint`, `data`, `nn`, `optim` or `train` when the program first uses it.

    Raise AttributeError for another name.
    """
    if name in ("checkpoint", "data", "nn", "optim", "train"):
        return _import(f"{__name__}.{name}")
    return _unknown_name(name)


logs.begin()
_call_after_joining(metrics.begin)
_name_calls("ngd", globals(), __all__)
