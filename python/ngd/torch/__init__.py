# SPDX-License-Identifier: Apache-2.0
"""PyTorch on ngd: the backend "ngd" of torch.distributed, for CPU tensors.

    import ngd.torch
    torch.distributed.init_process_group("ngd")     # also "cpu:ngd"

docs/torch.md describes what it does.
"""

from .distributed import ProcessGroup

__all__ = ["ProcessGroup"]
