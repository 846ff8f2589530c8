# SPDX-License-Identifier: Apache-2.0
"""PyTorch on ngd: compiled training steps, and a backend of torch.distributed.

    import ngd.torch
    step = ngd.torch.compile_step(model, loss, optimizer)    # forward, backward and update
    torch.distributed.init_process_group("ngd")              # collectives of CPU tensors

docs/torch_models.md describes the compiled steps, and docs/torch.md the backend.
"""

from typing import TYPE_CHECKING, Any

from .distributed import ProcessGroup

if TYPE_CHECKING:
    from .compiled import CompiledStep, Coverage, compile_step

__all__ = ["CompiledStep", "Coverage", "ProcessGroup", "compile_step"]


def __getattr__(name: str) -> Any:
    """Import the compiled steps on first use, because the import of torch.export takes a second."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import compiled

    return getattr(compiled, name)
