# SPDX-License-Identifier: Apache-2.0
"""A torch.distributed backend on ngd's collectives, for CPU tensors.

    import ngd.torch
    torch.distributed.init_process_group("ngd")     # also "cpu:ngd"

docs/torch.md tells what it does and what it does not.
"""

from torch.distributed import Backend

from .process_group import ProcessGroup
from .rendezvous import create

__all__ = ["ProcessGroup"]

Backend.register_backend("ngd", create, extended_api=True, devices=["cpu"])
