# SPDX-License-Identifier: Apache-2.0
"""Train neural networks on many CPU processes: a compiler in which the collective is an op."""

from . import errors, ops
from .autodiff import grad
from .compiler import Executable, compile
from .distributed import (
    Group,
    all_reduce,
    barrier,
    broadcast,
    broadcast_variables,
    build_info,
    init,
    shutdown,
)
from .dtype import (
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
from .ir import Graph, Node
from .variable import Variable, constant, placeholder, variable

__version__ = str(build_info()["version"])

__all__ = [
    "Executable",
    "Graph",
    "Group",
    "Node",
    "Variable",
    "__version__",
    "all_reduce",
    "barrier",
    "bfloat16",
    "bool_",
    "broadcast",
    "broadcast_variables",
    "build_info",
    "compile",
    "constant",
    "errors",
    "float16",
    "float32",
    "float64",
    "grad",
    "init",
    "int8",
    "int16",
    "int32",
    "int64",
    "ops",
    "placeholder",
    "shutdown",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "variable",
]
