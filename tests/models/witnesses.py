# SPDX-License-Identifier: Apache-2.0
"""Imports of torchvision, timm and transformers, which tests compare ngd's networks with."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed beside the tests")

# torchvision describes operators of its C++ library when it is imported. Its wheel is built for
# a PyTorch with CUDA and may not load beside the CPU version. Its networks use no such operator.
LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    with contextlib.suppress(RuntimeError):  # already defined
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def witness(name: str) -> Any:
    """Return a package, or skip the test with a message that names the package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed beside the tests")
