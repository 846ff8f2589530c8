# SPDX-License-Identifier: Apache-2.0
"""What torch.compile does not look into.

While a compiled function runs what is in none of its graphs, torch.compile wants to compile every
Python function that is called, also the methods that PyTorch's C++ calls here. These have addresses
and handles of the engine in them, and belong into no graph. torch.compiler.disable would say so,
but it loads the compiler, which takes seconds, and makes each call slower. So this tells PyTorch's
hook in the interpreter, which is there without the compiler.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

from torch._C._dynamo import eval_frame

Class = TypeVar("Class", bound=type)


def untraced(cls: Class) -> Class:
    """A class whose methods, and all that they call, torch.compile leaves alone.

    An older PyTorch has no such hook: it only keeps them out of graphs.
    """
    methods = [method for method in vars(cls).values() if isinstance(method, FunctionType)]
    for method in methods:
        method.__dict__["_torchdynamo_disable"] = True  # where a graph would take it in
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip = eval_frame._FrameAction.SKIP
        for method in methods:  # skip it, and what it calls
            strategy = eval_frame._FrameExecStrategy(skip, skip)
            eval_frame.set_code_exec_strategy(method.__code__, strategy)
    return cls
