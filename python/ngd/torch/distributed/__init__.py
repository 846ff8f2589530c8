# SPDX-License-Identifier: Apache-2.0
"""The backend "ngd" of torch.distributed. Its import registers the backend."""

from torch.distributed import Backend

from .process_group import ProcessGroup
from .rendezvous import create

__all__ = ["ProcessGroup"]

Backend.register_backend("ngd", create, extended_api=True, devices=["cpu"])
