# SPDX-License-Identifier: Apache-2.0
"""The broadcast of rank 0's parameters and buffers to the models of all ranks.

CompiledStep does this broadcast once, when the step is created.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import nn

from ..._util.callsite import call_site
from ...comm import Group
from ...devices.cpu.rank_comparison import differing_ranks, ranks_text
from ...errors import VariableMismatchError
from .memory import as_tensor
from .rules.registry import as_array


def broadcast_model(where: str, model: nn.Module, group: Group) -> None:
    """Copy the parameters and buffers of rank 0 to the models of all ranks.

    Raises
    ------
    VariableMismatchError
        The models differ in the names, shapes or dtypes of their tensors.
    """
    if group.size == 1:
        return
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    description = [(path, tuple(t.shape), str(t.dtype)) for path, t in tensors.items()]
    digest = hashlib.blake2b(repr(description).encode(), digest_size=8).digest()
    site = call_site()
    with group.collectives_scope(), torch.no_grad():
        (odd,) = differing_ranks(group, [digest], site)
        if odd:
            raise VariableMismatchError(
                f"{where}: expected one model on all ranks; got other names, shapes or dtypes of "
                f"parameters on {ranks_text(odd)}. Build the same model on all ranks."
            )
        for tensor in tensors.values():
            if tensor.numel():
                values = np.ascontiguousarray(as_array(tensor))
                received = group.broadcast(values, root=0, site=site)
                tensor.copy_(as_tensor(received).reshape(tensor.shape))
