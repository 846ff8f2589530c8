# SPDX-License-Identifier: Apache-2.0
"""A decorator that keeps torch.compile out of the methods of this package.

While a compiled function runs code that is not part of its graphs, torch.compile tries to compile
every Python function that is called. These include the methods that PyTorch's C++ code calls in
this package. They hold addresses and handles of the C++ core, so they cannot be part of a graph.
torch.compiler.disable would exclude them, but it imports the compiler, which takes seconds, and it
makes each call slower. This decorator marks the methods and their bytecode as skipped (`eval_frame`
of PyTorch), which does not import the compiler.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

from torch._C._dynamo import eval_frame

Class = TypeVar("Class", bound=type)


def exclude_from_tracing(cls: Class) -> Class:
    """Exclude the methods of a class, and all functions that they call, from torch.compile.

    An older PyTorch lacks `set_code_exec_strategy`. Then the methods are not part of graphs, but
    torch.compile may still compile functions that they call.
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
