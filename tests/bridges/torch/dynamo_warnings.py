# SPDX-License-Identifier: Apache-2.0
"""Marks for tests of torch.compile: they ignore PyTorch's warnings about its own code."""

from __future__ import annotations

import pytest

IGNORED = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore::FutureWarning:torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to:UserWarning"),
]
