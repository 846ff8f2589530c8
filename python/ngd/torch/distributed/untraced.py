# SPDX-License-Identifier: Apache-2.0
"""A decorator that keeps torch.compile out of the methods of this package.

torch.compile divides a function into graphs and the Python code between them. While this Python
code runs, torch.compile tries to compile every Python function that is called. One of these can be
a method of this package that PyTorch's C++ code calls. The methods hold addresses and handles of
the C++ core, so they cannot be part of a graph.

torch.compiler.disable would exclude the methods, but it imports the compiler, which takes seconds,
and it makes each call slower. This decorator instead sets the two marks that torch.compile reads
before it compiles a function: an attribute of the function, and a strategy for its bytecode
("skip"). To set them does not import the compiler.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

from torch._C._dynamo import eval_frame

Class = TypeVar("Class", bound=type)


def exclude_from_tracing(cls: Class) -> Class:
    """Exclude the methods of a class, and all functions that they call, from torch.compile.

    An older PyTorch lacks `set_code_exec_strategy`, by which functions are excluded together with
    the functions that they call. There, only the methods themselves are excluded, and torch.compile
    may still compile functions that the methods call.
    """
    methods = [method for method in vars(cls).values() if isinstance(method, FunctionType)]
    for method in methods:
        method.__dict__["_torchdynamo_disable"] = True  # do not include it in a graph
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip = eval_frame._FrameAction.SKIP
        for method in methods:  # skip the method and all functions that it calls
            strategy = eval_frame._FrameExecStrategy(skip, skip)
            eval_frame.set_code_exec_strategy(method.__code__, strategy)
    return cls
