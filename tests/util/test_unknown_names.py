# SPDX-License-Identifier: Apache-2.0
"""Tests that an unknown name of a module raises an error that suggests the right name."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

import ngd
from ngd import checkpoint, data, metrics, nn, ops, optim, train, trees

MODULES = (ngd, checkpoint, data, metrics, nn, ops, optim, train, trees)


@pytest.mark.parametrize(
    ("module", "name", "fix"),
    [
        (ngd, "optm", "Did you mean ngd.optim?"),
        (checkpoint, "sav", "Did you mean checkpoint.save?"),
        (data, "DataLoader", "Did you mean data.Loader?"),
        (nn, "LayerNorn", "Did you mean nn.LayerNorm?"),
        (nn, "relu", "Did you mean nn.ReLU?"),
        (ops, "sofmax", "Did you mean ops.softmax?"),
        (ops, "unsqueeze", "Use ops.expand_dims."),
        (optim, "adam", "Did you mean optim.Adam?"),
        (train, "Traner", "Did you mean train.Trainer?"),
        (trees, "flaten", "Did you mean trees.flatten?"),
    ],
)
def test_an_unknown_name_suggests_the_name_to_use(module: ModuleType, name: str, fix: str) -> None:
    with pytest.raises(AttributeError, match=rf"got '{name}', .*\. {re.escape(fix)}$"):
        getattr(module, name)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_name_without_a_similar_one_suggests_the_list(module: ModuleType) -> None:
    with pytest.raises(AttributeError, match=r"See the list at https://.*/(api/\w+|ops)/$"):
        _ = module.xyzzyquux


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_private_name_raises_the_standard_error(module: ModuleType) -> None:
    with pytest.raises(AttributeError, match=rf"^module '{module.__name__}' has no attribute"):
        _ = module.__nothing__
    assert not hasattr(module, "_nothing")
