# SPDX-License-Identifier: Apache-2.0
"""PyTorch on ngd: compiled training steps of PyTorch models, and a backend of torch.distributed.

    import ngd.torch
    step = ngd.torch.compile_step(model, loss, optimizer)    # forward, backward, update: a program
    torch.distributed.init_process_group("ngd")              # collectives of CPU tensors

docs/torch.md describes what they do.
"""

from .compiled import CompiledStep, Coverage, compile_step
from .distributed import ProcessGroup

__all__ = ["CompiledStep", "Coverage", "ProcessGroup", "compile_step"]
