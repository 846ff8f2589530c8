# SPDX-License-Identifier: Apache-2.0
"""Imports torchvision, timm and transformers, whose own code judges the networks here."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed beside the tests")

# torchvision describes operators of its C++ library when it is imported. Its wheel is built for
# another PyTorch than the one for CPUs and may not load there; its networks use none of them.
LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    with contextlib.suppress(RuntimeError):  # it is there
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def witness(name: str) -> Any:
    """The package, or a skip that names it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed beside the tests")
